"""What a run or a study will cost before it runs: work, memory, time, price, disk, and the cores
that decode its images. No torch here.

Work is counted. Time is measured with --probe, else assumed from the device's peak; each line says
what is assumed.
"""

import copy
import dataclasses
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import tool_options
from ..config.fields import KEY
from ..config.parsing import load_yaml
from ..config.schema import Recipe, defaults
from ..errors import UserError, suggest
from ..formatting import NOT_COUNTED, duration, format_bytes, plain_table
from . import engine
from .options import PlanOptions
from .study.request import Request, requested

if TYPE_CHECKING:
    from ..jobs.pace import Pace

GIB = 2**30
STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
# Images that one core decodes, crops and stacks in a second: docs/speed.md, Loading, image folder.
# Training images of at most SMALL px a side are taken for the first kind of files
SMALL = 64
DECODED_SMALL = 8_189, "WebP files of 32 px"
DECODED_LARGE = 604, "JPEG files of 500 x 375 px"


@dataclass(frozen=True)
class Device:
    """A row of hardware.yaml: peak dense rates in TFLOP/s (None where a precision is not
    supported), memory in GiB."""

    name: str
    bfloat16: float | None
    float32: float | None
    memory: float
    verified: bool = True

    def rate(self, precision: str) -> float:
        """Peak TFLOP/s.

        Raises:
            UserError: the table has none for this precision.
        """
        rate = self.bfloat16 if precision == "bfloat16" else self.float32
        if rate is None:
            other = "float32" if precision == "bfloat16" else "bfloat16"
            text = f"device={self.name} is not planned in it; say {other}"
            raise UserError(f"compute.precision={precision}: {text}")
        return rate

    def hours(self, exaflop: float, precision: str, efficiency: float) -> float:
        """Device-hours at a share `efficiency` of the peak."""
        return exaflop * 1e18 / (self.rate(precision) * 1e12 * efficiency) / 3600


def devices() -> dict[str, Device]:
    """The devices of hardware.yaml by name."""
    return {name: Device(name, **row) for name, row in engine.devices().items()}


@dataclass(frozen=True)
class Decoding:
    """The cores that decode images as fast as the devices take them.

    Attributes:
        taken: images that all devices take in a second.
        per_core: images that one core makes of files in a second.
        cores: that are needed.
        assumed: of which files `per_core` is, where it was not measured here.
    """

    taken: float
    per_core: float
    cores: float
    assumed: str | None


