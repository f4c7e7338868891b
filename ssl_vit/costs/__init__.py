"""What a run costs: images, parameters, floating-point operations and bytes.

Work and bytes are those of the recipe's own network and objective, plugins included, which run once
on torch's meta device (on_meta.py). Torch is imported when they are counted, not before.
"""

import json
from typing import NamedTuple, TypeVar

from ..recipe.images import EMBEDDED, SIZES, Data
from ..recipe.probe import ATTENTIVE
from ..recipe.schema import Recipe
from ..recipe.split_counts import held_out_count, share_count

# Images of each split as published: JFT after the paper's 4.1, the others after their authors. A
# local copy may hold fewer.
PUBLISHED: dict[str, dict[str, int]] = {
    EMBEDDED: SIZES,
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "tinyimagenet": {"train": 100_000, "validation": 10_000},
    "imagenet": {"train": 1_281_167, "validation": 50_000},
    "imagenet21k": {"train": 14_197_122},
    "jft": {"train": 303_000_000},
    "pets": {"train": 3_680, "test": 3_669},
    "flowers102": {"train": 1_020, "validation": 1_020, "test": 6_149},
}


class Work(NamedTuple):
    """What a recipe's network is, and what it does with one image.

    Attributes:
        parameters: all of them, those of a momentum copy too; of a classifier's head those of one
            class where data.classes does not say how many there are.
        trained: those that get a gradient.
        encoder: the encoder's.
        features: multiply-adds of the encoder's forward pass. Those of norms, biases and
            activation functions are not counted, here and below.
        forward: of the objective's forward pass, for a batch of optim.batch images; None of
            one that needs values, as a plugin's may.
        training: of its forward and backward pass.
        uncounted: the error by which those two are None.
    """

    parameters: int
    trained: int
    encoder: int
    features: int
    forward: float | None
    training: float | None
    uncounted: str = ""


# A network with more than DEEP blocks is counted with FEW blocks and with FEW + 1 instead: 1000
# blocks would take minutes. Blocks are alike, so the difference is what each block adds
DEPTHS = ("model.depth", "mae.depth", "ijepa.depth")
FEW, DEEP = 4, 48
N = TypeVar("N", int, float, float | None)

_WORK: dict[str, Work] = {}
_BYTES: dict[tuple[str, bool], float] = {}


def work(recipe: Recipe) -> Work:
    """Counted once in a process for all recipes of equal networks and batches."""
    key = _network(recipe)
    if key not in _WORK:
        from . import on_meta

        fewer = _with_fewer_blocks(recipe)
        if fewer is None:
            _WORK[key] = on_meta.count(recipe)
        else:
            blocks, *recipes = fewer
            few, more = map(work, recipes)
            _WORK[key] = Work(
                _extended(few.parameters, more.parameters, blocks),
                _extended(few.trained, more.trained, blocks),
                _extended(few.encoder, more.encoder, blocks),
                _extended(few.features, more.features, blocks),
                _extended(few.forward, more.forward, blocks),
                _extended(few.training, more.training, blocks),
                few.uncounted,
            )
    return _WORK[key]


def _with_fewer_blocks(recipe: Recipe) -> tuple[int, Recipe, Recipe] | None:
    """Return how many blocks more than FEW the first deep network of a recipe has, and the recipe
    with FEW and with FEW + 1 blocks of it; None if no network is deep."""
    for key in DEPTHS:
        if key.split(".")[0] in ("model", *recipe.groups) and (depth := recipe.value(key)) > DEEP:
            few, more = (recipe.model_copy(deep=True) for _ in range(2))
            few.set(key, FEW)
            more.set(key, FEW + 1)
            return depth - FEW, few, more
    return None


def _extended(few: N, more: N, blocks: int) -> N:
    """Return the count of a network with `blocks` blocks more than FEW, from its counts with FEW
    and with FEW + 1 blocks. None stays None."""
    return few if few is None or more is None else few + blocks * (more - few)


def _network(recipe: Recipe) -> str:
    """A text that is the same for recipes whose networks do the same with an image, and keep the
    same of it."""
    data, groups = recipe.data, {name: one.model_dump() for name, one in recipe.groups.items()}
    images = (data.size, data.channels, data.range, data.classes)
    named = (recipe.objective, recipe.plugin, recipe.target, recipe.optim.batch)
    drops = (recipe.optim.dropout, recipe.optim.drop_path)  # whose masks are kept
    return json.dumps([named, drops, images, recipe.model.model_dump(), groups])


def exaflop(recipe: Recipe, images: int | None) -> float | None:
    """10^18 floating-point operations, 2 per multiply-add, of training on `images` images, forward
    and backward; of an evaluation of its encoder's features. None where they are not counted, or
    it is not known how many images there are.

    The paper's Table 6 counts so: B/16 for 7 epochs of JFT has 224.
    """
    if images is None:
        return None
    found = work(recipe)
    each = found.training if recipe.trains else found.features
    return None if each is None else 2 * each * images / 1e18


