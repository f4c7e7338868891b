"""An encoder whose weights are finite and whose features are not: every tool says so in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import ssl_vit
from helpers.exports import forget_digests, of_timm
from helpers.options import SHORT, TINY, altered
from helpers.runs import rows, run
from ssl_vit.errors import UserError
from ssl_vit.evaluation import features
from ssl_vit.evaluation.features import ENCODER
from ssl_vit.measurements import UNTRAINED
from ssl_vit.models.encoder import Encoder
from ssl_vit.recipe.schema import Probe
from ssl_vit.training.distributed import WatchedAccelerator

QUICK = ["compute.threads=1", "compute.precision=float32", "compute.batch=4"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 training and 6 test images of two classes."""
    folder = tmp_path_factory.mktemp("images")
    for split, count in (("train", 6), ("test", 3)):
        for label, name in enumerate("ab"):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                grey = np.full((16, 16, 3), 40 + 120 * label + number, np.uint8)
                Image.fromarray(grey).save(folder / split / name / f"{number}.png")
    return folder


def multiply_weight(export: Path, name: str, factor: float) -> None:
    weights = load_file(export / "model.safetensors")
    weights[name] = weights[name] * factor
    assert weights[name].isfinite().all()
    save_file(weights, export / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights are finite, and the features of every image overflow."""
    folder = of_timm(tmp_path_factory.mktemp("export"))
    multiply_weight(folder, "blocks.0.mlp.fc1.weight", 1e38)
    return folder


@pytest.fixture
def place(images: Path, tmp_path: Path) -> list[str]:
    return [f"data.path={images}", f"out={tmp_path}", "name=f", *QUICK]


@pytest.fixture
def alter(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable], None]:
    """Change what a method of encoders returns: `change` takes the encoder, what the method was
    given and what it returns."""

    def altered(method: str, change: Callable) -> None:
        plain = getattr(Encoder, method)

        def changed(encoder: Encoder, given: Tensor, *more: Any, **named: Any) -> Tensor:
            return change(encoder, given, plain(encoder, given, *more, **named))

        monkeypatch.setattr(Encoder, method, changed)

    return altered


def refused_line(call: object, *arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)  # type: ignore[operator]
    text = str(caught.value)
    assert "\n" not in text and "not finite" in text, text
    return text


@pytest.mark.parametrize(
    ("measure", "count"),
    [
        ("few_shot", "2 of 2"),
        ("linear", "12 of 12"),
        ("knn", "12 of 12"),
        ("attentive", "12 of 12"),
    ],
)
def test_an_evaluation_measures_nothing(
    measure: str, count: str, export: Path, place: list[str], tmp_path: Path, capsys
) -> None:
    words = ["recipe=evaluate", f"init={export}", *place]
    words += ["data.validation=0", "probe.shots=[1]", "probe.trials=1", "probe.steps=2"]
    if measure in ("linear", "attentive"):
        words = altered(words, "data.validation=0.3")
        count = "8 of 8"
    words += ["probe.neighbors=1", f"probe.measures=[{measure}]"]
    line = refused_line(ssl_vit.evaluate, words)
    assert f"{count} images" in line and "this encoder" in line
    assert not (tmp_path / "f" / "result.json").exists()
    assert "%" not in capsys.readouterr().out.partition("finished")[2]


def test_embed_writes_nothing(export: Path, place: list[str], tmp_path: Path) -> None:
    assert "6 of 6 images" in refused_line(ssl_vit.embed, [f"init={export}", *place])
    assert not list(tmp_path.rglob("*.parquet")) and not list(tmp_path.rglob("embed.json"))


def test_embed_names_a_shard_whose_images_overflow_later(
    place: list[str], tmp_path: Path, alter: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first shard is right and kept, the second is not written."""
    sound = of_timm(tmp_path / "export")

    def overflowing(encoder: Encoder, image: Tensor, found: Tensor) -> Tensor:
        bright = image.float().mean((1, 2, 3)) > 100  # class b
        found[bright, 0, 0] = torch.inf
        return found

    alter("tokens", overflowing)
    words = [f"init={sound}", *place, "split=train", "rows=6"]
    monkeypatch.setattr("ssl_vit.jobs.feature_folder.CHECKED", 2)
    assert "6 of 6 images" in refused_line(ssl_vit.embed, words)
    assert [path.name for path in tmp_path.rglob("*.parquet")] == ["train-00000-of-00002.parquet"]


def test_a_query_whose_feature_overflows_has_no_neighbours(
    place: list[str], tmp_path: Path, alter: Callable
) -> None:
    words = [f"init={of_timm(tmp_path / 'export')}", *place]
    ssl_vit.embed(words)
    Image.new("RGB", (16, 16), (255, 255, 255)).save(tmp_path / "query.png")
    alter("tokens", lambda _, image, x: x / (image.float().mean((1, 2, 3)) < 255)[:, None, None])
    refused_line(ssl_vit.embed, [*words, f"query={tmp_path / 'query.png'}"])
    assert not (tmp_path / "f" / "nearest.html").exists()


@pytest.mark.parametrize("figure", ["attention_rollout", "feature_map", "filters"])
def test_figures_draw_nothing(figure: str, export: Path, place: list[str], tmp_path: Path) -> None:
    words = [f"init={export}", *place[:3], "shown=3", "compute.threads=1", f"figures={figure}"]
    refused_line(ssl_vit.figures, words)
    assert not (tmp_path / "f").exists()


def test_a_baseline_whose_features_overflow_is_left_out_with_a_warning() -> None:
    sound, label_N = torch.randn(8, 4), torch.arange(8) % 2
    broken = sound.clone()
    broken[3, 1] = torch.nan
    seen = {
        split: {ENCODER: (sound, label_N), UNTRAINED: (broken, label_N)}
        for split in ("train", "test")
    }
    warnings: list[str] = []
    probe = Probe(measures=["knn"], neighbors=1)
    right = features.probe_all(seen, probe, 2, warnings.append)
    assert UNTRAINED not in right and ENCODER in right
    (text,) = warnings
    assert "1 of 8 images" in text and "untrained weights" in text
    seen = {split: {ENCODER: found[UNTRAINED]} for split, found in seen.items()}
    with pytest.raises(UserError, match="1 of 8 images"):
        features.probe_all(seen, probe, 2, warnings.append)


def test_online_probes_warn_and_the_run_goes_on(tmp_path: Path, alter: Callable) -> None:
    words = altered(TINY, f"out={tmp_path}", "name=r", "data.share=0.01", "probe.every=4")
    words += ["probe.measures=[knn]", "probe.neighbors=1", "probe.images=40", "eval.collapse=4"]
    alter("feature", lambda _, image, feature: feature / 0)
    done = run(words)
    assert done.result() is not None
    found = rows(done.folder)
    assert sum("validation/accuracy_masked" in row for row in found) == 3
    assert not any(key.startswith(("probe/", "features/")) for row in found for key in row)
    log = done.log.read_text()
    assert log.count("40 of 40 images is not finite") == 4  # once for untrained weights


def test_a_prediction_that_is_not_finite_counts_neither_as_right_nor_as_wrong(
    tmp_path: Path, images: Path, place: list[str]
) -> None:
    """A NaN's largest logit was the first class, which is right for half of the images."""
    words = ["recipe=finetune", "init=scratch", f"data.path={images}", "data.size=16"]
    words += ["model.patch=4", "model.width=32", "model.depth=1", "model.heads=2", "model.mlp=32"]
    words += ["supervised.hidden=false", "data.validation=0.3", "optim.batch=4", "eval.test=false"]
    tuned = run(altered(words, *SHORT, "optim.batch=4", f"out={tmp_path}", "name=t")).folder
    for name in ("model", "heads"):
        path = tuned / "export" / f"{name}.safetensors"
        weights = load_file(path)
        weights["head.weight"] = torch.full_like(weights["head.weight"], 3e38)
        save_file(weights, path, {"format": "pt"})
    forget_digests(tuned / "export")
    words = ["recipe=evaluate", f"init={tuned}", *place]
    words += ["data.validation=0", "probe.measures=[top1]"]
    assert "6 of 6 images" in refused_line(ssl_vit.evaluate, words)


@pytest.mark.parametrize("recipe", ["mpp", "moco_v3", "supervised"])
def test_no_accuracy_on_held_out_images_where_the_loss_is_not_finite(
    recipe: str, images: Path, tmp_path: Path, alter: Callable
) -> None:
    """The highest of NaN logits is some class, so an accuracy looked like any other."""
    alter("embed", lambda encoder, _, x: x * (1 if encoder.training else torch.nan))
    words = altered(TINY, f"recipe={recipe}", f"data.path={images}", "data.validation=0.5")
    words = altered(words, *SHORT, "optim.batch=4", "log.every=1", "eval.every=2")
    if recipe == "moco_v3":
        words += ["moco.hidden=32", "moco.width=16"]
    last = rows(run([*words, f"out={tmp_path}", "name=r", "eval.test=false"]).folder)[-1]
    assert np.isfinite(last["loss"])
    of_images = [key for key in last if key.startswith("validation/") and "accuracy" in key]
    assert of_images and all(last[key] is None or np.isnan(last[key]) for key in of_images)


def test_a_teacher_whose_features_are_not_finite_teaches_nothing(
    export: Path, images: Path, tmp_path: Path
) -> None:
    """The run printed "to beat loss nan", and then blamed images and initial weights."""
    words = altered(TINY, "recipe=distill", f"distill.teacher={export}", f"data.path={images}")
    words = altered(words, *SHORT, "optim.batch=4", f"out={tmp_path}", "name=r")
    line = refused_line(run, [*words, "data.validation=0.5"])
    assert "distill.teacher" in line and "6 of 6 images" in line
    assert not rows(tmp_path / "r")


def test_more_finite_images_than_float32_can_count() -> None:
    """Flags were added up in float32, where 2^24 + 1 is 2^24."""
    checked = features.CheckedReader(ENCODER, lambda image: image, WatchedAccelerator(cpu=True))
    checked.finite = [torch.ones(2**24 + 1, dtype=torch.bool)]
    checked.check()
