"""Count what a run costs: images, parameters, floating-point operations and bytes.

Operations and bytes are counted by running the recipe's network and objective, plugins included,
once on torch's meta device (on_meta.py). Torch is imported only when something is counted.
"""

import json
from typing import NamedTuple, TypeVar

from ..recipe.images import EMBEDDED, SIZES, Data
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


class NetworkCost(NamedTuple):
    """Size of a recipe's network, and multiply-adds per image.

    Multiply-adds of norms, biases and activation functions are not counted.

    Attributes:
        parameters: Number of all parameters, including a momentum copy of the encoder. A
            classifier's head has one class if data.classes does not state the number of classes.
        trained: Number of parameters that get a gradient.
        encoder: Number of the encoder's parameters.
        features: Multiply-adds of the encoder's forward pass.
        forward: Multiply-adds of the objective's forward pass, in a batch of optim.batch images.
            None if they cannot be counted, because the objective needs the values of pixels, as
            some plugins do.
        training: Multiply-adds of the objective's forward and backward pass, or None.
        uncounted: Error message if `forward` and `training` are None.
    """

    parameters: int
    trained: int
    encoder: int
    features: int
    forward: float | None
    training: float | None
    uncounted: str = ""


# Counting 1,000 blocks would take minutes. A network with more than DEEP blocks is therefore
# counted with FEW and with FEW + 1 blocks. Blocks are alike, so the difference is the cost of one
DEPTHS = ("model.depth", "mae.depth", "ijepa.depth")
FEW, DEEP = 4, 48
N = TypeVar("N", int, float, float | None)

_WORK: dict[str, NetworkCost] = {}
_BYTES: dict[tuple[str, bool], float] = {}


def compute_network_cost(recipe: Recipe) -> NetworkCost:
    """Count the parameters and multiply-adds of a recipe's network.

    A deep network is counted with few blocks, and the counts are extrapolated. The result is kept
    in `_WORK`, so that recipes with equal networks and batches are counted once.
    """
    key = _cache_key(recipe)
    if key not in _WORK:
        from . import on_meta

        shallow_recipes = _with_fewer_blocks(recipe)
        if shallow_recipes is None:
            _WORK[key] = on_meta.count_operations(recipe)
        else:
            blocks, few_recipe, more_recipe = shallow_recipes
            few, more = compute_network_cost(few_recipe), compute_network_cost(more_recipe)
            _WORK[key] = NetworkCost(
                _extrapolate(few.parameters, more.parameters, blocks),
                _extrapolate(few.trained, more.trained, blocks),
                _extrapolate(few.encoder, more.encoder, blocks),
                _extrapolate(few.features, more.features, blocks),
                _extrapolate(few.forward, more.forward, blocks),
                _extrapolate(few.training, more.training, blocks),
                few.uncounted,
            )
    return _WORK[key]


def _with_fewer_blocks(recipe: Recipe) -> tuple[int, Recipe, Recipe] | None:
    """Return two recipes with fewer blocks, from which the costs of a deep network follow.

    Returns:
        For the first network with more than DEEP blocks: the number of blocks beyond FEW, the
        recipe with FEW blocks, and the recipe with FEW + 1 blocks. None if no network is deep.
    """
    for key in DEPTHS:
        group, _, _ = key.partition(".")
        if group not in ("model", *recipe.groups):
            continue
        depth = recipe.value(key)
        if depth > DEEP:
            few_recipe, more_recipe = recipe.model_copy(deep=True), recipe.model_copy(deep=True)
            few_recipe.set(key, FEW)
            more_recipe.set(key, FEW + 1)
            return depth - FEW, few_recipe, more_recipe
    return None


def _extrapolate(few: N, more: N, blocks: int) -> N:
    """Extrapolate a count linearly to FEW + `blocks` blocks.

    Args:
        few: Count with FEW blocks, or None if unknown.
        more: Count with FEW + 1 blocks, or None if unknown.
        blocks: Number of blocks beyond FEW.
    """
    if few is None or more is None:
        return few
    return few + blocks * (more - few)


