"""On how many images a report's measures and choices are made. No torch here."""

from collections.abc import Iterable, Iterator

from ...formatting import FEW_IMAGES, count_of_images
from ...pages.blocks import Block, Text
from .axes import arm_label
from .measures import Measure
from .numbers import Numbers, Sweep


def cautions(numbers: Numbers) -> Iterator[Block]:
    """Warns of measures on, and of choices by, so few images that they tell hardly anything."""
    measured: dict[int, list[str]] = {}
    for measure in numbers.measures:
        if measure.images and measure.images < FEW_IMAGES:
            measured.setdefault(measure.images, []).append(measure.label)
    for count, labels in measured.items():
        yield Text(
            f"Measured on {count_of_images(count)}: {', '.join(labels)}. On fewer than {FEW_IMAGES}"
            " an accuracy is uncertain by 10 points or more, whatever the seeds agree on.",
            warning=True,
        )
    chosen: dict[int, list[str]] = {}
    for sweep in numbers.sweeps:
        if sweep.images and sweep.images < FEW_IMAGES:
            name = f"{sweep.part} of {arm_label(sweep.arm, numbers.settings)}"
            chosen.setdefault(sweep.images, []).append(name)
    for count, names in chosen.items():
        yield Text(
            f"Chosen on {count_of_images(count)}: the best of {', '.join(names)}. Fewer than"
            f" {FEW_IMAGES} hardly tell one value from another.",
            warning=True,
        )


def of_measures(measures: Iterable[Measure]) -> Iterator[Block]:
    """A line with the number of images of each measure, as far as it is known."""
    known = [f"{one.label} {one.images:,}" for one in measures if one.images]
    if known:
        yield Text(f"Images measured on: {'; '.join(known)}.")


def of_sweeps(sweeps: Iterable[Sweep]) -> str:
    """How many images sweeps choose on, in brackets; empty where that is not known."""
    known = {sweep.images for sweep in sweeps if sweep.images}
    if not known:
        return ""
    ends = sorted({min(known), max(known)})
    return f" (n = {' to '.join(f'{count:,}' for count in ends)} images)"
