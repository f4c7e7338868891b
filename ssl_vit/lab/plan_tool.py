"""The plan tool: estimates a run or a study and prints the record."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from ..config import records, tool_options
from ..config.records import Number, Whole
from ..formatting import NOT_COUNTED, duration
from .planning import budget, paper
from .planning.forecast import (
    STAGES,
    PlanOptions,
    Record,
    is_study,
    run,
    study,
)
from .studies.request import study_places


class Estimate(records.Record, ABC):
    """What a run or a study will cost; what is not known is None.

    Attributes:
        name: of the run or study.
        images: forward passes in all; `exaflop` their work.
        device: the row of device=; None without it.
        device_hours: time on all devices together, from the device's peak and `efficiency`, or with
            probe=True as measured here.
        price: of them, at `price_per_hour`.
        warnings: common mistakes, a line each.
    """

    name: str
    images: Whole | None
    exaflop: Number | None
    device: dict[str, Any] | None
    efficiency: Number | None
    device_hours: Number | None
    price: Number | None
    price_per_hour: Number | None
    warnings: list[str]

    def lines(self) -> Iterator[str]:
        """What the command line prints of it."""
        if notice := self.has("notice") and self["notice"]:
            yield notice
        rows = list(self._rows())
        width = max(11, *(len(name) for name, _ in rows))
        yield from (f"{name:<{width}} {text}" for name, text in rows)
        yield from (f"warning: {text}" for text in self.warnings)

    @abstractmethod
    def _rows(self) -> Iterator[tuple[str, str]]:
        """Name and text of each line."""

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    __str__ = __repr__


class RunEstimate(Estimate):
    """What a run will cost; of an evaluation steps and batch are 0.

    Attributes:
        model, parameters, encoder_parameters, patches: the encoder and its head; 0 patches of a
            convolutional one.
        multiply_adds: of an image, forward.
        steps, batch, training_images, epochs: its length.
        precision, processes, zero, device_batch: how it is trained.
        image_bytes: activations of an image; `tensor_bytes` {ZeRO stage: {kind: bytes}}, a process.
        seconds: how long it takes on all processes.
        probe: with probe=True what was measured here.
        paper: what the paper says of this run.
        notice: which images are taken where none are named.
    """

    model: str
    parameters: Whole
    encoder_parameters: Whole
    patches: Whole
    multiply_adds: Number | None
    steps: Whole
    batch: Whole
    training_images: Whole | None
    epochs: Number | None
    precision: str
    processes: Whole
    zero: Whole
    device_batch: Whole | None
    image_bytes: Number
    tensor_bytes: dict[str, dict[str, Number]]
    seconds: Number | None
    probe: dict[str, Any] | None
    paper: dict[str, Any] | None
    notice: str | None

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield from _rows(self.content())


class PartEstimate(records.Record):
    """What a part of a study will cost.

    Attributes:
        tasks: how many runs it has.
        untimed: those whose time is not known; `uncounted` those whose work is not.
        most_bytes: of a process of the largest run.
    """

    tasks: Whole
    images: Whole | None
    exaflop: Number | None
    device_hours: Number | None
    price: Number | None
    untimed: Whole
    uncounted: Whole
    most_bytes: Number | None


class StudyEstimate(Estimate, PartEstimate):
    """What a study will cost, by part and in all.

    Attributes:
        title: of the study.
        parts: {name: PartEstimate}.
        load: with probe=True the load average before, the highest.
    """

    title: str
    parts: dict[str, PartEstimate]
    load: Number | None

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield from _study_rows(self.content())


def main(arguments: list[str]) -> None:
    """Print the estimated cost of a run or a study.

    Raises:
        UserError: an option is wrong.
    """
    own, rest, of_study = _split(arguments)
    settings = tool_options.build(PlanOptions, own)
    found = _estimate(rest, settings, of_study)
    print(found)
    if settings.json:
        print(json.dumps(found.content()))


def plan(arguments: list[str]) -> RunEstimate | StudyEstimate:
    """Estimate the cost of a run or a study.

    Raises:
        UserError: an option is wrong.
    """
    own, rest, of_study = _split(arguments)
    return _estimate(rest, tool_options.build(PlanOptions, own), of_study)


def _estimate(
    options: list[str], settings: PlanOptions, of_study: bool
) -> RunEstimate | StudyEstimate:
    if of_study:
        return StudyEstimate(**study(options, settings))
    return RunEstimate(**run(options, settings))


def _split(arguments: list[str]) -> tuple[dict[str, str], list[str], bool]:
    """The tool's own options, the others, and whether they are of a study."""
    of_study = is_study(arguments)
    rest = tool_options.split(PlanOptions, arguments)[1]
    places = study_places(rest) if of_study else ()  # which may be called images, say
    return *tool_options.split(PlanOptions, arguments, leave=places), of_study


def _rows(record: Record) -> Iterator[tuple[str, str]]:
    """What is printed of one run."""
    yield "run", record["name"]
    size = (
        f"{record['parameters'] / 1e6:.2f}M parameters, "
        f"{record['encoder_parameters'] / 1e6:.2f}M of them the encoder's"
    )
    patches = f"{record['patches']} patches" if record["patches"] else "no patches"
    adds = record["multiply_adds"]
    work = f"multiply-adds {NOT_COUNTED}"
    if adds is not None:
        work = f"{adds / 1e9:.3g}G multiply-adds an image"
    yield "model", f"{record['model']}: {size}; {patches}, {work}"
    yield "length", _length(record)
    if record["steps"]:
        yield from _memory(record)
    yield from _time(record)
    if record["paper"]:
        yield "paper", _paper(record["paper"])
    if record["price"] is not None:
        yield "price", f"{_number(record['price'])}, at {record['price_per_hour']:g} a device-hour"


