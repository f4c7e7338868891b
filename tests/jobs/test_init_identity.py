"""What identifies the encoder of `init=` beside its weights: a result, features or figures of
another one are refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ssl_vit
from helpers.options import TINY, altered
from ssl_vit.jobs import draw_figures
from ssl_vit.models import encoder, interop, weights
from ssl_vit.recipe.export_files import read_config
from ssl_vit.recipe.schema import Data, Model

MODEL = Model(patch=8, width=32, depth=1, heads=2, mlp=64)
SHORT = ["compute.threads=1", "compute.precision=float32"]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 6)):
        for number in range(count):
            path = folder / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same encoder as an export in timm's format, `timm`, and in transformers', `vit`."""
    folder = tmp_path_factory.mktemp("exports")
    torch.manual_seed(0)
    data = Data(size=16, eval_crop=1.0)
    made = encoder.build_encoder(MODEL, data)
    weights.export(folder / "timm", made, {}, MODEL, data, "avg")
    weights.export(folder / "token", made, {}, MODEL, data, "token")
    interop.to_transformers(folder / "token", folder / "vit")
    assert read_config(folder / "timm")["model_args"]["global_pool"] == "avg"
    return folder


def change(export: Path, alter: Change, name: str = "config.json") -> None:
    config = json.loads((export / name).read_text())
    alter(config)
    (export / name).write_text(json.dumps(config))


def set_args(**args: Any) -> Change:
    return lambda config: config["model_args"].update(args)


def to_token(config: dict[str, Any]) -> None:
    del config["model_args"]["fc_norm"]
    config["model_args"]["global_pool"] = "token"


def add_license(config: dict[str, Any]) -> None:
    config["license"] = "mine"


def set_mean(config: dict[str, Any]) -> None:
    config["pretrained_cfg"]["mean"] = [0.4] * 3


def set_crop(config: dict[str, Any]) -> None:
    config["pretrained_cfg"]["crop_pct"] = 0.5


def set_eps(config: dict[str, Any]) -> None:
    config["layer_norm_eps"] = 0.1


CHANGES = [
    ("timm", to_token, "pool differ"),
    ("timm", set_args(num_heads=4), "model.heads"),
    ("timm", set_mean, "data.mean"),
    ("timm", set_crop, "data.eval_crop"),
    ("timm", set_args(norm_layer="x"), "model_args"),
    ("vit", set_eps, "model_args"),
]


def evaluation(export: Path, images: Path, out: Path) -> list[str]:
    own = [f"init={export}", f"data.path={images}", f"out={out}", "name=look", "probe.neighbors=2"]
    return ["recipe=evaluate", "probe.measures=[knn]", *own, *SHORT]


@pytest.mark.parametrize(("kind", "alter", "names"), CHANGES)
def test_a_finished_evaluation_is_not_returned_for_another_network_of_the_same_weights(
    exports: Path, images: Path, tmp_path: Path, kind: str, alter: Change, names: str
) -> None:
    export = shutil.copytree(exports / kind, tmp_path / "export")
    options = evaluation(export, images, tmp_path)
    result = ssl_vit.evaluate(options)
    change(export, add_license)
    assert ssl_vit.evaluate(options) == result
    moved = shutil.copytree(export, tmp_path / "moved")
    assert ssl_vit.evaluate(altered(options, f"init={moved}")) == result
    change(export, alter)
    with pytest.raises(ssl_vit.UserError, match="take another name=") as caught:
        ssl_vit.evaluate(options)
    assert names in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "unfinished"])
def test_a_run_is_not_resumed_from_another_network_of_the_same_weights(
    exports: Path, images: Path, tmp_path: Path, finished: bool
) -> None:
    export = shutil.copytree(exports / "timm", tmp_path / "export")
    kept = [option for option in TINY if not option.startswith(("recipe", "model", "corruption"))]
    own = [f"init={export}", f"data.path={images}", f"out={tmp_path}", "name=fine", "data.size=16"]
    steps = ["optim.steps=4", "optim.batch=8", "checkpoint.every=2", "data.validation=0.2"]
    options = altered(kept, "recipe=finetune", *own, *steps)
    result = ssl_vit.finetune(options)
    assert ssl_vit.finetune(options) == result
    if not finished:
        (tmp_path / "fine" / "result.json").unlink()
    change(export, to_token)
    with pytest.raises(ssl_vit.UserError, match=r"pool \(avg there, token here\)"):
        ssl_vit.finetune(options)


