"""Run the report tool, which writes the page of a run or of a study."""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..formatting import visible_text
from ..pages import run_page, run_wording
from ..pages.run_page import PAGE
from ..pages.run_record import RunRecord, is_run
from ..recipe.given import Arguments
from ..recipe.tool import parse
from ..runs import notebook
from ..runs.shared import is_task
from ..stats import as_json
from .options import ReportOptions, show
from .study import record

if TYPE_CHECKING:
    from .report import Report


@dataclass(frozen=True)
class RunPage:
    """Page about a run. A notebook shows the page.

    Attributes:
        page: HTML file, which needs no other file.
        run: Content of the run's folder: the `values` of its recipe, its `state`, `measurements()`
            and `rows`.
    """

    page: Path
    run: RunRecord

    def content(self) -> dict[str, Any]:
        """Return the dictionary that `--json` prints."""
        return _summary(self.run)

    def lines(self) -> Iterator[str]:
        """Yield the lines that the command line prints."""
        lines = [
            run_wording.describe_run(self.run),
            run_wording.describe_progress(self.run),
            *run_wording.table_lines(self.run),
            run_wording.describe_result(self.run),
        ]
        # keep control characters in names away from the terminal
        yield from map(visible_text, filter(None, lines))
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


def write(options: ReportOptions) -> "RunPage | Report":
    """Write the page of a run or the report of a study.

    Raises:
        UserError: The path is not the folder of a run or a study, or `report.write` refuses the
            study.
    """
    folder = options.folder
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Name the folder of a run or of a study.")
    try:
        if (folder / record.FILE).exists():  # only a study has the file study.json
            from . import report  # imports pandas, which is slow and only needed here

            return report.write(folder, options.tables == "all")
        if is_run(folder):
            return RunPage(folder / PAGE, _write_run(folder))
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None
    raise UserError(
        f"{folder}: neither a run nor a study. Name the folder of a run or of a study, or list the"
        f" runs of the folder: ssl-vit runs {shlex.quote(str(folder))}"
    )


def _write_run(folder: Path) -> RunRecord:
    """Write the page of a run and return the content of the run's folder.

    The page shows a figure of the predictions. Most runs draw this figure when they finish. A run
    of a study does not, because a study can have many runs. Its figure is drawn here.
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
        "measurements": [measurement.content() for measurement in run.measurements()],
        "seen": [images.content() for images in run.seen],
        "warnings": [*run.problems, *run.warnings],
        "not_finite": run.not_finite,
    }
    return dict(as_json(summary))
