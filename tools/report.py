"""Tell what a study found: its runs' numbers as report.md and one self-contained report.html in its folder.

python tools/report.py runs/gap
python tools/report.py runs/gap --json
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ssl_vit import report, streams
from ssl_vit.files import place
from ssl_vit.recipe import UserError, plain_errors


def main(words: list[str]) -> None:
    with plain_errors():
        folders = [word for word in words if word != "--json"]
        if len(folders) != 1 or folders[0].startswith("-"):
            raise UserError(
                f"{' '.join(words) or 'nothing'} is said; say one study's folder, and --json: tools/report.py runs/gap"
            )
        folder = place(folders[0], "folder")
        found = report.write(folder)
        print(found.answer)
        print(f"report      {folder / 'report.html'}, {folder / 'report.md'}")
        if "--json" in words:
            print(json.dumps(report.plain(found)))


if __name__ == "__main__":
    streams.prepare()
    main(sys.argv[1:])