def training_images(data: Data, given: int | None = None) -> int | None:
    """Training images after shares of data.test, data.validation and data.share are taken, of the
    published set or of `given` images; None if neither is known."""
    whole = given or PUBLISHED.get(data.name, {}).get("train")
    if whole is None:
        return None
    whole -= _test_share(data, whole)
    if data.validation_from != "share":
        return share_count(data.share, whole - _held_out(data, whole))
    count = share_count(data.share, whole)
    return count - _held_out(data, count)


def _held_out(data: Data, count: int) -> int:
    """Of `count` images those that data.validation holds out; 0 where that is no share."""
    if not isinstance(data.validation, float) or data.validation == 0:
        return 0
    return held_out_count(data.validation, count)


def _test_share(data: Data, count: int) -> int:
    """Of `count` images those that data.test cuts off; 0 where it names a split."""
    return 0 if isinstance(data.test, str) else held_out_count(data.test, count)


def images_seen(recipe: Recipe, given: int | None = None) -> int | None:
    """Images that a run sends through the encoder: its own steps x batch, or for an evaluation
    those of published sets as `evaluated_images`."""
    if recipe.objective != "probe":
        return recipe.own_steps * recipe.optim.batch
    data = recipe.data
    splits = PUBLISHED.get(data.name, {})
    validation = data.validation if isinstance(data.validation, str) else None
    others = [splits.get(name) for name in (data.test, validation) if isinstance(name, str)]
    train = training_images(Data(name=data.name, share=data.share), given)
    if train is None or None in others:
        return None
    return evaluated_images(recipe, train, sum(n for n in others if n))


def evaluated_images(recipe: Recipe, train: int, others: int) -> int:
    """Images that an evaluation sends through the encoder, of so many for training and others:
    every one once, and once more for the attentive probe, which reads tokens; of training images
    that one reads probe.token_images."""
    probe = recipe.probe
    tokens = min(train, probe.token_images or train) + others if ATTENTIVE in probe.measures else 0
    return tokens + (train + others if {*probe.measures} != {ATTENTIVE} else 0)


def activation_bytes(recipe: Recipe, fused: bool) -> int:
    """Bytes of activations kept for the backward pass of one image, without torch.compile, which
    keeps less; `fused`: by an attention that keeps no matrices.

    What float32 keeps is counted. Under autocast in bfloat16 a block on T tokens, of width D with
    an MLP of width M, keeps two inputs of norms in 4 bytes, 2 T D; and in 2 bytes queries, keys and
    values, the inputs of qkv, of the projection and of the MLP, 6 T D, and around the GELU 2 T M.
    All is taken to shrink as a block does.
    """
    kept, model = _float32_bytes(recipe, fused), recipe.model
    if recipe.compute.precision != "bfloat16":
        return round(kept)
    low, high = (8 * model.width + w * (6 * model.width + 2 * model.mlp) for w in (2, 4))
    return round(kept * low / high)


def _float32_bytes(recipe: Recipe, fused: bool) -> float:
    """Return `activation_bytes` in float32, before rounding."""
    key = (_network(recipe), fused)
    if key not in _BYTES:
        from . import on_meta

        fewer = _with_fewer_blocks(recipe)
        if fewer is None:
            _BYTES[key] = on_meta.activation_bytes(recipe, fused)
        else:
            blocks, *recipes = fewer
            few, more = (_float32_bytes(shallow, fused) for shallow in recipes)
            _BYTES[key] = _extended(few, more, blocks)
    return _BYTES[key]


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

    Weights (with a momentum copy), gradients, the moments of the optimiser and averaged
    weights in float32; autocast's copies of the weights in 16 bits; DDP's buckets, one more copy of
    the gradients (torch's gradient_as_bucket_view=False). ZeRO-1 shards the moments over the
    processes, -2 the gradients too, -3 the weights too (Rajbhandari et al., 2020, sections 3.1 and
    5; there Adam's weights are of 16 bits, and their float32 master counts among its states).
    """
    found, o, trains = work(recipe), recipe.optim, recipe.trains
    size, trained = 4 * found.parameters, 4 * found.trained
    moments = len(o.optimiser.moments(o))
    share = {stage: processes if zero >= stage else 1 for stage in (1, 2, 3)}
    kept = batch * activation_bytes(recipe, fused) if trains and batch else 0
    return {
        "weights": -(-size // share[3]),
        "gradients": trains * -(-trained // share[2]),
        "moments": trains * -(-moments * trained // share[1]),
        "averaged": size if trains and o.average else 0,
        "copies": size // 2 if recipe.compute.precision == "bfloat16" else 0,
        "buckets": trained if trains and zero == 0 and processes > 1 else 0,
        "activations": kept,
    }
