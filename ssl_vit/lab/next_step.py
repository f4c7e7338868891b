"""Choose the next step after a study, which is the last line of the report.

The report of `study/worth` has a next step of its own (`answer.py`). This module does not import
torch.
"""

import shlex
from collections.abc import Sequence

from ..formatting import typed_command
from ..recipe.words import write_all
from .compare import FEWEST
from .results import Results
from .study import launch
from .study.tasks import weight_sources
from .study.worth.content import MOST_SEEDS
from .verdict import Verdict

CONTINUE = (
    "Wait until all tasks have finished. If the study is not running, continue the study: {command}"
)
TOO_FEW_SEEDS = "A claim needs {fewest} seeds. To add seeds to this study: {command}"
UNDECIDED = "No comparison is decided. To narrow the intervals, add seeds to this study: {command}"
LONGER = "To pre-train twice as long with {setting}, which has the {best} mean {measure}: {command}"


def next_step(results: Results, verdict: Verdict) -> str:
    """Return what to do after a study, with a command, or an empty text.

    The first case that applies decides:

    - A task has no result: continue the study.
    - No comparison is decided, and the study has fewer than MOST_SEEDS seeds: add seeds.
    - The study file has a next step (`report.next`).
    - The best of the compared arms was pre-trained in the study: pre-train it longer.
    """
    plan = results.plan
    if results.missing or results.untested:
        return CONTINUE.format(command=_study_command(results)) if plan.words else ""
    seeds: list[int] = plan.decides.get("seeds", [])
    differences = verdict.primary.differences
    is_decided = any(difference.claimed for difference in differences)
    # `seeds=` on the command line does not change the seeds that the study file gives to a run
    may_add_seeds = plan.words and not plan.decides.get(f"runs.{verdict.rule.test}.seeds")
    if differences and not is_decided and 0 < len(seeds) < MOST_SEEDS and may_add_seeds:
        template, wanted = UNDECIDED, MOST_SEEDS
        if len(seeds) < FEWEST:
            template, wanted = TOO_FEW_SEEDS, FEWEST
        more = [*seeds, *range(max(seeds) + 1, max(seeds) + 1 + wanted - len(seeds))]
        return template.format(fewest=FEWEST, command=_study_command(results, more))
    stated = plan.report.get("next")
    if stated:
        return f"{stated['what']}: {typed_command(*shlex.split(stated['command']))}"
    return _longer(results, verdict)


def _longer(results: Results, verdict: Verdict) -> str:
    """Return the command that pre-trains the best arm for twice as many steps.

    The best arm has the best mean over seeds. The result is empty if the study did not pre-train
    this arm, or if the pre-training branched off from another run (`resume=`).
    """
    measure, rule, tasks = verdict.measure, verdict.rule, results.plan.by_name
    axes = [*filter(None, [rule.axis, *rule.other_axes])]
    if measure is None or not axes or verdict.rows.empty:
        return ""
    means = verdict.rows.groupby(axes)["value"].mean()
    best = (measure.sign * means).idxmax()
    names = best if isinstance(best, tuple) else (best,)
    at_best = verdict.rows.set_index(axes).loc[[best]]
    compared = at_best["folder"].iloc[0]
    sources = [tasks[name] for name in (compared, *weight_sources(tasks, compared))]
    pretraining = next((task for task in sources if task.tool == "pretrain"), None)
    steps = pretraining.values.get("optim.steps") if pretraining else None
    if pretraining is None or steps is None or "resume" in pretraining.options:
        return ""
    options, _ = launch.planned_options(pretraining, tasks, results.folder)
    # without `out`, so that the pages of a study that was moved stay the same
    del options["out"]
    options |= {"optim.steps": 2 * steps, "name": f"{pretraining.name}-longer"}
    plugin = [word for word in results.plan.words if word.startswith("plugin=")]
    return LONGER.format(
        setting=", ".join(f"{axis}={name}" for axis, name in zip(axes, names, strict=True)),
        best="highest" if measure.sign > 0 else "lowest",
        measure=measure.label,
        command=typed_command("pretrain", *write_all(options), *plugin),
    )


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
    return typed_command("study", *words)
