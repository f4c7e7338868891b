"""Distillation: loss and gradients against a plain implementation in float64, what the teacher sees,
and which teacher a run has had: by its weights, its images and its cost."""

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import ssl_vit
from helpers.encoders import net, pixels
from helpers.exactness import (
    Unbroken,
    assert_a_killed_run_ends_as,
    assert_is_plain,
)
from helpers.exports import of_timm
from helpers.hub_runs import refused
from helpers.images import put
from helpers.options import SHORT, TINY, TUNE, altered
from helpers.resolving import resolve
from helpers.runs import assert_same_end, cut_off, result, run
from helpers.self_distillation import plain_tokens
from helpers.view_batches import image_batch
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli
from ssl_vit.objectives.distill.network import Distillation, resize
from ssl_vit.recipe.schema import Data, Model, without_private
from ssl_vit.runs.identity import recipe_hash
from ssl_vit.training import optim

STUDENT = Model(patch=4, width=32, depth=2, heads=4, mlp=64)
CASES = [
    # patch and image of the teacher, its feature, the loss, the weight of the patches
    (4, 16, "token", "cosine", None),
    (8, 32, "avg", "smooth_l1", 0.3),
    (8, 16, "token", "smooth_l1", None),
    (4, 16, "avg", "cosine", 0.0),
]


def made(
    patch: int, size: int, pool: str, loss: str, patches: float | None, depth: int = 3
) -> Distillation:
    model = Model(patch=patch, width=48, depth=depth, heads=3, mlp=96)
    teacher = net(model, Data(size=size, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.25]), seed=1)
    return Distillation(net(STUDENT), teacher, pool, loss, patches)


def plain_teacher(objective: Distillation, images: Tensor) -> tuple[Tensor, Tensor]:
    """The feature of each image, and of its patches."""
    teacher = objective.teacher.encoder
    if teacher.data.size == 32:
        images = torch.nn.functional.interpolate(images.double(), scale_factor=2, mode="bilinear")
    h = plain_tokens(teacher, images.round())
    return h[:, 0] if objective.pool == "token" else h[:, 1:].mean(1), h[:, 1:]


def plain_distance(predicted: Tensor, wanted: Tensor, loss: str) -> Tensor:
    if loss == "cosine":
        inner = (predicted * wanted).sum(-1)
        return 1 - inner / predicted.norm(dim=-1) / wanted.norm(dim=-1)
    centred = wanted - wanted.mean(-1, keepdim=True)
    away = predicted - centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return torch.where(away.abs() < 1, away**2 / 2, away.abs() - 0.5).mean(-1)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_a_plain_implementation(case: tuple) -> None:
    objective, given = made(*case), image_batch(5)
    parts: dict[str, Tensor] = {}
    weight = case[4]

    def loss(plain: Distillation) -> Tensor:
        token, patch = plain_teacher(plain, given.image)
        h = plain_tokens(plain.encoder, given.image)
        parts["token_loss"] = plain_distance(plain.token_head(h[:, 0]), token, case[3]).mean()
        if case[:2] == (8, 16) or weight == 0:  # of it the grids are 4 x 4 and 2 x 2
            return parts["token_loss"]
        parts["patch_loss"] = plain_distance(plain.patch_head(h[:, 1:]), patch, case[3]).mean()
        return parts["token_loss"] + (1 if weight is None else weight) * parts["patch_loss"]

    metrics = assert_is_plain(objective, given, loss)
    assert metrics.keys() == {"loss", *parts}
    for name, part in parts.items():
        total, count = metrics[name]
        assert float(total / count) == pytest.approx(part.item(), rel=1e-6), name


@pytest.mark.parametrize("case", CASES[:2])
def test_the_baseline_is_the_mean_of_what_the_teacher_gives_training_images(case: tuple) -> None:
    objective, given = made(*case), image_batch(5)
    objective.fit_baselines([given, given.map(lambda x: x[:2])])
    plain = deepcopy(objective).double()
    token, patch = plain_teacher(plain, given.image)
    twice = torch.tensor([2, 2, 1, 1, 1.0]).double()
    wanted = {}
    for name, one in (("mean_token_loss", token), ("mean_patch_loss", patch)):
        unit = one / one.norm(dim=-1, keepdim=True)
        if case[3] == "smooth_l1":
            unit = torch.nn.functional.layer_norm(one, one.shape[-1:])
        each = unit if unit.ndim == 2 else unit.mean(1)
        mean = (twice[:, None] * each).sum(0) / twice.sum()
        wanted[name] = plain_distance(mean.expand_as(one), one, case[3]).mean().item()
    found = {name: float(a / b) for name, (a, b) in objective.baselines(given).items()}
    weight = 1 if case[4] is None else case[4]
    wanted["mean_loss"] = wanted["mean_token_loss"] + weight * wanted["mean_patch_loss"]
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_a_deeper_teacher_leaves_learning_rates_of_layers_as_they_are() -> None:
    """Layers were counted from the teacher's last."""
    shallow, deep = (
        {
            group["lr"]
            for group in optim.parameter_groups(made(*CASES[0], depth=depth), 0.1, 1.0, 0.5)
        }
        for depth in (1, 5)
    )
    assert shallow == deep == {1.0, 0.5, 0.25, 0.125}


