"""The model card, written from a run's folder: what the Hub reads of it, what a reader needs, and
nothing of this machine."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from PIL import Image

import ssl_vit
from helpers.hub_runs import REPO, pushed
from helpers.hub_server import Hub
from helpers.measurements import measurements
from helpers.options import ROOT
from helpers.reports import table
from ssl_vit.hub import card, public, push
from ssl_vit.models import encoder, weights
from ssl_vit.recipe import declaration
from ssl_vit.recipe.records.run import Result, SeenImages, Trunk
from ssl_vit.runs.folder import Run
from ssl_vit.stats import wilson_interval


def result_of(run: Run) -> Result:
    result = run.result()
    assert result
    return result


def written(run: Run, **metrics: float) -> str:
    """The card of a run, with these values in its result."""
    result = result_of(run)
    if metrics:
        result.measured_on = {"validation": 10_000}
        changes = {
            name: {"value": value, "split": "validation", "n": 10_000}
            for name, value in metrics.items()
        }
        changed = {one.key: one for one in (*result.measurements, *measurements(changes))}
        result.measurements = [
            record.with_interval(result.measured_on) for record in changed.values()
        ]
    run.finish(result)
    return card.render(run, run.export)


def test_the_card_says_what_a_reader_needs(server: Hub, run: Run, tmp_path: Path) -> None:
    push.push(run)
    files = pushed(server)
    text = files["README.md"].decode()
    parts = ["Load it", "Objective", "Data", "Results", "Recipe", "Compute", "Limits", "Citation"]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == parts
    assert f'timm.create_model("hf-hub:{REPO}", pretrained=True)' in text
    assert f"init=hf-hub:{REPO}" in text and "(Dosovitskiy et al., 2021, section 4.6" in text
    values = dict(table(text, "key")[1:])
    assert (values["`target`"], values["`corruption.rate`"]) == ("mean_color", "0.5")
    result = result_of(run)
    found, images = result.metrics["accuracy_masked"], (result.measured_on or {})["validation"]
    assert images < (found.n or 0)  # patches of one image are alike: as of so many images
    rows = table(text, f"{images:,} held-out images")
    low, high = (100 * end for end in wilson_interval(found.value, images))
    value = f"{found.value:.2%} ({low:.2f} to {high:.2f})"
    assert {row[1] for row in rows if row[0].startswith("accuracy masked, against")} == {value}
    for content in files.values():
        assert str(tmp_path).encode() not in content and str(ROOT).encode() not in content


def test_the_card_says_which_of_its_images_were_seen_before(run: Run) -> None:
    """The letters of a shape stood there, and the caution did not."""
    result = result_of(run)
    counts = {"of": {"test": 100}, "images": {"test": 80}, "labels": {"test": 80}}
    result.seen = [SeenImages(run="earlier", **counts)]
    run.finish(result)
    bold = re.findall(r"^\*\*(.*)\*\*$", card.render(run, run.export), re.MULTILINE)
    assert (
        any(line.startswith("another run was trained on 80 of 100") for line in bold)
        and min(map(len, bold)) > 9
    )


def test_the_front_matter_is_what_the_hub_reads(run: Run) -> None:
    run.recipe.init = f"hf-hub:another/vit@{'0' * 40}"
    about = ModelCard(written(run, accuracy_masked=0.25)).data
    assert (about.library_name, about.pipeline_tag) == ("timm", "image-feature-extraction")
    assert about.base_model == "another/vit" and about.datasets is None
    results = {one.metric_name: one for one in about.eval_results or []}
    accuracy = results["accuracy_masked"]
    assert (accuracy.metric_value, accuracy.metric_type) == (0.25, "accuracy")
    assert {(one.dataset_name, one.dataset_split) for one in results.values()} == {
        ("shapes", "validation")
    }
    assert not {"entropy", "commonest", "neighbors", "corrupted"} & results.keys()


@pytest.mark.parametrize(
    ("neighbors", "verdict"),
    [(0.2, "yes"), (0.4, "no"), (0.301, "not known")],
)
def test_the_card_says_whether_the_baselines_are_beaten(
    run: Run, neighbors: float, verdict: str
) -> None:
    """A baseline is no result of the model's; always the commonest class has no interval."""
    values = {"loss_masked": 2.5, "accuracy_masked": 0.3, "entropy": 3.1, "commonest": 0.1}
    text = written(run, **values, neighbors=neighbors, top1=0.4, majority_top1=0.1)
    head, *rows = table(text, "10,000 held-out images")
    assert head[1:] == ["this run", "baseline", "better than the baseline"]
    by_baseline = {row[2].partition(" (")[2]: row for row in rows if row[2]}
    own = by_baseline["the neighbours' mean)"]
    assert (
        own[0].startswith("accuracy masked, against")
        and own[1].startswith("30.00% (")
        and own[3] == verdict
    )
    top1 = by_baseline["the commonest class)"]
    assert top1[0] == "top-1" and top1[2] == "10.00% (the commonest class)"
    names = {row[0] for row in rows}
    assert not {"entropy", "commonest", "neighbors", "corrupted", "majority_top1"} & names