@pytest.mark.parametrize(("kind", "alter", "names"), CHANGES)
def test_features_of_another_network_are_not_mixed_into_a_folder(
    exports: Path, images: Path, tmp_path: Path, kind: str, alter: Change, names: str
) -> None:
    export = shutil.copytree(exports / kind, tmp_path / "export")
    options = [f"init={export}", f"data.path={images}", f"out={tmp_path}", "name=f", *SHORT]
    folder = ssl_vit.embed([*options, "split=test"]).folder
    change(export, alter)
    with pytest.raises(ssl_vit.UserError, match="give another name=") as caught:
        ssl_vit.embed([*options, "split=train"])
    assert names.split()[0] in str(caught.value)
    assert not list(folder.glob("train-*"))


def test_fresh_weights_of_other_heads_are_another_encoder(images: Path, tmp_path: Path) -> None:
    """Their names and shapes are the same."""
    model = [f"model.{key}={getattr(MODEL, key)}" for key in ("patch", "width", "depth", "mlp")]
    own = ["init=scratch", f"data.path={images}", "data.size=16", f"out={tmp_path}", "name=f"]
    ssl_vit.embed([*own, *model, "model.heads=2", *SHORT])
    with pytest.raises(ssl_vit.UserError, match=r"model\.heads=4: .* model\.heads=2"):
        ssl_vit.embed([*own, *model, "model.heads=4", *SHORT])


def test_figures_of_another_network_are_not_mixed_into_a_folder(
    exports: Path, images: Path, tmp_path: Path
) -> None:
    export = shutil.copytree(exports / "timm", tmp_path / "export")
    place = [f"init={export}", f"data.path={images}", f"out={tmp_path}", "name=f", "images=4"]
    draw_figures.main([*place, "figures=filters"])
    draw_figures.main([*place, "figures=positions"])
    change(export, to_token)
    with pytest.raises(ssl_vit.UserError, match=r"pool.*give another name="):
        draw_figures.main([*place, "figures=image_map"])


def test_the_model_of_the_run_that_made_the_weights_is_part_of_their_identity(
    images: Path, tmp_path: Path
) -> None:
    """Also the feature that its head reads."""
    kept = [option for option in TINY if not option.startswith(("recipe", "corruption"))]
    own = [f"data.path={images}", "data.size=16", f"out={tmp_path}", "data.validation=0.2"]
    run = altered(kept, "recipe=supervised", *own, "name=run", "optim.steps=2", "optim.warmup=1")
    ssl_vit.pretrain(run)
    options = evaluation(tmp_path / "run", images, tmp_path)
    result = ssl_vit.evaluate(options)
    path = tmp_path / "run" / "recipe.yaml"
    text = path.read_text()
    for was, now, names in (
        ("\n  heads: 2\n", "\n  heads: 4\n", "model.heads"),
        ("\n  pool: token\n", "\n  pool: avg\n", "supervised.pool"),
    ):
        assert text.count(was) == 1, was
        path.write_text(text.replace(was, now))
        with pytest.raises(ssl_vit.UserError, match=names):
            ssl_vit.evaluate(options)
    path.write_text(text)
    assert ssl_vit.evaluate(options) == result
    (tmp_path / "run" / "export" / "heads.safetensors").write_bytes(b"other")
    with pytest.raises(ssl_vit.UserError, match="heads differ"):
        ssl_vit.evaluate(options)


def test_a_key_of_the_model_that_is_none_is_one_line(tmp_path: Path) -> None:
    """The images are the run's, whose recipe has it; it was a traceback."""
    export = tmp_path / "run" / "export"
    export.mkdir(parents=True)
    (export / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    (export / "model.safetensors").write_bytes(b"")
    recipe = "data: {name: shapes, size: 16}\nmodel: {width: 64, hedas: 3}\n"
    (tmp_path / "run" / "recipe.yaml").write_text(recipe)
    with pytest.raises(ssl_vit.UserError) as caught:
        ssl_vit.resolve(["recipe=evaluate", f"init={tmp_path / 'run'}"])
    line = str(caught.value)
    assert "its recipe.yaml has model.hedas, which is no key; did you mean model.heads?" in line
    assert "\n" not in line