@pytest.mark.parametrize("size", [12, 16, 28])
def test_images_are_resized_as_pillow_does(size: int) -> None:
    images = pixels(2)
    found = resize(images, size)
    assert found.dtype == torch.uint8 and found.shape == (2, 3, size, size)
    for image, one in zip(images, found, strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        right = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
        assert np.abs(one.permute(1, 2, 0).numpy().astype(int) - right).max() <= 1


# Runs

DISTIL = altered(TINY, "recipe=distill", "eval.collapse=null")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of timm's, wider than the student, with a normalisation of its own."""
    return of_timm(tmp_path_factory.mktemp("teachers") / "wide", embed_dim=48, num_heads=3)


@pytest.fixture(scope="module")
def whole(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    words = altered(DISTIL, f"distill.teacher={teacher}")
    return Unbroken.of(words, tmp_path_factory.mktemp("distill"))


@pytest.fixture
def words(teacher: Path, tmp_path: Path) -> list[str]:
    """Of a run of two steps, from a teacher of its own."""
    place = shutil.copytree(teacher, tmp_path / "teacher")
    own = [f"distill.teacher={place}", f"out={tmp_path}", "name=run", "checkpoint.every=1"]
    return altered(DISTIL, *SHORT, *own)


def test_a_killed_run_goes_on_to_the_same_end(whole: Unbroken) -> None:
    assert_a_killed_run_ends_as(whole)


def test_the_teacher_sees_images_by_its_own_normalisation(whole: Unbroken, teacher: Path) -> None:
    """And gives what timm's network gives."""
    state = {
        name.removeprefix("teacher.encoder.backbone."): value
        for name, value in whole.state().items()
        if name.startswith("teacher.")
    }
    for name, value in load_file(teacher / "model.safetensors").items():
        assert torch.equal(state[name], value), name
    heads = load_file(whole.folder / "export" / "heads.safetensors")
    parts = {name.partition(".")[0] for name in heads}
    assert parts == {"token_head", "patch_head", "mean_token_C", "mean_patch_C"}
    written = resolve([f"recipe={whole.folder}/recipe.yaml"])
    assert written.value("distill.network")["data.mean"] == [0.4] * 3
    assert written.data.mean[0] == 0.5


@pytest.mark.parametrize("kind", ["timm", "transformers"])
def test_a_run_goes_on_exactly_without_its_teacher(
    kind: str, words: list[str], tmp_path: Path
) -> None:
    """Whose layer norms may have an eps of their own."""
    if kind == "transformers":
        place = run(altered(TINY, *SHORT, f"out={tmp_path}", "name=mpp")).folder
        ssl_vit.export(init=place, format="transformers", out=tmp_path / "vit")
        path = tmp_path / "vit" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"layer_norm_eps": 0.1}))
        words = altered(words, f"distill.teacher={tmp_path}/vit")
    whole = run(altered(words, "name=whole", "optim.steps=4")).folder
    folder = cut_off(altered(words, "optim.steps=4"), 3)
    for place in ("teacher", "vit"):
        shutil.rmtree(tmp_path / place, ignore_errors=True)
    assert_same_end(whole, run([f"recipe={folder}/recipe.yaml"]).folder)
    for key in ("measurements", "total_exaflop"):
        assert result(whole)[key] == result(folder)[key]


@pytest.mark.parametrize("state", ["finished", "stopped", "begun"])
def test_another_teacher_at_the_same_place_is_noticed(
    state: str, words: list[str], tmp_path: Path
) -> None:
    if state == "finished":
        made = ssl_vit.pretrain(words)
        assert ssl_vit.pretrain(words) == made
    else:
        cut_off(altered(words, "checkpoint.every=1" if state == "stopped" else "log.every=1"), 2)
    weights = tmp_path / "teacher" / "model.safetensors"
    other = {name: value + 0.01 for name, value in load_file(weights).items()}
    save_file(other, weights, {"format": "pt"})
    with pytest.raises(UserError, match=r"distill\.teacher=.*different weights.*another name="):
        ssl_vit.pretrain(words)
    shutil.rmtree(tmp_path / "teacher")
    of_timm(tmp_path / "teacher", embed_dim=64, num_heads=4)
    with pytest.raises(UserError, match=r"distill\.network.*another name="):
        ssl_vit.pretrain(words)


def test_where_a_teacher_lies_is_no_part_of_a_run(words: list[str], tmp_path: Path) -> None:
    made = ssl_vit.pretrain(words)
    (tmp_path / "teacher").rename(tmp_path / "moved")
    moved = altered(words, f"distill.teacher={tmp_path}/moved")
    assert ssl_vit.pretrain(moved) == made
    recipe = resolve(moved)
    assert recipe_hash(recipe) == result(made.folder)["recipe"]
    assert without_private(recipe).value("distill.teacher") == "moved"
    name = resolve([word for word in moved if not word.startswith("name=")]).name
    assert "teacher=moved" in name and "network" not in name and str(tmp_path) not in name


