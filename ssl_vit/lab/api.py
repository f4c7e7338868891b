"""Define the lab's functions of `import ssl_vit`, with options like the functions of jobs/api.py.

Torch is imported when a function needs it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..jobs.api import place_images
from ..recipe.given import Options, python_arguments
from ..recipe.tool import from_python
from .options import ReportOptions, RunsOptions

if TYPE_CHECKING:
    from .estimate import RunEstimate
    from .report import Report
    from .report_pages import RunPage
    from .runs.tool import RunTable
    from .study.estimate import StudyEstimate
    from .study.tool import StudyOutcome


def study(
    options: Options = (), /, *, images: Any = None, **keywords: Any
) -> "StudyOutcome | StudyEstimate":
    """Run or resume a study.

    `recipe=` names a study that comes with ssl_vit ("study/gap") or a YAML file. A study can also
    be a mapping: `study({"title": ..., "axes": ..., "runs": ...}, name="mine")`. With an ordinary
    recipe and `sweep={key: [value, value]}`, the function runs each combination of the values. With
    `check=True`, the function starts no run. It prints how many tasks have finished, and returns an
    estimate of the cost.

    Args:
        options: Options, or a study as a mapping.
        images: Images as for `pretrain`, or their path. They are written once into the folder
            `out=`, which the commands of the study's runs name. The images are the study's place
            `images`, if it has one, or else `data.path`.
        keywords: More options.

    Raises:
        UserError: An option or the study is wrong. Nothing was started.
        KeyboardInterrupt: The user pressed Ctrl-C. All runs have stopped, and the same call resumes
            them.
    """
    from .study import request, tool

    content = options if isinstance(options, Mapping) and "runs" in options else None
    arguments = python_arguments(() if content else options, keywords)
    if images is not None:
        key = "images" if "images" in request.places(arguments, content) else "data.path"
        path = place_images(() if content else options, keywords, images)["data.path"]
        arguments = python_arguments(() if content else options, {**keywords, key: path})
    if not tool.is_check(arguments):
        return tool.study(arguments, content)
    estimate, line_about_finished_tasks = tool.check(arguments, content)
    print(line_about_finished_tasks)  # the estimate is about all tasks, finished or not
    return estimate


def plan(options: Options = (), /, **keywords: Any) -> "RunEstimate | StudyEstimate":
    """Estimate the cost of a run or a study in advance. Nothing is trained.

    Raises:
        UserError: An option is wrong.
    """
    from . import plan as tool

    return tool.plan(python_arguments(options, keywords))


def report(options: Options = (), /, **keywords: Any) -> "RunPage | Report":
    """Write the page of a run or of a study: `report("runs/gap")`.

    With `tables="all"`, tables.tex has every table of a study's report. Otherwise tables.tex has
    only the table of means.

    Raises:
        UserError: The folder is neither a run nor a study, or a file in the folder is damaged.
    """
    from . import report_pages

    return report_pages.write(from_python(ReportOptions, options, keywords))


def list_runs(options: Options = (), /, **keywords: Any) -> "RunTable":
    """List the runs in and below a folder (default: `runs`), like `ssl-vit runs`.

    With `best=METRIC`, such as `best="knn"`, the runs are ranked by this metric.

    Raises:
        UserError: An option is wrong, or there are no runs.
    """
    from .runs import tool

    return tool.table(from_python(RunsOptions, options, keywords))
