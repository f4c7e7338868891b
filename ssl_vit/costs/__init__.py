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
        parameters: Number of all parameters, including a momentum copy of the encoder. If
            data.classes is unknown, a classifier's head is counted with one class.
        trained: Number of parameters that get a gradient.
        encoder: Number of the encoder's parameters.
        features: Multiply-adds of the encoder's forward pass.
        forward: Multiply-adds of the objective's forward pass, counted for a batch of optim.batch
            images and divided by its size. None if the objective reads pixel values, as some
            plugins do, because the meta device has no values.
        training: Multiply-adds of the objective's forward and backward pass, or None like
            `forward`.
        uncounted: The error message if `forward` and `training` are None, else empty.
    """

    parameters: int
    trained: int
    encoder: int
    features: int
    forward: float | None
    training: float | None
    uncounted: str = ""


# Counting 1,000 blocks would take minutes. For a network with more than DEEP blocks, two networks
# of FEW and FEW + 1 blocks are counted instead. Their difference is the cost of one block, because
# all blocks cost the same
DEPTHS = ("model.depth", "mae.depth", "ijepa.depth")  # options that set a number of blocks
FEW, DEEP = 4, 48
N = TypeVar("N", int, float, float | None)

# Results of `compute_network_cost` and of `_float32_bytes`, by `_cache_key`
_COSTS: dict[str, NetworkCost] = {}
_ACTIVATION_BYTES: dict[tuple[str, bool], float] = {}


def compute_network_cost(recipe: Recipe) -> NetworkCost:
    """Count the parameters and multiply-adds of a recipe's network.

    A network with more than 48 blocks is not built, unless some of its blocks are frozen. Two
    networks of 4 and of 5 blocks are counted instead, and the counts are extrapolated linearly.
    Results are cached: recipes with equal networks and batches are counted once.
    """
    key = _cache_key(recipe)
    if key not in _COSTS:
        from . import on_meta

        shallow_recipes = _make_shallow_recipes(recipe)
        if shallow_recipes is None:
            _COSTS[key] = on_meta.count_operations(recipe)
        else:
            added_blocks, few_recipe, more_recipe = shallow_recipes
            few, more = compute_network_cost(few_recipe), compute_network_cost(more_recipe)
            _COSTS[key] = NetworkCost(
                parameters=_extrapolate(few.parameters, more.parameters, added_blocks),
                trained=_extrapolate(few.trained, more.trained, added_blocks),
                encoder=_extrapolate(few.encoder, more.encoder, added_blocks),
                features=_extrapolate(few.features, more.features, added_blocks),
                forward=_extrapolate(few.forward, more.forward, added_blocks),
                training=_extrapolate(few.training, more.training, added_blocks),
                uncounted=few.uncounted,  # the error message does not depend on the depth
            )
    return _COSTS[key]


def _make_shallow_recipes(recipe: Recipe) -> tuple[int, Recipe, Recipe] | None:
    """Return recipes of two shallow networks, to extrapolate the cost of a deep network.

    A network is deep if an option in DEPTHS, such as model.depth, is above DEEP (48). In the two
    recipes, this option is FEW (4) and FEW + 1.

    Returns:
        The deep network's blocks beyond FEW, the recipe with FEW blocks, and the recipe with
        FEW + 1 blocks. None if no network is deep.
    """
    for key in DEPTHS:
        group, _, _ = key.partition(".")
        if group not in ("model", *recipe.groups):  # the recipe has no such option
            continue
        depth = recipe.value(key)
        is_frozen = key == "model.depth" and recipe.model.number_of("blocks")
        if depth > DEEP and not is_frozen:
            few_recipe, more_recipe = recipe.model_copy(deep=True), recipe.model_copy(deep=True)
            few_recipe.set(key, FEW)
            more_recipe.set(key, FEW + 1)
            return depth - FEW, few_recipe, more_recipe
    return None


def _extrapolate(few: N, more: N, added_blocks: int) -> N:
    """Extrapolate a count linearly to a deeper network.

    Args:
        few: Count for a network of a few blocks, or None if unknown.
        more: Count for the same network with one more block, or None if unknown.
        added_blocks: Blocks of the deeper network beyond the blocks counted in `few`.

    Returns:
        The extrapolated count. For example, few=10, more=12 and added_blocks=3 give 16. None if
        `few` is unknown.
    """
    if few is None or more is None:
        return few  # None, because a cost that is unknown for one depth is unknown for every depth
    cost_of_block = more - few
    return few + added_blocks * cost_of_block


def _cache_key(recipe: Recipe) -> str:
    """Return a key for the caches: JSON of all options that change the cost per image."""
    data = recipe.data
    groups = {name: options.model_dump() for name, options in recipe.groups.items()}
    images = (data.size, data.channels, data.range, data.classes)
    objective = (recipe.objective, recipe.plugin, recipe.target, recipe.optim.batch)
    # Dropout needs memory, because autograd stores the masks of dropout with the activations
    drops = (recipe.optim.dropout, recipe.optim.drop_path)
    return json.dumps([objective, drops, images, recipe.model.model_dump(), groups])


def exaflop(recipe: Recipe, images: int | None) -> float | None:
    """Return the cost of processing images, in 10^18 floating-point operations.

    For training, count the objective's forward and backward passes. For an evaluation, count the
    encoder's forward passes. A multiply-add is 2 operations, as in the Vision Transformer paper
    (Dosovitskiy et al., 2021, Table 6: ViT-B/16 for 7 epochs of JFT costs 224 x 10^18 operations).

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
    """Return the number of training images that remain after splitting the training split.

    If data.test is a share, the test images are held out first. Then the validation images are held
    out, and the share data.share of the remaining images is taken. With data.validation_from=share,
    these two steps are in the other order. The share data.share of the images that are not test
    images is taken, and the validation images are held out from this share.

    Args:
        data: Data set, with data.test, data.validation and data.share.
        images: Number of images before splitting. None: the published number.

    Returns:
        The number of training images, or None if the number before splitting is unknown.
    """
    images = images or PUBLISHED.get(data.name, {}).get("train")
    if images is None:
        return None
    images -= _count_test(data, images)
    if data.validation_from == "share":
        images_in_share = share_count(data.share, images)
        return images_in_share - _count_held_out(data, images_in_share)
    not_held_out = images - _count_held_out(data, images)
    return share_count(data.share, not_held_out)