def test_what_the_teacher_has_seen_counts_as_seen(tmp_path: Path) -> None:
    """As of initial weights; also by what comes after the student."""
    images = tmp_path / "IMAGES"
    for name in "ab":
        put(images / name, 15)
    common = [f"data.path={images}", f"out={tmp_path}", "optim.steps=8", "eval.every=8"]
    common = altered(TINY, *SHORT, *common, "data.test=0.2")
    labels = ["recipe=supervised", "data.validation=0.04", "data.test=test", "eval.test=false"]
    labelled = run(altered(common, *labels, "name=labelled")).folder
    begun = altered(common, "name=begun", f"init={labelled}")
    student = altered(common, "recipe=distill", f"distill.teacher={labelled}", "name=student")
    found = {}
    for name, own in (("begun", begun), ("student", student)):
        folder = run(own).folder
        cli.finetune([*TUNE, f"init={folder}", f"out={tmp_path}", f"name=tuned_{name}"])
        rows = result(folder)["seen"] + result(tmp_path / f"tuned_{name}")["seen"]
        found[name] = [one for one in rows if one["run"] == "labelled"]
    assert found["begun"] == found["student"] and len(found["student"]) == 2
    assert found["student"][1]["labels"]["test"] == 5


def test_a_run_has_cost_what_its_teacher_has_cost(tmp_path: Path) -> None:
    """A run that both the teacher and the initial weights are of has cost it once."""
    common = altered(TINY, *SHORT, f"out={tmp_path}")
    first = run(altered(common, "name=first")).folder
    second = run(altered(common, "name=second", f"init={first}")).folder
    own = altered(common, "recipe=distill", f"distill.teacher={second}")
    for name, init, before in (
        *(("a", "scratch", [second]), ("b", first, [first, second])),
        ("c", second, [second]),
    ):
        found = result(run(altered(own, f"name={name}", f"init={init}")).folder)
        for key in ("exaflop", "device_hours"):
            total = found[key] + sum(result(one)[f"total_{key}"] for one in before)
            assert found[f"total_{key}"] == pytest.approx(total)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    folder = tmp_path_factory.mktemp("places")
    cut = cut_off(altered(TINY, *SHORT, f"out={folder}", "name=cut"), 1)
    yield {
        "CUT": cut,
        "WIDE": of_timm(folder / "wide", embed_dim=48, num_heads=3),
        "LARGE": of_timm(folder / "large", patch_size=6, img_size=24),
        "GREY": of_timm(folder / "grey", in_chans=1),
    }


@pytest.mark.parametrize(
    ("own", "error"),
    [
        ("", "distill.teacher= is missing"),
        ("distill.teacher=scratch", "distill.teacher=scratch: "),
        ("distill.teacher=nowhere", "distill.teacher=nowhere: no such folder or file"),
        ("distill.teacher=CUT", "recipe=CUT/recipe.yaml"),
        ("distill.teacher=LARGE", "data.size=16: "),
        ("distill.teacher=LARGE distill.size=20", "distill.size=20: "),
        (
            "distill.teacher=LARGE distill.size=12 distill.patches=1",
            "distill.patches=1: the student",
        ),
        ("distill.teacher=GREY", "data.channels=1"),
        ("distill.teacher=timm:resnet50.a1_in1k", "expected a Vision Transformer"),
        ("distill.teacher=WIDE model=bit_r50x1", "objective=distill needs patches"),
        ("distill.teacher=WIDE distill.loss=l2", "choices: cosine, smooth_l1"),
    ],
)
def test_what_cannot_be_is_one_line(
    own: str, error: str, places: dict[str, Path], tmp_path: Path
) -> None:
    for name, place in places.items():
        own, error = (text.replace(name, str(place)) for text in (own, error))
    kept = [word for word in DISTIL if "model" not in own or not word.startswith("model.")]
    line = refused(ssl_vit.pretrain, altered(kept, *own.split(), f"out={tmp_path}"))
    assert error in line


def test_a_recipe_file_of_another_teacher_is_refused(whole: Unbroken, tmp_path: Path) -> None:
    """Its network was copied with it."""
    text = (whole.folder / "recipe.yaml").read_text()
    other = of_timm(tmp_path / "other", embed_dim=64, num_heads=4)
    path = tmp_path / "edited.yaml"
    was = resolve([f"recipe={whole.folder}/recipe.yaml"]).value("distill.teacher")
    path.write_text(text.replace(was, str(other)))
    with pytest.raises(UserError, match=r"^distill\.network: .*differs .* distill\.teacher="):
        ssl_vit.pretrain([f"recipe={path}", f"out={tmp_path}", "name=edited"])
