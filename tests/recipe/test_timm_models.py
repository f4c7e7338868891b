"""Any Vision Transformer or Eva of timm as a start: its architecture is brought, its features are
timm's, every objective that it can serve trains from it, and exports are of its class. What cannot
be carried exactly is refused in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from helpers.exports import of_timm
from helpers.hub_runs import refused
from helpers.resolving import resolve
from helpers.view_batches import view_batch
from ssl_vit.errors import UserError
from ssl_vit.models import encoder, weights
from ssl_vit.objectives import building
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.schema import Recipe
from ssl_vit.recipe.timm_models import describe

SIDES = 16, 24
# An Eva shaped as DINOv3's by arguments alone, texts among them
AS_DINOV3: dict[str, Any] = {
    "use_abs_pos_emb": False,
    "use_rot_pos_emb": True,
    "attn_type": "rope",
    "qk_norm": True,
    "rope_type": "dinov3",
    "rope_rotate_half": True,
    "rope_temperature": 50,
    "num_reg_tokens": 2,
    "swiglu_mlp": True,
    "scale_mlp": True,
    "qkv_bias": False,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", {}),
    "images of any size": ("vit_small_patch16_224", {"dynamic_img_size": True}),
    "no class token": ("vit_base_patch16_siglip_gap_224", {}),
    "a norm after the mean": ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
    "norms of queries and keys": ("vit_small_patch16_224", {"qk_norm": True, "qkv_bias": False}),
    "SwiGLU": ("vit_giant_patch14_dinov2", {}),
    "SwiGLU of three matrices": ("aimv2_large_patch14_224", {}),
    "CLIP": ("vit_base_patch16_clip_quickgelu_224", {}),
    "EVA": ("eva_giant_patch14_224", {}),
    "EVA-02": ("eva02_tiny_patch14_224", {"ref_feat_shape": [5, 5]}),
    "norms after the branches": ("eva02_enormous_patch14_clip_224", {}),
    "norms that begin small": ("vit_base_patch16_rpn_224", {}),
    "FlexiViT": ("flexivit_base", {}),
    "RADIO": ("vit_base_patch16_radio_v3", {}),
    "RADIO v4": ("vit_so400m_patch16_radio_v4", {}),
    "DINOv3": ("vit_small_patch16_dinov3", {}),
    "DINOv3 with SwiGLU": ("vit_small_plus_patch16_dinov3", {}),
    "DINOv3's parts": ("eva_giant_patch14_224", AS_DINOV3),
}
ROTARY = ("DINOv3", "DINOv3 with SwiGLU", "DINOv3's parts")  # without a table
WITHOUT_TOKEN = (
    *("no class token", "a norm after the mean", "SwiGLU of three matrices"),
    "norms that begin small",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """{shape: what timm writes of a small network of it}; no weight is 0 or 1."""
    root = tmp_path_factory.mktemp("timm")
    small = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    for shape, (name, args) in SHAPES.items():
        torch.manual_seed(0)
        net = timm.create_model(name, num_classes=0, **small, **args)
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        timm.models.save_for_hf(net, root / shape, safe_serialization=True)
    return {shape: root / shape for shape in SHAPES}


def started(folder: Path, *words: str) -> tuple[Recipe, encoder.Encoder]:
    """The recipe that starts there, and its encoder with the weights."""
    recipe = resolve([f"init={folder}", "data=shapes", *words], here=False)
    net = encoder.build_encoder(recipe.model, recipe.data).eval()
    weights.load_init(net, recipe.init_source)
    return recipe, net


def pixels(side: int) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8, generator=random)


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_features_are_timms_and_exports_are_of_its_class(
    shape: str, side: int, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Of the size of the weights and of another one; of the whole image's and of all tokens. The
    export brings the same model without timm's word."""
    place = f"local-dir:{folders[shape]}"
    theirs = timm.create_model(place, pretrained=True, img_size=side).eval()
    recipe, net = started(folders[shape], "recipe=evaluate", f"data.size={side}")
    inputs = net.normalize(pixels(side))
    pool = recipe.init_source.pooling()
    assert (
        recipe.init_source.image_size() == SIDES[0]
    )  # timm's pretrained_cfg has the architecture's
    wanted = theirs(inputs)
    same(net.feature(pixels(side), pool), wanted)
    same(net.tokens(pixels(side)), theirs.forward_features(inputs).flatten(1, -2))
    weights.export(tmp_path / "export", net, {}, recipe.model, recipe.data, pool)
    opened = timm.create_model(f"local-dir:{tmp_path}/export", pretrained=True).eval()
    assert type(opened) is type(theirs)
    same(opened(inputs), wanted)
    again, loaded = started(tmp_path / "export", "recipe=evaluate", f"data.size={side}")
    again.model.name = recipe.model.name
    assert again.model == recipe.model
    assert torch.equal(loaded.tokens(pixels(side)), net.tokens(pixels(side)))