@dataclass(frozen=True, kw_only=True)
class RunEstimate:
    """What a run will cost; what is not known is None. Of an evaluation steps and batch are 0.

    Attributes:
        name, model: of the run and its encoder.
        size: parameters, patches and multiply-adds.
        steps, batch, training_images, epochs: its length.
        images: forward passes in all; `exaflop` their work.
        precision, device_batch: how it is trained.
        image_bytes: activations of an image; `tensor_bytes` {ZeRO stage: {kind: bytes}}, a process.
        disk_bytes: that its checkpoints and its export take.
        asked: the tool's options.
        device: of device=.
        seconds: how long it takes on all processes, from the device's peak and `efficiency`, or
            with probe=True as measured here.
        device_hours: on all devices together; `price` of them.
        decoding: the cores that it needs; None where the time is not known, or nothing is decoded.
        probe: with probe=True what was measured here.
        warnings: common mistakes, a line each.
        notice: which images are taken where none are named.
    """

    name: str
    model: str
    size: engine.Size
    steps: int
    batch: int
    training_images: int | None
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
    decoding: Decoding | None
    probe: "Pace | None"
    warnings: list[str]
    notice: str | None = None

    def __repr__(self) -> str:
        """What the command line prints."""
        return _text([self.notice] if self.notice else [], self._rows(), self.warnings)

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Name and text of each line."""
        yield "run", self.name
        parameters, own = self.size.parameters / 1e6, self.size.encoder_parameters / 1e6
        size = f"{parameters:.2f}M parameters, {own:.2f}M of them the encoder's"
        work = f"multiply-adds {NOT_COUNTED}"
        if self.size.multiply_adds is not None:
            work = f"{self.size.multiply_adds / 1e9:.3g}G multiply-adds an image"
        yield "model", f"{self.model}: {size}; {self.size.patches or 'no'} patches, {work}"
        yield "length", self._length()
        if self.steps:
            yield "memory", self._memory()
            yield "disk", f"{format_bytes(self.disk_bytes)} of checkpoints and export"
        yield from self._time()
        if self.decoding:
            yield "decoding", _decoding_text(self.decoding)
        if self.price is not None:
            of = "assumed" if self.device else "measured"
            each = f"at {self.asked.price:g} a device-hour of the {of} time"
            yield "price", f"{_number(self.price)}, {each}"

    def _length(self) -> str:
        """Steps, images and epochs, as the options that say them."""
        if self.images is None:
            return "not known: how many images the splits have"
        work = NOT_COUNTED if self.exaflop is None else _number(self.exaflop)
        length = f"{self.images:,} images, exaFLOP {work}"
        if not self.steps:
            return f"{length}: each image forward, once"
        epochs = "epochs not known: say images="
        if self.training_images:
            epochs = f"epochs={self.epochs:.4g} of {self.training_images:,}"
        return f"optim.steps={self.steps} x {self.batch} = {length}; {epochs}"

    def _memory(self) -> str:
        """What the tensors of a process come to, by the stage of ZeRO."""
        totals = [f"{one} {format_bytes(sum(n.values()))}" for one, n in self.tensor_bytes.items()]
        where = f"{', '.join(totals)} a process (processes={self.asked.processes})"
        each = f"{format_bytes(self.image_bytes)} of activations an image, by a formula"
        batch = f"with {self.device_batch} images a pass, {each}"
        if not self.device_batch:
            batch = f"before activations, {each}: say device= or compute.batch="
        has = f"; {self.device.name} has {self.device.memory:g} GiB" if self.device else ""
        return f"{where} in {self.precision}, {batch}{has}"

    def _time(self) -> Iterator[tuple[str, str]]:
        """On the device that is named, and as measured here."""
        on, pace = self.device, self.probe
        if on and self.seconds is not None:
            about = f"about {duration(self.seconds)} on {self.asked.processes} x {on.name}"
            spent = f"{_number(self.device_hours)} device-hours"
            peak = f"{on.rate(self.precision):g} TFLOP/s"
            peak += "" if on.verified else ", a figure not checked"
            yield "time", f"{about}, {spent}: {_assumed(self.asked)} of {peak}"
        elif not pace:
            yield "time", _no_time()
        if pace:
            total = duration(pace.seconds * self.steps)
            step = f"{pace.seconds:.3g} s a step (median of {pace.steps}, {pace.least:.3g}"
            step += f" to {pace.most:.3g})"
            where = f"{pace.device}, {pace.threads} threads, {pace.precision}"
            load = f"load average {pace.load:.2f} before"
            yield "here", f"about {total}: measured {step} on {where}, {load}"


@dataclass(frozen=True, kw_only=True)
class StudyEstimate:
    """What a study will cost.

    Attributes:
        name, title: of the study.
        asked: the tool's options.
        device: of device=.
        runs: {name: what its tasks will cost, as `sum_up` gives it}; `in_all` all of them.
        warnings: common mistakes, a line each, after the runs that they are of.
        opening: lines to say before it.
    """

    name: str
    title: str
    asked: PlanOptions
    device: Device | None
    runs: dict[str, dict[str, Any]]
    in_all: dict[str, Any]
    warnings: list[str]
    opening: list[str]

    def __repr__(self) -> str:
        """What the command line prints."""
        shown = {key: one for key, one in COLUMNS.items() if self.in_all[key] is not None}
        head = ["run", *(title for title, _ in shown.values())]
        rows = [
            [name, *(text(part[key]) for key, (_, text) in shown.items())]
            for name, part in {**self.runs, "in all": self.in_all}.items()
        ]
        lines = [*self.opening, f"study       {self.name}: {self.title}", *plain_table(head, rows)]
        return _text(lines, self._rows(), self.warnings)

    def _rows(self) -> Iterator[tuple[str, str]]:
        timed, uncounted = self.in_all["device_hours"] is not None, self.in_all["uncounted"]
        if self.device:
            yield "time", f"on {self.device.name}: {_assumed(self.asked)} of its peak"
        elif timed:
            yield "time", "measured here, one task after the other"
        else:
            yield "time", _no_time()
        if timed and (untimed := self.in_all["untimed"]):
            yield "left out", f"the time of {untimed} tasks, which is not known"
        if uncounted:
            yield "left out", f"the exaFLOP of {uncounted} tasks, which are {NOT_COUNTED}"


def _text(opening: list[str], rows: Iterable[tuple[str, str]], warnings: Iterable[str]) -> str:
    lines = [f"{name:<11} {text}" for name, text in rows]
    return "\n".join([*opening, *lines, *(f"warning: {text}" for text in warnings)])


def _assumed(asked: PlanOptions) -> str:
    return f"assumed, for steps alone, {asked.efficiency:.0%} (efficiency=)"


def _no_time() -> str:
    return f"not known: say device= ({', '.join(devices())}) or --probe"


def _decoding_text(found: Decoding) -> str:
    each = f"{_number(found.taken)} images/s over {_number(found.per_core)} of a core"
    source = f"assumed: {found.assumed}, one crop an image, docs/speed.md; --probe measures"
    return f"{found.cores:.1f} cores: {each}, {source if found.assumed else 'measured here'}"


def _number(value: float | None) -> str:
    """Three significant digits, and all before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# of a study's table: {key: (heading, how it is written)}
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "tasks": ("tasks", str),
    "exaflop": ("exaFLOP", _number),
    "device_hours": ("hours", _number),
    "price": ("price", _number),
    "disk_bytes": ("disk", format_bytes),
    "most_bytes": ("memory", format_bytes),
    "cores": ("cores", _number),
}


