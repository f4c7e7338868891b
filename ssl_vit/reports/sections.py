"""A study's numbers in words and tables: what the report says, whatever it is written in. No torch
here."""

import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..formatting import sharded
from ..stats import RESAMPLES, Interval, SeedSummary, reach, t_factor
from .finished import Finished, Study, left_out
from .numbers import Numbers, Pair, Sweep
from .plots import Plot, name

SEEDS, BOTH = "95%, seeds", "95%, seeds and images"
MINUS = "A minus B"
SIGN = f"Every difference in this report is {MINUS}, as its label says, and positive where A is the better."
NONE = "-"


class Text(NamedTuple):
    text: str
    warning: bool = False


class Listing(NamedTuple):
    lines: list[str]


class Table(NamedTuple):
    """The first `labels` columns are text, the others numbers; `marked` rows stand apart."""

    head: list[str]
    rows: list[list[str]]
    labels: int = 1
    marked: frozenset[int] = frozenset()


class Commands(NamedTuple):
    lines: list[str]


Block = Text | Listing | Table | Commands | Plot


class Section(NamedTuple):
    """The first has no title."""

    title: str
    blocks: list[Block]


def build(study: Study, numbers: Numbers, drawn: list[Plot]) -> list[Section]:
    """All that the report says, in order; sections without content are left out."""
    found = [
        Section("", list(_first(study, numbers))),
        Section("Arms", list(_arms(study, numbers))),
        Section("In pairs", list(_in_pairs(study, numbers))),
        Section("Frozen probes", list(_probes(study, numbers))),
        Section("Learning rate", list(_sweeps(numbers))),
        Section("Compute", [*_spent(study, numbers), *drawn[:1]]),
        Section("Learning curves", [*drawn[1:]]),
        Section("How it was made", list(made(study))),
    ]
    return [section for section in found if section.blocks]


def points(share: float, signed: bool = False) -> str:
    """A share in percent, or a difference of shares in points."""
    return f"{100 * share:+z.2f}" if signed else f"{100 * share:z.2f}"


def span(interval: Interval | None, signed: bool = False) -> str:
    return (
        f"{points(interval.low, signed)} to {points(interval.high, signed)}" if interval else NONE
    )


def minus(arm: str, other: str) -> str:
    """What a difference is called everywhere: positive where `arm` is the better."""
    return f"{arm} minus {other}"


def deviation(found: SeedSummary) -> str:
    return NONE if found.sd is None else points(found.sd)


def answer(study: Study, numbers: Numbers) -> str:
    """The study's answer: the candidate minus the baseline, and minus the reference, by seeds."""
    return (
        f"After the same fine-tuning, {' '.join(_apart(pair) for pair in _asked(study, numbers))}"
    )


def _asked(study: Study, numbers: Numbers) -> list[Pair]:
    """The pairs that the study asks about: candidate and baseline, candidate and reference if there
    is one."""
    candidate, others = (
        study.report["candidate"],
        (study.report["baseline"], study.report.get("reference")),
    )
    return [numbers.pair(candidate, other) for other in others if other is not None]


def _apart(pair: Pair) -> str:
    """One pair in words, with the sign that it has in the table."""
    found = pair.difference
    if found is None:
        return f"{pair.arm} and {pair.other} have no seed in common yet."
    size = f"{minus(pair.arm, pair.other)} is {points(found.mean, True)} points of top-1"
    if found.interval is None:
        return f"{size}, on one seed, which gives no interval."
    return f"{size}: 95% interval {span(found.interval, True)} over {found.n} seeds, which {zero(found.interval)} zero."


def zero(interval: Interval) -> str:
    return "excludes" if interval.excludes_zero else "includes"


def _first(study: Study, numbers: Numbers) -> Iterable[Block]:
    """The answer, the same with the images resampled too, and what is missing."""
    yield Text(answer(study, numbers))
    wider = [
        f"{minus(pair.arm, pair.other)} {span(pair.resampled, True)} ({zero(pair.resampled)} zero)"
        for pair in _asked(study, numbers)
        if pair.resampled
    ]
    if wider:
        yield Text(
            f"With the test images resampled together with the seeds, the intervals are: {'; '.join(wider)}."
        )
    if numbers.missing:
        yield unfinished(numbers.missing, numbers.tasks)
    yield from strangers(study)


def strangers(study: Study) -> Iterable[Text]:
    """Runs that somebody put into the study's folder."""
    if study.foreign:
        yield Text(f"N{left_out(study).removeprefix('; n')}.", warning=True)


