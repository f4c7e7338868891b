"""Choose the next step after a study, which is the last line of the report.

The report of `study/worth` has a next step of its own (`answer.py`). This module does not import
torch.
"""

import shlex
from collections.abc import Sequence

from ..formatting import typed_command
from .compare import FEWEST
from .results import Results
from .study.tasks import weight_sources
from .study.worth.content import MOST_SEEDS
from .verdict import Verdict

CONTINUE = (
    "Wait until all tasks have finished. If the study is not running, continue the study: {command}"
)
TOO_FEW_SEEDS = "A claim needs {fewest} seeds. To add seeds to this study: {command}"
UNDECIDED = "No comparison is decided. To narrow the intervals, add seeds to this study: {command}"


def next_step(results: Results, verdict: Verdict) -> str:
    """Return what to do after a study, with a command, or an empty text.

    The first case that applies decides:

    - A task has no result: continue the study.
    - No comparison is decided, and the study has fewer than MOST_SEEDS seeds: add seeds.
    - The study file has a next step (`report.next`).
    """
    plan = results.plan
    if results.missing or results.untested:
        return CONTINUE.format(command=_study_command(results)) if plan.words else ""
    seeds: list[int] = plan.decides.get("seeds", [])
    differences = verdict.primary.differences
    is_decided = bool(verdict.primary.claimed)
    # `seeds=` on the command line does not change the seeds that the study file gives to a run
    seeds_of_runs = {
        key.split(".")[1]: value for key, value in plan.decides.items() if key.endswith(".seeds")
    }
    needed = {verdict.rule.test, *_runs_of_weights(results, verdict)}
    may_add_seeds = plan.words and not any(seeds_of_runs.get(run) for run in needed)
    if differences and not is_decided and 0 < len(seeds) < MOST_SEEDS and may_add_seeds:
        template, wanted = UNDECIDED, MOST_SEEDS
        if len(seeds) < FEWEST:
            template, wanted = TOO_FEW_SEEDS, FEWEST
        more = [*seeds, *range(max(seeds) + 1, max(seeds) + 1 + wanted - len(seeds))]
        return template.format(fewest=FEWEST, command=_study_command(results, more))
    stated = plan.report.get("next")
    if stated:
        words = shlex.split(stated["command"])
        return f"{stated['what']}: {typed_command(*words, folder=plan.typed_in)}"
    return ""


def _runs_of_weights(results: Results, verdict: Verdict) -> set[str]:
    """Return the names of the runs whose weights the compared runs start from."""
    tasks = results.plan.by_name
    compared = [task for task in tasks.values() if task.run == verdict.rule.test]
    return {tasks[name].run for task in compared for name in weight_sources(tasks, task.name)}


def _study_command(results: Results, seeds: Sequence[int] = ()) -> str:
    """Return the command that continues the study.

    Args:
        results: Results of the study.
        seeds: Seeds of the continued study. If empty, the seeds stay the same.
    """
    words = [*results.plan.words]
    if seeds:
        is_range = [*seeds] == [*range(len(seeds))]
        text = str(len(seeds)) if is_range else ",".join(map(str, seeds))
        words = [word for word in words if not word.startswith("seeds=")]
        words.append(f"seeds={text}")
    return typed_command("study", *words, folder=results.plan.typed_in)
