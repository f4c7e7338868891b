"""Run the report tool, which writes the page of a run, of a study or of a folder of runs."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..formatting import format_count, text_line
from ..pages import run_page, run_wording
from ..pages.run_page import INDEX, PAGE
from ..pages.run_record import RunRecord, is_run
from ..recipe.given import Arguments
from ..recipe.tool import parse
from ..runs import notebook
from ..runs.shared import is_task
from ..stats import as_json
from .options import ReportOptions, show
from .runs import index
from .study import record

if TYPE_CHECKING:
    from .report import Report


@dataclass(frozen=True)
class RunPages:
    """Page about a run or a folder of runs. A notebook shows the page.

    Attributes:
        page: HTML file, which needs no other file.
        runs: The run, or the runs in the folder. Each run has the `values` of its recipe, its
            `state`, `metrics()` and `rows`.
    """

    page: Path
    runs: list[RunRecord]

    def content(self) -> dict[str, Any]:
        """Return the dictionary that `--json` prints."""
        runs = [_summary(run) for run in self.runs]
        return {"runs": runs} if self.page.name == INDEX else runs[0]

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command line prints."""
        if self.page.name == INDEX:
            yield f"runs        {self.page}: {format_count(len(self.runs), 'runs')}"
        else:
            # keep control characters in names away from the terminal
            yield from map(text_line, run_wording.sentences(self.runs[0]))
            yield from map(text_line, run_wording.table_lines(self.runs[0]))
            yield f"report      {self.page}"

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return notebook.inline_page(self.page.read_text())


def main(arguments: list[str]) -> None:
    """Write the page that the command line asks for, and print a summary.

    Args:
        arguments: Options of the report tool.

    Raises:
        UserError: An option is wrong, or `write` refuses the folder.
    """
    options = parse(ReportOptions, Arguments(arguments))
    show(write(options), options.as_json)


def write(options: ReportOptions) -> "RunPages | Report":
    """Write the page of a run, the report of a study or the index of a folder of runs.

    Raises:
        UserError: The path is not a folder, the folder holds no runs, or `report.write` refuses the
            study.
    """
    folder = options.folder
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such folder. Name the folder of a run, of a study or of several runs."
        )
    try:
        if (folder / record.FILE).exists():  # only a study has the file study.json
            # A study without runs has no index. The report then raises a more precise error
            with suppress(UserError):
                index.write(folder)
            from . import report  # imports pandas, which is slow and only needed here

            return report.write(folder)
        if is_run(folder):
            return RunPages(folder / PAGE, [_write_run(folder)])
        return RunPages(folder / INDEX, index.write(folder))
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None


def _write_run(folder: Path) -> RunRecord:
    """Write the page of a run and return the content of the run's folder.

    The page shows a figure of the predictions. Most runs have drawn the figure when they finished.
    A run of a study has not, because a study can have many runs, so its figure is drawn here.
    """
    if is_task(folder):
        try:
            from ..jobs import draw_figures  # imports torch

            draw_figures.draw_predictions(folder)
        except UserError as error:  # the page then lacks only this figure
            print(f"warning: the predictions of the run were not drawn: {error}", file=sys.stderr)
    return run_page.write(folder)


def _summary(run: RunRecord) -> dict[str, Any]:
    """Return the content of a run for `--json`."""
    summary = {
        "folder": str(run.folder),
        "state": run.state,
        "step": run.step,
        "steps": run.steps,
        "metrics": {name: measured.content() for name, measured in run.metrics().items()},
        "seen": [images.content() for images in run.seen],
        "warnings": [*run.problems, *run.warnings],
        "not_finite": run.not_finite,
    }
    return dict(as_json(summary))
