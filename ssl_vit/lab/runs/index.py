"""The page over all runs of a folder: its studies, and of the runs that answer one question a table
and their curves in one chart. No torch here."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...pages import blocks, curves, run_page
from ...pages.blocks import Block, Cell, Chart, Section, Table, Text
from ...pages.run_page import INDEX, PAGE, REFRESH
from ...pages.run_record import RunRecord, read_run
from ...runs.files import write_atomically
from ..study.record import StudyRecord
from . import search
from .listed import CAUTION, COLUMNS, COMPARES, ListedRun, counted, named, of_page

CHARTED = 8  # runs whose curves are in one chart, the newest: as many as it has colours
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
    text = f"{number}: {counted(runs)}. {hours:.3g} device-hours in all."
    sections = [Section("", [Text(text), Text(f"{COMPARES} {CAUTION}")])]
    if studies:
        head = ["study", "title", "finished", "report"]
        rows = [_study_row(folder, place, study) for place, study in studies.items()]
        sections.append(Section("Studies", [Table(head, rows, labels=2)]))
    sections += _groups(folder, runs, studies)
    own = f"of {studies[folder].title}" if folder in studies else f"in {folder.resolve().name}"
    refresh = REFRESH if any(run.record.state == "running" for run in runs) else 0
    return blocks.html(f"Runs {own}", sections, refresh=refresh)


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


def _groups(folder: Path, runs: Sequence[ListedRun], studies: Studies) -> list[Section]:
    """A section for the runs of each part of a study, and of no study, that have one objective and
    data set: the newest run first, and in the order of their newest ones, those of no study
    first."""
    groups: dict[tuple[Path, str, str, str], list[ListedRun]] = {}
    newest = sorted(runs, key=lambda run: run.ended.timestamp() if run.ended else 0, reverse=True)
    for run in newest:
        objective, data = (COLUMNS[key].text(run) for key in ("objective", "data"))
        key = (*_study_of(folder, run, studies), objective, data)
        groups.setdefault(key, []).append(run)
    order = sorted(groups, key=lambda key: key[0] in studies)
    most = max(FEWEST, POINTS // max(1, CHARTED * len(groups)))
    sections = []
    for above, part, objective, data in order:
        same = groups[above, part, objective, data]
        place = "" if above == folder else str(above.relative_to(folder))
        title = ": ".join(filter(None, [place, part, f"{objective} on {data}"]))
        sections.append(Section(title, [*_table(folder, above, same), *_charts(same, most)]))
    return sections


def _study_of(folder: Path, run: ListedRun, studies: Studies) -> tuple[Path, str]:
    """The folder of the study that a run is of, and its part; the listed folder and "" of no
    study."""
    place = run.record.folder
    around = [study for study in studies if place.is_relative_to(study)]
    if not around:
        return folder, ""
    study = max(around, key=lambda path: len(path.parts))
    parts = {task.name: task.run for task in studies[study].tasks}
    return study, parts.get(str(place.relative_to(study)), "")


def _table(folder: Path, above: Path, runs: Sequence[ListedRun]) -> list[Block]:
    """The table of runs of one question; what all share is said once, over it."""
    columns, shared = of_page(runs)
    rows: list[list[str | Cell]] = []
    for run in runs:
        name = named(above, run.record).name
        link = Cell(name, f"{_relative(folder, run.record.folder)}{PAGE}")
        rows.append([link, *(one.text(run) for one in columns)])
    found: list[Block] = []
    if text := "; ".join(f"{name}: {value}" for name, value in shared.items()):
        found.append(Text(text))
    return [*found, Table(["run", *(one.head for one in columns)], rows)]


def _charts(runs: Sequence[ListedRun], most: int) -> list[Block]:
    """The curves of the newest runs: of the metrics of their table, in one chart each."""
    charts: list[Block] = []
    known = [(run, run.record.rows.curves) for run in runs]
    for metric in curves.of_table({name for _, own in known for name in own}):
        having = [(run, own[metric]) for run, own in known if metric in own][:CHARTED]
        lines = [curves.line(run.name, curves.thinned(curve, most)) for run, curve in having]
        if any(len(line.steps) > 1 for line in lines):
            charts.append(Chart(curves.written(metric), lines))
    more = len(runs) - CHARTED
    if charts and more > 0:
        charts.append(Text(f"The newest {CHARTED} runs that have a curve are drawn."))
    return charts
