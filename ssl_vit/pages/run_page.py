"""The page of one run. No torch here."""

from pathlib import Path

from ..runs.files import write_atomically
from . import blocks, run_sections
from .run_record import RunRecord, read_run

PAGE = "report.html"
INDEX = "index.html"


def write(folder: Path) -> RunRecord:
    """Write report.html into a run's folder, from what is there of it.

    Raises:
        OSError: it cannot be written.
    """
    record = read_run(folder)
    above = f"../{INDEX}" if (folder.parent / INDEX).exists() else ""
    write_atomically(folder / PAGE, render(record, above))
    return record


def render(record: RunRecord, above: str = "") -> str:
    """The page as text; `above` as blocks.html."""
    return blocks.html(record.name, run_sections.build(record), above)
