"""The report tool: the page of a run, of a study or of a folder of runs."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..formatting import text_line
from ..pages import run_page, run_wording
from ..pages.run_page import INDEX, PAGE
from ..pages.run_record import RunRecord, is_run
from ..recipe.tool import parse
from ..runs import notebook
from ..runs.shared import is_task
from ..stats import as_json
from . import engine
from .options import ReportOptions, show
from .runs import index
from .study import record

if TYPE_CHECKING:
    from .report import Report


@dataclass(frozen=True)
class RunPages:
    """A page that was written of runs. In a notebook it shows the page.

    Attributes:
        page: of a run or of a folder of runs, an HTML file that needs no other.
        runs: the run itself, or those in the folder: `values` of the recipe, `state`, `metrics()`,
            `rows`.
    """

    page: Path
    runs: list[RunRecord]

    def content(self) -> dict[str, Any]:
        """A dictionary, as --json prints it."""
        runs = [_summary(one) for one in self.runs]
        return {"runs": runs} if self.page.name == INDEX else runs[0]

    def lines(self) -> Iterator[str]:
        """What the command line prints of it."""
        if self.page.name == INDEX:
            yield f"runs        {self.page}: {len(self.runs):,} runs"
        else:
            # no control character of a name reaches the terminal
            yield from map(text_line, run_wording.sentences(self.runs[0]))
            yield f"report      {self.page}"

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return notebook.inline_page(self.page.read_text())


def main(arguments: list[str]) -> None:
    """Write the page of what the folder holds.

    Raises:
        UserError: as `parse` and `write`.
    """
    options = parse(ReportOptions, arguments)
    show(write(options), options.as_json)


def write(options: ReportOptions) -> "RunPages | Report":
    """Write the page of a run, the report of a study or the index of a folder of runs.

    Raises:
        UserError: not one folder, or it holds none of these; as `report.write`.
    """
    folder = options.folder
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one of a run, a study or runs")
    try:
        if (folder / record.FILE).exists():
            with suppress(UserError):  # without runs; the report says more of it
                index.write(folder)
            from . import report  # pandas, which nothing else here waits for

            return report.write(folder)
        if is_run(folder):
            return RunPages(folder / PAGE, [_write_run(folder)])
        return RunPages(folder / INDEX, index.write(folder))
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None


def _write_run(folder: Path) -> RunRecord:
    """Write the page of a run, and before it the figure that a task of a study leaves out."""
    if is_task(folder):
        try:
            engine.draw_predictions(folder)
        except UserError as error:  # the page has the rest
            print(f"warning: no figure of the run's predictions: {error}", file=sys.stderr)
    return run_page.write(folder)


def _summary(run: RunRecord) -> dict[str, Any]:
    """A run for --json."""
    found = {
        "folder": str(run.folder),
        "state": run.state,
        "step": run.step,
        "steps": run.steps,
        "metrics": {name: one.content() for name, one in run.metrics().items()},
        "seen": [one.content() for one in run.seen],
        "warnings": [*run.problems, *run.warnings],
        "not_finite": run.not_finite,
    }
    return dict(as_json(found))