def test_a_card_repeats_what_its_run_needs_and_tells_no_place_of_this_machine(run: Run) -> None:
    command = "accelerate launch tools/pretrain.py recipe=recipe.yaml name=again\n"
    assert command in card.render(run, run.export)
    recipe = run.recipe
    recipe.data.path, recipe.plugin = "/home/me/images", "/home/me/own.py"
    recipe.init, recipe.objective = "/home/me/runs/first", "supervised"
    recipe.groups["supervised"] = ssl_vit.resolve(recipe="supervised").supervised
    text = card.render(run, run.export)
    needs = "data.path=IMAGES init=WEIGHTS plugin=FILE"
    assert f"tools/finetune.py recipe=recipe.yaml name=again {needs}\n" in text
    assert "first" not in text and "/home" not in text
    shown = public.public_recipe(recipe)
    assert (shown.out, shown.data.path, shown.plugin) == ("runs", None, None)
    assert (shown.init, shown.hub.repo) == (public.LOCAL, None)
    assert recipe.data.path == "/home/me/images"


OWN_MACHINE = "a copy on the author's machine"
TERMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "drawn": ({}, "drawn by ssl_vit from a seed.", "Apache-2.0"),
    "the Hub's": (
        {"name": "cifar10", "hub": "uoft-cs/cifar10"},
        "from uoft-cs/cifar10 on the Hub",
        "Krizhevsky, Alex",
    ),
    "a copy": (
        {"name": "cifar10", "hub": "uoft-cs/cifar10", "path": "/home/me/cifar10"},
        f"read from {OWN_MACHINE} and not from uoft-cs/cifar10 on the Hub.",
        "The authors state no licence, but ask to be cited",
    ),
    "one's own": (
        {"name": "cifar10", "path": "/home/me/cifar10"},
        f"read from {OWN_MACHINE}. Split `validation` was held out",
        "does not know the terms of use of these images. Ask the owner.",
    ),
    "shares": (
        {"share": 0.1, "test": 0.2},
        "from a seed; 10.0% of the images were used for training; 20.0% of the images were kept for",
        "Apache-2.0",
    ),
    "another's": (
        {"name": "me--pics", "hub": "me/pics"},
        "me/pics on the Hub",
        "See https://huggingface.co/datasets/me/pics.",
    ),
}


@pytest.mark.parametrize(("data", "source", "terms"), TERMS.values(), ids=TERMS)
def test_the_card_says_where_images_are_from_and_their_terms(
    run: Run, data: dict[str, Any], source: str, terms: str
) -> None:
    """A set of the Hub is claimed only where its images came from there."""
    for key, value in data.items():
        setattr(run.recipe.data, key, value)
    text = card.render(run, run.export)
    assert source in text and terms in text
    assert ("datasets:" in text.split("---")[1]) is (bool(data.get("hub")) and "path" not in data)


