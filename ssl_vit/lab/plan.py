"""What a run or a study will cost before it runs: parameters, FLOPs, memory, time, price and the
cores that decode its images; and warnings of common mistakes. No torch here.

Counts are exact. Time is measured with --probe, else assumed from the device's peak; each line says
what is assumed.
"""

import copy
import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import tool_options
from ..config.fields import KEY
from ..config.parsing import load_yaml
from ..config.schema import Recipe, defaults
from ..errors import UserError, suggest
from ..formatting import NOT_COUNTED, duration, plain_table
from . import engine
from .options import PlanOptions
from .study.request import requested

if TYPE_CHECKING:
    from ..jobs.pace import Pace

GIB = 2**30
STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
PAPER = Path(__file__).with_name("paper.yaml")
PAPER_SIZE = 224  # pixels; all of the paper's pre-training
PAPER_BATCH = 4096
PAPER_MPP = 2e-4  # learning rate of MPP: paper, B.1.2
# learning rates of supervised pre-training by data set: paper, Table 3
PAPER_LABELS = {"jft": (2e-4, 3e-4, 4e-4, 6e-4, 8e-4), "imagenet21k": (1e-3,), "imagenet": (3e-3,)}
CORE = "tpuv3_core"  # row of hardware.yaml whose days the paper counts
# Images that one core decodes, crops and stacks in a second, by the side of the training image up
# to which they are taken for such files: docs/speed.md, Loading, image folder
DECODED = ((64, 8_189, "WebP files of 32 px"), (math.inf, 604, "JPEG files of 500 x 375 px"))


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


@dataclass(frozen=True)
class PaperFigures:
    """What the paper says of a run: exaFLOP (Table 6) and TPUv3-core-days (Table 2); None where it
    has none. Counted over stated exaFLOP minus 1, and the share of a core's bfloat16 peak at which
    the counted exaFLOP take these core-days."""

    exaflop: float | None
    difference: float | None
    core_days: float | None
    efficiency: float | None


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
        asked: the tool's options.
        device: of device=.
        seconds: how long it takes on all processes, from the device's peak and `efficiency`, or
            with probe=True as measured here.
        device_hours: on all devices together; `price` of them.
        decoding: the cores that it needs; None where the time is not known, or nothing is decoded.
        probe: with probe=True what was measured here.
        paper: what the paper says of this run.
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
    asked: PlanOptions
    device: Device | None
    seconds: float | None
    device_hours: float | None
    price: float | None
    decoding: Decoding | None
    probe: "Pace | None"
    paper: PaperFigures | None
    warnings: list[str]
    notice: str | None = None

    @property
    def bytes(self) -> int:
        """Tensors of a process."""
        return sum(self.tensor_bytes[STAGES[self.asked.zero]].values())

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
            yield from self._memory()
        yield from self._time()
        if self.decoding:
            yield "decoding", _decoding_text(self.decoding)
        if self.paper:
            yield "paper", _paper_text(self.paper)
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

    def _memory(self) -> Iterator[tuple[str, str]]:
        """What the tensors are, and what they come to."""
        kinds, batch = self.tensor_bytes[STAGES[self.asked.zero]], self.device_batch
        listed = ", ".join(f"{name} {_bytes(n)}" for name, n in kinds.items() if n)
        yield "memory", f"{listed}; {self.precision}"
        passes = f", {batch} images a pass" if batch else ": say device= or compute.batch="
        yield "", f"activations {_bytes(self.image_bytes)} an image, by a formula{passes}"
        totals = [f"{stage} {_bytes(sum(n.values()))}" for stage, n in self.tensor_bytes.items()]
        where = f"a process (processes={self.asked.processes})"
        where += "" if batch else " before activations"
        has = f"; {self.device.name} has {self.device.memory:g} GiB" if self.device else ""
        yield "in all", f"{', '.join(totals)} {where}{has}"

    def _time(self) -> Iterator[tuple[str, str]]:
        """On the device that is named, and as measured here."""
        on, pace = self.device, self.probe
        if on and self.seconds is not None and self.device_hours is not None:
            about = f"about {duration(self.seconds)} on {self.asked.processes} x {on.name}"
            spent = f"{_number(self.device_hours)} device-hours"
            if on.name == CORE:  # the paper counts days
                spent = f"{_number(self.device_hours / 24)} TPUv3-core-days"
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


@dataclass(frozen=True)
class PartEstimate:
    """What a run of a study will cost, or all of them.

    Attributes:
        tasks: how many there are.
        images, exaflop, device_hours, price: of those whose they are known.
        most_bytes: of a process of the largest task.
        cores: that decode the images of the fastest task.
        untimed: tasks whose time is not known; `uncounted` those whose work is not.
    """

    tasks: int
    images: int | None
    exaflop: float | None
    device_hours: float | None
    price: float | None
    most_bytes: int | None
    cores: float | None
    untimed: int
    uncounted: int

    def cells(self) -> list[str]:
        images = "-" if self.images is None else f"{self.images:,}"
        size = "-" if self.most_bytes is None else _bytes(self.most_bytes)
        numbers = map(_number, (self.exaflop, self.device_hours, self.price))
        return [str(self.tasks), images, *numbers, size, _number(self.cores)]


