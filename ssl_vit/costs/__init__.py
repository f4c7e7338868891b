"""Count what a run costs: images, parameters, floating-point operations and bytes.

Operations and bytes are counted by running the recipe's network and objective, plugins included,
once on torch's meta device (on_meta.py). Torch is imported only when something is counted.
"""

import json
from typing import NamedTuple, TypeVar

from ..recipe.images import EMBEDDED, SIZES, Data
from ..recipe.probe import ATTENTIVE
from ..recipe.schema import Recipe
from ..recipe.split_counts import held_out_count, share_count

# Images of each split as published: JFT by section 4.1 of the paper, others by their authors. A
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
    """Size of a recipe's network, and multiply-adds for an image.

    Multiply-adds of norms, biases and activation functions are not counted.

    Attributes:
        parameters: Number of all parameters, including a momentum copy. A classifier's head counts
            with one class if data.classes does not state the number of classes.
        trained: Number of parameters that get a gradient.
        encoder: Number of the encoder's parameters.
        features: multiply-adds of the encoder's forward pass.
        forward: multiply-adds per image of the objective's forward pass, in a batch of optim.batch
            images. None if the objective needs values and so cannot run on the meta device, as some
            plugins do.
        training: multiply-adds of the objective's forward and backward pass, or None.
        uncounted: The error message if `forward` and `training` are None.
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
    """Return the work of a recipe.

    Recipes with equal networks and batches are counted once per process.
    """
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
    """Return two recipes with fewer blocks if a network of the recipe is deep, or None.

    Returns:
        For the first network with more than DEEP blocks, the number of blocks beyond FEW, the
        recipe with FEW blocks and the recipe with FEW + 1 blocks.
    """
    for key in DEPTHS:
        if key.split(".")[0] in ("model", *recipe.groups) and (depth := recipe.value(key)) > DEEP:
            few, more = (recipe.model_copy(deep=True) for _ in range(2))
            few.set(key, FEW)
            more.set(key, FEW + 1)
            return depth - FEW, few, more
    return None


def _extended(few: N, more: N, blocks: int) -> N:
    """Extrapolate a count to `blocks` blocks more than FEW, from counts with FEW and FEW + 1
    blocks.

    None stays None.
    """
    return few if few is None or more is None else few + blocks * (more - few)


def _network(recipe: Recipe) -> str:
    """Return a text that is equal for recipes with the same operations and activations for an
    image.
    """
    data, groups = (
        recipe.data,
        {name: options.model_dump() for name, options in recipe.groups.items()},
    )
    images = (data.size, data.channels, data.range, data.classes)
    named = (recipe.objective, recipe.plugin, recipe.target, recipe.optim.batch)
    drops = (recipe.optim.dropout, recipe.optim.drop_path)  # the masks count as activations
    return json.dumps([named, drops, images, recipe.model.model_dump(), groups])


def exaflop(recipe: Recipe, images: int | None) -> float | None:
    """Return the cost of processing `images` images, in 10^18 floating-point operations.

    A multiply-add has 2 operations. For training, forward and backward passes of the objective are
    counted; for an evaluation, the encoder's forward passes. Table 6 of
    the paper counts in the same way: 7 epochs of JFT cost 224 for B/16.

    Returns:
        None if the operations were not counted or `images` is None.
    """
    if images is None:
        return None
    counted = work(recipe)
    each = counted.training if recipe.trains else counted.features
    return None if each is None else 2 * each * images / 1e18


def training_images(data: Data, images: int | None = None) -> int | None:
    """Return the number of training images that data.test, data.validation and data.share leave.

    Args:
        data: The data set and its splits.
        images: Number of images before splitting. None: the published number.

    Returns:
        None if the number of images is unknown.
    """
    whole = images or PUBLISHED.get(data.name, {}).get("train")
    if whole is None:
        return None
    whole -= _test_share(data, whole)
    if data.validation_from != "share":
        return share_count(data.share, whole - _held_out(data, whole))
    count = share_count(data.share, whole)
    return count - _held_out(data, count)


def _held_out(data: Data, count: int) -> int:
    """Return how many of `count` images data.validation holds out, or 0 if it is not a share."""
    if not isinstance(data.validation, float) or data.validation == 0:
        return 0
    return held_out_count(data.validation, count)


def _test_share(data: Data, count: int) -> int:
    """Return how many of `count` images data.test cuts off, or 0 if it names a split."""
    return 0 if isinstance(data.test, str) else held_out_count(data.test, count)


def images_seen(recipe: Recipe, images: int | None = None) -> int | None:
    """Return how many images a run sends through the encoder.

    For training this is steps x batch. For an evaluation it is `evaluated_images` of the published
    numbers.

    Args:
        recipe: The run.
        images: Number of training images before splitting. None: the published number.

    Returns:
        None if the number of images of a split is unknown.
    """
    if recipe.objective != "probe":
        return recipe.own_steps * recipe.optim.batch
    data = recipe.data
    splits = PUBLISHED.get(data.name, {})
    validation = data.validation if isinstance(data.validation, str) else None
    others = [splits.get(name) for name in (data.test, validation) if isinstance(name, str)]
    train = training_images(Data(name=data.name, share=data.share), images)
    if train is None or None in others:
        return None
    return evaluated_images(recipe, train, sum(n for n in others if n))


def evaluated_images(recipe: Recipe, train: int, others: int) -> int:
    """Return how many images an evaluation sends through the encoder.

    Every image is read once for all probes on features. The attentive probe reads tokens, so it
    reads all images once more, but only probe.token_images of the training images.

    Args:
        recipe: The evaluation.
        train: Number of training images.
        others: Number of validation and test images.
    """
    probe = recipe.probe
    tokens = min(train, probe.token_images or train) + others if ATTENTIVE in probe.measures else 0
    return tokens + (train + others if {*probe.measures} != {ATTENTIVE} else 0)


def activation_bytes(recipe: Recipe, fused: bool) -> int:
    """Return the bytes of activations that are kept for the backward pass, per image.

    Counted without torch.compile, which keeps less. The count is made in float32 and scaled to the
    precision of the run: under autocast in bfloat16, a block on T tokens of width D with an MLP of
    width M keeps two inputs of norms in 4 bytes (2 T D values). In 2 bytes it keeps queries, keys
    and values and the inputs of qkv, of the projection and of the MLP (6 T D values), and both
    sides of the GELU (2 T M values). All activations are assumed to shrink by the same factor as
    those of a block.

    Args:
        recipe: The run.
        fused: Whether a fused attention is used, which keeps no attention matrices.
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
    """Return the largest device batch whose activations fit into half of the memory, at least 1.

    This is the largest device batch that a run chooses.

    Args:
        recipe: The run.
        memory: Bytes of memory of a process.
        fused: As in `activation_bytes`.
    """
    return max(1, int(memory / 2 / activation_bytes(recipe, fused)))


def memory_bytes(
    recipe: Recipe, processes: int, zero: int, batch: int, fused: bool
) -> dict[str, int]:
    """Return an upper bound of the bytes of tensors in a process, by kind.

    It is an upper bound because gradients are allocated while activations are freed. The allocator,
    CUDA and DeepSpeed's buffers need additional memory.

    The kinds are weights (with a momentum copy), gradients, moments of the optimiser and averaged
    weights in float32, autocast's copies of the weights in 16 bits, DDP's buckets (another copy of
    the gradients, as torch's gradient_as_bucket_view is False) and activations. ZeRO-1 shards the
    moments over the processes, ZeRO-2 also the gradients, and ZeRO-3 also the weights (Rajbhandari
    et al., 2020, sections 3.1 and 5, where Adam's weights have 16 bits and the states include a
    float32 copy).

    Args:
        recipe: The run.
        processes: Number of processes.
        zero: Stage of ZeRO, 0 without.
        batch: Images in a device batch.
        fused: As in `activation_bytes`.
    """
    counted, o, trains = work(recipe), recipe.optim, recipe.trains
    size, trained = 4 * counted.parameters, 4 * counted.trained
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