def _paper(stated: Record) -> str:
    """What the paper says of this run, and how the count differs."""
    parts = []
    if stated["exaflop"] is not None:
        apart = f"{abs(stated['difference']):.1%}"
        side = "above" if stated["difference"] > 0 else "below"
        differs = "as counted here" if apart == "0.0%" else f"counted here: {apart} {side}"
        parts.append(f"{stated['exaflop']:,} exaFLOP (Table 6), {differs}")
    if stated["core_days"] is not None:
        peak = f"{stated['efficiency']:.0%} of a core's peak"
        parts.append(f"{stated['core_days']:,} TPUv3-core-days (Table 2), or {peak}")
    return "; ".join(parts)


def _length(record: Record) -> str:
    """Steps, images and epochs, as the options that say them."""
    if record["images"] is None:
        return "not known: how many images the splits have"
    work = f"exaFLOP {NOT_COUNTED}"
    if record["exaflop"] is not None:
        work = f"{_number(record['exaflop'])} exaFLOP"
    length = f"{record['images']:,} images, {work}"
    if not record["steps"]:
        return f"{length}: each image forward, once"
    count = record["training_images"]
    epochs = (
        f"epochs={record['epochs']:.4g} of {count:,}" if count else "epochs not known: say images="
    )
    return f"optim.steps={record['steps']} x {record['batch']} = {length}; {epochs}"


def _memory(record: Record) -> Iterator[tuple[str, str]]:
    """What the tensors are, and what they come to."""
    kinds, batch = record["tensor_bytes"][STAGES[record["zero"]]], record["device_batch"]
    listed = ", ".join(f"{name} {_bytes(n)}" for name, n in kinds.items() if n)
    yield "memory", f"{listed}; {record['precision']}"
    each = f"activations {_bytes(record['image_bytes'])} an image"
    yield (
        "",
        f"{each}, {batch} images a pass" if batch else f"{each}: say device= or compute.batch=",
    )
    totals = ", ".join(
        f"{stage} {_bytes(sum(n.values()))}" for stage, n in record["tensor_bytes"].items()
    )
    has = (
        f"; {record['device']['name']} has {record['device']['memory']:g} GiB"
        if record["device"]
        else ""
    )
    yield (
        "in all",
        f"{totals} a process "
        f"(processes={record['processes']}){'' if batch else ' before activations'}{has}",
    )


def _time(record: Record) -> Iterator[tuple[str, str]]:
    """On the device that is named, and as measured here."""
    on, pace = record["device"], record["probe"]
    if on and record["seconds"] is not None:
        about = f"about {duration(record['seconds'])} on {record['processes']} x {on['name']}"
        peak = (
            f"{on[record['precision']]:g} "
            f"TFLOP/s{'' if on['verified'] else ', a figure not checked'}"
        )
        yield (
            "time",
            f"{about}, {_spent(record)}: {record['efficiency']:.0%} (efficiency=) of {peak}",
        )
    elif not pace:
        yield "time", f"not known: say device= ({', '.join(budget.devices())}) or --probe"
    if pace:
        step = (
            f"{pace['seconds']:.3g} s a step (median of {pace['steps']}, {pace['least']:.3g} "
            f"to {pace['most']:.3g})"
        )
        where = (
            f"{pace['device']}, {pace['threads']} threads, {pace['precision']}, load average "
            f"{pace['load']:.2f} before"
        )
        yield "here", f"about {duration(pace['total_seconds'])}: {step} on {where}"


def _spent(record: Record) -> str:
    """Device-hours; core-days on the device that the paper counts in."""
    hours = record["device_hours"]
    if record["device"]["name"] == paper.CORE:
        return f"{_number(hours / 24)} TPUv3-core-days"
    return f"{_number(hours)} device-hours"


def _study_rows(record: Record) -> Iterator[tuple[str, str]]:
    """What is printed of a study: a line for each part, and the total."""
    yield "study", f"{record['name']}: {record['title']}"
    yield (
        "part",
        f"{'tasks':>5} {'images':>15} {'exaFLOP':>9} {'device-hours':>12} {'price':>9} "
        f"{'a process':>10}",
    )
    for name, part in record["parts"].items():
        yield name, _columns(part)
    yield "in all", _columns(record)
    timed, on = record["device_hours"] is not None, record["device"]
    if on:
        yield "time", f"on {on['name']} at {record['efficiency']:.0%} (efficiency=) of its peak"
    elif timed:
        yield (
            "time",
            f"measured here, one task after the other, load average {record['load']:.2f} before",
        )
    else:
        yield "time", f"not known: say device= ({', '.join(budget.devices())}) or --probe"
    if timed and record["untimed"]:
        yield "left out", f"the time of {record['untimed']} tasks, which is not known"
    if record["uncounted"]:
        yield "left out", f"the exaFLOP of {record['uncounted']} tasks, which are {NOT_COUNTED}"


def _columns(part: Record) -> str:
    size = "-" if part["most_bytes"] is None else _bytes(part["most_bytes"])
    images = "-" if part["images"] is None else f"{part['images']:,}"
    work, hours, price = (_number(part[key]) for key in ("exaflop", "device_hours", "price"))
    return f"{part['tasks']:>5} {images:>15} {work:>9} {hours:>12} {price:>9} {size:>10}"


def _number(value: float | None) -> str:
    """Three significant digits, and all before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(count: int) -> str:
    return (
        f"{count / budget.GIB:.2f} GiB" if count >= 0.1 * budget.GIB else f"{count / 2**20:.1f} MiB"
    )