def unfinished(missing: list[str], tasks: int) -> Text:
    """What is not in the report."""
    count = f"{len(missing)} of {tasks} tasks are not finished"
    return Text(
        f"{count}, and nothing of them is in this report: {', '.join(missing)}.", warning=True
    )


def _arms(study: Study, numbers: Numbers) -> Iterable[Block]:
    rows = []
    for row in numbers.rows:
        top5 = points(row.top5.mean) if row.top5 else NONE
        paper = NONE if row.paper is None else points(row.paper)
        mean = [name(row), str(row.top1.n), points(row.top1.mean), deviation(row.top1)]
        rows.append([*mean, span(row.top1.interval), span(row.resampled), top5, paper])
    head = ["arm", "n", "top-1, %", "sd", SEEDS, BOTH, "top-5, %", "paper"]
    yield Table(head, rows, marked=frozenset(i for i, row in enumerate(numbers.rows) if row.extra))
    yield Listing([f"{arm}: {line}" for arm, line in study.about["arms"].items()])
    yield Text(
        f"n counts seeds, each of which covers pre-training and fine-tuning; sd is over them. The first interval is Student's t"
        f" over seeds. For the second, seeds and test images are resampled together, {RESAMPLES:,} times, its ends never"
        f" inside the first. One seed has neither."
        + (
            " Extra rows are no arm of the comparison."
            if any(row.extra for row in numbers.rows)
            else ""
        )
    )
    if study.report.get("differs"):
        yield Text("The paper's figures come from another protocol. What differs:")
        yield Listing(study.report["differs"])


def _in_pairs(study: Study, numbers: Numbers) -> Iterable[Block]:
    """Differences by seed, McNemar's test of each seed's two networks, and what the number of seeds
    allows."""
    found = [(minus(pair.arm, pair.other), pair) for pair in numbers.pairs]
    rows = []
    for label, pair in found:
        apart = pair.difference
        if apart is None:
            rows.append([label, "0", *[NONE] * 4])
        else:
            cells = [
                points(apart.mean, True),
                deviation(apart),
                span(apart.interval, True),
                span(pair.resampled, True),
            ]
            rows.append([label, str(apart.n), *cells])
    yield Table([MINUS, "n", "difference, points", "sd", SEEDS, BOTH], rows)
    yield Text(SIGN)
    yield Text(_width(numbers.pair(study.report["candidate"], study.report["baseline"])))
    tests = [
        [
            label,
            str(seed),
            f"{test.first:,}",
            f"{test.second:,}",
            "<0.0001" if test.p < 1e-4 else f"{test.p:.4f}",
        ]
        for label, pair in found
        for seed, test in pair.mcnemar.items()
    ]
    yield Table([MINUS, "seed", "only A right", "only B right", "McNemar's p"], tests)
    yield Text(
        "McNemar's exact test asks whether one seed's two networks are equally often right; of other seeds it knows nothing."
    )


def _width(pair: Pair) -> str:
    """What the number of seeds makes of the interval."""
    found = pair.difference
    if found is None or found.sd is None:
        return "One seed has no standard deviation and no interval: whether another would say the same is unknown."
    n, more = found.n, [count for count in (3, 5, 10) if count > found.n]
    factor = f"With n = {n} seeds Student's t is {t_factor(n):.2f}: the interval reaches {reach(n):.2f} standard deviations to"
    spread = f"{minus(pair.arm, pair.other)} ({points(found.sd)} points)"
    least = f"each side. At the spread of {spread}, a difference excludes zero above"
    fewer = "".join(f", {points(reach(count) * found.sd)} with {count} seeds" for count in more)
    return f"{factor} {least} {points(reach(n) * found.sd)} points{fewer}."


def _probes(study: Study, numbers: Numbers) -> Iterable[Block]:
    if not numbers.probes:
        return
    rows = []
    for probe in numbers.probes:
        gain = (
            [points(probe.gain.mean, True), span(probe.gain.interval, True)]
            if probe.gain
            else [NONE, NONE]
        )
        value = [
            str(probe.value.n),
            points(probe.value.mean),
            deviation(probe.value),
            span(probe.value.interval),
        ]
        rows.append([probe.measure, probe.arm, *value, *gain])
    gained = f"{minus('arm', study.report['baseline'])}, points"
    yield Table(["measure", "arm", "n", "top-1, %", "sd", SEEDS, gained, SEEDS], rows, labels=2)
    yield Text(
        "Probes see the pre-trained encoder as it is. Differences are in pairs of one seed; intervals are Student's t over"
        " seeds."
    )