def _cache_key(recipe: Recipe) -> str:
    """Return a key that is equal for recipes whose costs per image are equal."""
    data = recipe.data
    groups = {name: options.model_dump() for name, options in recipe.groups.items()}
    images = (data.size, data.channels, data.range, data.classes)
    objective = (recipe.objective, recipe.plugin, recipe.target, recipe.optim.batch)
    drops = (recipe.optim.dropout, recipe.optim.drop_path)  # the masks count as activations
    return json.dumps([objective, drops, images, recipe.model.model_dump(), groups])


def exaflop(recipe: Recipe, images: int | None) -> float | None:
    """Return the cost of processing images, in 10^18 floating-point operations.

    Training costs the forward and backward passes of the objective, and an evaluation the forward
    passes of the encoder. A multiply-add is 2 operations. The paper counts in the same way: in
    Table 6, 7 epochs of JFT cost 224 for B/16.

    Args:
        recipe: Recipe of the run or evaluation.
        images: Number of images that pass through the network. None: unknown.

    Returns:
        The cost, or None if the operations cannot be counted or `images` is None.
    """
    if images is None:
        return None
    counted = compute_network_cost(recipe)
    per_image = counted.training if recipe.trains else counted.features
    return None if per_image is None else 2 * per_image * images / 1e18


def training_images(data: Data, images: int | None = None) -> int | None:
    """Return how many images remain for training after test and held-out images are set aside.

    Args:
        data: Data set, with data.test, data.validation and data.share.
        images: Number of images before splitting. None: the published number.

    Returns:
        The number of training images, or None if the number before splitting is unknown.
    """
    images = images or PUBLISHED.get(data.name, {}).get("train")
    if images is None:
        return None
    images -= _test_share(data, images)
    if data.validation_from == "share":  # images are held out from the share of data.share
        images = share_count(data.share, images)
        return images - _held_out(data, images)
    return share_count(data.share, images - _held_out(data, images))


def _held_out(data: Data, images: int) -> int:
    """Return how many of the images data.validation holds out, or 0 if it is not a share."""
    if not isinstance(data.validation, float) or data.validation == 0:
        return 0
    return held_out_count(data.validation, images)


def _test_share(data: Data, images: int) -> int:
    """Return how many of the images data.test sets aside, or 0 if it names a split."""
    return 0 if isinstance(data.test, str) else held_out_count(data.test, images)


def images_seen(recipe: Recipe, images: int | None = None) -> int | None:
    """Return how many images a run or an evaluation sends through the encoder.

    Training sends steps x batch images. An evaluation sends `evaluated_images`, computed from the
    published sizes of the splits.

    Args:
        recipe: Recipe of the run or evaluation.
        images: Number of training images before splitting. None: the published number.

    Returns:
        The number of images, or None if the size of a split is unknown.
    """
    if recipe.objective != "probe":
        return recipe.new_steps * recipe.optim.batch
    data = recipe.data
    splits = PUBLISHED.get(data.name, {})
    validation = data.validation if isinstance(data.validation, str) else None
    split_names = [name for name in (data.test, validation) if isinstance(name, str)]
    sizes = [splits.get(name) for name in split_names]
    train = training_images(Data(name=data.name, share=data.share), images)
    if train is None or None in sizes:
        return None
    return evaluated_images(recipe, train, sum(size for size in sizes if size))


def evaluated_images(recipe: Recipe, train: int, others: int) -> int:
    """Return how many images an evaluation sends through the encoder.

    All images are sent once to extract features, which the probes share. Each probe of tokens
    sends all images once more, but at most probe.token_images training images.

    Args:
        recipe: Recipe of the evaluation.
        train: Number of training images.
        others: Number of validation and test images.
    """
    probe, images = recipe.probe, 0
    token_probes = probe.measures_that_read("tokens")
    images += len(token_probes) * (min(train, probe.token_images or train) + others)
    if set(probe.measures) != set(token_probes):
        images += train + others
    return images


