"""Estimate the memory that a run needs."""

import psutil

from .. import costs
from ..recipe.schema import Recipe

# memory of Python, torch and the libraries of a process
LIBRARY_BYTES_ON_CPU = 3 << 28  # 0.75 GiB
LIBRARY_BYTES_ON_GPU = 4 << 30  # with CUDA and data workers: a guess


def memory_need(recipe: Recipe, gpu: bool) -> int:
    """Estimate how many bytes of CPU memory a run needs.

    Every run needs memory for the libraries. A run without a GPU also keeps its tensors in CPU
    memory. An evaluation also keeps the features of all images. While an evaluation concatenates
    the features of the batches, there are two copies.

    Activations count as at most half of this machine's memory. If the activations of a batch need
    more, training divides the batch into parts that fit into this half (jobs/resources.py).

    Args:
        recipe: Recipe of the run.
        gpu: Whether the run uses a GPU.
    """
    feature_bytes = 0
    if recipe.objective == "probe":  # two copies of float32, which has 4 bytes
        feature_bytes = 2 * 4 * recipe.model.width * (costs.images_seen(recipe) or 0)
    if gpu:
        return LIBRARY_BYTES_ON_GPU + feature_bytes
    batch = recipe.compute.batch or recipe.optim.batch
    tensors = costs.memory_bytes(recipe, processes=1, zero=0, batch=batch, fused=False)
    activations = min(tensors.pop("activations"), psutil.virtual_memory().total // 2)
    return LIBRARY_BYTES_ON_CPU + activations + sum(tensors.values()) + feature_bytes
