"""The commands of a Markdown file, one to a line: `python tests/helpers/commands.py README.md`."""

import sys
from collections.abc import Iterator
from pathlib import Path


def commands(text: str) -> Iterator[str]:
    """Lines of ```bash blocks, continued lines joined, comments left out."""
    inside, held = False, ""
    for line in text.splitlines():
        if line.startswith("```"):
            inside = line.strip() == "```bash"
        elif inside and line.strip() and not line.startswith("#"):
            held += line.strip()
            if held.endswith("\\"):
                held = held[:-1]
            else:
                yield held
                held = ""


if __name__ == "__main__":
    print(*commands(Path(sys.argv[1]).read_text()), sep="\n")
