"""The command line of the report tool."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from ..config.tool_options import parse
from ..errors import UserError
from ..formatting import text_line
from ..pages import run_page, run_wording
from ..pages.run_page import INDEX, PAGE
from ..pages.run_record import RunRecord, is_run
from . import reports, serve
from .lab_tools import ReportOptions
from .run_table import index_page


def main(arguments: list[str]) -> None:
    """Write the page of a run, the report of a study or the index of a folder of runs, or serve
    them while they are written.

    Raises:
        UserError: not one folder, or it holds none of these.
    """
    options = parse(ReportOptions, arguments)
    folder = options.folder
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected one of a run, a study or runs")
    if options.serve:
        serve.serve(folder, options.host, options.port)
        return
    try:
        pairs = [options.pairs] if options.pairs else []
        record = _write(folder, pairs, options.format)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None
    if options.json:
        print(json.dumps(record))


def _write(folder: Path, pairs: list[str], form: str | None) -> dict[str, Any]:
    """Write and print what the folder is worth; the same for --json."""
    for key, value in (("pairs", ",".join(pairs)), ("format", form)):
        if value and not (folder / "study.json").exists():
            raise UserError(f"{key}={value}: is for a study; {folder} has no study.json")
    if (folder / "study.json").exists():
        with suppress(UserError):  # without runs; the report says more of it
            index_page.write(folder)
        found = reports.write(folder, pairs)
        print(found.answer)
        print(f"report      {folder / PAGE}, {folder / 'report.md'}")
        print(f"runs        {folder / INDEX}")
        for file in reports.export(folder, form, pairs) if form else ():
            print(f"{form:<11} {file}")
        return found.content()
    if is_run(folder):
        record = run_page.write(folder)
        for sentence in run_wording.sentences(record):
            print(text_line(sentence))  # no control character of a name reaches the terminal
        print(f"report      {folder / PAGE}")
        return _summary(record)
    records = index_page.write(folder)
    print(f"runs        {folder / INDEX}: {len(records):,} runs")
    return {"runs": [_summary(record) for record in records]}


def _summary(record: RunRecord) -> dict[str, Any]:
    """A run for --json."""
    found = {
        "folder": str(record.folder),
        "state": record.state,
        "step": record.step,
        "steps": record.steps,
        "metrics": {name: one.content() for name, one in record.metrics().items()},
        "warnings": [*record.problems, *record.warnings],
        "not_finite": record.not_finite,
    }
    return cast(dict[str, Any], reports.plain(found))
