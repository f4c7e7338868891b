"""The gap study, shortened, twice: in peace, then killed at random moments and started again. Both
must give the same tables.

    python robustness/same_tables.py kills=5 out=FOLDER
    python robustness/same_tables.py kills=0 recipe=study/NAME PLACE=IMAGES out=FOLDER

With `recipe=` another study and its options. The tables are the report's without what a clock
says (hours). SIGKILL goes to the study alone, whose runs end with it.
"""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHORT = (
    "recipe=study/gap",
    "seeds=2",
    "optim.steps=40",
    "optim.warmup=4",
    "checkpoint.every=10",
    "eval.every=40",
    "probe.steps=50",
    "parallel=2",
)
OWN = ("kills", "out", "seed")


def study(options: list[str], out: Path, name: str) -> subprocess.Popen:
    with (out / f"{name}.txt").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "tools/study.py", *options, f"out={out}", f"name={name}"],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )


def tables(folder: Path) -> list[str]:
    """The report's lines without its columns of hours, and without the folder's name."""
    subprocess.run(
        [sys.executable, "tools/report.py", str(folder)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    lines = (folder / "report.md").read_text().replace(folder.name, "NAME").splitlines()
    clock = re.compile(r"\d+ (s|min)\b|finished between")
    return _without_hours([line for line in lines if not clock.search(line)])


def _without_hours(lines: list[str]) -> list[str]:
    """The lines of a report without the columns whose heading names hours."""
    kept = []
    clocks: list[int] = []  # columns of the present table
    table = False
    for line in lines:
        cells = line.split("|")
        if not line.startswith("|"):
            clocks = []
        elif not table:  # a table's first line
            clocks = [i for i, cell in enumerate(cells) if "hour" in cell]
        table = line.startswith("|")
        kept.append("|".join(cell for i, cell in enumerate(cells) if i not in clocks))
    return kept


def main() -> None:
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    kills = int(given.get("kills", 5))
    out = Path(given.get("out", "runs/same_tables")).resolve()
    options = [f"{key}={value}" for key, value in given.items() if key not in OWN]
    if "recipe" not in given:
        options = [*SHORT, *options]
    out.mkdir(parents=True)
    random.seed(int(given.get("seed", 0)))
    assert study(options, out, "whole").wait() == 0, (out / "whole.txt").read_text()[-2000:]
    for _ in range(kills):
        process = study(options, out, "killed")
        time.sleep(20 + 30 * random.random())
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert study(options, out, "killed").wait() == 0, (out / "killed.txt").read_text()[-2000:]
    one, other = tables(out / "whole"), tables(out / "killed")
    again = sum(
        "resumed after step" in log.read_text() for log in (out / "killed" / "logs").glob("*.txt")
    )
    differ = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    print(
        json.dumps(
            {
                "kills": kills,
                "runs gone on with": again,
                "lines": len(one),
                "lines that differ": differ,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
