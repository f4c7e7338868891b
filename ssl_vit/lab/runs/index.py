"""The page over all runs of a folder: its studies, a table of runs for each part of one, curves
laid over each other, and how recipes differ. No torch here."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...metrics import HELD_OUT
from ...pages import blocks, curves, run_page
from ...pages.blocks import (
    Block,
    Cell,
    Line,
    RunComparison,
    RunGroup,
    Section,
    Table,
    Text,
)
from ...pages.run_page import INDEX, PAGE
from ...pages.run_record import RunRecord, read_run
from ...runs.files import write_atomically
from ..study.record import StudyRecord
from . import search
from .listed import CAUTION, COMPARES, ListedRun, counted, differing, named, of_page

POINTS = 120_000  # of all curves in a page, about 1 MB
FEWEST = 20  # of one curve, however many there are
Studies = Mapping[Path, StudyRecord]


def write(folder: Path) -> list[RunRecord]:
    """Write index.html into a folder of runs and into those of its studies, and the pages of its
    runs that have none or are older than their files; the runs.

    Raises:
        UserError: the folder has no runs.
        OSError: it cannot be written.
    """
    found = search.find(folder)
    records = [read_run(path) for path in found.runs]
    write_atomically(folder / INDEX, render(folder, records, found.studies))
    for place in found.studies.keys() - {folder}:
        with suppress(OSError):  # a folder of others
            write_atomically(place / INDEX, render(place, records, found.studies))
    for record in records:
        page, updated = record.folder / PAGE, record.updated
        if not page.exists() or not updated or page.stat().st_mtime <= updated.timestamp():
            with suppress(OSError):  # a folder of others, which has no page then
                run_page.write(record.folder, record)
    return records


def render(folder: Path, records: Sequence[RunRecord], studies: Studies) -> str:
    """The page as text, of what is in and below the folder."""
    runs = [named(folder, one) for one in records if one.folder.is_relative_to(folder)]
    studies = {place: one for place, one in studies.items() if place.is_relative_to(folder)}
    hours = sum(one.device_hours or 0 for run in runs if (one := run.record.result))
    number = "1 run" if len(runs) == 1 else f"{len(runs):,} runs"
    sections = [Section("", [Text(f"{number}: {counted(runs)}. {hours:.3g} device-hours in all.")])]
    if studies:
        head = ["study", "title", "finished", "report"]
        rows = [_study_row(folder, place, study) for place, study in studies.items()]
        sections.append(Section("Studies", [Table(head, rows, labels=2)]))
    sections.append(Section("Runs", _runs(folder, runs, studies)))
    own = f"of {studies[folder].title}" if folder in studies else f"in {folder.resolve().name}"
    return blocks.html(f"Runs {own}", sections)


def _study_row(folder: Path, place: Path, study: StudyRecord) -> list[str | Cell]:
    link, name = _relative(folder, place), place.resolve().name
    report = Cell("report", f"{link}{PAGE}") if (place / PAGE).exists() else "none yet"
    finished = sum((place / task.name / "result.json").exists() for task in study.tasks)
    return [
        Cell(name, f"{link}{INDEX}") if link else name,
        study.title,
        f"{finished:,} of {len(study.tasks):,}",
        report,
    ]


def _relative(folder: Path, other: Path) -> str:
    """A link's beginning from a page in one folder to those in another, below it."""
    return "".join(f"{blocks.quoted(part)}/" for part in other.relative_to(folder).parts)


def _runs(folder: Path, runs: Sequence[ListedRun], studies: Studies) -> list[Block]:
    """The tables of runs, those of no study first, and what is said of all of them."""
    groups: dict[tuple[Path, str], list[ListedRun]] = {}
    for run in runs:
        groups.setdefault(_group_of(folder, run, studies), []).append(run)
    order = sorted(groups, key=lambda key: key[0] in studies)
    tables = [_table(folder, *key, groups[key]) for key in order]
    in_order = [run for key in order for run in groups[key]]
    names = [run.name for run in in_order]
    return [
        RunComparison(tables, "Search the runs", names, _curves(in_order), differing(in_order)),
        Text("Of a long curve the lowest and the highest of each stretch are drawn."),
        Text(f"{COMPARES} {CAUTION}"),
    ]


def _group_of(folder: Path, run: ListedRun, studies: Studies) -> tuple[Path, str]:
    """The folder of the study that a run is of, and its part; the listed folder and "" of no
    study."""
    place = run.record.folder
    around = [study for study in studies if place.is_relative_to(study)]
    if not around:
        return folder, ""
    study = max(around, key=lambda path: len(path.parts))
    parts = {task.name: task.run for task in studies[study].tasks}
    return study, parts.get(str(place.relative_to(study)), "")


def _table(folder: Path, above: Path, part: str, runs: Sequence[ListedRun]) -> RunGroup:
    """The runs of a part of a study, or those of no study; what all share is said once."""
    columns, shared = of_page(runs)
    rows = []
    for run in runs:
        name = named(above, run.record).name
        link = Cell(name, f"{_relative(folder, run.record.folder)}{PAGE}")
        rows.append([link, *(Cell(one.text(run), value=one.number(run)) for one in columns)])
    place = "" if above == folder else str(above.relative_to(folder))
    title = ": ".join(filter(None, [place, part]))
    text = "; ".join(f"{name}: {value}" for name, value in shared.items())
    return RunGroup(title, text, Table(["run", *(one.head for one in columns)], rows))


def _curves(runs: Sequence[ListedRun]) -> dict[str, list[Line | None]]:
    """{metric: each run's curve}, of as many points as the page has room for."""
    known = [curves.of_model(run.record.rows.curves) for run in runs]
    order = sorted(set().union(*known), key=lambda name: (not name.startswith(HELD_OUT), name))
    most = max(FEWEST, min(curves.DRAWN, POINTS // max(1, len(order) * len(runs))))
    found: dict[str, list[Line | None]] = {}
    for metric in order:
        found[curves.written(metric)] = [
            curves.line(run.name, curves.thinned(own[metric], most)) if metric in own else None
            for run, own in zip(runs, known, strict=True)
        ]
    return found