def test_a_users_text_means_nothing_in_markdown(run: Run) -> None:
    run.recipe.data.name = run.recipe.name = "pics|<b>x`y` # [z](javascript:1)"
    text = card.render(run, run.export)
    shown = text.split("---", 2)[2]
    assert "<b>" not in shown and "\n# [z]" not in shown and "z](" not in shown
    escaped = "pics&#124;&lt;b>x\\`y\\` # \\[z\\](javascript:1)"
    assert f"# {escaped}\n" in shown and f"| `data.name` | {escaped} |" in shown
    assert yaml.safe_load(text.split("---")[1])["model-index"][0]["name"] == run.recipe.name


@pytest.mark.parametrize("classes", [[], ["cat", "dog", "newt"]], ids=["encoder", "classifier"])
def test_the_cards_snippets_run_and_give_the_shapes_that_they_say(
    run: Run, tmp_path: Path, classes: list[str]
) -> None:
    Image.new("RGB", (50, 40)).save(tmp_path / "image.jpg")
    if classes:
        model, data = run.recipe.model, run.recipe.data
        heads = {"head.weight": torch.ones(3, 32), "head.bias": torch.ones(3)}
        net = encoder.build_encoder(model, data)
        weights.export(run.export, net, heads, model, data, "token", classes)
    name, shape = ("logits", "(1, 3)") if classes else ("feature", "(1, 32)")
    text = card.render(run, run.export)
    assert ("AutoModelForImageClassification" in text) is bool(classes)
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        here = snippet.replace(f"hf-hub:{REPO}", f"local-dir:{run.export}")
        here = here.replace(REPO, str(run.export)).replace("image.jpg", f"{tmp_path}/image.jpg")
        seen: dict[str, Any] = {}
        exec(here, seen)
        assert str(tuple(seen[name].shape)) == shape and snippet.count(f"# {shape}\n") == 1
        assert "image" not in seen or f"# {tuple(seen['image'].shape)}\n" in snippet


def test_the_cost_of_a_run_that_went_on_from_another_is_of_its_own_steps(run: Run) -> None:
    took = {"steps": 10, "images": 80, "exaflop": 2.0, "device_hours": 1, "total_device_hours": 5}
    trunk = Trunk(run="long", step=8)
    run.finish(result_of(run).model_copy(update=took | {"trunk": trunk}))
    text = card.render(run, run.export)
    assert "10 steps on 80 images. Another run made the first 8 steps. The other steps took" in text
    assert (
        "(2 exaFLOP, 1 device-hours). The initial weights and the first steps took another 4 device-hours"
        in text
    )


@pytest.mark.parametrize(
    ("validation", "held_out"),
    [(None, "A part"), (0.1, "A part"), (0, "Nothing"), ("val", "Split `val`")],
)
def test_what_was_held_out_is_said(run: Run, validation: object, held_out: str) -> None:
    """ "Nothing" of a run that measured on held-out images, as data.validation=null does."""
    run.recipe.data.validation = validation  # type: ignore[assignment]
    text = f". {held_out} was held out for evaluation during training."
    assert text in card.render(run, run.export)


CITED = {
    "mpp": [],
    "supervised": [],
    "joint": [],
    "mae": ["he2022masked"],
    "ijepa": ["assran2023self"],
    "moco_v3": ["chen2021empirical"],
    "dino": ["caron2021emerging"],
    "ibot": ["zhou2022ibot"],
    "lejepa": ["balestriero2025lejepa"],
    "distill": ["ranzinger2024amradio"],
}


def test_the_paper_of_the_objective_is_cited_first(run: Run) -> None:
    """A run of MAE cited the Vision Transformer alone."""
    assert CITED.keys() == declaration.objectives().keys() - {"probe"}
    targets = {"hog": ["wei2022masked"], "teacher": ["baevski2022data2vec"], "mean_color": []}
    cases = [(name, "mean_color", keys) for name, keys in CITED.items()]
    cases += [("mpp", name, keys) for name, keys in targets.items()]
    cases.append(("mae", "hog", ["he2022masked", "wei2022masked"]))
    for objective, target, keys in cases:
        run.recipe.objective, run.recipe.target = objective, target
        run.recipe.groups.pop("supervised", None)
        text = card.render(run, run.export).partition("## Citation")[2]
        found = re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)
        assert found == [*keys, "dosovitskiy2021image"], objective
        assert text.count("{") == text.count("}")