@torch.no_grad()
def test_a_classifier_reads_what_is_normalised_after_the_mean(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    recipe, net = started(folders["EVA-02"], "recipe=evaluate", "data.size=16")
    head = {"head.weight": torch.rand(3, 32), "head.bias": torch.rand(3)}
    for pool in ("avg", "token"):
        folder = tmp_path / pool
        weights.export(folder, net, head, recipe.model, recipe.data, pool, ["a", "b", "c"])
        theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        wanted = net.feature(pixels(16), pool) @ head["head.weight"].T + head["head.bias"]
        same(theirs(net.normalize(pixels(16))), wanted)


@pytest.mark.parametrize("shape", ["EVA-02", *ROTARY])
@torch.no_grad()
def test_visible_patches_keep_their_rotations(shape: str, folders: dict[str, Path]) -> None:
    """In any order."""
    _, net = started(folders[shape], "recipe=evaluate", "data.size=16")
    order_BN = torch.stack([torch.randperm(16) for _ in range(2)])
    embedded_BND = net.patch(pixels(16))
    whole_BND = net(embedded_BND)[:, net.prefix :]
    wanted_BND = torch.stack([one[order] for one, order in zip(whole_BND, order_BN, strict=True)])
    same(net(embedded_BND, order_BN)[:, net.prefix :], wanted_BND)


@pytest.mark.parametrize("shape", ROTARY)
@torch.no_grad()
def test_a_crop_has_the_tokens_that_timm_gives_an_image_of_its_size(
    shape: str, folders: dict[str, Path]
) -> None:
    _, net = started(folders[shape], "recipe=evaluate", "data.size=24")
    place = f"local-dir:{folders[shape]}"
    theirs = timm.create_model(place, pretrained=True, img_size=(8, 12)).eval()
    crop = pixels(24)[:, :, :8, :12]
    same(net.crop_tokens(crop), theirs.forward_features(net.normalize(crop)))


OF_TOKENS = "dino", "ibot", "moco_v3"  # what needs a class token
TRAINED = [
    *((shape, objective) for shape in SHAPES for objective in ("mpp", "mae", "dino")),
    *((shape, o) for shape in ("DINOv3", "no class token") for o in ("ibot", "ijepa", "moco_v3")),
]


@pytest.mark.parametrize(("shape", "objective"), TRAINED)
def test_objectives_train_every_weight_of_it(
    shape: str, objective: str, folders: dict[str, Path]
) -> None:
    """But the norm after the pooling, which stays as it is loaded."""
    has_local = objective in ("dino", "ibot")
    views = ["views.local_size=8", f"{objective}.prototypes=32"] if has_local else []
    words = [f"recipe={objective}", "data.size=16", "optim.batch=4", *views]
    if objective in OF_TOKENS and shape in WITHOUT_TOKEN:
        with pytest.raises(UserError, match=rf"^objective={objective}: .*has no class token"):
            started(folders[shape], *words)
        return
    recipe, net = started(folders[shape], *words)
    network = building.build_objective(
        building.Settings.from_recipe(recipe), net, classes=0
    ).train()
    network(view_batch(4, local=2 if has_local else 0)).loss.backward()
    left = [name for name, one in net.named_parameters() if one.requires_grad and one.grad is None]
    assert not left and all(one.isfinite().all() for one in network.parameters())


def refusal(*words: str) -> str:
    return refused(resolve, [*words, "data=shapes"], False)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "convolutions": ("convnext_atto", {}, "a Vision Transformer or an Eva, not a ConvNeXt"),
    "two tokens": ("deit_tiny_distilled_patch16_224", {}, "not a VisionTransformerDistilled"),
    "learned rotations": ("vit_small_patch16_rope_mixed_224", {}, "not a RotaryEmbeddingMixed"),
    "rotations at random": (
        "vit_small_patch16_dinov3",
        {"rope_rescale_coords": 2.0},
        "does not shift or scale at random",
    ),
    "pooled by attention": ("vit_base_patch16_siglip_224", {}, "global_pool=token or avg"),
    "other blocks": (
        "vit_pwee_patch16_reg1_gap_256",
        {},
        "each block must be an attention layer and an",
    ),
    "an unknown argument": ("vit_tiny_patch16_224", {"a": 3}, "unexpected keyword argument 'a'"),
    "another text": ("vit_tiny_patch16_224", {"act_layer": "mish"}, "model_args has act_layer=mis"),
    "an unknown name": ("vit_of_tomorrow", {}, "model.timm=vit_of_tomorrow: "),
    "no square": ("vit_tiny_patch16_224", {"patch_size": [8, 4]}, "expected square patches"),
}


