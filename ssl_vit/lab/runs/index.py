"""The page over all runs of a folder: its studies, a table of runs for each part of one, curves
laid over each other, and how recipes differ. No torch here."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...metrics import HELD_OUT
from ...pages import blocks, curves, run_page
from ...pages.blocks import (
    Block,
    Cell,
    Line,
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
from . import search
from .listed import ListedRun, counted, differing, listed, of_page
from .search import ListedStudy

POINTS = 120_000  # of all curves in a page, about 1 MB
FEWEST = 20  # of one curve, however many there are


def write(folder: Path) -> list[RunRecord]:
    """Write index.html into a folder of runs and into those of its studies, and the pages of its
    runs that have none or are older than their files; the runs.

    Raises:
        UserError: the folder has no runs.
        OSError: it cannot be written.
    """
    found = search.find(folder)
    records = {path: read_run(path) for path in found.runs}
    write_atomically(folder / INDEX, render(folder, list(records.values()), found.studies))
    for place in (study.folder for study in found.studies if study.folder != folder):
        runs, studies = found.below(place)
        if runs:
            with suppress(OSError):  # a folder of others
                text = render(place, [records[path] for path in runs], studies)
                write_atomically(place / INDEX, text)
    for record in records.values():
        page, updated = record.folder / PAGE, record.updated
        if not page.exists() or not updated or page.stat().st_mtime <= updated.timestamp():
            with suppress(OSError):  # a folder of others, which has no page then
                run_page.write(record.folder, record)
    return list(records.values())


def render(folder: Path, records: Sequence[RunRecord], studies: Sequence[ListedStudy]) -> str:
    """The page as text."""
    runs = [listed(folder, record) for record in records]
    hours = sum(run.cost("device_hours") or 0 for run in runs)
    number = "1 run" if len(runs) == 1 else f"{len(runs):,} runs"
    sections = [Section("", [Text(f"{number}: {counted(runs)}. {hours:.3g} device-hours in all.")])]
    if studies:
        head = ["study", "title", "finished", "report"]
        rows = [_study_row(folder, study) for study in studies]
        sections.append(Section("Studies", [Table(head, rows, labels=2)]))
    sections.append(Section("Runs", list(_runs(folder, runs, studies))))
    own = next((study.title for study in studies if study.folder == folder), "")
    return blocks.html(f"Runs of {own}" if own else f"Runs in {folder.resolve().name}", sections)


def _study_row(folder: Path, study: ListedStudy) -> list[str | Cell]:
    place = _relative(folder, study.folder)
    report: str | Cell = Cell("report", f"{place}{PAGE}") if study.reported else "none yet"
    name: str | Cell = study.folder.resolve().name
    if place:
        name = Cell(study.folder.name, f"{place}{INDEX}")
    return [name, study.title, f"{study.finished:,} of {study.tasks:,}", report]


def _relative(folder: Path, other: Path) -> str:
    """A link's beginning from a page in one folder to those in another, below it."""
    return "".join(f"{blocks.quoted(part)}/" for part in other.relative_to(folder).parts)


def _runs(
    folder: Path, runs: Sequence[ListedRun], studies: Sequence[ListedStudy]
) -> Iterator[Block]:
    """The tables of runs, those of no study first, and what is said of all of them."""
    groups: dict[tuple[Path | None, str], list[ListedRun]] = {}
    for run in runs:
        groups.setdefault(_group_of(run, studies), []).append(run)
    order = sorted(groups, key=lambda key: key[0] is not None)
    tables = [_table(folder, *key, groups[key]) for key in order]
    in_order = [run for key in order for run in groups[key]]
    names = [run.name for run in in_order]
    yield RunComparison(tables, "Search the runs", names, _curves(in_order), differing(in_order))
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


def _table(folder: Path, study: Path | None, part: str, runs: Sequence[ListedRun]) -> RunGroup:
    """The runs of a part of a study, or those of no study; what all share is said once."""
    columns, shared = of_page(runs)
    above = study or folder
    rows = []
    for run in runs:
        name = listed(above, run.record).name
        link = Cell(name, f"{_relative(folder, run.record.folder)}{PAGE}")
        rows.append([link, *(Cell(one.text(run), value=one.value(run)) for one in columns)])
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
            curves.line(run.name, curves.averaged(own[metric], most)) if metric in own else None
            for run, own in zip(runs, known, strict=True)
        ]
    return found