def main(words: list[str]) -> None:
    """Print what a run or a study will cost.

    Raises:
        UserError: an option is wrong.
    """
    found = plan(words)
    print(found)
    if found.asked.json:
        print(json.dumps(dataclasses.asdict(found)))


def plan(words: Sequence[str]) -> RunEstimate | StudyEstimate:
    """Estimate what a run or a study will cost.

    Args:
        words: the options, as on a command line.

    Raises:
        UserError: an option is wrong.
    """
    of_study = _is_study(words)
    # a place of a study may be called images, say
    leave = ("images", "epochs") if of_study else ()
    texts, rest = tool_options.split(PlanOptions, words, leave)
    own = tool_options.build(PlanOptions, texts)
    if of_study:
        return of_request(requested(rest, stand_ins=True, look=own.probe), own)
    return _run(rest, own)


def _is_study(words: Sequence[str]) -> bool:
    """Whether the options are those of tools/study.py: a study's name or file, or a sweep over a
    recipe."""
    named = [word.partition("=")[2] for word in words if word.startswith("recipe=")]
    recipe = named[0] if named else ""
    if "sweep" in words or recipe.startswith("study/"):
        return True
    is_file = recipe.endswith((".yaml", ".yml")) and engine.exists(recipe)
    return is_file and "runs" in load_yaml(Path(recipe))


def _run(words: Sequence[str], own: PlanOptions) -> RunEstimate:
    known = [*defaults(), "recipe", "data", "model"]
    ours = [key for key, one in PlanOptions.options().items() if one.form == KEY]
    for key in (word.partition("=")[0] for word in words):
        if key not in known and (near := difflib.get_close_matches(key, ours, n=1)):
            choices = f"choices: {', '.join(ours)}, or a recipe's key"
            raise UserError(f"unknown option {key}; did you mean {near[0]}? {choices}")
    recipe = engine.resolve(words, "", here=own.probe)
    if own.epochs is not None:
        steps = f"optim.steps={_steps(words, recipe, own)}"
        recipe = engine.resolve([*words, steps], "", here=own.probe)
    found = estimate(recipe, own, engine.measure(recipe) if own.probe else None)
    return dataclasses.replace(found, notice=engine.image_notice(words, recipe))