def _sweeps(numbers: Numbers) -> Iterable[Block]:
    """A table for each sweep, the value that won in brackets; a warning where it lies at an end of
    the grid."""
    for part in dict.fromkeys(sweep.part for sweep in numbers.sweeps):
        found = [sweep for sweep in numbers.sweeps if sweep.part == part]
        labels = list(
            dict.fromkeys(_values(values) for sweep in found for values, _ in sweep.tried)
        )
        yield Table(
            [f"{part}: arm", *labels], [[sweep.arm, *_tried(sweep, labels)] for sweep in found]
        )
        for sweep in found:
            for key in sweep.edges:
                best = f"{key}={sweep.tried[sweep.best][0][key]}"
                yield Text(
                    f"{sweep.arm}: the best, {best}, lies at an end of the grid; a wider one may find a better.",
                    warning=True,
                )
    if numbers.sweeps:
        by = " and ".join(dict.fromkeys(sweep.by.replace("_", " ") for sweep in numbers.sweeps))
        yield Text(
            f"{by.capitalize()} on the dev split, %; the best in brackets, which is what was chosen once all were finished."
        )


def _values(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _tried(sweep: Sweep, labels: list[str]) -> list[str]:
    shown = {}
    for i, (values, accuracy) in enumerate(sweep.tried):
        shown[_values(values)] = f"({points(accuracy)})" if i == sweep.best else points(accuracy)
    return [shown.get(label, NONE) for label in labels]


def _spent(study: Study, numbers: Numbers) -> Iterable[Block]:
    rows = [
        [
            one.arm,
            one.stage,
            str(one.runs),
            f"{one.images:,.0f}",
            f"{one.exaflop:.3g}",
            f"{one.device_hours:.3g}",
        ]
        for one in numbers.spent
    ]
    yield Table(["arm", "stage", "runs", "images", "exaFLOP", "device-hours"], rows, labels=2)
    text = "Pre-training and fine-tuning: the mean of a seed. Sweep: all its runs together."
    pre = {one.arm: one.exaflop for one in numbers.spent if one.stage == "pre-training"}
    candidate, baseline = study.report["candidate"], study.report["baseline"]
    if pre.get(candidate) and pre.get(baseline):
        text += f" {candidate} was pre-trained with {pre[candidate] / pre[baseline]:.2f} times the exaFLOP of {baseline}."
    yield Text(text)


def made(study: Study) -> Iterable[Block]:
    """Commands, where study.json tells them; hardware and versions; when."""
    commands: dict[tuple[str, str], str] = {}
    for task in study.about["tasks"]:
        if task.get("words"):
            commands.setdefault(
                (task["part"], task["arm"]),
                shlex.join([f"tools/{task['tool']}.py", *map(str, task["words"])]),
            )
    if commands:
        yield Text(
            "Of each part and arm the first run. {NAME} is that run's folder; seed=, and what a sweep chose, are added:"
        )
        yield Commands(list(commands.values()))
    yield Listing(sorted({_machine(run) for run in study.done.values()}))
    finished = sorted(run.result["finished"] for run in study.done.values())
    hours = sum(run.result["device_hours"] for run in study.done.values())
    yield Text(
        f"{len(finished)} runs, {hours:.3g} device-hours, finished between {finished[0]} and {finished[-1]}."
    )


def _machine(run: Finished) -> str:
    """Where a run was made and with what."""
    environment = run.environment
    host = environment.get("host") or {}
    count = environment.get("processes", 1)
    cpu = host.get("cpu", "unknown processor")
    device = f"{count} x {environment.get('device', 'unknown device')} ({cpu})"
    if isinstance(environment.get("sharding"), dict):  # older runs do not tell
        device = f"{device}, {sharded(environment['sharding'])}"
    spread = f"{environment.get('threads', 'unknown')} threads, precision {environment.get('precision', 'unknown')}"
    packages = ", ".join(
        f"{package} {version}" for package, version in (environment.get("packages") or {}).items()
    )
    revision = (environment.get("revision") or "unknown")[:10] + (
        "+" if (environment.get("revision") or "").endswith("+") else ""
    )
    return f"{device}, {spread}; Python {environment.get('python', 'unknown')}, {packages}; revision {revision}"