@dataclass(frozen=True, kw_only=True)
class StudyEstimate:
    """What a study will cost.

    Attributes:
        name, title: of the study.
        asked: the tool's options.
        device: of device=.
        runs: {name: its tasks}; `in_all` all of them.
        load: with probe=True the load average before, the highest.
        warnings: common mistakes, a line each, after the runs that they are of.
    """

    name: str
    title: str
    asked: PlanOptions
    device: Device | None
    runs: dict[str, PartEstimate]
    in_all: PartEstimate
    load: float | None
    warnings: list[str]

    def __repr__(self) -> str:
        """What the command line prints."""
        head = ["run", "tasks", "images", "exaFLOP", "device-hours", "price", "a process", "cores"]
        parts = {**self.runs, "in all": self.in_all}
        table = plain_table(head, [[name, *part.cells()] for name, part in parts.items()])
        return _text(
            [f"study       {self.name}: {self.title}", *table], self._rows(), self.warnings
        )

    def _rows(self) -> Iterator[tuple[str, str]]:
        whole = self.in_all
        if self.device:
            yield "time", f"on {self.device.name}: {_assumed(self.asked)} of its peak"
        elif whole.device_hours is not None:
            load = f"load average {self.load:.2f} before"
            yield "time", f"measured here, one task after the other, {load}"
        else:
            yield "time", _no_time()
        if whole.device_hours is not None and whole.untimed:
            yield "left out", f"the time of {whole.untimed} tasks, which is not known"
        if whole.uncounted:
            yield "left out", f"the exaFLOP of {whole.uncounted} tasks, which are {NOT_COUNTED}"


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


def _paper_text(stated: PaperFigures) -> str:
    """What the paper says of this run, and how the count differs."""
    parts = []
    if stated.exaflop is not None and stated.difference is not None:
        apart = f"{abs(stated.difference):.1%}"
        side = "above" if stated.difference > 0 else "below"
        differs = "as counted here" if apart == "0.0%" else f"counted here: {apart} {side}"
        parts.append(f"{stated.exaflop:,} exaFLOP (Table 6), {differs}")
    if stated.core_days is not None:
        peak = f"{stated.efficiency:.0%} of a core's peak"
        parts.append(f"{stated.core_days:,} TPUv3-core-days (Table 2), or {peak}")
    return "; ".join(parts)


def _number(value: float | None) -> str:
    """Three significant digits, and all before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= 0.1 * GIB else f"{count / 2**20:.1f} MiB"


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
    return _study(rest, own) if of_study else _run(rest, own)


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
    return RunEstimate(
        name=recipe.name,
        model=recipe.model.name,
        size=engine.size(recipe),
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
        asked=own,
        device=device,
        seconds=seconds,
        device_hours=hours,
        price=None if hours is None or own.price is None else hours * own.price,
        decoding=_decoding(recipe, images, seconds, pace),
        probe=pace,
        paper=_paper(recipe, exaflop),
        warnings=list(_warnings(recipe, own.processes, device, tensors[STAGES[own.zero]])),
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
    _, per_core, files = next(one for one in DECODED if recipe.data.size <= one[0])
    taken = images / seconds
    if pace:
        return Decoding(taken, pace.images_per_core, taken / pace.images_per_core, None)
    return Decoding(taken, per_core, taken / per_core, files)


def _paper(recipe: Recipe, counted: float | None) -> PaperFigures | None:
    """The paper's figures for this pre-training; None for a run that is not the paper's."""
    images, _ = engine.image_counts(recipe, None)
    of_paper = recipe.objective == "supervised" and recipe.data.size == PAPER_SIZE
    if not of_paper or not images or counted is None:
        return None
    epochs = recipe.optim.steps * recipe.optim.batch / images
    for row in load_yaml(PAPER).values():
        same = (row["model"], row["data"]) == (recipe.model.name, recipe.data.name)
        if same and abs(epochs / row["epochs"] - 1) < 0.001:
            stated, days = row.get("exaflop"), row.get("core_days")
            whole = devices()[CORE].hours(counted, "bfloat16", 1) / 24
            apart = None if stated is None else counted / stated - 1
            return PaperFigures(stated, apart, days, None if days is None else whole / days)
    return None


def _warnings(
    recipe: Recipe, processes: int, on: Device | None, need: Mapping[str, int]
) -> Iterator[str]:
    """Warnings about settings that are likely mistakes, one line each."""
    o, patches = recipe.optim, engine.size(recipe).patches
    if recipe.declared.trains and 3 * o.warmup > o.steps:
        share = f"takes {o.warmup / o.steps:.0%} of the run, more than a third"
        yield f"optim.warmup={o.warmup} {share}; try optim.warmup={max(1, o.steps // 10)}"
    # recipes never scale the learning rate with the batch, so a smaller batch keeps the paper's
    if o.name == "adamw" and o.batch != PAPER_BATCH and _has_paper_lr(recipe):
        ratio = o.batch / PAPER_BATCH
        text = f"optim.lr={o.lr:g} is the paper's for a batch of {PAPER_BATCH}, and is never"
        tried = (
            f"{o.lr * ratio:.2g} (in proportion) to {o.lr * ratio**0.5:.2g} (by the square root)"
        )
        yield f"{text} scaled; for optim.batch={o.batch} try {tried}"
    if on is not None and sum(need.values()) > on.memory * GIB:
        yield _too_large(recipe, processes, on, need)
    each = o.batch // processes
    batch = _device_batch(recipe, processes, on) if on and engine.compared_views(recipe) else None
    if batch and batch < each:
        fits = f"{batch} of {each} images a process are estimated to fit"
        remedy = f"expected more processes=, or compute.batch={each} to try"
        yield f"objective={recipe.objective} takes a step in one pass, and {fits}; {remedy}"
    if not recipe.model.convolutional and patches < 16:
        remedy = engine.suggest_model(recipe)
        yield f"{patches} patches an image are few to learn from; {remedy}"


def _has_paper_lr(recipe: Recipe) -> bool:
    """Whether the learning rate is the paper's own for this objective and data."""
    rates = {"mpp": (PAPER_MPP,), "supervised": PAPER_LABELS.get(recipe.data.name, ())}
    return any(
        abs(recipe.optim.lr / rate - 1) < 1e-6
        for name in engine.trained_objectives(recipe)
        for rate in rates.get(name, ())
    )