@pytest.mark.parametrize(("name", "args", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_carried_exactly_is_refused(
    name: str, args: dict[str, Any], says: str, tmp_path: Path
) -> None:
    config = {"architecture": name, "model_args": args, "pretrained_cfg": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    line = refusal("recipe=mae", f"init={tmp_path}")
    assert line.startswith(f"init={tmp_path}: ") and says in line


def test_another_rotation_or_activation_is_no_match(folders: dict[str, Path]) -> None:
    """Names and shapes of the weights would be the same."""
    for shape, args, says in (
        ("DINOv3", {"rope_temperature": 10}, "rope.temperature=100.0"),
        ("CLIP", {"act_layer": "gelu"}, "activation=QuickGELU"),
        ("norms after the branches", {"use_post_norm": False}, "branches=true"),
    ):
        recipe, _ = started(folders[shape], "recipe=evaluate", "data.size=16")
        recipe.model.args |= args
        net = encoder.build_encoder(recipe.model, recipe.data)
        line = refused(weights.load_init, net, recipe.init_source)
        assert "the weights have " in line and says.lower() in line.lower()


@pytest.mark.parametrize("sides", [[16, 24], [8, 32]])
def test_positions_of_images_that_are_no_square_are_refused(
    sides: list[int], tmp_path: Path
) -> None:
    """With the class token's they are 25, as of 5 x 5 patches; of others 16, as of 4 x 4."""
    small = {"img_size": sides, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2}
    net = timm.create_model("vit_small_patch16_224", num_classes=0, **small)
    timm.models.save_for_hf(net, tmp_path, safe_serialization=True)
    for side in (16, 20):
        with pytest.raises(UserError, match=r"^init=.*\(\d+ x \d+ pixels\)"):
            started(tmp_path, "recipe=evaluate", f"data.size={side}")


def test_a_pickle_is_refused_with_the_line_that_converts_it(tmp_path: Path) -> None:
    """What timm's save_for_hf writes unless it is told otherwise; names with blanks too."""
    folder = tmp_path / "an encoder"
    net = timm.create_model("vit_tiny_patch16_224", num_classes=0, depth=1, embed_dim=24)
    timm.models.save_for_hf(net, folder)
    line = refusal("recipe=mae", f"init={folder}")
    assert line.startswith(f"init={folder}: pytorch_model.bin ")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = line.partition("this command: ")[2]
    subprocess.run(command, shell=True, check=True, timeout=120, env=environment)
    found = weights._from_export(folder, str(folder)).state
    assert all(torch.equal(found[name], value) for name, value in net.state_dict().items())


def test_timms_names_are_known_without_the_hub() -> None:
    """With the normalisation and the size of those weights; what is typed stands over them."""
    name = "timm:vit_small_patch16_dinov3.lvd1689m"
    recipe = resolve(["recipe=mae", f"init={name}", "data=shapes", "data.size=64"])
    model = recipe.model
    assert (model.timm, model.name) == ("vit_small_patch16_dinov3",) * 2
    assert (model.patch, model.width, model.depth, model.heads, model.mlp) == (16, 384, 12, 6, 1536)
    assert (model.positions, model.registers, model.layer_scale) == ("rotary", 4, 1e-5)
    assert recipe.data.mean == [0.485, 0.456, 0.406] and recipe.data.size == 64
    assert InitSource(name).image_size() == 256 and InitSource(name).pooling() == "avg"
    assert describe("vit_tiny_patch16_224", {"patch_size": 15}).values["patch"] == 15
    typed = resolve(["recipe=mae", "init=timm:vit_tiny_patch16_224", "model=vit_p8", "data=shapes"])
    assert typed.model.patch == 8
    for other in ("no_such_vit", "vit_tiny_patch16_224.no_such_tag"):
        assert "timm has no weights with this name" in refusal("recipe=mae", f"init=timm:{other}")


def test_a_folder_after_timm_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was only said that the Hub has no such weights."""
    monkeypatch.chdir(tmp_path)
    for place in ("vit_mine", "weights/vit_mine"):
        Path(place).mkdir(parents=True)
        assert refusal("recipe=mae", f"init=timm:{place}").endswith(f"use init={place})")


def test_a_table_is_interpolated_by_timms_rule_in_timms_weights_alone(tmp_path: Path) -> None:
    """What this package exports keeps the rule of the paper's code."""
    theirs = of_timm(tmp_path / "theirs")
    recipe, net = started(theirs, "recipe=evaluate", "data.size=16")
    weights.export(tmp_path / "own", net, {}, recipe.model, recipe.data, "token")
    tables = [
        started(folder, "recipe=evaluate", "data.size=24")[1].backbone.pos_embed
        for folder in (theirs, tmp_path / "own")
    ]
    assert not torch.allclose(*tables, atol=1e-3)
