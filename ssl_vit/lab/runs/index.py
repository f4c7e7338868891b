"""Write the page about all runs of a folder, without importing torch.

The page lists the folder's studies, and shows comparable runs in one table.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...formatting import format_count
from ...metrics import FRESH, in_order, metric_label
from ...pages import blocks, run_page
from ...pages.blocks import Block, Cell, Section, Table, Text
from ...pages.run_page import INDEX, PAGE, REFRESH
from ...pages.run_record import RunRecord, read_run
from ...runs.files import write_atomically
from ...runs.shared import is_task
from ..study.record import StudyRecord
from . import listed, search
from .listed import CAUTION, COLUMNS, COMPARES, ListedRun, count_states, list_run, page_columns

Studies = Mapping[Path, StudyRecord]


def write(folder: Path) -> list[RunRecord]:
    """Write index.html into a folder of runs and into the folders of all studies below.

    The function also writes the page of each run that has no page or an outdated page. A task of a
    study gets no new page here, but an outdated page is written again.

    Returns:
        Records of the runs.

    Raises:
        UserError: The folder has no runs.
        OSError: The folder cannot be written.
    """
    listing = search.find_runs(folder)
    records = [read_run(path) for path in listing.runs]
    write_atomically(folder / INDEX, render(folder, records, listing.studies))
    for place in listing.studies.keys() - {folder}:
        with suppress(OSError):  # another user's folder
            write_atomically(place / INDEX, render(place, records, listing.studies))
    for record in records:
        page, updated = record.folder / PAGE, record.updated
        if not _has_page(record.folder):
            continue
        if not page.exists() or not updated or page.stat().st_mtime <= updated.timestamp():
            with suppress(OSError):  # another user's folder, which then gets no page
                run_page.write(record.folder, record)
    return records


def render(folder: Path, records: Sequence[RunRecord], studies: Studies) -> str:
    """Return the page about a folder of runs as HTML.

    The page has the studies below the folder, with links to their pages, and all runs outside of
    these studies.

    Args:
        folder: Folder of the page.
        records: Runs in and below the folder. Runs elsewhere are ignored.
        studies: `{folder: study}`.
    """
    below = {
        place: study
        for place, study in studies.items()
        if place != folder and place.is_relative_to(folder)
    }
    all_runs = [
        list_run(folder, record) for record in records if record.folder.is_relative_to(folder)
    ]
    runs = [run for run in all_runs if not any(map(run.record.folder.is_relative_to, below))]
    results = [run.record.result for run in all_runs]
    hours = sum(result.device_hours or 0 for result in results if result)
    summary = (
        f"{format_count(len(all_runs), 'runs')}: {count_states(all_runs)}. {hours:.3g} device-hours"
        " in total."
    )
    sections = [Section("", [Text(summary), Text(f"{COMPARES} {CAUTION}")])]
    if below:
        head = ["study", "title", "finished", "report"]
        rows = [_study_row(folder, place, study) for place, study in below.items()]
        sections.append(Section("Studies", [Table(head, rows, labels=2)]))
    sections += [*_frozen(folder, runs), *_groups(folder, runs)]
    title = f"Runs in {folder.resolve().name}"
    if folder in studies:
        title = f"Runs of {studies[folder].title}"
    is_running = any(run.record.state == "running" for run in all_runs)
    return blocks.html(title, sections, refresh=REFRESH if is_running else 0)


def _study_row(folder: Path, place: Path, study: StudyRecord) -> list[str | Cell]:
    link, name = _relative(folder, place), place.resolve().name
    report = Cell("report", f"{link}{PAGE}") if (place / PAGE).exists() else "none yet"
    finished = sum((place / task.name / "result.json").exists() for task in study.tasks)
    count = f"{finished:,} of {len(study.tasks):,}"
    return [Cell(name, f"{link}{INDEX}"), study.title, count, report]


def _has_page(run: Path) -> bool:
    """Return whether a run has a page, or gets one when the index is written."""
    return (run / PAGE).exists() or (not is_task(run) and os.access(run, os.W_OK))


def _run_cell(folder: Path, run: ListedRun) -> str | Cell:
    """Return a run's name, with a link if it has a page."""
    place = run.record.folder
    return Cell(run.name, f"{_relative(folder, place)}{PAGE}") if _has_page(place) else run.name


def _relative(folder: Path, target: Path) -> str:
    """Return the beginning of a link from a page in a folder to pages in a folder below."""
    return "".join(f"{blocks.quoted(part)}/" for part in target.relative_to(folder).parts)


def _frozen(folder: Path, runs: Sequence[ListedRun]) -> list[Section]:
    """Return a section that ranks the frozen encoders of all objectives.

    The section has one table for each measure and set of images, with the best encoder first. If no
    frozen encoder was measured, there is no section.
    """
    tables: list[Block] = []
    measures = {run.frozen_measure for run in runs if run.frozen_measure}
    for measure in in_order(measures):
        measured_runs = [run for run in runs if run.frozen_measure == measure]
        for facts, comparable_runs in listed.rank(measured_runs, measure):
            head = ["run", "objective", metric_label(measure), "95% interval"]
            head += ["minus untrained weights", "95% interval"]
            rows = [_frozen_row(folder, run, measure) for run in comparable_runs]
            shared = ("data", "data.size", "split", "n", "training images")
            shared_facts = "; ".join(f"{key}: {facts[key]}" for key in shared if key in facts)
            tables += [Text(shared_facts), Table(head, rows)]
    return [Section("Frozen encoders", tables)] if tables else []


def _frozen_row(folder: Path, run: ListedRun, measure: str) -> list[str | Cell]:
    """Return the row of a run: name, objective, value, and difference from untrained weights."""
    reading = run.measured[measure]
    interval = difference_mean = difference_interval = listed.NONE
    if reading.interval:
        interval = f"{reading.interval.low:.2%} to {reading.interval.high:.2%}"
    for baseline in reading.comparisons:
        difference = baseline.difference
        if baseline.substitute == FRESH and difference:
            difference_mean = f"{100 * difference.mean:+.2f} points"
            difference_interval = f"{100 * difference.low:+.2f} to {100 * difference.high:+.2f}"
            break
    return [
        _run_cell(folder, run),
        COLUMNS["objective"].text(run),
        reading.row.text(reading.value, page=True),
        interval,
        difference_mean,
        difference_interval,
    ]


def _groups(folder: Path, runs: Sequence[ListedRun]) -> list[Section]:
    """Return a section for each group of comparable runs, the group with the newest run first."""

    def ended(run: ListedRun) -> float:
        return run.ended.timestamp() if run.ended else 0

    groups = listed.groups(sorted(runs, key=ended, reverse=True))
    return [Section(_title(group[0]), _table(folder, group)) for group in groups]


def _title(run: ListedRun) -> str:
    """Return the title of a group of runs. The number of images is in the group's table."""
    title = " on ".join(COLUMNS[key].text(run) for key in ("objective", "data"))
    return f"{title} at {run.record.values.get('data.size', listed.NONE)} px"


def _table(folder: Path, runs: Sequence[ListedRun]) -> list[Block]:
    """Return the table of a group of runs, below a line with all that the runs share."""
    columns, shared = page_columns(runs)
    rows: list[list[str | Cell]] = []
    for run in runs:
        rows.append([_run_cell(folder, run), *(column.text(run) for column in columns)])
    table = Table(["run", *(column.head for column in columns)], rows)
    if not shared:
        return [table]
    return [Text("; ".join(f"{name}: {value}" for name, value in shared.items())), table]
