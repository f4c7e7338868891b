"""Estimate the memory that a run needs."""

import psutil

from .. import costs
from ..recipe.schema import Recipe

WITHOUT_GPU = 3 << 28  # 0.75 GiB: Python, torch and the libraries of a process
WITH_GPU = 4 << 30  # the same with CUDA and data workers: a guess


def memory_need(recipe: Recipe, gpu: bool) -> int:
    """Estimate the bytes of CPU memory of a run: libraries and, without a GPU, tensors.

    Activations are those of a whole batch, but at most half of the memory, because
    jobs/resources.py chooses the device batch in this way. An evaluation keeps the features of all
    images, twice while the features are concatenated.
    """
    features = 0
    if recipe.objective == "probe":  # float32, twice
        features = 2 * 4 * recipe.model.width * (costs.images_seen(recipe) or 0)
    if gpu:
        return WITH_GPU + features
    batch = recipe.compute.batch or recipe.optim.batch
    tensors = costs.memory_bytes(recipe, processes=1, zero=0, batch=batch, fused=False)
    activations = min(tensors.pop("activations"), psutil.virtual_memory().total // 2)
    return WITHOUT_GPU + activations + sum(tensors.values()) + features
