"""A study whose arms are a benchmark's tasks, each with images of its own: `benchmark: vtab`.

In options {task} stands for the task and {classes} for the number of its classes, both of the
benchmark's table.
"""

import re
from collections.abc import Callable
from typing import Any

from ...config.parsing import flatten
from ...errors import suggest
from ...evaluation import vtab, vtab_folder
from ...formatting import option_text
from . import scaling
from .spec_fields import hold, replace

# benchmark -> its table: {task: row}
BENCHMARKS: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {"vtab": vtab.tasks}
OWN = re.compile(r"\{(task|classes)\}")
ALONE = ("arms", "vary", "match", *scaling.CURVES)  # keys of a study that name or change arms
PATH = "data.path"


def expand(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """A study's mapping with the benchmark's tasks as its arms.

    Raises:
        UserError: the benchmark is unknown, or the study names arms of its own.
    """
    name = raw.get("benchmark")
    if name is None:
        return raw
    choices = suggest(str(name), BENCHMARKS)
    hold(name in BENCHMARKS, where, f"benchmark={name}: unknown; {choices}")
    for key in ALONE:
        hold(key not in raw, where, f"{key}: the arms are the tasks of {name}; leave it out")
    report = raw.get("report")
    only = isinstance(report, dict) and report.keys() <= {"final", "differs"} and "final" in report
    hold(only, where, f"report: of {name} expected final and perhaps differs, as tasks differ")
    rows = BENCHMARKS[name]()
    arms = {task: f"{row['group']}, {row['classes']} classes" for task, row in rows.items()}
    return raw | {"arms": arms}


def options_by_task(body: Any, benchmark: str | None, where: str) -> Any:
    """A part with the options in which {task} or {classes} stands written out for each task.

    Raises:
        UserError: the part's tasks would have the same images, or it names arms.
    """
    if benchmark is None or not isinstance(body, dict):
        return body
    options = body.get("options")
    hold(isinstance(options, dict) and "by_arm" not in body, where, "expected options, no by_arm")
    own = {key: value for key, value in flatten(options).items() if OWN.search(str(value))}
    ends = tuple(f"/{{task}}/{name}" for name in vtab_folder.SIZES)
    path = str(own.get(PATH))
    hold(
        path.endswith(ends), where, f"{PATH}={path}: expected one that ends in {' or '.join(ends)}"
    )
    by_arm = {
        task: replace(own, {"task": task, "classes": option_text(row["classes"])})
        for task, row in BENCHMARKS[benchmark]().items()
    }
    return body | {"by_arm": by_arm}
