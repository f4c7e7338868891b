"""Choose the resources of a run, and collect facts for environment.json.

Resources are the device batch, the data workers and decoded images in memory.
"""

import socket
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from .. import costs
from ..data import fingerprints, run_splits
from ..data.batch_layout import BatchLayout
from ..data.files import FOLDERS
from ..data.pixel_values import pixel_type
from ..data.resident import DecodedImages, NotResident, decode_split
from ..data.source import Source
from ..errors import UserError
from ..evaluation import split_images
from ..formatting import format_bytes, option_text
from ..recipe.schema import Recipe, compared_views, measures_masks, uses_labels
from ..runs.environment import host_memory, process_cores

LARGEST = 4  # number of options named in an error about memory
AUTO_RESIDENT = 0.1  # share of the memory for decoded images with compute.resident=null


def check_label_lists(recipe: Recipe, splits: run_splits.Splits) -> None:
    """Check that the recipe can use lists of labels, if the images have lists.

    Only the sigmoid loss can learn lists of labels. Probes of features and tokens need a single
    label for each image.

    Args:
        recipe: Recipe of the run.
        splits: Images of the run.

    Raises:
        UserError: An objective or a probe of the recipe cannot use lists.
    """
    sources = [splits.train, splits.validation]
    if splits.test is not None:
        sources.append(splits.test)
    lists = [source.labels.lists for source in sources if source.labels.lists is not None]
    if not lists:
        return
    finding = f"data.label_column={lists[0].column} holds a list of labels for each image"
    is_evaluation = recipe.objective == "probe"  # an evaluation trains only probes
    for part in recipe.declared.trained(recipe):
        if part.labels and not is_evaluation:
            part.check_label_lists(recipe, finding)
    single_label_measures = sorted(recipe.probe.measures_that_read("feature", "tokens"))
    if single_label_measures and (is_evaluation or recipe.probe.every):
        raise UserError(
            f"probe.measures=[{','.join(single_label_measures)}]: {finding}. "
            "Use a data.label_column= with single labels."
        )


def largest_sizes(recipe: Recipe) -> str:
    """Return the options with the largest sizes, such as "optim.batch=4096, model.width=768".

    The text is for errors about memory. It has at most LARGEST options among data.size, optim.batch
    and the integer options of the model and the objective.
    """
    groups = ("model", *recipe.groups)
    sizes: dict[str, int] = {}
    for key, value in recipe.values().items():
        is_size = key in ("data.size", "optim.batch") or key.split(".")[0] in groups
        if is_size and type(value) is int:
            sizes[key] = value
    largest = sorted(sizes, key=lambda key: -sizes[key])[:LARGEST]
    return ", ".join(f"{key}={sizes[key]}" for key in largest)


def check_memory(recipe: Recipe) -> None:
    """Check that the weights fit into this process's share of the machine's memory.

    Without this check, the system would kill the process without a message when weights are drawn.

    Raises:
        UserError: The weights do not fit.
    """
    needed, memory = 4 * costs.compute_network_cost(recipe).parameters, host_memory()
    if needed > memory:
        raise UserError(
            f"{largest_sizes(recipe)}: the weights take {format_bytes(needed)}, and a process can "
            f"use {format_bytes(memory)}. Use a smaller network."
        )


def max_device_batch(recipe: Recipe, accelerator: Accelerator) -> int:
    """Return the number of images whose activations fit into half of a process's memory.

    A process has the memory of its GPU or, without a GPU, a share of the machine's memory. On a
    GPU, a fused kernel computes attention and does not store the attention maps.
    """
    # Pass the whole memory, because `largest_device_batch` itself uses only half for activations
    if accelerator.device.type == "cuda":
        memory = torch.cuda.get_device_properties(accelerator.device).total_memory
        return costs.largest_device_batch(recipe, memory, fused=True)
    return costs.largest_device_batch(recipe, host_memory(), fused=False)


def device_batch(recipe: Recipe, accelerator: Accelerator) -> int:
    """Return the number of images in a forward pass of an evaluation."""
    return recipe.compute.batch or min(256, max_device_batch(recipe, accelerator))


