"""Estimate the work, memory, time, price and disk of a run in advance, without importing torch.

Work is counted. Time is measured with `--probe`, or assumed from the device's peak. Each line of
the estimate says what is assumed.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import costs
from ..data.batch_layout import BatchLayout
from ..errors import UserError, suggest
from ..formatting import (
    NOT_COUNTED,
    format_bytes,
    format_count,
    format_duration,
    format_image_count,
)
from ..recipe.parsing import load_yaml
from ..recipe.schema import Recipe
from .images import count_images
from .options import PlanOptions

if TYPE_CHECKING:
    from ..jobs.step_time import StepTime

GIB = 2**30
STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")


@dataclass(frozen=True)
class Device:
    """Row of hardware.yaml.

    `bfloat16` and `float32` are the peak rates of dense multiplications in TFLOP/s, or None if the
    rate is unknown. `memory` is in GiB. `verified` is False if the rates were not checked.
    """

    name: str
    bfloat16: float | None
    float32: float | None
    memory: float
    verified: bool = True

    def rate(self, precision: str) -> float:
        """Return the peak rate in TFLOP/s.

        Raises:
            UserError: The table has no rate for the precision.
        """
        rate = self.bfloat16 if precision == "bfloat16" else self.float32
        if rate is None:
            replacement = "float32" if precision == "bfloat16" else "bfloat16"
            raise UserError(
                f"compute.precision={precision}: the speed of device={self.name} in this precision"
                " is unknown, so the plan cannot estimate the time. Use"
                f" compute.precision={replacement}."
            )
        return rate

    def hours(self, exaflop: float, precision: str, efficiency: float) -> float:
        """Return the device-hours that the work takes at this efficiency.

        The efficiency is the share of the peak rate that is reached, from 0 to 1.
        """
        return exaflop * 1e18 / (self.rate(precision) * 1e12 * efficiency) / 3600


def devices() -> dict[str, Device]:
    """Return `{name: device}` from hardware.yaml."""
    rows = load_yaml(Path(__file__).with_name("hardware.yaml"))
    return {name: Device(name, **row) for name, row in rows.items()}


@dataclass(frozen=True, kw_only=True)
class RunEstimate:
    """Estimated cost of a run. Unknown values are None. An evaluation has 0 steps and a batch of 0.

    Attributes:
        name: Name of the run.
        model: Name of the encoder.
        parameters: Number of trained parameters.
        encoder_parameters: Number of parameters of the encoder.
        patches: Patches per image, or 0 for a convolutional network.
        multiply_adds: Multiply-adds of the forward pass of one image.
        steps: Steps that this run takes.
        begins_at: Step that `resume=RUN@STEP` continues from, else 0.
        batch: Images per step.
        training_images: Number of training images.
        images_source: Words that say where the number of training images comes from.
        epochs: Epochs over the training images.
        images: Forward passes of an image in total.
        exaflop: Work in exaFLOP.
        precision: Precision of training.
        device_batch: Images per pass on a device.
        image_bytes: Activation bytes per image.
        tensor_bytes: `{ZeRO stage: {kind: bytes}}` per process.
        disk_bytes: Bytes of the checkpoints and the export.
        asked: Options of the tool.
        device: Device of `device=`.
        seconds: Seconds of the run. With `device`, the seconds on `processes` devices, from the
            device's peak and `efficiency`. Without `device`, the seconds measured on this machine
            with `probe=True`.
        device_hours: Hours of all devices together.
        price: Price of the device-hours.
        probe: Measurement with `probe=True`.
        warnings: Common mistakes, one line each.
        notice: Sentence that says which images are assumed if the user names none, else None.
    """

    name: str
    model: str
    parameters: int
    encoder_parameters: int
    patches: int
    multiply_adds: float | None
    steps: int
    begins_at: int
    batch: int
    training_images: int | None
    images_source: str
    epochs: float | None
    images: int | None
    exaflop: float | None
    precision: str
    device_batch: int | None
    image_bytes: int
    tensor_bytes: dict[str, dict[str, int]]
    disk_bytes: int
    asked: PlanOptions
    device: Device | None
    seconds: float | None
    device_hours: float | None
    price: float | None
    probe: "StepTime | None"
    warnings: list[str]
    notice: str | None = None

    def __repr__(self) -> str:
        """Return the text that the command line prints."""
        return as_lines([self.notice] if self.notice else [], self._named_lines(), self.warnings)

    def _named_lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of the estimate, each as a name, such as "disk", and a text."""
        yield "run", self.name
        work = f"multiply-adds {NOT_COUNTED}"
        if self.multiply_adds is not None:
            work = f"{self.multiply_adds / 1e9:.3g}G multiply-adds per image"
        yield (
            "model",
            f"{self.model}: {self.parameters / 1e6:.2f}M parameters"
            f" ({self.encoder_parameters / 1e6:.2f}M in the encoder), {self.patches or 'no'}"
            f" patches, {work}",
        )
        yield "length", self._length()
        if self.steps:
            yield "memory", self._memory()
            yield "disk", f"{format_bytes(self.disk_bytes)} for checkpoints and the export"
        yield from self._time()
        if self.price is not None:
            # with a device, the time is assumed (line `time`), else measured (line `here`)
            basis = "time assumed for the device" if self.device else "time measured here"
            yield (
                "price",
                f"{number(self.price)}, at {self.asked.price:g} per device-hour, from the {basis}",
            )

    def _length(self) -> str:
        """Describe the length of the run in steps, images and epochs, as options to type.

        If the run continues a checkpoint with `resume=`, `steps` counts only the new steps, and
        `optim.steps` also counts the steps before the checkpoint.
        """
        if self.images is None:
            return "the number of images is unknown. Add data.path= with images on this machine"
        exaflop = NOT_COUNTED if self.exaflop is None else number(self.exaflop)
        if not self.steps:
            return f"{self.images:,} images, exaFLOP {exaflop}, one forward pass per image"
        epochs = "epochs unknown (add images=)"
        if self.training_images:
            epochs = (
                f"epochs={self.epochs:.4g} of {self.training_images:,} training images"
                f" ({self.images_source})"
            )
        new_steps = f" ({self.steps} of them after resume=)" if self.begins_at else ""
        return (
            f"optim.steps={self.begins_at + self.steps}{new_steps} x {self.batch} ="
            f" {self.images:,} images, exaFLOP {exaflop}, {epochs}"
        )

    def _memory(self) -> str:
        """Describe the memory that the tensors of a process need in each ZeRO stage.

        The stages divide tensors among the processes. A single process needs the same memory in all
        stages, so the text then has only the first stage.
        """
        totals = [
            f"{stage} {format_bytes(sum(kinds.values()))}"
            for stage, kinds in self.tensor_bytes.items()
        ]
        if self.asked.processes == 1:
            totals = totals[:1]
        per_process = f"{', '.join(totals)} per process (processes={self.asked.processes})"
        per_image = format_bytes(self.image_bytes)
        device = f". {self.device.name} has {self.device.memory:g} GiB" if self.device else ""
        if self.device_batch:
            return (
                f"{per_process} in {self.precision}, with {format_image_count(self.device_batch)}"
                f" per forward pass, including activations (estimated {per_image} per"
                f" image){device}"
            )
        return (
            f"{per_process} in {self.precision}, without activations (estimated {per_image} per"
            f" image){device}. To include activations, add device= or compute.batch="
        )

    def _time(self) -> Iterator[tuple[str, str]]:
        """Yield lines about the time on the named device and about the time measured here."""
        device, timed = self.device, self.probe
        if device and self.seconds is not None:
            peak = f"{device.rate(self.precision):g} TFLOP/s"
            if not device.verified:
                peak += " (peak speed not checked)"
            yield (
                "time",
                f"about {format_duration(self.seconds)} on {self.asked.processes} x {device.name},"
                f" {number(self.device_hours)} device-hours: for computation alone, assuming"
                f" {self.asked.efficiency:.0%} (efficiency=) of the peak speed of {peak}",
            )
            if self.images:
                yield (
                    "loading",
                    f"at least {number(self.images / self.seconds)} images/s, or training waits."
                    " docs/speed.md says how many images/s a core decodes",
                )
        elif not timed:
            yield "time", f"unknown. Add --probe or device= (choices: {', '.join(devices())})"
        if timed:
            yield (
                "here",
                f"about {format_duration(timed.seconds * self.steps)}: measured"
                f" {timed.seconds:.3g} s per step (median of {timed.steps}, {timed.least:.3g} to"
                f" {timed.most:.3g}) on {timed.device}, {format_count(timed.threads, 'threads')},"
                f" {timed.precision}, load average {timed.load:.2f} before the measurement",
            )