def _too_large(recipe: Recipe, processes: int, on: Device, need: Mapping[str, int]) -> str:
    """The warning that the tensors do not fit, with the device batch that would."""
    has = f"device={on.name} has {on.memory:g}"
    text = f"{sum(need.values()) / GIB:.1f} GiB of tensors a process, {has}"
    left = on.memory * GIB - sum(need.values()) + need["activations"]
    most = int(left / engine.activation_bytes(recipe, fused=True))
    if most > 0:
        batch = engine.device_batch(recipe, processes, None, most)
        return f"{text}; compute.batch={batch} would fit"
    return f"{text}, too few for one image; try zero= with more processes="


def _study(words: Sequence[str], own: PlanOptions) -> StudyEstimate:
    request = requested(words, stand_ins=True, look=own.probe)
    found: dict[str, RunEstimate] = {}
    paces: dict[str, Pace] = {}
    for name, recipe in request.recipes.items():
        if own.probe and recipe.declared.trains:
            alike = engine.pace_of(recipe)
            paces[alike] = paces.get(alike) or engine.measure(recipe)
            found[name] = estimate(recipe, own, paces[alike])
        else:
            found[name] = estimate(recipe, own)
    by_run: dict[str, list[RunEstimate]] = {}
    warned: dict[str, dict[str, None]] = {}  # {warning: runs}
    for name, one in found.items():
        run = request.tasks[name].run
        by_run.setdefault(run, []).append(one)
        for text in one.warnings:
            warned.setdefault(text, {})[run] = None
    return StudyEstimate(
        name=request.name,
        title=request.study.title,
        asked=own,
        device=find_device(own.device),
        runs={run: _sum(ones) for run, ones in by_run.items()},
        in_all=_sum(found.values()),
        load=max((pace.load for pace in paces.values()), default=None),
        warnings=[f"{', '.join(runs)}: {text}" for text, runs in warned.items()],
    )


def _sum(found: Iterable[RunEstimate]) -> PartEstimate:
    """Totals of what is known. Where the work of one is not counted, that of all is not."""
    found = list(found)
    uncounted = sum(one.exaflop is None and one.images is not None for one in found)
    sizes = [one.bytes for one in found if one.device_batch or not one.steps]
    cores = [one.decoding.cores for one in found if one.decoding]
    return PartEstimate(
        tasks=len(found),
        images=_total(one.images for one in found),
        exaflop=None if uncounted else _total(one.exaflop for one in found),
        device_hours=_total(one.device_hours for one in found),
        price=_total(one.price for one in found),
        most_bytes=max(sizes) if len(sizes) == len(found) else None,
        cores=max(cores, default=None),
        untimed=sum(one.device_hours is None for one in found),
        uncounted=uncounted,
    )


def _total(values: Iterable[Any]) -> Any:
    """The sum of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
