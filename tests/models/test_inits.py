"""Weights from anywhere that init= names: what is loaded, what is interpolated, what is refused and
how that is said."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from scipy.ndimage import zoom

from helpers.encoders import DATA, MODEL, google_shapes, net, pixels
from helpers.exports import forget_digests
from helpers.options import altered
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli
from ssl_vit.jobs import train as train_job
from ssl_vit.models import encoder, weights
from ssl_vit.models.architectures import timm_args
from ssl_vit.models.position_weights import resize_positions
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs.folder import Run


def exported(folder: Path, made: encoder.Encoder, data: Data = DATA, pool: str = "avg") -> Path:
    weights.export(folder, made, {"mask_token": torch.ones(32)}, MODEL, data, pool)
    return folder


def refusal(made: encoder.Encoder, place: str | Path) -> str:
    with pytest.raises(UserError) as caught:
        weights.load_weights(made, InitSource(str(place)))
    text = str(caught.value)
    assert "\n" not in text and str(place) in text
    return text


def test_an_export_gives_its_own_features_and_a_hash_of_its_weights(tmp_path: Path) -> None:
    made, other = net(), net(seed=1)
    hashed = weights.load_weights(other, InitSource(str(exported(tmp_path / "export", made))))
    with torch.no_grad():
        assert torch.equal(other.feature(pixels(), "avg"), made.feature(pixels(), "avg"))
    assert (
        hashed
        == weights.fingerprint(made.backbone.state_dict())
        != weights.fingerprint(net(seed=2).backbone.state_dict())
    )


@pytest.mark.parametrize("grid", [(8, 8), (3, 3), (6, 10), (4, 4)])
def test_positions_are_zoomed_as_the_authors_zoom_them(grid: tuple[int, int]) -> None:
    """Bilinear with aligned corners is scipy's zoom of order 1 (paper.md, Fine-tuning); the class
    token's stays."""
    old = torch.randn(1, 1 + 16, 5, generator=torch.Generator().manual_seed(0))
    new = resize_positions(old, grid, prefix=1)
    assert new.shape == (1, 1 + grid[0] * grid[1], 5) and torch.equal(new[:, 0], old[:, 0])
    wanted = zoom(
        old[0, 1:].reshape(4, 4, 5).numpy(), (grid[0] / 4, grid[1] / 4, 1), order=1, grid_mode=False
    )
    np.testing.assert_allclose(new[0, 1:].reshape(*grid, 5).numpy(), wanted, atol=3e-6)


def test_a_larger_image_keeps_everything_but_the_positions(tmp_path: Path) -> None:
    made = net()
    large = net(data=Data(size=32), seed=1)
    weights.load_weights(large, InitSource(str(exported(tmp_path / "export", made))))
    ours, theirs = large.backbone.state_dict(), made.backbone.state_dict()
    assert large.grid == (8, 8) and all(
        torch.equal(ours[name], theirs[name]) for name in ours if name != "pos_embed"
    )


OTHERS = {
    "width": (Model(patch=4, width=48, depth=2, heads=2, mlp=80), "model.width=48 here, 32 there"),
    "depth": (Model(patch=4, width=32, depth=3, heads=2, mlp=80), "model.depth=3 here, 2 there"),
    "patch": (Model(patch=8, width=32, depth=2, heads=2, mlp=80), "model.patch=8 here, 4 there"),
    "mlp": (Model(patch=4, width=32, depth=2, heads=2, mlp=96), "model.mlp=96 here, 80 there"),
    "heads": (Model(patch=4, width=32, depth=2, heads=4, mlp=80), "model.heads=4 here, 2 there"),
}


@pytest.mark.parametrize(("model", "says"), OTHERS.values(), ids=OTHERS)
def test_another_model_is_told_by_both_values(tmp_path: Path, model: Model, says: str) -> None:
    assert says in refusal(net(model), exported(tmp_path / "export", net()))


