"""The lab's functions of `import ssl_vit`, with options as those of jobs/api.py. Torch is imported
when a function needs it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..recipe.tool import from_python, parse
from ..recipe.words import Options
from .options import PlanOptions, ReportOptions, RunsOptions
from .study.options import StudyOptions

if TYPE_CHECKING:
    from .estimate import RunEstimate
    from .report import Report
    from .report_pages import RunPages
    from .runs.tool import RunTable
    from .study.estimate import StudyEstimate
    from .study.tool import StudyOutcome


def study(options: Options = (), /, **keywords: Any) -> "StudyOutcome | StudyEstimate":
    """Run a study, that is all of its runs, or resume it: recipe="study/NAME" or a file; or what a
    file has as a mapping, study({"title": ..., "axes": ..., "runs": ...}, name="mine"). With
    sweep={key: [value, value]}, every combination of these values over an ordinary recipe.
    check=True starts none of them and returns what they would take.

    Raises:
        UserError: an option or the study is wrong; nothing was started.
        KeyboardInterrupt: Ctrl-C; its runs have stopped, and the same call resumes them.
    """
    from .study import tool

    content = options if isinstance(options, Mapping) and "runs" in options else None
    words = from_python(StudyOptions, () if content else options, keywords)
    if tool.CHECK not in words:
        return tool.study(words, content)
    estimate, kept = tool.check(words, content)
    print(kept)
    return estimate


def plan(options: Options = (), /, **keywords: Any) -> "RunEstimate | StudyEstimate":
    """Estimate what a run or a study costs before it runs; nothing is trained.

    Raises:
        UserError: an option is wrong.
    """
    from . import plan as tool

    return tool.plan(from_python(PlanOptions, options, keywords))


def report(options: Options = (), /, **keywords: Any) -> "RunPages | Report":
    """Write the page of a run, of a study or of a folder of runs: `report("runs")`.

    Raises:
        UserError: the folder holds none of these, or its runs are not those of its study.
    """
    from . import report_pages

    return report_pages.write(parse(ReportOptions, from_python(ReportOptions, options, keywords)))


def list_runs(options: Options = (), /, **keywords: Any) -> "RunTable":
    """List the runs in and below a folder (default: runs), rank them with `best=`, or remove
    checkpoints: as `ssl-vit runs`.

    Raises:
        UserError: an option is wrong, or there are no runs.
    """
    from .runs import tool

    return tool.table(parse(RunsOptions, from_python(RunsOptions, options, keywords)))
