"""Run a recipe's objective on torch's meta device to count operations and activations.

Tensors on the meta device have shapes and no values.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from ..data.augment import VIEWS
from ..data.batching import Batch
from ..data.pixel_values import pixel_type
from ..errors import one_line, printable
from ..models.encoder import Backbone, build_backbone
from ..models.trained_part import freeze_untrained
from ..objectives import building
from ..objectives.base import Objective
from ..recipe.schema import Recipe, compared_views
from . import NetworkCost

IMAGES = 4  # `activation_bytes` compares batches of IMAGES and of 2 * IMAGES images


def count_operations(recipe: Recipe) -> NetworkCost:
    """Count the parameters of a recipe's network, and the multiply-adds per image."""
    network = _build(recipe)
    encoder = network.encoder if isinstance(network, Objective) else network
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        encoder.eval().feature(_batch(recipe, 1).image)
    network.train()
    forward = training = None
    uncounted = ""
    if isinstance(network, Objective):  # an evaluation has no objective, and trains nothing
        forward, training, uncounted = _count_step(network, recipe)
    return NetworkCost(
        parameters=_total(network.parameters()),
        trained=_total(value for value in network.parameters() if value.requires_grad),
        encoder=_total(encoder.parameters()),
        features=counter.get_total_flops() // 2,  # a multiply-add is 2 operations
        forward=forward,
        training=training,
        uncounted=uncounted,
    )


def activation_bytes(recipe: Recipe, fused: bool) -> float:
    """Return the bytes that autograd stores per image in float32, without parameters.

    If the objective reads the values of pixels, which the meta device lacks, only the encoder is
    counted.

    Args:
        recipe: Recipe of the run.
        fused: Whether a fused attention is used.
    """
    network = _build(recipe)
    for module in network.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused  # type: ignore[assignment]
    # The difference of two batches leaves only bytes that grow with the number of images. The
    # larger batch has IMAGES more images
    smaller = _count_kept_bytes(network, recipe, IMAGES)
    larger = _count_kept_bytes(network, recipe, 2 * IMAGES)
    return (larger - smaller) / IMAGES


def _build(recipe: Recipe) -> Objective | Backbone:
    """Build the objective of a recipe, or the encoder for an evaluation, on the meta device."""
    with torch.device("meta"):
        encoder = build_backbone(
            recipe.model, recipe.data, recipe.optim.dropout, recipe.optim.drop_path
        )
        if not recipe.trains:  # the recipe is an evaluation
            return encoder
        settings = building.Settings.from_recipe(recipe)
        num_classes = recipe.data.classes or 1  # a head of one class, if the number is unknown
        objective = building.build_objective(settings, encoder, num_classes)
        freeze_untrained(encoder)
        return objective


def _batch(recipe: Recipe, size: int) -> Batch:
    """Build a batch of training images on the meta device.

    If the objective compares views of each image, the batch has the views too.

    Args:
        recipe: Recipe with the images and the objective.
        size: Number of images.
    """
    data, view_options = recipe.data, compared_views(recipe)
    dtype = pixel_type(data)

    def empty_images(*num_views: int, side: int = data.size) -> Tensor:
        """Return images (B, C, side, side), or with `num_views` (B, num_views, C, side, side).

        The images have a shape and no pixel values.
        """
        return torch.empty(size, *num_views, data.channels, side, side, dtype=dtype, device="meta")

    views = local = None
    if view_options is not None:
        views = empty_images(VIEWS)
        if view_options.local:
            local = empty_images(view_options.local, side=view_options.local_size)
    integer_B = torch.empty(size, dtype=torch.int64, device="meta")
    return Batch(
        image=empty_images(),
        label=integer_B,
        index=integer_B,
        key=integer_B,
        loss_denominator=torch.empty((), dtype=torch.float64, device="meta"),
        views=views,
        local=local,
    )


def _total(parameters: Iterable[nn.Parameter]) -> int:
    """Return the number of values in all parameters."""
    return sum(parameter.numel() for parameter in parameters)


def _count_step(network: Objective, recipe: Recipe) -> tuple[float | None, float | None, str]:
    """Count the multiply-adds of a training step, per image.

    Args:
        network: The objective, on the meta device.
        recipe: Recipe of the run, with the size of the batch.

    Returns:
        Multiply-adds of the forward pass, multiply-adds of the forward and backward pass, and "".
        An objective that reads pixel values fails, because the meta device has no values. The
        result is then None, None and the error message.
    """
    batch = _batch(recipe, recipe.optim.batch)
    try:
        with FlopCounterMode(display=False) as counter, torch.device("meta"):
            loss = network(batch).loss
            forward_flops = counter.get_total_flops()
            loss.backward()
    except Exception as error:  # networks that need values raise many types of errors
        return None, None, printable(one_line(error))
    divisor = 2 * recipe.optim.batch  # a multiply-add is 2 operations
    return forward_flops / divisor, counter.get_total_flops() / divisor, ""


def _count_kept_bytes(network: Objective | Backbone, recipe: Recipe, size: int) -> int:
    """Return the bytes that autograd stores in the forward pass of a batch.

    Storage that several tensors share counts once. Parameters and buffers do not count. Fused
    attention counts as on a GPU (see `_FusedAttentionMode`).

    Args:
        network: Objective, or the encoder for an evaluation.
        recipe: Recipe of the batch.
        size: Number of images in the batch.
    """
    batch = _batch(recipe, size)
    tensors = (*network.parameters(), *network.buffers())
    weight_addresses = {tensor.untyped_storage()._cdata for tensor in tensors}
    storages: dict[int, Any] = {}  # {address: storage} of all tensors that autograd stores

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # kept alive, so that no address is used twice
        return tensor

    with torch.device("meta"), saved_tensors_hooks(record, lambda x: x), _FusedAttentionMode():
        # the forward pass is run only for the calls of `record`
        if isinstance(network, Backbone):
            network.feature(batch.image)
        else:
            try:
                _ = network(batch).loss
            except Exception:  # the objective reads pixel values, as in `_count_step`
                network.encoder.feature(batch.image)
    activations = [storages[address] for address in storages.keys() - weight_addresses]
    return sum(storage.nbytes() for storage in activations)


class _FusedAttentionMode(TorchFunctionMode):
    """Replace torch's fused attention, so that it stores the same tensors as on a GPU.

    torch has no fused kernel for the meta device. Without this class, torch would compute attention
    step by step and store attention matrices.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _FusedAttention.apply(*args[:3])
        return func(*args, **(kwargs or {}))


class _FusedAttention(torch.autograd.Function):
    """Fused attention without values, for the meta device.

    Stores queries, keys, values and output for the backward pass, as torch's CUDA kernels do.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return tuple(torch.empty_like(saved) for saved in ctx.saved_tensors[:3])
