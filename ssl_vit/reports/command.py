"""The command line of the report tool."""

import json

from .. import reports
from ..config.parsing import parse_path
from ..errors import UserError


def main(options: list[str]) -> None:
    """Write report.md and report.html of one study's folder; print the answer.

    Raises:
        UserError: not one folder, or it holds no study.
    """
    folders = [option for option in options if option != "--json"]
    if len(folders) != 1 or folders[0].startswith("-"):
        given = " ".join(options) or "nothing"
        raise UserError(f"{given}: expected one study's folder and optionally --json: runs/gap")
    folder = parse_path(folders[0], "folder")
    found = reports.write(folder)
    print(found.answer)
    print(f"report      {folder / 'report.html'}, {folder / 'report.md'}")
    if "--json" in options:
        print(json.dumps(reports.plain(found)))