def as_lines(opening: list[str], rows: Iterable[tuple[str, str]], warnings: Iterable[str]) -> str:
    """Return the text of an estimate.

    The text has the lines of `opening`, a line such as "disk        1.2 GiB" for each row, and a
    line such as "warning: TEXT" for each warning.
    """
    lines = [f"{name:<11} {text}" for name, text in rows]
    return "\n".join([*opening, *lines, *(f"warning: {text}" for text in warnings)])


def number(value: float | None) -> str:
    """Format a number: 12.34 as "12.3", 1234.5 as "1,234" and None as "-"."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def find_device(name: str | None) -> Device | None:
    """Return the device with this name, or None without a name.

    Raises:
        UserError: There is no device of that name.
    """
    if name is None:
        return None
    by_name = devices()
    if name not in by_name:
        raise UserError(f"device={name}: unknown device ({suggest(name, by_name)})")
    return by_name[name]


def estimate(recipe: Recipe, options: PlanOptions, timed: "StepTime | None" = None) -> RunEstimate:
    """Estimate the cost of a run on the named device, or on this machine if steps were timed.

    Args:
        recipe: Recipe of the run.
        options: Options of the plan tool.
        timed: Measured time of a step on this machine, or None.

    Raises:
        UserError: There is no such device, the device has no rate for the precision, or the
            processes do not divide the batch.
    """
    recipe = copy.deepcopy(recipe)
    device = find_device(options.device)
    here = timed if device is None else None  # the measurement counts only without a device
    if here:
        recipe.compute.precision = here.precision
    elif recipe.compute.precision == "auto":
        has_bfloat16 = device is None or device.bfloat16
        recipe.compute.precision = "bfloat16" if has_bfloat16 else "float32"
    # fused attention keeps no attention matrices for the backward pass
    fused = not (here and here.device == "cpu")
    batch = here.device_batch if here else _plan_device_batch(recipe, options.processes, device)
    tensors = {
        stage: costs.memory_bytes(recipe, options.processes, zero, batch or 0, fused)
        for zero, stage in enumerate(STAGES)
    }
    num_training, num_seen, images_source = count_images(recipe, options.images)
    exaflop = costs.exaflop(recipe, num_seen)
    trains = recipe.trains  # an evaluation does not train
    device_hours = None  # of all devices together
    if here:
        device_hours = here.seconds * recipe.new_steps / 3600
    elif device and exaflop is not None:
        device_hours = device.hours(exaflop, recipe.compute.precision, options.efficiency)
    seconds = price = None
    if device_hours is not None:
        seconds = device_hours * 3600 / (1 if here else options.processes)
        price = None if options.price is None else device_hours * options.price
    network_cost = costs.compute_network_cost(recipe)
    unsharded = tensors["DDP"]
    checkpoint_bytes = unsharded["weights"] + unsharded["moments"]
    # the export has float32 weights, also of the encoder's frozen part
    exported_bytes = 4 * max(network_cost.trained, network_cost.encoder)
    disk_bytes = recipe.checkpoint.keep * checkpoint_bytes + exported_bytes
    return RunEstimate(
        name=recipe.name,
        model=recipe.model.name,
        parameters=network_cost.trained,
        encoder_parameters=network_cost.encoder,
        patches=0 if recipe.model.convolutional else recipe.patches,
        multiply_adds=network_cost.forward if trains else network_cost.features,
        steps=recipe.new_steps if trains else 0,
        begins_at=recipe.trunk.step if recipe.trunk else 0,
        batch=recipe.optim.batch if trains else 0,
        training_images=num_training,
        images_source=images_source,
        epochs=num_seen / num_training if trains and num_seen and num_training else None,
        images=num_seen,
        exaflop=exaflop,
        precision=recipe.compute.precision,
        device_batch=batch,
        image_bytes=costs.activation_bytes(recipe, fused) if trains else 0,
        tensor_bytes=tensors,
        disk_bytes=disk_bytes if trains else 0,
        asked=options,
        device=device,
        seconds=seconds,
        device_hours=device_hours,
        price=price,
        probe=timed,
        warnings=_warnings(device, tensors),
    )


def _plan_device_batch(recipe: Recipe, processes: int, device: Device | None) -> int | None:
    """Return the device batch (images per forward pass) with which a run will train on a device.

    The result is `compute.batch`, if it is set. Otherwise, it is the largest batch that divides the
    images of a process and whose activations fit into half of the device's memory.

    The result is None for an evaluation, which does not train. It is also None if neither
    `compute.batch` nor a device is given, because training then chooses the batch by the memory of
    the device on which it runs.

    Args:
        recipe: Recipe of the run.
        processes: Number of processes, each with a device.
        device: Named device, or None.

    Raises:
        UserError: The processes or `compute.batch` do not divide the batch.
    """
    if not recipe.trains:
        return None
    batch, device_batch = recipe.optim.batch, recipe.compute.batch
    if device_batch is None and device is None:
        # the device batch is unknown, but check that the processes divide the batch
        BatchLayout.divide(batch, None, 1, rank=0, processes=processes)
        return None
    largest = 1  # not used, because without a device `device_batch` is a number
    if device is not None:
        largest = costs.largest_device_batch(recipe, device.memory * GIB, fused=True)
    layout = BatchLayout.divide(batch, device_batch, largest, rank=0, processes=processes)
    return layout.device_batch


def _warnings(device: Device | None, tensors: dict[str, dict[str, int]]) -> list[str]:
    """Warn if the tensors of a process need more memory than the device has.

    The warning names the first ZeRO stage whose tensors fit, or else suggests a smaller batch.

    Args:
        device: Named device, or None.
        tensors: `{ZeRO stage: {kind: bytes}}` per process.

    Returns:
        A list with one warning, or an empty list.
    """
    totals = {stage: sum(kinds.values()) for stage, kinds in tensors.items()}
    if device is None or totals["DDP"] <= device.memory * GIB:
        return []
    fitting = [stage for stage, total in totals.items() if total <= device.memory * GIB]
    if fitting:
        return [
            f"{totals['DDP'] / GIB:.1f} GiB of tensors per process do not fit into"
            f" device={device.name} ({device.memory:g} GiB). {fitting[0]} fits"
            " (docs/distributed.md)"
        ]
    return [
        f"{totals['DDP'] / GIB:.1f} GiB of tensors per process do not fit into"
        f" device={device.name} ({device.memory:g} GiB). Use a smaller compute.batch= or more"
        " processes="
    ]