def test_missing_and_unexpected_weights_are_named(tmp_path: Path) -> None:
    made = net()
    state = dict(made.backbone.state_dict())
    folder = exported(tmp_path / "export", made)
    forget_digests(folder)
    save_file(
        {k: v for k, v in state.items() if k != "blocks.1.norm1.bias"}, folder / "model.safetensors"
    )
    assert "lacks blocks.1.norm1.bias" in refusal(net(), folder)
    save_file(state | {"blocks.0.norm3.weight": torch.ones(32)}, folder / "model.safetensors")
    assert "has beyond this model blocks.0.norm3.weight" in refusal(net(), folder)
    save_file(
        state | {"head.weight": torch.ones(7, 32), "head.bias": torch.ones(7)},
        folder / "model.safetensors",
    )
    weights.load_weights(net(), InitSource(str(folder)))  # a head is left behind
    save_file(
        {name: value.to(torch.int8) for name, value in state.items()}, folder / "model.safetensors"
    )
    assert "is int8; floating-point weights are read" in refusal(net(), folder)
    oblong = state | {"pos_embed": torch.ones(1, 1 + 14, 32)}  # 2 x 7 patches
    save_file(oblong, folder / "model.safetensors")
    assert refusal(net(), folder) == f"init={folder}: 14 positions are no square grid"


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = exported(tmp_path / "export", net())
    forget_digests(folder)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])
    refusal(net(), folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json"):
        InitSource(str(folder)).described_values()


def test_other_normalisation_is_refused(tmp_path: Path) -> None:
    folder = exported(tmp_path / "export", net(), Data(size=16, mean=[0.4] * 3))
    assert (
        "data.mean=[0.5, 0.5, 0.5]" in (text := refusal(net(), folder))
        and "add data.mean=[0.4,0.4,0.4]" in text
    )


def google(model: Model, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random arrays under the names and shapes of Google's ViT checkpoints."""
    return {
        name: rng.normal(0, 0.1, shape).astype(np.float32)
        for name, shape in google_shapes(model, size).items()
    }


def test_a_google_checkpoint_gives_timms_features(tmp_path: Path) -> None:
    path = tmp_path / "B_4.npz"
    np.savez(path, **google(MODEL, 16, np.random.default_rng(0)))
    made = net()
    weights.load_weights(made, InitSource(str(path)))
    theirs = timm.create_model("vit_base_patch16_224", num_classes=0, **timm_args(MODEL, 16)).eval()
    theirs.load_pretrained(str(path))
    with torch.no_grad():
        torch.testing.assert_close(
            made.feature(pixels(), "token"), theirs(pixels() / 127.5 - 1), atol=1e-4, rtol=0
        )
    assert "model.depth=3 here, 2 there" in refusal(net(OTHERS["depth"][0]), path)


@pytest.mark.parametrize("place", ["nowhere", "nowhere.npz", ".", "runs/unfinished"])
def test_a_place_without_an_encoder_is_said_with_the_choices(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "unfinished").mkdir(parents=True)
    (tmp_path / "runs" / "unfinished" / "recipe.yaml").write_text("{}")
    with pytest.raises(UserError, match=f"init={place}: ") as caught:
        InitSource(place).locate()
    assert "\n" not in str(caught.value)
    assert "timm:NAME" in str(caught.value) or "not finished" in str(caught.value)


@pytest.fixture
def pretrained(tiny: list[str]) -> Run:
    run = Run(resolve(altered(tiny, "name=mpp", "optim.steps=4", "data.mean=[0.4,0.4,0.4]")))
    train_job.train(run)
    return run


def test_a_run_brings_its_model_and_its_normalisation(pretrained: Run, tiny: list[str]) -> None:
    out = [w for w in tiny if w.startswith("out=")]
    recipe = resolve(["recipe=finetune", f"init={pretrained.folder}", *out])
    assert (recipe.model.width, recipe.model.patch, recipe.data.mean) == (32, 4, [0.4] * 3)
    assert recipe.name == "finetune-init=mpp" and recipe.init == str(pretrained.folder)
    exported = resolve(["recipe=finetune", f"init={pretrained.export}", *out])
    assert exported.model == recipe.model
    shutil.copytree(pretrained.export, pretrained.folder.parent / "alone")
    alone = resolve(["recipe=finetune", f"init={pretrained.folder.parent}/alone", *out])
    assert (alone.model.width, alone.model.patch, alone.model.mlp) == (32, 4, 64)
    with pytest.raises(
        UserError, match=r"data\.mean=\[0\.5, 0\.5, 0\.5\]: init=.* was made with \[0\.4"
    ):
        resolve(["recipe=finetune", f"init={pretrained.folder}", "data.mean=[0.5,0.5,0.5]", *out])


def test_a_frozen_encoder_of_bytes_takes_no_other_range(pretrained: Run, tiny: list[str]) -> None:
    out = [w for w in tiny if w.startswith("out=")]
    given = [f"init={pretrained.folder}", *out]
    line = r"data\.range=\[0, 4095\]: init=.* was made with \[0, 255\]; leave it out"
    with pytest.raises(UserError, match=line):
        resolve(["recipe=evaluate", *given, "data.range=[0,4095]"])
    assert resolve(["recipe=evaluate", *given, "data.range=[0,255]"]).data.range == [0, 255]
    assert resolve(["recipe=finetune", *given, "data.range=[0,4095]"]).data.range == [0, 4095]


def test_other_weights_under_a_runs_name_are_refused(
    pretrained: Run, tiny: list[str], capsys: pytest.CaptureFixture
) -> None:
    words = [
        "recipe=finetune",
        f"init={pretrained.folder}",
        "data.size=16",
        "data.share=0.01",
        "optim.batch=16",
        "eval.test=false",
    ]
    words += [
        "eval.images=20",
        "name=tuned",
        *(w for w in tiny if w.startswith(("out=", "compute."))),
    ]
    words += ["optim.steps=4", "optim.warmup=1"]
    cli.finetune(words)
    (pretrained.folder.parent / "tuned" / "result.json").unlink()
    model, data = pretrained.recipe.model, pretrained.recipe.data
    weights.export(pretrained.export, net(model, data), {}, model, data, "avg")
    with pytest.raises(SystemExit):
        cli.finetune(words)
    assert "the weights differ from what" in capsys.readouterr().err


def test_the_heads_of_a_foreign_export_are_those_of_its_architecture(tmp_path: Path) -> None:
    """timm's own exports need not say them; shapes do not tell them."""
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=32)
    timm.models.save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True)
    tiny = Model(patch=16, width=192, depth=12, heads=3, mlp=768)
    stats = theirs.pretrained_cfg
    data = Data(size=32, mean=list(stats["mean"]), std=list(stats["std"]))
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    (tmp_path / "theirs" / "config.json").write_text(
        json.dumps(config | {"model_args": {"img_size": 32}})
    )
    weights.load_weights(encoder.build_encoder(tiny, data), InitSource(str(tmp_path / "theirs")))
    wrong = Model(patch=16, width=192, depth=12, heads=6, mlp=768)
    assert "model.heads=6 here, 3 there" in refusal(
        encoder.build_encoder(wrong, data), tmp_path / "theirs"
    )


@pytest.mark.parametrize(
    "change", [{"embedding/kernel": np.zeros((1, 1, 1024, 32), np.float32)}, {}]
)
def test_other_networks_of_google_are_refused_plainly(
    tmp_path: Path, change: dict[str, np.ndarray]
) -> None:
    path = tmp_path / "hybrid.npz"
    np.savez(
        path,
        **(
            google(MODEL, 16, np.random.default_rng(0)) | change
            if change
            else {"resnet/root": np.zeros(3)}
        ),
    )
    assert "expected a Vision Transformer on patches of pixels" in refusal(net(), path)