def activation_bytes(recipe: Recipe, fused: bool) -> int:
    """Return how many bytes of activations an image needs for the backward pass.

    Activations are counted in float32 without torch.compile, which keeps less. For bfloat16 the
    count is multiplied by the factor by which the activations of a block shrink.

    Args:
        recipe: Recipe of the run.
        fused: Whether a fused attention is used, which keeps no attention matrices.
    """
    float32_bytes, model = _float32_bytes(recipe, fused), recipe.model
    if recipe.compute.precision != "bfloat16":
        return round(float32_bytes)
    # Per token, a block keeps two inputs of norms in 4 bytes even under autocast: 2 x width values.
    # In 2 bytes it keeps queries, keys, values, and the inputs of qkv, of the projection and of the
    # MLP (6 x width), and both sides of the GELU (2 x mlp)
    norms = 4 * 2 * model.width
    values = 6 * model.width + 2 * model.mlp
    return round(float32_bytes * (norms + 2 * values) / (norms + 4 * values))


def _float32_bytes(recipe: Recipe, fused: bool) -> float:
    """Return how many bytes of float32 activations an image needs for the backward pass.

    Args:
        recipe: Recipe of the run.
        fused: Whether a fused attention is used.
    """
    key = (_cache_key(recipe), fused)
    if key not in _BYTES:
        from . import on_meta

        shallow_recipes = _with_fewer_blocks(recipe)
        if shallow_recipes is None:
            _BYTES[key] = on_meta.activation_bytes(recipe, fused)
        else:
            blocks, few_recipe, more_recipe = shallow_recipes
            few, more = _float32_bytes(few_recipe, fused), _float32_bytes(more_recipe, fused)
            _BYTES[key] = _extrapolate(few, more, blocks)
    return _BYTES[key]


def fitting_images(recipe: Recipe, memory: float, fused: bool) -> int:
    """Return the largest device batch whose activations fit into half of the memory, at least 1.

    This is the largest device batch that a run chooses.

    Args:
        recipe: Recipe of the run.
        memory: Memory of a process, in bytes.
        fused: Whether a fused attention is used.
    """
    return max(1, int(memory / 2 / activation_bytes(recipe, fused)))


def memory_bytes(
    recipe: Recipe, processes: int, zero: int, batch: int, fused: bool
) -> dict[str, int]:
    """Return an upper bound of the bytes that tensors need in a process, by kind.

    The sum is an upper bound because activations are freed while gradients are allocated. The
    allocator, CUDA and DeepSpeed's buffers need additional memory. ZeRO-1 shards the moments over
    the processes, ZeRO-2 also the gradients, and ZeRO-3 also the weights (Rajbhandari et al., 2020,
    sections 3.1 and 5, where Adam's weights have 16 bits and the states include a float32 copy).

    Args:
        recipe: Recipe of the run.
        processes: Number of processes.
        zero: Stage of ZeRO, 0 without ZeRO.
        batch: Images in a device batch.
        fused: Whether a fused attention is used.

    Returns:
        {kind: bytes}. The kinds are, in float32, "weights" (with a momentum copy), "gradients",
        "moments" of the optimiser and "averaged" weights; autocast's 16-bit "copies" of the
        weights; DDP's "buckets", a copy of the gradients, because torch's gradient_as_bucket_view
        is False; and "activations".
    """
    counted, settings, trains = compute_network_cost(recipe), recipe.optim, recipe.trains
    weight_bytes, trained_bytes = 4 * counted.parameters, 4 * counted.trained
    moments = len(settings.optimiser.moments(settings))
    uses_buckets = trains and zero == 0 and processes > 1

    def sharded(size: int, first_stage: int) -> int:
        """Return the bytes of a process if ZeRO shards the tensors from `first_stage` on."""
        shards = processes if zero >= first_stage else 1
        return -(-size // shards)  # rounded up

    return {
        "weights": sharded(weight_bytes, 3),
        "gradients": sharded(trained_bytes, 2) if trains else 0,
        "moments": sharded(moments * trained_bytes, 1) if trains else 0,
        "averaged": weight_bytes if trains and settings.average else 0,
        "copies": weight_bytes // 2 if recipe.compute.precision == "bfloat16" else 0,
        "buckets": trained_bytes if uses_buckets else 0,
        "activations": batch * activation_bytes(recipe, fused) if trains and batch else 0,
    }
