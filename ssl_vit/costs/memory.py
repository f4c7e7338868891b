"""Bytes that a training step takes, counted from a recipe."""

from ..config.schema import Recipe, compared_views
from .work import (
    computes_wanted,
    encoder_passes,
    frozen_parameters,
    momentum_parameters,
    parameters,
    tokens,
)

# bytes of activations per pixel in a ResNet-50's stem, float32; measured: 2,172 with stages
# (3, 4, 9), 1,913 with (3, 4, 6, 3)
STEM_BYTES = 2200


def activation_bytes(recipe: Recipe, fused: bool) -> int:
    """Bytes of activations kept for the backward pass of one image, in timm's blocks without
    torch.compile, which keeps less. T tokens, D width, M MLP, A heads; a value takes w bytes: 2 in
    bfloat16, 4 in float32.

    Each block: two inputs of norms, T D in float32; queries, keys and values, and the inputs of
    qkv, of the projection and of the MLP, 6 T D w; around the GELU 2 T M w; where attention is not
    fused its matrices, A T^2 w; where there is dropout its masks, 2 T D + T M, of one byte on a GPU
    and w on a CPU. Then the image, the embedded patches, the last norm, the head. A ResNet's stem
    takes STEM_BYTES a pixel, in proportion to its width. Of the last block tokens that are not
    wanted keep one input of a norm, that of qkv, queries, keys and values. An objective says which
    tokens the blocks see, which are wanted, and what its head keeps. Local views are smaller
    images.
    """
    model = recipe.model
    if model.convolutional:
        return round(STEM_BYTES * recipe.data.size**2 * max(1.0, model.width / 2048))
    w = 2 if recipe.compute.precision == "bfloat16" else 4
    mask = (1 if fused else w) if recipe.optim.dropout else 0
    views = (recipe.declared.views or 1) * encoder_passes(recipe)
    total = views * _encoder_bytes(recipe, recipe.data.size, w, mask, fused)
    shown = compared_views(recipe)
    if shown is not None and shown.local:
        total += shown.local * _encoder_bytes(recipe, shown.local_size, w, mask, fused)
    return total + _head_bytes(recipe, w, fused) - _unwanted_bytes(recipe, w, mask, fused)


def _encoder_bytes(recipe: Recipe, size: int, w: int, mask: int, fused: bool) -> int:
    """Of a Vision Transformer's pass over one image of `size` pixels a side; see
    `activation_bytes`."""
    model = recipe.model
    t = tokens(recipe, size)
    seen = recipe.declared.visible_tokens(recipe, t)
    block = block_bytes(seen, model.width, model.mlp, w, mask)
    block += 0 if fused else w * model.heads * seen * seen
    block += _option_bytes(recipe, seen, w)
    stem = (STEM_BYTES if model.hybrid else w * recipe.data.channels) * size**2
    ends = stem + 8 * seen * model.width + (4 * t * model.width if mask else 0)
    return ends + model.depth * block


def _unwanted_bytes(recipe: Recipe, w: int, mask: int, fused: bool) -> int:
    """What the last block does not keep; see `activation_bytes`."""
    model = recipe.model
    t = tokens(recipe)
    unwanted = sum(one.unwanted_tokens(recipe, t) for one in recipe.declared.trained(recipe))
    if not unwanted or not computes_wanted(recipe):
        return 0
    gate = 2 if model.activation == "swiglu" else 0
    token = 4 * model.width + w * (2 * model.width + (2 + gate) * model.mlp)
    token += mask * (2 * model.width + model.mlp)
    token += 0 if fused else w * model.heads * t
    # the gathered queries are kept too
    return unwanted * token - (t - unwanted) * model.width * w


def block_bytes(t: int, width: int, mlp: int, w: int, mask: int) -> int:
    """Of a block on `t` tokens without its attention matrices; see `activation_bytes`."""
    return 8 * t * width + w * (6 * width + 2 * mlp) * t + mask * (2 * width + mlp) * t


def _option_bytes(recipe: Recipe, t: int, w: int) -> int:
    """Of a block on `t` tokens, what the options of model= add; see `activation_bytes`.

    LayerScale: the two branches before it. Norms of queries and keys: their inputs and outputs.
    SwiGLU: beside the two values of GELU's the gate's and the product. Rotary: queries and keys
    before the rotation.
    """
    model = recipe.model
    d = model.width
    total = 0
    if model.layer_scale is not None:
        total += 2 * t * d * w
    if model.qk_norm:
        total += 4 * t * d * w
    if model.activation == "swiglu":
        total += 2 * t * model.mlp * w
    if model.positions == "rotary":
        total += 2 * t * d * w
    return total


def _head_bytes(recipe: Recipe, w: int, fused: bool) -> int:
    """Of what follows the encoder, the first objective's that keeps any; see `activation_bytes`."""
    found = (one.head_bytes(recipe, w, fused) for one in recipe.declared.trained(recipe))
    return next(filter(None, found), 4 * (recipe.data.classes or 0))


def fitting_images(recipe: Recipe, memory: float, fused: bool) -> int:
    """Images whose activations take half of a process's `memory` bytes, the largest device batch
    that a run chooses; at least 1."""
    return max(1, int(memory / 2 / activation_bytes(recipe, fused)))


def memory_bytes(
    recipe: Recipe, processes: int, zero: int, batch: int, fused: bool
) -> dict[str, int]:
    """Bytes of tensors in one process, by kind, at a device batch of `batch` images. An upper
    bound, because gradients are allocated while activations are freed; the allocator, CUDA and
    DeepSpeed's buffers come on top.

    Weights (with MoCo v3's momentum copy), gradients, moments (AdamW 2, SGD 1 with momentum) and
    averaged weights in float32; autocast's copies of the weights in 16 bits; DDP's buckets, one
    more copy of the gradients (torch's gradient_as_bucket_view=False). ZeRO-1 shards the moments
    over the processes, -2 the gradients too, -3 the weights too (Rajbhandari et al., 2020, sections
    3.1 and 5; there Adam's weights are of 16 bits, and their float32 master counts among its
    states).
    """
    size = 4 * (parameters(recipe) + momentum_parameters(recipe))
    trained = 4 * (parameters(recipe) - frozen_parameters(recipe))
    o = recipe.optim
    trains = recipe.declared.trains
    moments = 2 if o.name == "adamw" else int(o.momentum > 0)
    share = {stage: processes if zero >= stage else 1 for stage in (1, 2, 3)}
    return {
        "weights": -(-size // share[3]),
        "gradients": trains * -(-trained // share[2]),
        "moments": trains * -(-moments * trained // share[1]),
        "averaged": size if trains and o.average else 0,
        "copies": size // 2 if recipe.compute.precision == "bfloat16" else 0,
        "buckets": trained if trains and zero == 0 and processes > 1 else 0,
        "activations": trains * batch * activation_bytes(recipe, fused),
    }
