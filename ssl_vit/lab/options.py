"""Define the options and help texts of the tools plan, report and runs, without importing torch."""

import json
from pathlib import Path
from typing import Any, Literal

from ..recipe.keys import WORD, key
from ..recipe.tool import TAKES_ALL_KEYS, ToolOptions
from ..recipe.tools import flag, json_flag


class PlanOptions(ToolOptions):
    """Estimate in advance what a run or a study costs: work, memory, time, price and disk space.

    Examples:
        ssl-vit plan recipe=paper/mpp_b16_imagenet device=h100 processes=8 price=2.5
        ssl-vit plan recipe=mpp --probe
        ssl-vit plan recipe=study/gap device=h100

    Attributes:
        device: Device to plan for, such as device=h100. Without device=, plan lists all names.
        processes: Devices that train a run together. Not for studies.
        price: Price of a device-hour, in any currency.
        efficiency: Share of the device's peak speed that training reaches.
        epochs: Epochs of training, instead of optim.steps.
        images: Number of training images, instead of the counted or published number.
        probe: Measure the first steps on this machine.
    """

    summary = "estimate time, memory and price of a run or a study"
    command = "lab.plan:main"
    recipes = TAKES_ALL_KEYS
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
    """Write the page of a run or of a study. A run gets report.html. A study gets report.html and,
    for papers, report.md, tables.tex (booktabs), results.csv (a row for each metric of each run),
    differences.csv (a row for each pair) and figures/study.svg. The pages need no other files.

    Examples:
        ssl-vit report runs/mpp
        ssl-vit report runs/gap tables=all

    Attributes:
        folder: Folder of a run (finished or not) or of a study.
        tables: Tables of a study in tables.tex. means: one table with the mean and the interval of
            each measure of the compared runs. all: every other table of the report too.
    """

    summary = "write the page of a run or a study"
    command = "lab.report_pages:main"
    positional = "folder"
    command_line_only = ("json",)
    folder: Path = key(..., form=WORD, metavar="FOLDER")
    tables: Literal["means", "all"] = key("means")
    as_json: bool = json_flag()


class RunsOptions(ToolOptions):
    """List all runs in and below a folder, the newest run first. The list shows the state, the
    metrics, the cost and the disk use of each run, and the options in which the recipes differ.
    With best=METRIC, rank the runs by a metric instead.

    Examples:
        ssl-vit runs
        ssl-vit runs runs sort=disk
        ssl-vit runs runs/gap best=top1

    Attributes:
        folder: Folder with runs and studies. Default: runs.
        sort: Column to sort by. With sort=ended the newest run comes first. A minus reverses the
            order: sort=-ended.
        best: Rank finished runs by a metric, in groups of the same images and objective.
    """

    summary = "list or rank the runs of a folder"
    command = "lab.runs.tool:main"
    positional = "folder"
    command_line_only = ("json",)
    folder: Path = key(Path("runs"), form=WORD, metavar="FOLDER")
    sort: str = key("ended", metavar="KEY")
    best: str | None = key(None, metavar="METRIC")
    as_json: bool = json_flag()


def show(result: Any, as_json: bool) -> None:
    """Print the result of a tool and, with `--json`, the result's `content()` on a line."""
    print(result)
    if as_json:
        print(json.dumps(result.content()))