def workers(recipe: Recipe, accelerator: Accelerator) -> int:
    """Return the number of data loading workers for each process."""
    if recipe.compute.workers is not None:
        return recipe.compute.workers
    if accelerator.device.type != "cuda":
        return 0  # on a CPU, workers take cores from training (docs/speed.md)
    return min(16, max(1, process_cores() - 1))


def resident_images(
    recipe: Recipe, train: Source, step: int, images: int | None = None
) -> DecodedImages | None:
    """Decode the training images into memory, depending on compute.resident.

    With compute.resident=true, the images are decoded, and may take half of the memory. With
    compute.resident=false, no images are decoded. With compute.resident=null, only images of a
    folder or of the Hub are decoded, on two conditions: from `step` on, training reads each image
    at least twice, and the decoded images take at most the share AUTO_RESIDENT of the memory.

    Args:
        recipe: Recipe of the run.
        train: Training images, or a sample of the training images.
        step: Step from which training continues.
        images: Number of training images, if `train` is only a sample.

    Returns:
        The decoded images, or None if images are decoded when read.

    Raises:
        UserError: compute.resident=true, and the images cannot be kept in memory.
    """
    wanted, data = recipe.compute.resident, recipe.data
    images = images or len(train)
    if wanted is None:
        # Embedded images need no decoding. Images seen once gain nothing from decoding in advance
        needs_decoding = bool(data.path or data.hub)
        is_seen_twice = (recipe.optim.steps - step) * recipe.optim.batch >= 2 * images
        if not (needs_decoding and is_seen_twice):
            return None
    elif not wanted:
        return None
    try:
        if compared_views(recipe):
            raise NotResident(f"objective={recipe.objective} compares views in random colours")
        if pixel_type(data) != torch.uint8:
            raise NotResident(f"data.range={option_text(data.range)} has 16-bit pixels")
        if data.stream:
            raise NotResident("data.stream=true reads the images in parts")
        share = 0.5 if wanted else AUTO_RESIDENT
        # If `train` is a sample, the memory is reduced by the share of the sample in all images
        memory = share * host_memory() * len(train) / images
        return decode_split(train, data, memory, torch.get_num_threads())
    except NotResident as error:
        if wanted:
            raise UserError(
                f"compute.resident=true: the decoded images cannot be kept in memory ({error}). "
                "Use compute.resident=null."
            ) from None
        return None


def environment_facts(
    recipe: Recipe,
    accelerator: Accelerator,
    batch_layout: BatchLayout,
    splits: run_splits.Splits,
) -> dict[str, Any]:
    """Collect the entries of environment.json about the run and its images.

    All processes must call this function.

    Args:
        recipe: Recipe of the run.
        accelerator: Processes of the run.
        batch_layout: How a batch is divided among processes and passes.
        splits: Images of the run.

    Returns:
        {key of environment.json: value}. A split has a fingerprint only on the processes that have
        hashed its images.
    """
    device = accelerator.device
    # If the objective uses no labels, names of folders need not be classes
    are_classes = splits.train.labels.source != FOLDERS or uses_labels(recipe)
    work = costs.compute_network_cost(recipe)
    facts: dict[str, Any] = {
        "data": {},
        "images": {},
        "measured_on": split_images.count_measured_images(recipe, splits),
        "classes": list(splits.train.classes) if are_classes else [],  # label 0 is the first class
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "processes": batch_layout.processes,
        "device_batch": batch_layout.device_batch,
        "accumulation": batch_layout.accumulation_steps,
        "parameters": work.encoder,
        "multiply_adds": work.features,
        "threads": torch.get_num_threads(),
        "precision": recipe.compute.precision,
    }
    if not splits.stream:
        facts["images"] = {"train": len(splits.train), "labelled_test": splits.labelled_test}
    # On each machine, the images of a path are hashed only by the first process that reads them
    here = (socket.gethostname(), recipe.data.path)
    # `index` finds the first process with the same machine and path as this process
    first_process = gather_object([here]).index(here)
    if first_process == accelerator.process_index:
        facts["data"] = fingerprints.fingerprint_splits(
            splits, recipe.data.path, measures_masks(recipe), bool(recipe.data.group)
        )
        facts["held_out"] = fingerprints.fingerprint_held_out(splits, facts["data"])
    return facts
