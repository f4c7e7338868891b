"""Which finished work is told again: not a result, features or figures of another encoder of the
same weights, which is refused by name; a finished run is measured again without training."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ssl_vit
from helpers.images import two_classes
from helpers.measurements import by_name
from helpers.options import CLASSIFIER, TINY, altered
from helpers.runs import result, run
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli

SHORT = ["compute.threads=1", "compute.precision=float32"]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_classes(tmp_path_factory.mktemp("images") / "IMAGES")


@pytest.fixture(scope="module")
def exports(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same encoder as an export in timm's format, `timm`, and in transformers', `vit`."""
    folder = tmp_path_factory.mktemp("exports")
    shutil.copytree(pretrained / "export", folder / "timm")
    ssl_vit.export(init=pretrained, format="transformers", out=folder / "vit")
    return folder


@pytest.fixture
def export(exports: Path, tmp_path: Path) -> Path:
    """A copy of the one in timm's format."""
    return shutil.copytree(exports / "timm", tmp_path / "export")


@pytest.fixture
def place(images: Path, tmp_path: Path) -> list[str]:
    return [f"data.path={images}", f"out={tmp_path}", "name=look"]


def change(export: Path, alter: Change) -> None:
    path = export / "config.json"
    config = json.loads(path.read_text())
    alter(config)
    path.write_text(json.dumps(config))


def set_args(**args: Any) -> Change:
    return lambda config: config["model_args"].update(args)


def set_cfg(**values: Any) -> Change:
    return lambda config: config["pretrained_cfg"].update(values)


def to_token(config: dict[str, Any]) -> None:
    del config["model_args"]["fc_norm"]
    config["model_args"]["global_pool"] = "token"


CHANGES = [
    ("timm", to_token, "pool"),
    ("timm", set_args(num_heads=4), "model.heads"),
    ("timm", set_cfg(mean=[0.4] * 3), "data.mean"),
    ("timm", set_cfg(crop_pct=0.5), "data.eval_crop"),
    ("vit", lambda config: config.update(layer_norm_eps=0.1), "model_args"),
]


def evaluation(init: Path, place: list[str]) -> list[str]:
    own = ["recipe=evaluate", "probe.measures=[knn]", "probe.neighbors=2", *SHORT]
    return [*own, f"init={init}", *place]


@pytest.mark.parametrize(("kind", "alter", "names"), CHANGES)
def test_neither_result_nor_features_are_those_of_another_network_of_the_same_weights(
    exports: Path, place: list[str], tmp_path: Path, kind: str, alter: Change, names: str
) -> None:
    export = shutil.copytree(exports / kind, tmp_path / "export")
    options = evaluation(export, place)
    embed = [f"init={export}", *altered(place, "name=f"), *SHORT]
    made = ssl_vit.evaluate(options)
    folder = ssl_vit.embed([*embed, "split=test"]).folder
    change(export, lambda config: config.update(license="mine"))
    assert ssl_vit.evaluate(options) == made
    moved = shutil.copytree(export, tmp_path / "moved")
    assert ssl_vit.evaluate(altered(options, f"init={moved}")) == made
    change(export, alter)
    with pytest.raises(UserError, match=rf"{names}.*another name="):
        ssl_vit.evaluate(options)
    with pytest.raises(UserError, match=rf"{names}.*another name="):
        ssl_vit.embed([*embed, "split=train"])
    assert not list(folder.glob("train-*"))


def test_a_run_is_not_resumed_from_another_network_of_the_same_weights(
    export: Path, place: list[str]
) -> None:
    """Finished or not."""
    kept = [option for option in TINY if not option.startswith(("recipe", "model", "corruption"))]
    short = ["optim.steps=2", "optim.warmup=1", "optim.batch=8", "data.validation=0.2"]
    options = altered(kept, "recipe=finetune", f"init={export}", *place, *short)
    made = ssl_vit.finetune(options)
    assert ssl_vit.finetune(options) == made
    change(export, to_token)
    for finished in (True, False):
        if not finished:
            (made.folder / "result.json").unlink()
        with pytest.raises(UserError, match=r"pool \(avg there, token here\)"):
            ssl_vit.finetune(options)


