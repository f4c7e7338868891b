"""The page over all runs of a folder: a table, curves laid over each other, and how recipes
differ. No torch here."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...config import computed, records
from ...config.computed import counts
from ...config.records import StudyPlan
from ...errors import UserError
from ...formatting import format_value
from ...metrics import HELD_OUT, all_metrics
from ...pages import blocks, metric_charts, metric_tables, run_page
from ...pages.blocks import Block, Cell, Listing, RunComparison, Section, Table, Text
from ...pages.run_page import INDEX, PAGE
from ...pages.run_record import RunRecord, is_run, read_run
from ...runs.files import write_atomically

POINTS = 120_000  # of all curves in a page, about 1 MB
FEWEST = 20  # of one curve, however many there are
NONE = "-"


class ListedStudy(NamedTuple):
    """A study's folder: how many of its tasks are finished, and whether its report is written."""

    folder: Path
    title: str
    finished: int
    tasks: int
    reported: bool


def find(folder: Path) -> tuple[list[Path], list[ListedStudy]]:
    """The runs of a folder and of the studies in it, and those studies; of a study's folder its own
    runs. Folders are looked at by name."""
    runs = []
    studies = [study for study in [_study(folder)] if study]
    for child in _folders(folder):
        if is_run(child):
            runs.append(child)
        elif study := _study(child):
            studies.append(study)
            runs += [one for one in _folders(child) if is_run(one)]
    return runs, studies