def _count_held_out(data: Data, images: int) -> int:
    """Return how many images data.validation holds out, or 0 if data.validation is no share."""
    if not isinstance(data.validation, float) or data.validation == 0:
        return 0
    return held_out_count(data.validation, images)


def _count_test(data: Data, images: int) -> int:
    """Return how many images data.test holds out, or 0 if data.test names a split."""
    return 0 if isinstance(data.test, str) else held_out_count(data.test, images)


def images_seen(recipe: Recipe, images: int | None = None) -> int | None:
    """Return how many images a run or an evaluation sends through the encoder.

    Training sends a batch in each step. An evaluation sends the images of the training, validation
    and test splits, whose sizes are looked up in PUBLISHED.

    Args:
        recipe: Recipe of the run or evaluation.
        images: Number of images in the training split. None: the number in PUBLISHED.

    Returns:
        The number of images, or None if the size of a split is unknown.
    """
    if recipe.objective != "probe":
        return recipe.new_steps * recipe.optim.batch  # without the steps of an earlier run
    data = recipe.data
    split_sizes = PUBLISHED.get(data.name, {})
    named_splits = [name for name in (data.test, data.validation) if isinstance(name, str)]
    other_sizes = [split_sizes.get(name) for name in named_splits]
    # The encoder also sees the images that are held out from the training split. Count them as
    # training images, by leaving out data.test and data.validation.
    train = training_images(Data(name=data.name, share=data.share), images)
    if train is None or None in other_sizes:
        return None
    return evaluated_images(recipe, train, sum(size for size in other_sizes if size))


def evaluated_images(recipe: Recipe, train: int, others: int) -> int:
    """Return how many images an evaluation sends through the encoder.

    Entries of probe.measures such as `knn` and `linear` read one feature of each image. All of them
    share a single pass over all images. Entries such as `attentive` read all tokens of an image.
    Each of these measures makes a pass of its own, with at most probe.token_images training images.
    Measures without labels read only test images, but are counted for validation images, too.

    Args:
        recipe: Recipe of the evaluation.
        train: Number of training images.
        others: Number of validation and test images.
    """
    probe = recipe.probe
    token_measures = probe.measures_that_read("tokens")
    token_train = min(train, probe.token_images or train)  # None: no limit
    images = len(token_measures) * (token_train + others)
    others_read = {*probe.measures} - {*token_measures} - {*probe.measures_that_read("views")}
    if others_read:  # some measure reads features
        images += train + others
    return images + probe.count_without_labels(others)


