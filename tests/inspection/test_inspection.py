"""Figures of what a model has learned, checked by numbers against slow, plain implementations."""

from functools import partial

import matplotlib.cbook
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from sklearn.decomposition import PCA
from timm.layers import HybridEmbed
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer

from ssl_vit.data.batching import Batch
from ssl_vit.inspection import attention, collection, drawing, embeddings, projections
from ssl_vit.inspection.base import FigureInput, UnavailableError
from ssl_vit.models import encoder
from ssl_vit.objectives import corruption, reconstruction
from ssl_vit.objectives.building import Settings
from ssl_vit.objectives.mpp.network import MaskedPatchPrediction
from ssl_vit.objectives.targets import NORMALIZED, patch_targets
from ssl_vit.recipe.schema import Data, Model


def vit(**changes) -> encoder.Encoder:
    """A Vision Transformer of timm's of 4 x 4 patches, none of whose weights is zero or one."""
    torch.manual_seed(0)
    args = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 3, "num_heads": 4}
    backbone = VisionTransformer(**args | changes, num_classes=0)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    return encoder.Encoder(backbone, Data()).eval()


def with_positions(kind: str, **options) -> encoder.Encoder:
    torch.manual_seed(0)
    model = Model(patch=4, width=32, depth=3, heads=4, mlp=64, positions=kind, **options)
    net = encoder.build_encoder(model, Data(size=16)).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.3)
    return net


DINOV3 = {"positions": "rotary", "timm": "vit_small_patch16_dinov3", "registers": 4}
DINOV3 |= {"layer_scale": 1.0}


def images(count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qk_norm": True},
        {"reg_tokens": 2, "no_embed_class": True},
        {"class_token": False},
        {"positions": "rotary"},
        {**DINOV3, "args": {"qkv_bias": False}},
        {**DINOV3, "args": {"qkv_bias": True, "qkv_fused": False}},
    ],
    ids=[
        *("plain", "norms of queries and keys", "registers", "no class token"),
        *("rotary", "DINOv3", "DINOv3 of three matrices"),
    ],
)
def test_attention_is_what_timm_computes_without_fused_kernels(changes: dict) -> None:
    changes = changes | ({"global_pool": "avg"} if "class_token" in changes else {})
    net = (
        vit(**changes)
        if "positions" not in changes
        else with_positions(changes.pop("positions"), **changes)
    )
    wanted = []
    for block in net.backbone.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda *all: wanted.append(all[2]))
    with torch.no_grad():
        feature_BTD = net(net.patch(images()))
    for block in net.backbone.blocks:
        block.attn.fused_attn = True
        block.attn.attn_drop._forward_hooks.clear()
    found = list(attention.attention_maps(net, images()))
    assert len(found) == len(wanted) == 3
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == (3, 4, 16 + net.prefix, 16 + net.prefix)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    assert found[0].std() > 0.01  # no uniform attention, which would prove little
    assert not any(module._forward_pre_hooks for module in net.modules())
    with torch.no_grad():
        torch.testing.assert_close(net(net.patch(images())), feature_BTD, atol=1e-4, rtol=1e-4)


def test_another_kind_of_block_is_named() -> None:
    with pytest.raises(UnavailableError, match=r"block 1 .*ParallelScalingBlock"):
        next(attention.attention_maps(vit(block_fn=ParallelScalingBlock), images()))