def _folders(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(child for child in folder.iterdir() if child.is_dir())


def _study(folder: Path) -> ListedStudy | None:
    """The study of a folder; None where there is none, or a damaged one."""
    try:
        plan = records.read(folder / "study.json", StudyPlan)
    except (OSError, ValueError):
        return None
    names = [task.name for task in plan.tasks]
    finished = sum((folder / name / "result.json").exists() for name in names)
    reported = (folder / PAGE).exists()
    return ListedStudy(folder, plan.title, finished, len(names), reported)


def write(folder: Path) -> list[RunRecord]:
    """Write index.html into a folder of runs, and the pages of its runs that have none or are older
    than their files; the runs.

    Raises:
        UserError: the folder has no runs.
        OSError: it cannot be written.
    """
    paths, studies = find(folder)
    if not paths:
        raise UserError(
            f"{folder}: expected a run's folder, a study's, or one with runs in it; none is there"
        )
    records = [read_run(path) for path in paths]
    write_atomically(folder / INDEX, render(folder, records, studies))
    for study in studies:
        own = [record for record in records if record.folder.parent == study.folder]
        if own and study.folder != folder:
            with suppress(OSError):  # a folder of others
                write_atomically(study.folder / INDEX, render(study.folder, own, [study]))
    for record in records:
        if _outdated(record):
            with suppress(OSError):  # a folder of others, which has no page then
                run_page.write(record.folder)
    return records


def _outdated(record: RunRecord) -> bool:
    path = record.folder / PAGE
    if not path.exists() or record.updated is None:
        return True
    return path.stat().st_mtime <= record.updated.timestamp()


def render(
    folder: Path, records: Sequence[RunRecord], studies: Sequence[ListedStudy], live: bool = False
) -> str:
    """The page as text."""
    return blocks.html(_title(folder, studies), _sections(folder, records, studies), live=live)


def _title(folder: Path, studies: Sequence[ListedStudy]) -> str:
    own = [study for study in studies if study.folder == folder]
    return f"Runs of {own[0].title}" if own else f"Runs in {folder.resolve().name}"


def _sections(
    folder: Path, records: Sequence[RunRecord], studies: Sequence[ListedStudy]
) -> list[Section]:
    found = [Section("", [Text(_summary(records))])]
    if studies:
        head = ["study", "title", "finished", "report"]
        rows = [_study_row(folder, study) for study in studies]
        found.append(Section("Studies", [Table(head, rows, labels=2)]))
    found.append(Section("Runs", list(_runs(folder, records))))
    return found


def _summary(records: Sequence[RunRecord]) -> str:
    states = [record.state for record in records]
    counted = [f"{states.count(state):,} {state}" for state in dict.fromkeys(sorted(states))]
    hours = sum(record.result.device_hours for record in records if record.result)
    number = "1 run" if len(records) == 1 else f"{len(records):,} runs"
    return f"{number}: {', '.join(counted)}. {hours:.3g} device-hours in all."


def _study_row(folder: Path, study: ListedStudy) -> list[str | Cell]:
    place = _relative(folder, study.folder)
    report: str | Cell = Cell("report", f"{place}{PAGE}") if study.reported else "none yet"
    name: str | Cell = study.folder.resolve().name
    if place:
        name = Cell(study.folder.name, f"{place}{INDEX}")
    return [name, study.title, f"{study.finished:,} of {study.tasks:,}", report]


def _relative(folder: Path, other: Path) -> str:
    """A link's beginning from a page in one folder to those in another, below it."""
    parts = other.relative_to(folder).parts
    return "".join(f"{blocks.quoted(part)}/" for part in parts)


def _runs(folder: Path, records: Sequence[RunRecord]) -> Iterator[Block]:
    names = [str(record.folder.relative_to(folder)) for record in records]
    metrics = {
        name: column
        for name, column in columns().items()
        if any(name in one.metrics() for one in records)
    }
    head = ["run", "state", "objective", "data", "model", "steps"]
    head += [*metrics.values(), "device-hours", "last written", "warnings"]
    rows = [
        [
            Cell(name, f"{_relative(folder, record.folder)}{PAGE}"),
            *_facts(record),
            *(_metric(record, metric) for metric in metrics),
            _hours(record),
            _written(record),
            str(record.warning_count),
        ]
        for name, record in zip(names, records, strict=True)
    ]
    table = Table(head, rows, labels=5, search="Search the runs")
    yield RunComparison(table, names, _curves(names, records), differences(records))
    yield Listing(
        [
            "A point of a long curve is the mean of the rows up to it; the run's page has more.",
            "Losses and accuracies compare only between runs of one objective, target and data.",
            "A difference of two runs is no result: studies compare over seeds, with intervals.",
        ]
    )


def columns() -> dict[str, str]:
    """{metric: the head of its column}; a run of the folder has to have it."""
    return {row.name: row.column for row in all_metrics() if row.column}


def _facts(record: RunRecord) -> list[str | Cell]:
    values = record.values
    texts = [record.state, *(str(values.get(key, NONE)) for key in ("objective", "data.name"))]
    texts.append(str(values.get("model.name") or values.get("model.timm") or NONE))
    made = record.result.steps if record.result else record.step
    steps = f"{made:,} of {record.steps:,}" if record.steps and not record.result else f"{made:,}"
    return [*texts, Cell(steps, value=made)]


def _metric(record: RunRecord, name: str) -> str | Cell:
    entry = record.metrics().get(name)
    if entry is None or not math.isfinite(entry.value):
        return NONE
    return Cell(metric_tables.with_count(name, entry, record.measured_on), value=entry.value)


def _hours(record: RunRecord) -> str | Cell:
    if not (record.result and record.result.has("device_hours")):
        return NONE
    hours = record.result.device_hours
    return Cell(f"{hours:.3g}", value=hours)


def _written(record: RunRecord) -> str | Cell:
    if record.updated is None:
        return NONE
    return Cell(f"{record.updated:%Y-%m-%d %H:%M}", value=record.updated.timestamp())


def _curves(
    names: Sequence[str], records: Sequence[RunRecord]
) -> dict[str, list[blocks.Line | None]]:
    """{metric: each run's curve}, of as many points as the page has room for."""
    known = [metric_charts.series(record.rows) for record in records]
    order = sorted(set().union(*known), key=lambda name: (not name.startswith(HELD_OUT), name))
    most = max(FEWEST, min(blocks.DRAWN, POINTS // max(1, len(order) * len(records))))
    return {
        metric_charts.written(metric): [
            metric_charts.mean_curve(name, *own[metric], most) if metric in own else None
            for name, own in zip(names, known, strict=True)
        ]
        for metric in order
    }


def differences(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """{key: each run's value}, of the keys that change what is computed and have two values."""
    known = [record.values for record in records]
    # sorted as in the recipes; a key that one lacks has its default there
    differ = {one.key for values in known[1:] for one in computed.differences(known[0], values)}
    keys = dict.fromkeys(key for values in known for key in values if key in differ)
    return {key: [_text(values, key) for values in known] for key in keys if counts(key)}


def _text(values: dict[str, Any], key: str) -> str:
    return format_value(values[key]) if key in values else NONE