def _steps(words: Iterable[str], recipe: Recipe, own: PlanOptions) -> int:
    """The optimiser steps of `epochs`."""
    where = f"epochs={own.epochs:g}"
    count, _ = engine.image_counts(recipe, own.images)
    if any(word.startswith("optim.steps=") for word in words):
        raise UserError(f"{where}: optim.steps= is given too; expected one of them")
    if not recipe.declared.trains:
        raise UserError(f"{where}: an evaluation has none")
    if count is None:
        text = f"how many images data={recipe.data.name} has is not known; say images="
        raise UserError(f"{where}: {text}")
    return max(1, round((own.epochs or 0) * count / recipe.optim.batch))


def find_device(name: str | None) -> Device | None:
    """
    Raises:
        UserError: there is no device of that name.
    """
    known = devices()
    if name is not None and name not in known:
        raise UserError(f"device={name}: unknown; {suggest(name, known)}")
    return None if name is None else known[name]


def estimate(recipe: Recipe, own: PlanOptions, pace: "Pace | None" = None) -> RunEstimate:
    """What a run will cost on the device that is named, else on this machine if its pace was
    measured.

    Raises:
        UserError: there is no such device, it is not planned in the precision, or the processes do
            not divide the batch.
    """
    recipe = copy.deepcopy(recipe)
    device = find_device(own.device)
    here = pace if device is None else None
    if here:
        recipe.compute.precision = here.precision
    elif recipe.compute.precision == "auto":
        lower = device is None or device.bfloat16
        recipe.compute.precision = "bfloat16" if lower else "float32"
    fused = not (here and here.device == "cpu")
    batch = here.device_batch if here else _device_batch(recipe, own.processes, device)
    tensors = {
        stage: engine.tensor_bytes(recipe, own.processes, zero, batch or 0, fused)
        for zero, stage in enumerate(STAGES)
    }
    count, images = engine.image_counts(recipe, own.images)
    exaflop, trains = engine.exaflop(recipe, images), recipe.declared.trains
    hours = None
    if here:
        hours = here.seconds * recipe.optim.steps / 3600
    elif device and exaflop is not None:
        hours = device.hours(exaflop, recipe.compute.precision, own.efficiency)
    seconds = None if hours is None else hours * 3600 / (1 if here else own.processes)
    size, whole = engine.size(recipe), tensors["DDP"]
    saved = recipe.checkpoint.keep * (whole["weights"] + whole["moments"]) + 4 * size.parameters
    return RunEstimate(
        name=recipe.name,
        model=recipe.model.name,
        size=size,
        steps=recipe.optim.steps if trains else 0,
        batch=recipe.optim.batch if trains else 0,
        training_images=count,
        epochs=images / count if trains and images and count else None,
        images=images,
        exaflop=exaflop,
        precision=recipe.compute.precision,
        device_batch=batch,
        image_bytes=engine.activation_bytes(recipe, fused),
        tensor_bytes=tensors,
        disk_bytes=saved if trains else 0,
        asked=own,
        device=device,
        seconds=seconds,
        device_hours=hours,
        price=None if hours is None or own.price is None else hours * own.price,
        decoding=_decoding(recipe, images, seconds, pace),
        probe=pace,
        warnings=list(_warnings(recipe, own.processes, device, tensors)),
    )


def _device_batch(recipe: Recipe, processes: int, device: Device | None) -> int | None:
    """Images of a pass that training chooses; None where neither the device nor compute.batch is
    known."""
    if not recipe.declared.trains:
        return None
    most = 1 if device is None else engine.fitting_images(recipe, device.memory * GIB)
    found = engine.device_batch(recipe, processes, recipe.compute.batch, most)
    return found if device or recipe.compute.batch else None


def _decoding(
    recipe: Recipe, images: int | None, seconds: float | None, pace: "Pace | None"
) -> Decoding | None:
    """The cores that make images of files as fast as the devices take them."""
    drawn = recipe.data.name == defaults()["data.name"] and not recipe.data.path
    if drawn or not images or not seconds:
        return None
    per_core, files = DECODED_SMALL if recipe.data.size <= SMALL else DECODED_LARGE
    taken = images / seconds
    if pace:
        return Decoding(taken, pace.images_per_core, taken / pace.images_per_core, None)
    return Decoding(taken, per_core, taken / per_core, files)


