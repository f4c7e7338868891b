"""The page over all runs of a folder: a table, curves laid over each other, and how recipes
differ. No torch here."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...metrics import HELD_OUT
from ...pages import blocks, curve_points, metric_charts, run_page
from ...pages.blocks import (
    Block,
    Cell,
    Listing,
    RunComparison,
    RunGroup,
    Section,
    Table,
    Text,
)
from ...pages.run_page import INDEX, PAGE
from ...pages.run_record import RunRecord, read_run
from ...runs.files import write_atomically
from . import run_columns, run_search
from .listed_run import NONE, ListedRun, counted, differing, listed
from .run_search import ListedStudy

POINTS = 120_000  # of all curves in a page, about 1 MB
FEWEST = 20  # of one curve, however many there are


def write(folder: Path) -> list[RunRecord]:
    """Write index.html into a folder of runs and into those of its studies, and the pages of its
    runs that have none or are older than their files; the runs.

    Raises:
        UserError: the folder has no runs.
        OSError: it cannot be written.
    """
    found = run_search.find(folder)
    records = {path: read_run(path) for path in found.runs}
    write_atomically(folder / INDEX, render(folder, list(records.values()), found.studies))
    for place in (study.folder for study in found.studies if study.folder != folder):
        runs, studies = found.below(place)
        if runs:
            with suppress(OSError):  # a folder of others
                text = render(place, [records[path] for path in runs], studies)
                write_atomically(place / INDEX, text)
    for record in records.values():
        if _outdated(record):
            with suppress(OSError):  # a folder of others, which has no page then
                run_page.write(record.folder)
    return list(records.values())


def _outdated(record: RunRecord) -> bool:
    path = record.folder / PAGE
    if not path.exists() or record.updated is None:
        return True
    return path.stat().st_mtime <= record.updated.timestamp()


def render(folder: Path, records: Sequence[RunRecord], studies: Sequence[ListedStudy]) -> str:
    """The page as text."""
    runs = [listed(folder, record) for record in records]
    return blocks.html(_title(folder, studies), _sections(folder, runs, studies))


def _title(folder: Path, studies: Sequence[ListedStudy]) -> str:
    own = [study for study in studies if study.folder == folder]
    return f"Runs of {own[0].title}" if own else f"Runs in {folder.resolve().name}"


def _sections(
    folder: Path, runs: Sequence[ListedRun], studies: Sequence[ListedStudy]
) -> list[Section]:
    found = [Section("", [Text(_summary(runs))])]
    if studies:
        head = ["study", "title", "finished", "report"]
        rows = [_study_row(folder, study) for study in studies]
        found.append(Section("Studies", [Table(head, rows, labels=2)]))
    found.append(Section("Runs", list(_runs(folder, runs, studies))))
    return found


def _summary(runs: Sequence[ListedRun]) -> str:
    states = counted([run.record.state for run in runs])
    hours = sum(run.cost("device_hours") or 0 for run in runs)
    number = "1 run" if len(runs) == 1 else f"{len(runs):,} runs"
    return f"{number}: {states}. {hours:.3g} device-hours in all."


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


def _runs(
    folder: Path, runs: Sequence[ListedRun], studies: Sequence[ListedStudy]
) -> Iterator[Block]:
    grouped: dict[tuple[Path | None, str], list[ListedRun]] = {}
    for run in runs:
        grouped.setdefault(_group_of(run, studies), []).append(run)
    order = sorted(grouped, key=lambda key: key[0] is not None)  # those of no study first
    groups = [_group(folder, *key, grouped[key]) for key in order]
    in_order = [run for key in order for run in grouped[key]]
    names = [run.name for run in in_order]
    curves, recipes = _curves(in_order), differing(in_order)
    yield RunComparison(groups, "Search the runs", names, curves, recipes)
    yield Listing(
        [
            "A point of a long curve is the mean of the rows up to it; the run's page has more.",
            "Losses and accuracies compare only between runs of one objective, target and data.",
            "A difference of two runs is no result: studies compare over seeds, with intervals.",
        ]
    )


def _group_of(run: ListedRun, studies: Sequence[ListedStudy]) -> tuple[Path | None, str]:
    """The folder of the study that a run is of, and its part; None and "" of no study."""
    place = run.record.folder
    around = [study for study in studies if place.is_relative_to(study.folder)]
    if not around:
        return None, ""
    study = max(around, key=lambda one: len(one.folder.parts))
    return study.folder, study.parts.get(str(place.relative_to(study.folder)), "")


def _group(folder: Path, study: Path | None, part: str, runs: Sequence[ListedRun]) -> RunGroup:
    """The runs of a part of a study, or those of no study; what all share is said once."""
    columns, shared = run_columns.of_page(runs)
    above = study or folder
    rows = [
        [
            Cell(listed(above, run.record).name, f"{_relative(folder, run.record.folder)}{PAGE}"),
            *(Cell(column.text(run), value=column.value(run)) for column in columns),
        ]
        for run in runs
    ]
    head = ["run", *(column.head for column in columns)]
    place = "" if above == folder else str(above.relative_to(folder))
    title = ": ".join(filter(None, [place, part]))
    text = "; ".join(f"{name}: {value}" for name, value in shared.items() if value != NONE)
    return RunGroup(title, text, Table(head, rows))


def _curves(runs: Sequence[ListedRun]) -> dict[str, list[blocks.Line | None]]:
    """{metric: each run's curve}, of as many points as the page has room for."""
    known = [metric_charts.series(run.record.rows) for run in runs]
    order = sorted(set().union(*known), key=lambda name: (not name.startswith(HELD_OUT), name))
    most = max(FEWEST, min(curve_points.DRAWN, POINTS // max(1, len(order) * len(runs))))
    return {
        metric_charts.written(metric): [
            metric_charts.mean_curve(run.name, *own[metric], most) if metric in own else None
            for run, own in zip(runs, known, strict=True)
        ]
        for metric in order
    }