def test_attention_distance_of_hand_made_maps() -> None:
    """Four patches of 4 pixels in a square, after a class token: neighbours are 4 apart, opposite
    ones 4 times the root of 2."""
    distance_NN = attention.patch_distances((2, 2), 4)
    far = 4 * 2**0.5
    wanted = [[0, 4, 4, far], [4, 0, far, 4], [4, far, 0, 4], [far, 4, 4, 0]]
    torch.testing.assert_close(distance_NN, torch.tensor(wanted))
    oblong_NN = attention.patch_distances((2, 3), 8)  # of a grid that is no square
    place = [8 * (n // 3 + 1j * (n % 3)) for n in range(6)]
    np.testing.assert_allclose(oblong_NN, [[abs(a - b) for b in place] for a in place], rtol=1e-6)
    maps_1HTT = torch.zeros(1, 4, 5, 5)
    maps_1HTT[0, 0, 1:, 1:] = torch.eye(4)  # each patch reads itself
    maps_1HTT[0, 1, :, 0] = 0.6  # the class token's share has no distance
    maps_1HTT[0, 1, :, 1:] = 0.1
    maps_1HTT[0, 2, 1:, 1:] = torch.eye(4)  # the first patch reads the last, a quarter the second
    maps_1HTT[0, 2, 1, 1:] = torch.tensor([0, 0.25, 0, 0.75])
    maps_1HTT[0, 3, :, 0] = 1  # nothing but the class token
    found_H = attention.attention_distance(maps_1HTT, distance_NN)[0]
    wanted_H = torch.tensor([0, (8 + far) / 4, (0.25 * 4 + 0.75 * far) / 4, torch.nan])
    torch.testing.assert_close(found_H, wanted_H, equal_nan=True)


def test_rollout_of_two_layers_is_that_of_numpy() -> None:
    maps = torch.rand(2, 3, 2, 5, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    found_BTT = attention.rollout(maps)
    mixed = maps.double().numpy().mean(2) + np.eye(5)
    first, second = mixed / mixed.sum(-1, keepdims=True)
    np.testing.assert_allclose(found_BTT, second @ first, atol=1e-6)
    token_BN = attention.feature_rollout(found_BTT, 1, "token")
    assert torch.equal(token_BN, found_BTT[:, 0, 1:])
    torch.testing.assert_close(
        attention.feature_rollout(found_BTT, 1, "avg"),
        torch.stack([found_BTT[:, row, 1:] for row in range(1, 5)]).mean(0),
    )


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_principal_components_are_scikit_learns_up_to_their_sign(shape: tuple[int, int]) -> None:
    scale = torch.linspace(3, 0.1, shape[1])
    x_ND = scale * torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 5
    found = projections.principal_components(x_ND, 6)
    wanted = PCA(6, svd_solver="full").fit(x_ND.double().numpy())
    signs = np.sign((found.direction_KD.numpy() * wanted.components_).sum(1, keepdims=True))
    np.testing.assert_allclose(found.direction_KD.numpy(), signs * wanted.components_, atol=1e-6)
    np.testing.assert_allclose(found.variance_K.numpy(), wanted.explained_variance_ratio_)
    places = wanted.transform(x_ND.double().numpy())
    np.testing.assert_allclose(found.project(x_ND).numpy(), signs.T * places, atol=1e-5)
    for direction in found.direction_KD:
        assert direction[direction.abs().argmax()] > 0
    most = projections.principal_components(x_ND, 99)
    assert len(most.direction_KD) == len(most.variance_K) == min(shape[0] - 1, shape[1])


def test_filters_are_the_components_of_the_projection_as_images() -> None:
    net = vit()
    component_KPP3, variance_K = embeddings.filter_components(net)
    assert component_KPP3.shape == (28, 4, 4, 3)
    weight_D3PP = net.backbone.patch_embed.proj.weight.detach().double().numpy()
    wanted = PCA(28, svd_solver="full").fit(weight_D3PP.reshape(32, -1))
    images_K3PP = wanted.components_.reshape(28, 3, 4, 4)
    ours_K3PP = component_KPP3.permute(0, 3, 1, 2).numpy()
    signs = np.sign((ours_K3PP * images_K3PP).sum((1, 2, 3), keepdims=True))
    np.testing.assert_allclose(ours_K3PP, signs * images_K3PP, atol=1e-6)
    np.testing.assert_allclose(variance_K.numpy(), wanted.explained_variance_ratio_)


def test_a_convolutional_stem_has_no_filters_to_draw() -> None:
    stem = torch.nn.Conv2d(3, 8, 4, 4)
    net = vit(embed_layer=partial(HybridEmbed, backbone=stem), patch_size=1)
    with pytest.raises(UnavailableError, match="convolutional stem"):
        embeddings.filter_components(net)
    assert len(list(attention.attention_maps(net, images()))) == 3  # the other figures are there


def test_similarity_of_a_sinusoidal_grid() -> None:
    """Positions (cos y, sin y, cos x, sin x): the cosine of two is the mean of those of their
    distances along the two axes."""
    net = vit()
    step = 0.7
    for n in range(16):
        y, x = step * torch.tensor(n // 4), step * torch.tensor(n % 4)
        place = torch.stack([y.cos(), y.sin(), x.cos(), x.sin()])
        net.backbone.pos_embed.data[0, 1 + n] = place.repeat(8) * (1 + n)  # lengths do not count
    found = embeddings.position_similarity(net)
    for i in range(16):
        for j in range(16):
            down, right = i // 4 - j // 4, i % 4 - j % 4
            wanted = (np.cos(step * down) + np.cos(step * right)) / 2
            assert found[i, j].item() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    "changes",
    [{"class_token": False, "global_pool": "avg"}, {"no_embed_class": True, "reg_tokens": 2}],
)
def test_tokens_without_a_position_are_left_out(changes: dict) -> None:
    found = embeddings.position_similarity(vit(**changes))
    assert found.shape == (16, 16)
    torch.testing.assert_close(found.diagonal(), torch.ones(16).double())


def test_an_encoder_without_positions_is_named() -> None:
    with pytest.raises(UnavailableError, match="no position embeddings"):
        embeddings.position_similarity(vit(pos_embed="none"))


def test_one_colour_is_one_feature_in_all_images() -> None:
    generator = torch.Generator().manual_seed(0)
    feature_BPD = torch.randn(5, 16, 8, generator=generator) * torch.linspace(4, 0.5, 8)
    feature_BPD[3, 7] = feature_BPD[0, 2]
    color_BP3, _ = projections.patch_colors(feature_BPD.flatten(0, 1), feature_BPD)
    assert color_BP3.shape == (5, 16, 3) and color_BP3.dtype == torch.uint8
    assert torch.equal(color_BP3[3, 7], color_BP3[0, 2])
    flat_ND = feature_BPD.flatten(0, 1).double().numpy()
    places_N3 = PCA(3, svd_solver="full").fit_transform(flat_ND)
    for channel in range(3):
        color_N = color_BP3[..., channel].flatten().double().numpy()
        low, high = np.quantile(places_N3[:, channel], [0.01, 0.99])
        wanted_N = 255 * (places_N3[:, channel] - low) / (high - low)
        if np.corrcoef(color_N, wanted_N)[0, 1] < 0:  # the other sign
            wanted_N = 255 - wanted_N
        np.testing.assert_allclose(color_N, wanted_N.clip(0, 255), atol=0.51)


@pytest.mark.parametrize("shape", [(20, 2), (3, 8)])
def test_few_dimensions_or_patches_have_no_colours(shape: tuple[int, int]) -> None:
    with pytest.raises(UnavailableError, match="at least 3 dimensions"):
        projections.patch_colors(torch.rand(shape), torch.rand(1, *shape))


def test_distances_and_colours_take_the_first_images() -> None:
    """Of 5 batches of 2 images the first 5 images are two batches and a half."""
    batches = [Batch(torch.full((2, 3, 4, 4), i), *[torch.zeros(2)] * 3) for i in range(5)]
    subject = FigureInput(None, "token", batches, batches[0])
    taken = [image[:, 0, 0, 0].tolist() for image in collection._first_images(subject, 5)]
    assert taken == [[0, 0], [1, 1], [2]]
    assert len(list(collection._first_images(subject, 100))) == 5


@pytest.mark.parametrize("name", ["mean_color", "grid_color", "pixels"])
def test_a_reconstruction_follows_the_corruption_patch_by_patch(name: str) -> None:
    """Masked patches are grey, random ones their source; predictions, their error and certainty
    stand where a patch is corrupted."""
    net = vit(patch_size=8, img_size=32)
    target = Settings("mpp", {}, name, [0.5] * 3, [0.5] * 3).build_target(net)
    objective = MaskedPatchPrediction(net, target, rate=0.5, mask=0.4, random=0.3, source="image")
    torch.nn.init.normal_(objective.head.weight, std=0.3)
    image = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    batch = Batch(image, torch.zeros(3), torch.arange(3), torch.arange(3) * 7919)
    found = reconstruction.reconstruct(objective, batch)
    drawn = objective.sample_corruption(batch)
    with torch.no_grad():
        output_BKA = objective.patch_logits(batch, drawn)
    assert (found.certainty_BHW is None) == (name == "pixels")
    cells = {"mean_color": 1, "grid_color": 4, "pixels": 1}[name]
    side = 8 // cells
    kinds = set()

    def pixels(patch: int) -> tuple[slice, slice]:
        return tuple(slice(8 * place, 8 * place + 8) for place in divmod(patch, 4))

    for b in range(3):
        original, saw, predicted, true = found.panels_B43HW[b]
        assert torch.equal(original, image[b])
        corrupted = dict(zip(drawn.corrupted_BK[b].tolist(), range(8), strict=True))
        for n in range(16):
            at = (slice(None), *pixels(n))
            error = found.error_BHW[b][pixels(n)]
            if n not in corrupted:
                assert torch.equal(saw[at], image[b][at]) and error.isnan().all()
                assert torch.equal(predicted[at], image[b][at])
                continue
            k = corrupted[n]
            kind, source = drawn.kind_BK[b, k].item(), drawn.source_BK[b, k].item() - 16 * b
            kinds.add(kind)
            if kind == corruption.MASK:
                assert (saw[at] == reconstruction.GREY).all()
            else:
                taken = pixels(source if kind == corruption.RANDOM else n)
                assert torch.equal(saw[at], image[b][(slice(None), *taken)])
            wanted = (predicted[at].float() - true[at].float()).abs().mean(0) / 255
            torch.testing.assert_close(error, wanted)
            if found.certainty_BHW is None:
                continue
            scores_PQV = output_BKA[b, k].unflatten(0, (cells, cells, 512))
            color_PQ3 = patch_targets.class_color(scores_PQV.argmax(-1))
            chance_PQ = scores_PQV.exp().amax(-1) / scores_PQV.exp().sum(-1)
            shown_HW3, certain_HW = (
                one.repeat_interleave(side, 0).repeat_interleave(side, 1)
                for one in (color_PQ3, chance_PQ)
            )
            assert torch.equal(predicted[at], shown_HW3.permute(2, 0, 1))
            torch.testing.assert_close(found.certainty_BHW[b][pixels(n)], certain_HW)
    assert kinds == {corruption.MASK, corruption.RANDOM, corruption.KEEP}


AWKWARD = [
    "a --><script>",
    "$x^2$ and $\\frac{1}{",
    "_hidden",
    "<b>&amp;</b>",
    "a\\$b$",
    "100% \u202eevil",
]


@pytest.mark.parametrize("text", AWKWARD)
def test_labels_are_plain_text(text: str) -> None:
    """No formula, and nothing that matplotlib hides or fails on."""
    data = {"components": np.zeros((9, 4, 4, 3)), "variance": np.full(9, 0.1)}
    figure = collection.FIGURES["filters"].draw([(text, data)])
    title = figure.axes[0].get_title()
    assert not matplotlib.cbook.is_math_text(title)
    plain = title.replace(r"\$", "$").partition("\n")[0].replace("\ufffd", "\u202e").strip()
    assert len(plain) > 3 and plain == text[: len(plain)]
    group = drawing.PanelGroup(text, {"one": np.zeros((1, 8, 8, 3), np.uint8)}, note=text)
    for draw in (
        partial(collection.FIGURES["filters"].draw, [(text, data)]),
        partial(drawing.panels, [group], text),
    ):
        for first in drawing.render(draw).values():
            assert len(first) > 1000 and b"<b>" not in first and b"<script>" not in first


def test_the_class_tokens_attention_is_that_of_the_first_token() -> None:
    """To the patches, in their places; registers come between."""
    net = vit(reg_tokens=2, no_embed_class=True)
    shown = Batch(images(), *[torch.zeros(3, dtype=torch.long)] * 3)
    arrays = collection.FIGURES["class_attention"].compute(
        FigureInput(net, "token", [shown], shown)
    )
    *_, last_BHTT = attention.attention_maps(net, images())
    for y, x in ((0, 0), (1, 2), (3, 3)):
        wanted_BH = last_BHTT[:, :, 0, 3 + 4 * y + x]
        assert np.array_equal(arrays["attention"][:, :, y, x], wanted_BH)


def test_a_reconstruction_says_what_is_drawn() -> None:
    """As of a masked autoencoder on normalised pixels, and of MPP on colours."""
    same = {"panels": np.full((1, 4, 8, 8, 3), 90, np.uint8), "error": np.zeros((1, 8, 8))}
    mae = same | {"drawn": np.array(f"predicted and true: {NORMALIZED}")}
    mpp = same | {"drawn": np.array(""), "certainty": np.zeros((1, 8, 8))}
    for arrays, panels in ((mae, 5), (mpp, 6)):
        figure = collection.FIGURES["reconstruction"].draw([("run", arrays)])
        above = " ".join(figure.get_suptitle().split())
        assert above.startswith("error: ") and "0 (dark) to " in above
        assert (NORMALIZED in above) == (arrays is mae)
        texts = [text.get_text() for text in figure.axes[0].get_xticklabels()]
        titles = "original", "corrupted", "predicted", "true", "error", "certainty"
        assert texts == [*titles][:panels]


@pytest.mark.parametrize("heads", [4, 12])
def test_figures_are_of_one_width(heads: int) -> None:
    """Groups stand one below the other; columns are titled over each set."""
    images_BHWC = np.zeros((5, 8, 8, 3), np.uint8)
    columns = {f"head {number}": images_BHWC for number in range(heads)}
    figure = drawing.panels([drawing.PanelGroup(name, columns) for name in ("fresh", "run")])
    assert figure.get_figwidth() == drawing.WIDTH
    FigureCanvasAgg(figure).draw()
    one, other = (axis.get_position() for axis in figure.axes)
    assert one.y0 >= other.y1
    pair = {"input": images_BHWC, "features": images_BHWC}
    (axis,) = drawing.panels([drawing.PanelGroup("run", pair)]).axes
    height, width, _ = axis.images[0].get_array().shape
    assert (height, width) == (2 * 96 + 6, 8 * 96 + 7 * 6), "five images in two rows of four"