def _warnings(
    recipe: Recipe, processes: int, on: Device | None, tensors: dict[str, dict[str, int]]
) -> Iterator[str]:
    """Warnings about settings that are likely mistakes, one line each."""
    o = recipe.optim
    if recipe.declared.trains and 3 * o.warmup > o.steps:
        share = f"takes {o.warmup / o.steps:.0%} of the run, more than a third"
        yield f"optim.warmup={o.warmup} {share}; try optim.warmup={max(1, o.steps // 10)}"
    if on is None:
        return
    totals = {stage: sum(kinds.values()) for stage, kinds in tensors.items()}
    if totals["DDP"] > on.memory * GIB:
        text = f"{totals['DDP'] / GIB:.1f} GiB of tensors a process, device={on.name} has"
        left = on.memory * GIB - totals["DDP"] + tensors["DDP"]["activations"]
        most = int(left / engine.activation_bytes(recipe, fused=True))
        stage = next((one for one, total in totals.items() if total <= on.memory * GIB), None)
        remedy = "too few for one image; try ZeRO with more processes="
        if most > 0:
            remedy = f"compute.batch={engine.device_batch(recipe, processes, None, most)} would fit"
        elif stage:
            remedy = f"{stage} would fit"
        yield f"{text} {on.memory:g}; {remedy}"
    each = o.batch // processes
    batch = _device_batch(recipe, processes, on) if engine.compared_views(recipe) else None
    if batch and batch < each:
        fits = f"{batch} of {each} images a process are estimated to fit"
        remedy = f"expected more processes=, or compute.batch={each} to try"
        yield f"objective={recipe.objective} takes a step in one pass, and {fits}; {remedy}"


def of_request(request: Request, own: PlanOptions) -> StudyEstimate:
    """What a study will cost; with own.probe, tasks whose steps are alike are measured once.

    Raises:
        UserError: as `estimate`.
    """
    found: dict[str, list[RunEstimate]] = {}
    paces: dict[str, Pace] = {}
    warned: dict[str, dict[str, None]] = {}  # {warning: runs}
    for name, recipe in request.recipes.items():
        run, pace = request.tasks[name].run, None
        if own.probe and recipe.declared.trains:
            alike = engine.pace_of(recipe)
            pace = paces[alike] = paces.get(alike) or engine.measure(recipe)
        one = estimate(recipe, own, pace)
        found.setdefault(run, []).append(one)
        for text in one.warnings:
            warned.setdefault(text, {})[run] = None
    every = [one for ones in found.values() for one in ones]
    lines = [f"{', '.join(runs)}: {text}" for text, runs in warned.items()]
    return StudyEstimate(
        name=request.name,
        title=request.study.title,
        asked=own,
        device=find_device(own.device),
        runs={run: sum_up(ones) for run, ones in found.items()},
        in_all=sum_up(every),
        warnings=[*request.cautions, *lines],
        opening=request.opening,
    )


def sum_up(found: Sequence[RunEstimate]) -> dict[str, Any]:
    """What several tasks will cost together, None where it is known of none: how many there are,
    exaFLOP, device-hours, price, bytes on the disk, bytes of a process of the largest, cores that
    decode the images of the fastest, how many have an unknown time, and how many an unknown work,
    of which that of all is not known then."""
    uncounted = sum(one.exaflop is None and one.images is not None for one in found)
    cores = [one.decoding.cores for one in found if one.decoding]
    return {
        "tasks": len(found),
        "exaflop": None if uncounted else _total(one.exaflop for one in found),
        "device_hours": _total(one.device_hours for one in found),
        "price": _total(one.price for one in found),
        "disk_bytes": sum(one.disk_bytes for one in found),
        "most_bytes": max(sum(one.tensor_bytes["DDP"].values()) for one in found),
        "cores": max(cores, default=None),
        "untimed": sum(one.device_hours is None for one in found),
        "uncounted": uncounted,
    }


def _total(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