def activation_bytes(recipe: Recipe, fused: bool) -> int:
    """Return the bytes of activations per image that autograd keeps for the backward pass.

    Activations are counted without torch.compile, which would keep fewer activations. For bfloat16
    autocast, the float32 count is multiplied by a ratio: the bytes that a transformer block keeps
    with autocast, divided by the bytes that the block keeps in float32.

    Args:
        recipe: Recipe of the run.
        fused: Whether attention is fused, which keeps no attention matrices.
    """
    float32_bytes, model = _float32_bytes(recipe, fused), recipe.model
    if recipe.compute.precision != "bfloat16":
        return round(float32_bytes)
    # Under autocast most activations take 2 bytes instead of 4. For each token, a block keeps:
    # - the inputs of its two norms: 2 x width, always in 4 bytes
    # - queries, keys, values, and the inputs of qkv, projection and MLP: 6 x width, 2 or 4 bytes
    # - the input and the output of the GELU: 2 x mlp, 2 or 4 bytes
    norm_bytes = 4 * 2 * model.width
    num_values = 6 * model.width + 2 * model.mlp
    bfloat16_block = norm_bytes + 2 * num_values
    float32_block = norm_bytes + 4 * num_values
    return round(float32_bytes * bfloat16_block / float32_block)


def _float32_bytes(recipe: Recipe, fused: bool) -> float:
    """Return the bytes of float32 activations per image that autograd keeps.

    As in `compute_network_cost`, the bytes of a network with more than 48 blocks are extrapolated
    from two networks of 4 and of 5 blocks, and results are cached.

    Args:
        recipe: Recipe of the run.
        fused: Whether attention is fused.
    """
    key = (_cache_key(recipe), fused)
    if key not in _ACTIVATION_BYTES:
        from . import on_meta

        shallow_recipes = _make_shallow_recipes(recipe)
        if shallow_recipes is None:
            _ACTIVATION_BYTES[key] = on_meta.activation_bytes(recipe, fused)
        else:
            added_blocks, few_recipe, more_recipe = shallow_recipes
            few, more = _float32_bytes(few_recipe, fused), _float32_bytes(more_recipe, fused)
            _ACTIVATION_BYTES[key] = _extrapolate(few, more, added_blocks)
    return _ACTIVATION_BYTES[key]


def largest_device_batch(recipe: Recipe, memory: float, fused: bool) -> int:
    """Return the largest device batch whose activations fit into half of the memory, at least 1.

    Args:
        recipe: Recipe of the run.
        memory: Memory of a process, in bytes.
        fused: Whether attention is fused.
    """
    return max(1, int(memory / 2 / activation_bytes(recipe, fused)))


def memory_bytes(
    recipe: Recipe, processes: int, zero: int, batch: int, fused: bool
) -> dict[str, int]:
    """Return the bytes that the tensors of one process need at most, by kind of tensor.

    The sum is an upper bound for the tensors, because activations are freed while gradients are
    allocated. The allocator, CUDA and DeepSpeed's buffers need additional memory. ZeRO-1 shards the
    moments over the processes, ZeRO-2 also the gradients, and ZeRO-3 also the weights (Rajbhandari
    et al., 2020, sections 3.1 and 5).

    Args:
        recipe: Recipe of the run.
        processes: Number of processes.
        zero: Stage of ZeRO, 0 without ZeRO.
        batch: Images in a device batch.
        fused: Whether attention is fused.

    Returns:
        {kind: bytes} with these kinds:
        - "weights", including a momentum copy of the encoder, float32
        - "gradients", "moments" of the optimiser and "averaged" weights, float32
        - "copies": the 16-bit copies of the weights that autocast makes
        - "buckets": DDP's copy of the gradients (torch's gradient_as_bucket_view is False)
        - "activations"
    """
    counted, settings, trains = compute_network_cost(recipe), recipe.optim, recipe.trains
    weight_bytes, trained_bytes = 4 * counted.parameters, 4 * counted.trained
    moments_per_weight = len(settings.optimiser.moments(settings))
    uses_buckets = trains and zero == 0 and processes > 1

    def sharded(size: int, first_stage: int) -> int:
        """Return the bytes in one process of a tensor that ZeRO shards from `first_stage` on.

        For example, moments are sharded from stage 1 on. In stage 0, each process has all bytes.
        """
        shards = processes if zero >= first_stage else 1
        return -(-size // shards)  # rounded up

    return {
        "weights": sharded(weight_bytes, 3),
        "gradients": sharded(trained_bytes, 2) if trains else 0,
        "moments": sharded(moments_per_weight * trained_bytes, 1) if trains else 0,
        "averaged": weight_bytes if trains and settings.average else 0,
        "copies": weight_bytes // 2 if recipe.compute.precision == "bfloat16" else 0,
        "buckets": trained_bytes if uses_buckets else 0,
        "activations": batch * activation_bytes(recipe, fused) if trains and batch else 0,
    }
