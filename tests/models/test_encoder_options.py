"""Registers, LayerScale, norms of queries and keys, SwiGLU and kinds of positions: exports against
timm, positions against other implementations, initial weights, errors."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from helpers.options import TINY, altered
from ssl_vit.errors import UserError
from ssl_vit.inspection import embeddings
from ssl_vit.inspection.base import UnavailableError
from ssl_vit.models import encoder, interop, weights
from ssl_vit.models.architectures import first_registers
from ssl_vit.models.attention import Block, QueryAttention
from ssl_vit.models.position_weights import exported_state, resize_positions
from ssl_vit.models.positions import Learned2d, Sincos2d
from ssl_vit.objectives.supervised.network import Supervised
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.model import POSITIONS
from ssl_vit.recipe.schema import Data, Model
from ssl_vit.training import optim

NORM = timm.layers.LayerNorm
SIZE = {"patch": 4, "width": 32, "depth": 2, "heads": 2, "mlp": 80}
ALL = {"registers": 2, "layer_scale": 0.1, "qk_norm": True, "activation": "swiglu"}
OPTIONS: dict[str, dict[str, Any]] = {
    "registers": {"registers": 3},
    "LayerScale": {"layer_scale": 1e-3},
    "norms of queries and keys": {"qk_norm": True},
    "SwiGLU": {"activation": "swiglu"},
    **{kind: {"positions": kind} for kind in POSITIONS},
    **{f"{kind} with all": {"positions": kind, **ALL} for kind in POSITIONS},
}


def model(**options: Any) -> Model:
    return Model(name="tiny", **SIZE, **options)


def net(size: int = 16, seed: int = 0, **options: Any) -> encoder.Encoder:
    """None of its weights is zero or one."""
    torch.manual_seed(seed)
    made = encoder.build_encoder(model(**options), Data(size=size)).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return made


def exported(folder: Path, made: encoder.Encoder, size: int = 16, **options: Any) -> InitSource:
    weights.export(folder, made, {}, model(**options), Data(size=size), "avg")
    return InitSource(str(folder))


def pixels(size: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8, generator=generator)


@torch.no_grad()
def tokens(made: encoder.Encoder, size: int = 16) -> torch.Tensor:
    return made(made.patch(pixels(size)))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_timm_and_init_read_the_export(tmp_path: Path, options: dict[str, Any]) -> None:
    """The same features under timm, under another encoder with those weights, and of the classic
    one others."""
    made = net(**options)
    source = exported(tmp_path / "export", made, **options)
    theirs = timm.create_model(f"local-dir:{tmp_path}/export", pretrained=True).eval()
    normal = made.normalize(pixels())
    with torch.no_grad():
        torch.testing.assert_close(theirs.forward_features(normal), tokens(made), atol=1e-5, rtol=0)
        torch.testing.assert_close(theirs(normal), made.feature(pixels(), "avg"), atol=1e-5, rtol=0)
    again = net(seed=1, **options)
    weights.load_weights(again, source)
    torch.testing.assert_close(tokens(again), tokens(made), atol=1e-6, rtol=0)
    described = resolve(["recipe=evaluate", f"init={source.place}", "data.size=16"], here=False)
    described.model.name = "tiny"
    assert described.model == model(**options)


@pytest.mark.parametrize("kind", POSITIONS)
def test_visible_patches_keep_their_positions(kind: str) -> None:
    """Against the blocks on all patches, whose attention is kept from the others."""
    made = net(positions=kind, **ALL)
    visible_BV = torch.tensor([[9, 2, 15, 4], [0, 7, 8, 3], [11, 10, 1, 12]])
    prefix = made.prefix
    seen_BT = torch.zeros(3, prefix + 16, dtype=torch.bool)
    seen_BT[:, :prefix] = True
    seen_BT.scatter_(1, visible_BV + prefix, True)
    hidden_B11T = torch.zeros(3, 1, 1, prefix + 16).masked_fill(~seen_BT[:, None, None], -1e9)
    with torch.no_grad():
        x_BND = made.patch(pixels())
        found_BTD = made(x_BND, visible_BV)
        x_BTD = made.embed(x_BND)
        arguments = made.block_arguments()
        for block in made.backbone.blocks:
            x_BTD = block(x_BTD, attn_mask=hidden_B11T, **arguments)
        whole_BTD = made.backbone.norm(x_BTD)
    index_BVD = (visible_BV + prefix)[..., None].expand(-1, -1, 32)
    wanted_BTD = torch.cat([whole_BTD[:, :prefix], whole_BTD.gather(1, index_BVD)], 1)
    torch.testing.assert_close(found_BTD, wanted_BTD, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", POSITIONS)
def test_wanted_patches_are_those_of_the_whole_pass(kind: str) -> None:
    """Also of visible patches alone, and their gradients."""
    made = net(positions=kind, **ALL)
    assert isinstance(made.backbone.blocks[-1], Block) == (kind != "rotary")
    visible_BV = torch.tensor([[9, 2, 15, 4], [0, 7, 8, 3], [11, 10, 1, 12]])
    for visible, wanted_BK in (
        (None, torch.tensor([[3, 15, 0], [8, 7, 1], [2, 9, 4]])),
        (visible_BV, torch.tensor([[3, 1], [0, 2], [1, 2]])),
    ):
        for fused in (False, True):
            for block in made.backbone.blocks:
                block.attn.fused_attn = fused
            x_BND = made.patch(pixels()).detach().requires_grad_()
            whole_BND = made(x_BND, visible)[:, made.prefix :]
            theirs = whole_BND.gather(1, wanted_BK[..., None].expand(-1, -1, 32))
            ours = made(x_BND, visible, wanted_BK)
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
            weight = torch.linspace(-1, 1, ours.numel()).view_as(ours)
            gradients = [torch.autograd.grad((h * weight).sum(), x_BND)[0] for h in (ours, theirs)]
            torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [16, 24])
def test_patches_are_embedded_as_by_timms_convolution(size: int) -> None:
    """Embeddings, and gradients of weights and bias."""
    made = net(size)
    image_B3HW = torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8)
    projection = made.backbone.patch_embed.proj
    found = []
    for x_BND in (
        made.patch(image_B3HW),
        made.patch_pixels(encoder.cut_patches(image_B3HW, 4)),
        made.backbone.patch_embed(made.normalize(image_B3HW)),
    ):
        assert x_BND.shape == (3, (size // 4) ** 2, 32)
        found.append(
            [x_BND, *torch.autograd.grad(x_BND.square().sum(), [*projection.parameters()])]
        )
    assert all(map(torch.equal, found[0], found[1]))
    for one, other in zip(found[1], found[2], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("shape", [(3, 8, 32), (3, 24, 24), (3, 17, 17), (1, 16, 16), (16, 16)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...], kind: str) -> None:
    """Also of as many patches: their places would be others."""
    image = torch.zeros(2, *shape, dtype=torch.uint8)
    with pytest.raises(
        ValueError, match=re.escape(f"of shape {(2, *shape)}: expected (B, 3, 16, 16)")
    ):
        net(positions=kind).feature(image, "avg")


def test_an_architecture_for_images_of_any_size(tmp_path: Path) -> None:
    """It gives patches as rows and columns in timm, which reads its export."""
    options: dict[str, Any] = {"timm": "test_vit"}
    made = net(**options)
    assert made.patch(pixels()).shape == (3, 16, 32)
    exported(tmp_path / "export", made, **options)
    theirs = timm.create_model(f"local-dir:{tmp_path}/export", pretrained=True).eval()
    assert theirs.dynamic_img_size
    found = theirs.forward_features(made.normalize(pixels()))
    torch.testing.assert_close(found, tokens(made), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_timms(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, and gradients of input and weights; by plain products in bfloat16 on a CPU."""
    ours = net(qk_norm=True).backbone.blocks[0].attn.to(dtype)
    assert type(ours) is QueryAttention
    theirs = timm.layers.attention.Attention(32, 2, qkv_bias=True, qk_norm=True, norm_layer=NORM)
    theirs.to(dtype).load_state_dict(ours.state_dict())
    theirs.fused_attn = False
    x_BTD = torch.randn(3, 17, 32, dtype=dtype, requires_grad=True)
    fused = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *given: fused.append(1) or kernel(*given),
    )
    found = []
    for attention in (ours, theirs):
        read_BTD = attention(x_BTD)
        gradients = torch.autograd.grad(read_BTD.square().sum(), [x_BTD, *attention.parameters()])
        found.append([read_BTD, *gradients])
    assert len(fused) == (dtype == torch.float32)
    exact = {"atol": 1e-4, "rtol": 1e-4} if fused else {"atol": 0, "rtol": 0}
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **exact)


