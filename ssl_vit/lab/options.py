"""The options of the report tool, and what its --help says. No torch here."""

from dataclasses import dataclass
from pathlib import Path

from ..config.fields import WORD
from ..config.tool_options import ToolOptions
from ..config.tools import json_flag, path


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ToolOptions):
    summary = "write the page of a run, a study or a folder of runs"
    command = "lab.report_pages:main"
    purpose = (
        "Write pages that need no other file: of a run its report.html, of a folder of runs the"
        " index.html that compares them, of a study its report.html, and for papers report.md,"
        " tables.tex (booktabs), results.csv (a row for each metric of each run), differences.csv"
        " (a row for each pair) and figures/study.svg."
    )
    examples = (
        "python tools/report.py runs/mpp",
        "python tools/report.py runs/gap --json",
        "python tools/report.py runs",
    )
    positional = "folder"
    command_line_only = ("json",)
    folder: Path = path(
        "The folder of a run (also one that goes on or was cut off), of a study or of runs.",
        form=WORD,
    )
    json: bool = json_flag()
