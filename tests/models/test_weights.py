"""Weights in and out: timm and transformers give the features of what is exported, with no code of
this project; what init= names is loaded, adapted, or refused by both values."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models import adapt_input_conv

import ssl_vit
from helpers.disk import full_disk
from helpers.encoders import DATA, MODEL, load, net, pixels
from helpers.exports import forget_digests
from helpers.hub_runs import refused
from helpers.options import TINY, altered
from helpers.resolving import resolve, resolve_encoder
from helpers.runs import run
from ssl_vit.errors import UserError
from ssl_vit.models import encoder, weights
from ssl_vit.models.architectures import build_timm_args
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.model import POSITIONS
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.runs.folder import Run

ALL = {"registers": 2, "layer_scale": 0.1, "qk_norm": True, "activation": "swiglu"}
SIDE = 16


def model(**options: Any) -> Model:
    return Model(**vars(MODEL) | options)


def bands(channels: int) -> Data:
    share = [0.1 + 0.1 * n for n in range(channels)]
    return Data(size=SIDE, channels=channels, range=[100, 4000], mean=share, std=share[::-1])


def images(data: Data) -> torch.Tensor:
    """Some beyond the range."""
    if data.is_rgb:
        return pixels()
    random = torch.Generator().manual_seed(0)
    shape = (3, data.channels, SIDE, SIDE)
    return torch.randint(0, 5000, shape, generator=random, dtype=torch.int32)


def normalised(image: torch.Tensor, data: Data) -> torch.Tensor:
    lowest, highest = data.pixel_range
    share = (image.double().clamp(lowest, highest) - lowest) / (highest - lowest)
    mean, std = (torch.tensor(v)[:, None, None] for v in (data.mean, data.std))
    return ((share - mean) / std).float()


def exported(folder: Path, options: dict[str, Any] | None = None, data: Data = DATA, pool="avg"):
    """An encoder of these options, and its export there."""
    of = model(**options or {})
    made = net(of, data)
    weights.export(folder, made, {"mask_token": torch.ones(32)}, of, data, pool)
    return made


def refusal(made: encoder.Encoder, place: str | Path) -> str:
    line = refused(load, made, place)
    assert str(place) in line
    return line


FEATURES: dict[str, tuple[dict[str, Any], Data, str]] = {
    "mean of patches": ({}, Data(size=SIDE, mean=[0.4] * 3, std=[0.25] * 3), "avg"),
    "class token": ({}, DATA, "token"),
    "registers": ({"registers": 3}, DATA, "avg"),
    "LayerScale": ({"layer_scale": 1e-3}, DATA, "avg"),
    "norms of queries and keys": ({"qk_norm": True}, DATA, "avg"),
    "SwiGLU": ({"activation": "swiglu"}, DATA, "avg"),
    **{f"{kind} with all": ({"positions": kind, **ALL}, DATA, "avg") for kind in POSITIONS},
    "one channel": ({}, bands(1), "avg"),
    "seven channels": ({"positions": "rotary"}, bands(7), "token"),
    # timm gives its patches as rows and columns
    "images of any size": ({"timm": "test_vit"}, DATA, "avg"),
}


@pytest.mark.parametrize(("options", "data", "pool"), FEATURES.values(), ids=FEATURES)
@torch.no_grad()
def test_timm_transformers_and_init_give_the_encoders_features(
    tmp_path: Path, options: dict[str, Any], data: Data, pool: str
) -> None:
    """And the export alone tells model and normalisation."""
    from transformers import AutoModel

    folder = tmp_path / "export"
    made = exported(folder, options, data, pool)
    image = images(data)
    h_BTD = made(made.patch(image))
    wanted = h_BTD[:, 0] if pool == "token" else h_BTD[:, made.prefix :].mean(1)
    inputs = normalised(image, data)
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    torch.testing.assert_close(theirs(inputs), wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(theirs.forward_features(inputs), h_BTD, atol=1e-5, rtol=0)
    config = timm.data.resolve_model_data_config(theirs)
    assert list(config["input_size"]) == [data.channels, SIDE, SIDE]
    assert list(config["mean"]) == data.mean
    auto = AutoModel.from_pretrained(folder).eval()
    torch.testing.assert_close(auto(inputs).pooler_output, wanted, atol=1e-5, rtol=0)
    other = net(model(**options), data, seed=1)
    load(other, folder)
    assert torch.equal(other(other.patch(image)), h_BTD)
    assert torch.equal(ssl_vit.load_encoder(folder).feature(image), made.feature(image, pool))
    described = resolve_encoder(str(folder), {"data.size": 16})
    described.model.name = "tiny"
    assert described.model == model(**options)
    for key in ("channels", "range", "mean", "std"):
        assert getattr(described.data, key) == getattr(data, key)


def test_a_hash_tells_the_weights(tmp_path: Path) -> None:
    hashes = [weights.fingerprint(net(seed=seed).backbone.state_dict()) for seed in (0, 1)]
    exported(tmp_path / "export")
    assert load(net(seed=1), tmp_path / "export") == hashes[0]
    assert hashes[0] != hashes[1]


def test_an_export_replaces_what_was_there_and_leaves_files_of_others(tmp_path: Path) -> None:
    """In it and beside it. A full disk keeps the one that was there; what an earlier, killed process
    left goes."""
    folder = tmp_path / "export"
    exported(folder, pool="token")
    (folder / "own.txt").write_text("mine")
    for name in (".export.backup", ".export.4711"):
        (tmp_path / name).mkdir()
    before = (folder / "model.safetensors").read_bytes()
    with full_disk(), pytest.raises(OSError, match="too large"):
        exported(folder, {"qk_norm": True})
    assert (folder / "model.safetensors").read_bytes() == before
    exported(folder, {"qk_norm": True})
    assert {p.name for p in tmp_path.iterdir()} == {"export", ".export.backup"}
    files = {"config.json", "model.safetensors", "heads.safetensors", "own.txt"}
    assert {p.name for p in folder.iterdir()} == files
    assert json.loads((folder / "config.json").read_text())["model_args"]["global_pool"] == "avg"
    assert load_file(folder / "heads.safetensors")["mask_token"].shape == (32,)


@pytest.mark.parametrize("written_as", ["timm", "transformers"])
def test_one_flipped_bit_is_refused(tmp_path: Path, written_as: str) -> None:
    made = exported(tmp_path / "timm", pool="token")
    ssl_vit.export(init=tmp_path / "timm", format="transformers", out=tmp_path / "transformers")
    folder = tmp_path / written_as
    load(made, folder)
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert refusal(made, folder).startswith(f"init={folder}: {file} was damaged or replaced")
    forget_digests(folder)  # as what others wrote has none
    load(made, folder)


OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"width": 48}, "model.width=32 (in this run 48)"),
    ({}, {"depth": 3}, "model.depth=2 (in this run 3)"),
    ({}, {"patch": 8}, "model.patch=4 (in this run 8)"),
    ({}, {"mlp": 96}, "model.mlp=80 (in this run 96)"),
    ({}, {"heads": 4}, "model.heads=2 (in this run 4)"),
    ({"registers": 3}, {}, "model.registers=3 (in this run 0)"),
    ({}, {"qk_norm": True}, "model.qk_norm=false (in this run true)"),
    ({}, {"activation": "swiglu"}, "model.activation=gelu (in this run swiglu)"),
    ({}, {"layer_scale": 0.1}, "model.layer_scale=null (in this run a value)"),
    # weights with rotary positions and without any have the same names
    (
        {"positions": "rotary"},
        {"positions": "none"},
        "model.positions=rotary, and this run has model.positions=none",
    ),
    (
        {"positions": "none"},
        {"positions": "rotary"},
        "model.positions=none, and this run has model.positions=rotary",
    ),
    (
        {"positions": "rotary"},
        {},
        "model.positions=rotary, and this run has model.positions=learned",
    ),
    (
        {},
        {"positions": "rotary"},
        "model.positions=learned, and this run has model.positions=rotary",
    ),
    ({}, {"positions": "learned_2d"}, "Use model.positions=learned"),
    ({}, {"positions": "sincos_2d"}, "not sines and cosines"),
]


@pytest.mark.parametrize(("there", "here", "says"), OTHERS)
def test_another_model_is_told_by_both_values(
    tmp_path: Path, there: dict[str, Any], here: dict[str, Any], says: str
) -> None:
    exported(tmp_path / "export", there)
    assert says in refusal(net(model(**here)), tmp_path / "export")


def test_missing_unexpected_and_damaged_weights_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    state = dict(exported(folder).backbone.state_dict())
    forget_digests(folder)
    file, first = folder / "model.safetensors", "blocks.1.norm1.bias"
    for changed, says in (
        ({k: v for k, v in state.items() if k != first}, f"lack {first}"),
        (state | {"blocks.0.norm3.weight": torch.ones(32)}, "lacks blocks.0.norm3.w"),
        ({k: v.to(torch.int8) for k, v in state.items()}, "has the type int8"),
        (state | {first: torch.full((32,), torch.nan)}, f"{first} is not finite"),
        (state | {"pos_embed": torch.ones(1, 1 + 14, 32)}, "14 positions "),
    ):
        save_file(changed, file)
        assert says in refusal(net(), folder)
    head = {"head.weight": torch.ones(7, 32), "head.bias": torch.ones(7)}
    save_file(state | head, file)
    load(net(), folder)  # a head is left behind
    file.write_bytes(file.read_bytes()[:100])
    refusal(net(), folder)
    (folder / "config.json").write_text("{")
    assert "config.json" in refused(InitSource(str(folder)).read_description)


def test_other_normalisation_is_refused(tmp_path: Path) -> None:
    exported(tmp_path / "export", data=Data(size=SIDE, mean=[0.4] * 3))
    text = refusal(net(), tmp_path / "export")
    assert "data.mean=[0.5, 0.5, 0.5]" in text and "data.mean=[0.4,0.4,0.4]" in text


@pytest.mark.parametrize("channels", [1, 4, 7])
def test_rgb_weights_are_adapted_by_timms_rule(tmp_path: Path, channels: int) -> None:
    rgb = tmp_path / "rgb"
    exported(rgb)
    made = net(model(adapt_channels=True), bands(channels))
    load(made, rgb)
    first = load_file(rgb / "model.safetensors")["patch_embed.proj.weight"]
    found = made.backbone.patch_embed.proj.weight
    assert torch.equal(found, adapt_input_conv(channels, first))
    if channels == 4:
        torch.testing.assert_close(found[:, 3], first[:, 0] * 3 / 4)
    line = refusal(net(data=bands(channels)), rgb)
    assert line.startswith(f"data.channels={channels}: ") and "model.adapt_channels=true" in line
    exported(tmp_path / "two", data=bands(2))
    assert "model.adapt_channels" not in refusal(made, tmp_path / "two")


def google_shapes() -> dict[str, tuple[int, ...]]:
    """The names and shapes of Google's weights of MODEL."""
    d, h, mlp, patch = MODEL.width, MODEL.heads, MODEL.mlp, MODEL.patch
    dense = {
        "embedding": ((patch, patch, 3, d), (d,)),
        "pre_logits": ((d, d), (d,)),
        "head": ((d, 21), (21,)),
    }
    shapes = {"cls": (1, 1, d)}
    shapes["Transformer/posembed_input/pos_embedding"] = (1, (SIDE // patch) ** 2 + 1, d)
    norms = ["Transformer/encoder_norm"]
    for i in range(MODEL.depth):
        block = f"Transformer/encoderblock_{i}"
        norms += [f"{block}/LayerNorm_{n}" for n in (0, 2)]
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for part in ("query", "key", "value"):
            dense[f"{attention}/{part}"] = ((d, h, d // h), (h, d // h))
        dense[f"{attention}/out"] = ((h, d // h, d), (d,))
        dense[f"{block}/MlpBlock_3/Dense_0"] = ((d, mlp), (mlp,))
        dense[f"{block}/MlpBlock_3/Dense_1"] = ((mlp, d), (d,))
    for name, (kernel, bias) in dense.items():
        shapes |= {f"{name}/kernel": kernel, f"{name}/bias": bias}
    return shapes | {f"{norm}/{part}": (d,) for norm in norms for part in ("scale", "bias")}


def google(folder: Path, **change: np.ndarray) -> Path:
    """Random arrays under the names and shapes of Google's ViT checkpoints."""
    rng, path = np.random.default_rng(0), folder / "B_4.npz"
    shapes = google_shapes().items()
    found = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes}
    np.savez(path, **found | change)
    return path


def test_a_google_checkpoint_gives_timms_features(tmp_path: Path) -> None:
    path, made = google(tmp_path), net()
    load(made, path)
    theirs = timm.create_model(
        "vit_base_patch16_224", num_classes=0, **build_timm_args(MODEL, 16)
    ).eval()
    theirs.load_pretrained(str(path))
    with torch.no_grad():
        wanted = theirs(pixels() / 127.5 - 1)
        torch.testing.assert_close(made.feature(pixels(), "token"), wanted, atol=1e-4, rtol=0)
    assert "model.depth=2 (in this run 3)" in refusal(net(model(depth=3)), path)
    google(tmp_path, **{"embedding/kernel": np.zeros((1, 1, 1024, 32), np.float32)})
    assert "not a Vision Transformer on patches of pixels" in refusal(net(), path)
    np.savez(path, root=np.zeros(3))
    assert "not a Vision Transformer on patches of pixels" in refusal(net(), path)


def test_a_table_without_prefix_tokens_gives_timms_features(tmp_path: Path) -> None:
    """As of timm's models after DINOv2 with registers; and the other way round: the tokens take up
    what the table holds for them."""
    torch.manual_seed(0)
    args = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2.5}
    args |= {"img_size": 16, "reg_tokens": 2, "no_embed_class": True, "init_values": 0.1}
    theirs = timm.create_model("vit_base_patch16_224", num_classes=0, **args).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    config = {"architecture": "vit_base_patch16_224", "num_classes": 0, "model_args": args}
    (tmp_path / "config.json").write_text(json.dumps(config | {"pretrained_cfg": {}}))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    options = {"registers": 2, "layer_scale": 1.0}
    made = net(model(**options))
    load(made, tmp_path)
    with torch.no_grad():
        wanted = theirs.forward_features(made.normalize(pixels()))
        torch.testing.assert_close(made(made.patch(pixels())), wanted, atol=1e-5, rtol=0)
    torch.nn.init.normal_(made.backbone.pos_embed)
    weights.export(tmp_path / "learned", made, {}, model(**options), DATA, "avg")
    bare = encoder.Encoder(theirs, Data())
    torch.nn.init.normal_(theirs.pos_embed)
    load(bare, tmp_path / "learned")
    with torch.no_grad():
        found, wanted = (one(one.patch(pixels())) for one in (bare, made))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_the_heads_of_a_foreign_export_are_those_of_its_architecture(tmp_path: Path) -> None:
    """timm's own exports need not say them; shapes do not tell them."""
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=32)
    timm.models.save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True)
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text()) | {"model_args": {"img_size": 32}}
    path.write_text(json.dumps(config))
    stats = theirs.pretrained_cfg
    data = Data(size=32, mean=list(stats["mean"]), std=list(stats["std"]))
    tiny = {"patch": 16, "width": 192, "depth": 12, "mlp": 768}
    right, wrong = (encoder.build_encoder(Model(**tiny, heads=n), data) for n in (3, 6))
    load(right, tmp_path / "theirs")
    assert "model.heads=3 (in this run 6)" in refusal(wrong, tmp_path / "theirs")


@pytest.mark.parametrize("place", ["nowhere", "nowhere.npz", ".", "runs/unfinished"])
def test_a_place_without_an_encoder_is_said_with_the_choices(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "unfinished").mkdir(parents=True)
    (tmp_path / "runs" / "unfinished" / "recipe.yaml").write_text("{}")
    line = refused(InitSource(place).locate)
    assert line.startswith(f"init={place}: ") and ("timm:NAME" in line or "not finished" in line)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    steps = ["optim.steps=2", "optim.warmup=1", "eval.every=2", "checkpoint.every=2"]
    out = f"out={tmp_path_factory.mktemp('runs')}"
    return run(altered(TINY, *steps, out, "name=mpp", "data.mean=[0.4,0.4,0.4]"))


def test_a_run_brings_its_model_and_its_normalisation(pretrained: Run, tmp_path: Path) -> None:
    def tuned(place: Path, *more: str):
        return resolve(["recipe=finetune", f"init={place}", f"out={tmp_path}", *more])

    recipe = tuned(pretrained.folder)
    assert (recipe.model.width, recipe.model.patch, recipe.data.mean) == (32, 4, [0.4] * 3)
    assert recipe.name == "finetune-init=mpp" and recipe.init == str(pretrained.folder)
    assert tuned(pretrained.export).model == recipe.model
    shutil.copytree(pretrained.export, tmp_path / "alone")
    alone = tuned(tmp_path / "alone").model
    assert (alone.width, alone.patch, alone.mlp) == (32, 4, 64)
    with pytest.raises(UserError, match=r"data\.mean=\[0\.5, 0\.5, 0\.5\]: init=.*=\[0\.4"):
        tuned(pretrained.folder, "data.mean=[0.5,0.5,0.5]")


def test_a_frozen_encoder_of_bytes_takes_no_other_range(pretrained: Run, tmp_path: Path) -> None:
    given = [f"init={pretrained.folder}", f"out={tmp_path}"]
    line = r"data\.range=\[0, 4095\]: init=.*data\.range=\[0,255\]"
    with pytest.raises(UserError, match=line):
        resolve(["recipe=evaluate", *given, "data.range=[0,4095]"])
    assert resolve(["recipe=evaluate", *given, "data.range=[0,255]"]).data.range == [0, 255]
    assert resolve(["recipe=finetune", *given, "data.range=[0,4095]"]).data.range == [0, 4095]
