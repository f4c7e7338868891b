"""Resources of a run: process group, splits, device batch, data workers, and what environment.json
records about them."""

import os
import socket
from typing import Any

import psutil
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from .. import costs
from ..data import check_pixels, fingerprints, sources
from ..data.batch_layout import BatchLayout
from ..data.files import FOLDERS
from ..data.pixel_values import pixel_type
from ..data.resident import DecodedImages, NotResident, decode_split
from ..data.source import Source
from ..errors import UserError
from ..formatting import option_text
from ..recipe.probe import SEGMENTATION
from ..recipe.schema import (
    Recipe,
    compared_views,
    measures_masks,
    uses_labels,
)
from ..runs.environment import process_cores
from ..training import distributed
from . import split_images

AUTO_RESIDENT = 0.1  # share of the memory that decoded images may take by themselves


def load_splits(
    recipe: Recipe, accelerator: distributed.WatchedAccelerator, test: bool
) -> sources.Splits:
    """Load the splits, on rank 0 first: the others find what it prepared, and its errors reach all.
    What the recipe leaves to be measured on the training images is measured, and values that do not
    suit the recipe are warned of or refused.

    Raises:
        UserError: as `sources.load`; where test images are missing it says how to go without.
    """

    def load() -> sources.Splits:
        splits = split_images.load(recipe, test)
        check_pixels.complete(recipe.data, splits.train)
        return splits

    splits = distributed.on_main(accelerator, load) or load()
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    others = {
        name: source
        for name, source in named.items()
        if source is not None and (name == "train" or source.store is not splits.train.store)
    }
    of_bytes = "" if recipe.trains else check_pixels.OF_ENCODER
    checked = distributed.broadcast_from_main(
        accelerator, lambda: check_pixels.check(others, recipe.data, of_bytes)
    )
    guesses = (*splits.guesses, *checked.warnings)
    return splits._replace(guesses=guesses, clipped=checked.clipped)


def check_label_lists(recipe: Recipe, splits: sources.Splits) -> None:
    """Check that lists of labels are learned with the sigmoid loss, and not probed.

    Raises:
        UserError: they are not, or are.
    """
    loaded = [source for source in splits[:3] if source is not None]
    found = [source.lists for source in loaded if source.lists is not None]
    if not found:
        return
    text = f"data.label_column={found[0].column} holds a list of labels for each image"
    probing = recipe.objective == "probe"
    for one in recipe.declared.trained(recipe):
        if one.labels and not probing:
            one.check_label_lists(recipe, text)
    of_one_label = sorted(set(recipe.probe.measures) - {"top1", SEGMENTATION})
    if of_one_label and (probing or recipe.probe.every):
        raise UserError(
            f"probe.measures=[{','.join(of_one_label)}]: {text}; expected a column of one label"
        )


def max_device_batch(recipe: Recipe, accelerator: Accelerator) -> int:
    """Images whose activations take half of the memory of one process."""
    fused = accelerator.device.type == "cuda"
    return costs.fitting_images(recipe, _memory(accelerator), fused)


def device_batch(recipe: Recipe, accelerator: Accelerator) -> int:
    """Images of one pass of an evaluation."""
    return recipe.compute.batch or min(256, max_device_batch(recipe, accelerator))


def _memory(accelerator: Accelerator) -> float:
    """Bytes of memory for one process: its GPU's, or its share of the machine's."""
    if accelerator.device.type == "cuda":
        return torch.cuda.get_device_properties(accelerator.device).total_memory
    return _host_memory()


def _host_memory() -> float:
    """This process's share of the machine's memory, in bytes."""
    return psutil.virtual_memory().total / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def workers(recipe: Recipe, accelerator: Accelerator) -> int:
    """Data loading processes of one process."""
    if recipe.compute.workers is not None:
        return recipe.compute.workers
    # on a CPU they take cores from training (docs/speed.md)
    return min(16, max(1, process_cores() - 1)) if accelerator.device.type == "cuda" else 0


def resident_images(recipe: Recipe, train: Source, step: int) -> DecodedImages | None:
    """The decoded training images, where compute.resident keeps them in memory from this step on;
    else None.

    Raises:
        UserError: compute.resident=true, and they cannot be kept.
    """
    wanted = recipe.compute.resident
    if wanted is False:
        return None
    try:
        _check_resident(recipe, len(train), step)
        share = 0.5 if wanted else AUTO_RESIDENT
        return decode_split(train, recipe.data, share * _host_memory(), torch.get_num_threads())
    except NotResident as error:
        if wanted:
            raise UserError(f"compute.resident=true: {error}; expected false or null") from None
        return None


def _check_resident(recipe: Recipe, images: int, step: int) -> None:
    """
    Raises:
        NotResident: the recipe's images cannot be kept in memory or, with compute.resident=null,
            it would not pay.
    """
    data = recipe.data
    if compared_views(recipe):
        raise NotResident(f"objective={recipe.objective} compares views, whose colours change")
    if pixel_type(data) != torch.uint8:
        raise NotResident(f"data.range={option_text(data.range)} is of 16 bits")
    if data.stream:
        raise NotResident("data.stream=true reads images in parts")
    if recipe.compute.resident:
        return
    if not (data.path or data.hub):
        raise NotResident("embedded images are drawn, which takes longer than decoding")
    if (recipe.optim.steps - step) * recipe.optim.batch < 2 * images:
        raise NotResident("images are not seen twice")


def _first_there(recipe: Recipe, accelerator: Accelerator) -> bool:
    """Whether this process is the first on its machine to read these images; only that one hashes
    them."""
    here = (socket.gethostname(), recipe.data.path)
    return gather_object([here]).index(here) == accelerator.process_index


def environment_facts(
    recipe: Recipe,
    accelerator: Accelerator,
    batch_layout: BatchLayout,
    splits: sources.Splits,
) -> dict[str, Any]:
    """What environment.json records beyond versions and hardware."""
    device = accelerator.device
    # names of folders need not be classes
    are_classes = splits.train.label_source != FOLDERS or uses_labels(recipe)
    classes = list(splits.train.classes) if are_classes else []
    clipped = {"clipped": splits.clipped} if splits.clipped else {}
    data, held_out = {}, {}
    if _first_there(recipe, accelerator):
        grouped = bool(recipe.data.group)
        data = fingerprints.fingerprint_splits(
            splits, recipe.data.path, measures_masks(recipe), grouped
        )
        held_out = {"held_out": fingerprints.fingerprint_held_out(splits, data)}
    return clipped | {
        "data": data,
        **held_out,
        "images": {} if splits.stream else {"train": len(splits.train)},
        "measured_on": split_images.measured_on(recipe, splits),
        "classes": classes,  # label 0 is the first
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "processes": batch_layout.processes,
        "device_batch": batch_layout.device_batch,
        "accumulation": batch_layout.accumulation_steps,
        "parameters": costs.work(recipe).encoder,
        "multiply_adds": costs.work(recipe).features,
        "threads": torch.get_num_threads(),
        "precision": recipe.compute.precision,
    }
