"""Tell what a study found: its runs' numbers as report.md and one self-contained report.html in its
folder.

python tools/report.py runs/gap
python tools/report.py runs/gap --json
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit import errors, reports
from ssl_vit.config.parsing import parse_path
from ssl_vit.errors import UserError, report_errors


def main(words: list[str]) -> None:
    with report_errors():
        folders = [word for word in words if word != "--json"]
        if len(folders) != 1 or folders[0].startswith("-"):
            raise UserError(
                f"{' '.join(words) or 'nothing'} is said; say one study's folder, and --json: tools/report.py runs/gap"
            )
        folder = parse_path(folders[0], "folder")
        found = reports.write(folder)
        print(found.answer)
        print(f"report      {folder / 'report.html'}, {folder / 'report.md'}")
        if "--json" in words:
            print(json.dumps(reports.plain(found)))


if __name__ == "__main__":
    errors.guard_streams()
    main(sys.argv[1:])
