"""The report tool: the page of a run, of a study or of a folder of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..config.tool_options import parse, read_list
from ..errors import UserError
from ..formatting import text_line
from ..pages import run_page, run_wording
from ..pages.run_page import INDEX, PAGE
from ..pages.run_record import RunRecord, is_run
from ..runs import notebook
from ..stats import as_json
from . import reports
from .lab_tools import ReportOptions
from .reports import asked_pairs
from .run_table import index_page


@dataclass(frozen=True)
class WrittenPage:
    """A page that was written of what is in a folder. In a notebook it shows the page.

    Attributes:
        folder: of a run, of a study or with runs.
        page: the page, an HTML file that needs no other.
        runs: of a run itself, of a folder its runs: `values` of the recipe, `state`, `metrics()`,
            `rows`; empty of a study.
        study: of a study: `answer`, a few sentences, `numbers` and `table`, a pandas DataFrame with
            a row for each metric of each run; else None.
        exported: of a study: {one of format=: its files}.
        kept_pairs: of a study: pairs that an earlier call asked for, which it is about too.
    """

    folder: Path
    page: Path
    runs: list[RunRecord]
    study: reports.Report | None = None
    exported: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    kept_pairs: Sequence[str] = ()

    def content(self) -> dict[str, Any]:
        """A dictionary, as --json prints it."""
        if self.study is not None:
            return self.study.content()
        runs = [_summary(record) for record in self.runs]
        return {"runs": runs} if self.page.name == INDEX else runs[0]

    def lines(self) -> Iterator[str]:
        """What the command line prints of it."""
        if self.study is not None:
            yield self.study.answer
            if self.kept_pairs:
                pairs = text_line(",".join(self.kept_pairs))
                yield f"pairs       {pairs}, as asked for last; `pairs=` leaves them out"
            yield f"report      {self.page}, {self.folder / 'report.md'}"
            yield f"runs        {self.folder / INDEX}"
            for form, files in self.exported.items():
                yield from (f"{form:<11} {file}" for file in files)
        elif self.page.name == INDEX:
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
    written = write(options)
    print(written)
    if options.json:
        print(json.dumps(written.content()))


def write(options: ReportOptions) -> WrittenPage:
    """Write the page of a run, the report of a study or the index of a folder of runs.

    Raises:
        UserError: not one folder, or it holds none of these.
    """
    folder = options.folder
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one of a run, a study or runs")
    is_study = (folder / "study.json").exists()
    for key, text in (("pairs", options.pairs), ("format", ",".join(options.format or ()))):
        if text and not is_study:
            raise UserError(f"{key}={text}: is for a study; {folder} has no study.json")
    try:
        if is_study:
            return _of_study(folder, options.pairs, options.format or ())
        if is_run(folder):
            return WrittenPage(folder, folder / PAGE, [run_page.write(folder)])
        return WrittenPage(folder, folder / INDEX, index_page.write(folder))
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None


def _of_study(folder: Path, given: str | None, forms: Sequence[str]) -> WrittenPage:
    """`given` are the pairs; without, those that were asked for last."""
    if given is None:
        pairs = asked_pairs.last(folder)
    else:
        pairs = read_list("pairs", given) if given.startswith("[") else [given] if given else []
    with suppress(UserError):  # without runs; the report says more of it
        index_page.write(folder)
    found = reports.write(folder, pairs)
    exported = reports.export(folder, forms, pairs) if forms else {}
    if given is not None:
        asked_pairs.remember(folder, pairs)
    kept = pairs if given is None else ()
    return WrittenPage(folder, folder / PAGE, [], found, exported, kept)


def _summary(record: RunRecord) -> dict[str, Any]:
    """A run for --json."""
    found = {
        "folder": str(record.folder),
        "state": record.state,
        "step": record.step,
        "steps": record.steps,
        "metrics": {name: one.content() for name, one in record.metrics().items()},
        "seen": [one.content() for one in record.environment.seen or ()],
        "warnings": [*record.problems, *record.warnings],
        "not_finite": record.not_finite,
    }
    return cast(dict[str, Any], as_json(found))