def test_fresh_weights_of_other_heads_are_another_encoder(place: list[str]) -> None:
    """Their names and shapes are the same."""
    model = ["model.patch=8", "model.width=32", "model.depth=1", "model.mlp=64"]
    own = ["init=scratch", "data.size=16", *place, *model, *SHORT]
    ssl_vit.embed([*own, "model.heads=2"])
    with pytest.raises(UserError, match=r"model\.heads=4: .* model\.heads=2"):
        ssl_vit.embed([*own, "model.heads=4"])


def test_figures_of_another_network_are_not_mixed_into_a_folder(
    export: Path, place: list[str]
) -> None:
    own = [f"init={export}", *place, "images=4"]
    ssl_vit.figures([*own, "figures=filters"])
    change(export, to_token)
    with pytest.raises(UserError, match=r"pool.*another name="):
        ssl_vit.figures([*own, "figures=positions"])


def test_the_model_of_the_run_that_made_the_weights_is_part_of_their_identity(
    place: list[str], tmp_path: Path
) -> None:
    """Also the feature that its head reads."""
    short = ["optim.steps=2", "optim.warmup=1", "data.validation=0.2", "name=run"]
    folder = run(altered(TINY, "recipe=supervised", *place, *short)).folder
    options = evaluation(folder, place)
    made = ssl_vit.evaluate(options)
    path = folder / "recipe.yaml"
    text = path.read_text()
    for was, now, names in (
        ("\n  heads: 2\n", "\n  heads: 4\n", "model.heads"),
        ("\n  pool: token\n", "\n  pool: avg\n", "supervised.pool"),
    ):
        assert text.count(was) == 1, was
        path.write_text(text.replace(was, now))
        with pytest.raises(UserError, match=names):
            ssl_vit.evaluate(options)
    path.write_text(text)
    assert ssl_vit.evaluate(options) == made
    (folder / "export" / "heads.safetensors").write_bytes(b"other")
    with pytest.raises(UserError, match="different heads"):
        ssl_vit.evaluate(options)


def test_a_key_of_the_model_that_is_none_is_one_line(tmp_path: Path) -> None:
    """The images are the run's, whose recipe has it; it was a traceback."""
    export = tmp_path / "run" / "export"
    export.mkdir(parents=True)
    (export / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    (export / "model.safetensors").write_bytes(b"")
    recipe = "data: {name: shapes, size: 16}\nmodel: {width: 64, hedas: 3}\n"
    (tmp_path / "run" / "recipe.yaml").write_text(recipe)
    with pytest.raises(UserError, match=r"model\.hedas.* did you mean model\.heads\?"):
        ssl_vit.resolve(["recipe=evaluate", f"init={tmp_path / 'run'}"])


def test_a_finished_run_is_measured_again_and_never_trained_again(
    tuned: Path, tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """It was refused, and its weights had to be trained once more under another name."""
    untested = altered(tiny, *CLASSIFIER, "eval.test=false", "name=later")
    tested = altered(untested, "eval.test=true")
    later = run(untested)
    export = (later.export / "model.safetensors").read_bytes()
    assert "top1" not in by_name(result(later.folder))
    bare = shutil.copytree(later.folder, later.folder.parent / "bare")
    shutil.rmtree(bare / "checkpoints")
    capsys.readouterr()
    cli.finetune(tested)
    again = "measured again with other values: eval.test (False there, True here)"
    assert again in capsys.readouterr().out
    now = result(later.folder)
    assert now["measurements"] == result(tuned)["measurements"]  # which was tested at once
    assert (later.export / "model.safetensors").read_bytes() == export
    cli.finetune(tested)
    assert "measured again" not in capsys.readouterr().out
    with pytest.raises(UserError, match=r"eval\.test \(True there"):
        ssl_vit.finetune(untested)  # which would lose what was measured
    assert result(later.folder) == now
    with pytest.raises(UserError, match=r"eval\.test \(False there"):
        ssl_vit.finetune(altered(tested, "name=bare"))
