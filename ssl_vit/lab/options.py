"""Define the options and help texts of the tools plan, report and runs, without importing torch."""

import json
from pathlib import Path
from typing import Any, Literal

from ..recipe.keys import WORD, key
from ..recipe.tool import ALSO, ToolOptions
from ..recipe.tools import flag, json_flag


class PlanOptions(ToolOptions):
    """Estimate what a run or a study costs before it runs: work, memory, time, price, disk.

    Examples:
        python tools/plan.py recipe=paper/mpp_b16_imagenet device=h100 processes=8 price=2.5
        python tools/plan.py recipe=mpp --probe
        python tools/plan.py recipe=study/gap device=h100

    Attributes:
        device: The device, as in device=h100; an unknown name lists them.
        processes: Devices that train a run together; not of a study.
        price: Price of a device-hour, in any currency.
        efficiency: Share of the device's peak that training reaches.
        epochs: In place of optim.steps.
        images: Training images, in place of those that are here or were published.
        probe: Measure the first steps on this machine.
    """

    summary = "estimate time, memory and price of a run or a study"
    command = "lab.plan:main"
    recipes = ALSO
    command_line_only = ("json",)
    device: str | None = key(None, metavar="NAME")
    processes: int = key(1, ge=1, le=2**40)
    price: float | None = key(None, ge=0, lt=1e12, metavar="NUMBER")
    efficiency: float = key(0.4, gt=0, le=1)
    epochs: float | None = key(None, gt=0, lt=1e9, metavar="NUMBER")
    images: int | None = key(None, ge=1, le=2**50, metavar="N")
    probe: bool = flag()
    as_json: bool = json_flag()


class ReportOptions(ToolOptions):
    """Write pages that need no other file: of a run its report.html, of a folder of runs the
    index.html that compares them, of a study its report.html, and for papers report.md, tables.tex
    (booktabs), results.csv (a row for each metric of each run), differences.csv (a row for each
    pair) and figures/study.svg.

    Examples:
        python tools/report.py runs/mpp
        python tools/report.py runs/gap --json
        python tools/report.py runs

    Attributes:
        folder: The folder of a run (also one that goes on or was cut off), of a study or of runs.
    """

    summary = "write the page of a run, a study or a folder of runs"
    command = "lab.report_pages:main"
    positional = "folder"
    command_line_only = ("json",)
    folder: Path = key(..., form=WORD, metavar="FOLDER")
    as_json: bool = json_flag()


class RunsOptions(ToolOptions):
    """List all runs in and below a folder, one a line, the newest first: state, metrics, cost, disk
    use and what differs between their recipes; rank them; remove the checkpoints of finished runs.

    Examples:
        python tools/runs.py
        python tools/runs.py runs sort=disk
        python tools/runs.py runs/gap best=top1
        python tools/runs.py runs clean=checkpoints

    Attributes:
        folder: The folder with runs and studies; default: runs.
        sort: The column that they are sorted by; ended: the newest first; sort=-KEY: the other way
            round.
        best: Rank finished runs by a metric, in groups of the same images and objective.
        clean: Remove the checkpoints of finished runs. Runs that have not finished, are being
            written, or have no intact export or pending pushes keep theirs.
    """

    summary = "list the runs of a folder, rank them, remove their checkpoints"
    command = "lab.runs.tool:main"
    positional = "folder"
    command_line_only = ("json",)
    folder: Path = key(Path("runs"), form=WORD, metavar="FOLDER")
    sort: str = key("ended", metavar="KEY")
    best: str | None = key(None, metavar="METRIC")
    clean: Literal["checkpoints"] | None = key(None, metavar="NAME")
    as_json: bool = json_flag()


def show(result: Any, as_json: bool) -> None:
    """Print the result of a tool and, with `--json`, the result's `content()` on a line."""
    print(result)
    if as_json:
        print(json.dumps(result.content()))