def test_sines_and_cosines_are_those_of_maes_code() -> None:
    """util/pos_embed.py of He et al.: half for the column, half for the row, sines first."""
    table_ND = Sincos2d("sincos_2d", (3, 5), 8).table()
    omega = 1 / 10000 ** (np.arange(2) / 2)
    for n in range(15):
        angles = [n % 5 * omega, n // 5 * omega]
        wanted = np.concatenate([f(angle) for angle in angles for f in (np.sin, np.cos)])
        np.testing.assert_allclose(table_ND[n].numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", POSITIONS)
def test_first_weights_fit_another_image_size(tmp_path: Path, kind: str) -> None:
    made = net(positions=kind)
    source = exported(tmp_path / "export", made, positions=kind)
    large = net(size=32, seed=1, positions=kind)
    weights.load_weights(large, source)
    ours = exported_state(large)
    theirs = exported_state(made)
    changed = {name for name, value in theirs.items() if not torch.equal(ours[name], value)}
    if "pos_embed" in theirs:
        wanted = resize_positions(theirs["pos_embed"], (8, 8), 1)
        if kind == "sincos_2d":  # the formula's, not interpolated
            assert torch.equal(ours["pos_embed"][0, 1 + 8 + 1], theirs["pos_embed"][0, 1 + 4 + 1])
        else:
            torch.testing.assert_close(ours["pos_embed"], wanted)
        assert changed == {"pos_embed"}
    else:
        assert not changed


def test_what_has_other_positions_is_refused(tmp_path: Path) -> None:
    """Weights with rotary positions and without any have the same names."""

    def refusal(there: str, here: str) -> str:
        folder = tmp_path / there
        if not folder.exists():
            exported(folder, net(positions=there), positions=there)
        with pytest.raises(UserError) as caught:
            weights.load_weights(net(positions=here), InitSource(str(folder)))
        return str(caught.value)

    assert "model.positions=none here, rotary there" in refusal("rotary", "none")
    assert "model.positions=rotary here, none there" in refusal("none", "rotary")
    assert "model.positions=learned here, rotary there" in refusal("rotary", "learned")
    assert "model.positions=rotary here, learned there" in refusal("learned", "rotary")
    assert "not of rows and columns; expected model.positions=learned" in refusal(
        "learned", "learned_2d"
    )
    assert "not sines and cosines" in refusal("learned", "sincos_2d")
    weights.load_weights(net(), exported(tmp_path / "2d", net(positions="learned_2d")))


@pytest.mark.parametrize(
    ("here", "says"),
    [
        ({}, "model.registers=0 here, 3 there"),
        ({"registers": 3, "qk_norm": True}, "model.qk_norm=true here, false there"),
        ({"registers": 3, "activation": "swiglu"}, "model.activation=swiglu here, gelu there"),
        ({"registers": 3, "layer_scale": 0.1}, "model.layer_scale=a value here, null there"),
    ],
)
def test_other_options_are_named(tmp_path: Path, here: dict[str, Any], says: str) -> None:
    source = exported(tmp_path / "export", net(registers=3), registers=3)
    with pytest.raises(UserError, match=says):
        weights.load_weights(net(**here), source)


def test_a_table_without_prefix_tokens_gives_timms_features(tmp_path: Path) -> None:
    """As of timm's models after DINOv2 with registers."""
    torch.manual_seed(0)
    args = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2.5}
    args |= {"img_size": 16, "reg_tokens": 2, "no_embed_class": True, "init_values": 0.1}
    theirs = timm.create_model("vit_base_patch16_224", num_classes=0, **args).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    config = {"architecture": "vit_base_patch16_224", "num_classes": 0, "model_args": args}
    (tmp_path / "config.json").write_text(json.dumps(config | {"pretrained_cfg": {}}))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    made = net(registers=2, layer_scale=1.0)
    weights.load_weights(made, InitSource(str(tmp_path)))
    with torch.no_grad():
        wanted = theirs.forward_features(made.normalize(pixels()))
    torch.testing.assert_close(tokens(made), wanted, atol=1e-5, rtol=0)
    # and the other way round: the tokens take up what the table holds for them
    source = exported(tmp_path / "learned", made, registers=2, layer_scale=1.0)
    bare = encoder.Encoder(theirs, Data())
    torch.nn.init.normal_(theirs.pos_embed)
    weights.load_weights(bare, source)
    torch.testing.assert_close(tokens(bare), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["learned_2d", "sincos_2d", "rotary"])
def test_transformers_has_tables_only(tmp_path: Path, kind: str) -> None:
    from transformers import ViTModel

    made = net(positions=kind)
    exported(tmp_path / "export", made, positions=kind)
    if kind == "rotary":
        with pytest.raises(UserError, match="transformers' ViT is timm's VisionTransformer"):
            interop.to_transformers(tmp_path / "export", tmp_path / "out")
        return
    interop.to_transformers(tmp_path / "export", tmp_path / "out")
    theirs = ViTModel.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        found = theirs(made.normalize(pixels())).last_hidden_state
    torch.testing.assert_close(found, tokens(made), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["learned_2d", "rotary"])
def test_tokens_positions_and_scales_do_not_decay(kind: str) -> None:
    """And with a decay of rates by layer, positions learn as the other embeddings."""
    made = net(positions=kind, **ALL)
    objective = Supervised(made, 5, loss="softmax", smoothing=0, hidden=False, pool="avg")
    groups = optim.groups(objective, 0.1, lr=1.0, layer_decay=0.5)
    names = {id(p): name for name, p in objective.named_parameters()}
    found = {names[id(p)]: group for group in groups for p in group["params"]}
    ends = ("qkv.weight", "attn.proj.weight", "fc1.weight", "fc2.weight", "head.weight")
    decayed = {name for name, group in found.items() if group["weight_decay"]}
    assert decayed == {name for name in found if name.endswith((*ends, "patch_embed.proj.weight"))}
    tables = ("positions.", "cls_token", "reg_token")
    embeddings_of = [name for name in found if any(part in name for part in tables)]
    assert len(embeddings_of) == (4 if kind == "learned_2d" else 2)
    assert {found[name]["lr"] for name in embeddings_of} == {0.5**3}


def test_a_seed_gives_the_same_embeddings_with_every_torch() -> None:
    """torch 2.11 and 2.14 draw trunc_normal_ in different ways: 2.11 alone fails with it."""
    torch.manual_seed(0)
    wanted = [torch.normal(0.0, 0.02, shape) for shape in ((5, 16), (3, 16), (1, 4, 32))]
    torch.manual_seed(0)
    table = Learned2d("learned_2d", grid=(3, 5), width=32)
    backbone = SimpleNamespace(reg_token=torch.empty(1, 4, 32))
    first_registers(backbone)
    found = [table.column_Ch, table.row_Rh, backbone.reg_token]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_similarity_is_that_of_what_is_added() -> None:
    made = net(positions="learned_2d")
    found = embeddings.position_similarity(made)
    table_ND = torch.nn.functional.normalize(made.positions.table().double(), dim=1)
    torch.testing.assert_close(found, table_ND @ table_ND.T)
    with pytest.raises(UnavailableError, match=r"no position embeddings \(model.positions=rotary"):
        embeddings.position_similarity(net(positions="rotary"))


@pytest.mark.parametrize(
    ("own", "says"),
    {
        "a width without quarters": (
            ["model.positions=rotary", "model.width=36"],
            "model.width=36: no multiple of 8, which model.positions=rotary needs",
        ),
        "another architecture": (
            ["model.positions=rotary", "model.timm=vit_small_patch16_224"],
            "model.timm=vit_small_patch16_224: expected vit_base_patch16_224 beside",
        ),
        "a hybrid": (
            ["recipe=supervised", "model=r50_vit_b16", "data.size=64", "model.positions=rotary"],
            "model.positions=rotary: expected learned, learned_2d, sincos_2d or none beside",
        ),
        "no blocks": (
            ["recipe=finetune", "model=bit_r50x1", "model.registers=4"],
            "model.registers=4: model=bit_r50x1 has no use for it",
        ),
        "no such kind": (["model.positions=sincos"], "did you mean sincos_2d?"),
    }.values(),
)
def test_what_timm_has_not_is_one_line(own: list[str], says: str) -> None:
    large = any(word.startswith("model=") for word in own)
    base = [word for word in TINY if not (word.startswith("model.") and large)]
    with pytest.raises(UserError) as caught:
        resolve(altered(base, *own), here=False)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timm": "vit_base_patch14_reg4_dinov2"}, "model.registers=0: model.timm=.* has 4"),
        (
            {"timm": "vit_base_patch14_dinov2"},
            "model.layer_scale=null: model.timm=.* has a value",
        ),
        ({"timm": "vit_small_patch16_224", "activation": "swiglu"}, "has gelu"),
    ],
)
def test_an_architecture_with_other_options_is_refused(options: dict[str, Any], says: str) -> None:
    """Its cost would be counted wrongly."""
    with pytest.raises(UserError, match=says):
        net(**options)


@pytest.mark.parametrize(("width", "mlp"), [(208, 120), (208, 480), (36, 26)])
def test_the_mlp_is_as_wide_as_it_says(width: int, mlp: int) -> None:
    """mlp / width times width is less than mlp in floats."""
    for activation in ("gelu", "swiglu"):
        sizes = Model(patch=8, width=width, depth=1, heads=2, mlp=mlp, activation=activation)
        with torch.device("meta"):
            made = encoder.build_encoder(sizes, Data(size=16))
        assert made.backbone.blocks[0].mlp.fc2.in_features == mlp
