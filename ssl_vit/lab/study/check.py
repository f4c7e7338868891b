"""The recipes of a study's tasks, resolved and checked before any of them starts. The first mistake
ends the check; it names the run and its names of the axes.

Whether weights have learned labels of test images is no matter of recipes: each run counts it when
it is measured, and the report opens with it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...errors import UserError, suggest
from ...formatting import option_text, some
from ...metrics import (
    PIXEL_SHARE,
    PROBED,
    Metric,
    all_metrics,
    find_metric,
    has_direction,
    own_rows,
)
from ...recipe.schema import Recipe, sources
from .. import engine
from .read import REFERENCE, Best, Study
from .record import rule_of
from .tasks import Task, Tasks, plain_options, where, words_of

Recipes = dict[str, Recipe]  # by the task's name
# keys that each task has of its own, and what decides no result
OWN_KEYS = {"name": "", "hub.repo": None, "resume": True}


def _origin(task: Task, tasks: Tasks, key: str = "init") -> Task | None:
    """The task whose weights a task starts from, or that another key names."""
    names = REFERENCE.findall(task.options.get(key, ""))
    return next((tasks[name] for name in names if name in tasks), None)


def _judged(tasks: Tasks) -> set[str]:
    """The tasks among which others choose."""
    return {name for task in tasks.values() if task.best for name in task.best[0]}


def recipes(study: Study, tasks: Tasks, here: bool = True) -> Recipes:
    """Resolve and check the options of every task.

    A task that starts from another task's run has that run's model and images, and in place of the
    best values, which are not known yet, the first that are tried.

    Args:
        study, tasks: the study and its tasks.
        here: check that images are on this machine.

    Raises:
        UserError: options are wrong; or a task goes on from a step of another that takes other
            ones, or will not have kept its checkpoint; or a run that the report compares measures
            no test images, or one that is chosen from no held-out images or not the probe that
            chooses; or two names of an axis are of one run, whose result would count twice.
    """
    found: Recipes = {}
    same: dict[str, Task] = {}
    resolved: dict[str, Recipe] = {}  # once for seeds that do not differ
    judged = _judged(tasks)
    for task in tasks.values():
        place = where(task.run, task.at)
        words = _words(task, tasks, found)
        key = " ".join(words)
        if key not in resolved:
            resolved[key] = engine.resolve(words, place, here)
        recipe = found[task.name] = resolved[key]
        known = plain_options(task.options) | OWN_KEYS
        named = [option for option in task.options.items() if option[0] not in known]
        own = [task.tool, task.seed, task.best, task.tried, named]
        other = same.setdefault(str([*own, recipe.values() | OWN_KEYS]), task)
        if other is not task and task.run == other.run:
            text = f"is the same run as at {', '.join(other.at.values())}"
            way = "give it an option there, leave a name out, or the axis out of its `over`"
            raise UserError(f"{place}: {text}; {way}")
        if trunk := _origin(task, tasks, "resume"):
            _check_trunk(task, trunk, found)
        if task.run == study.report.test and task.tool == "finetune" and not recipe.eval.test:
            text = "the report compares its predictions of test images; expected true"
            raise UserError(f"{place}: eval.test=false: {text}")
        for measure in study.report.measures if task.run == study.report.test else ():
            _check_measured(f"{place}: report.measures", measure, "it", task.tool, recipe)
        best = study.runs[task.run].best
        if best and task.best:
            first = task.best[0][0]
            _chooses(place, best, tasks[first].tool, found[first])
        if task.name in judged and recipe.data.validation == 0:
            text = "its best values are chosen on held-out images; expected a share or a split"
            raise UserError(f"{place}: data.validation=0: {text}")
    return found


def _check_trunk(task: Task, trunk: Task, found: Recipes) -> None:
    """Check that a task can go on from a step of another (resume).

    Raises:
        UserError: it cannot.
    """
    recipe, there = found[task.name], found[trunk.name]
    assert recipe.trunk is not None
    place, step = where(task.run, task.at), recipe.trunk.step
    if task.seed != trunk.seed:
        text = f"seed {task.seed} cannot go on from seed {trunk.seed} of {trunk.run}"
        raise UserError(f"{place}: resume={recipe.resume}: {text}; expected the same seeds of both")
    try:
        engine.check_trunk(recipe, there)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    if keys := engine.keeping(there, step):
        text = f"{trunk.run} does not keep that checkpoint"
        raise UserError(f"{place}: resume={recipe.resume}: {text}; expected its {keys}")


def _chooses(place: str, best: Best, tool: str, recipe: Recipe) -> None:
    """Check that a measure of tries says which of them is better; what pre-training reaches in its
    own task says nothing of its features.

    Args:
        place: of what chooses, for errors.
        best: as in the study.
        tool, recipe: of one of the tries.

    Raises:
        UserError: it does not.
    """
    if not best.by and tool == "pretrain" and not engine.predicts_labels(recipe.objective):
        text = f"best: {best.of}: is a pre-training, whose own accuracy and loss say nothing of its"
        wanted = f"expected best: {{of: {best.of}, by: {(*_online(recipe), 'MEASURE')[0]}}}"
        raise UserError(f"{place}: {text} features; {wanted}")
    _check_measured(f"{place}: best.by", best.by or "accuracy", best.of, tool, recipe)


def _check_measured(key: str, measure: str, whose: str, tool: str, recipe: Recipe) -> None:
    """Check that a run measures something, as far as that is known of an objective, and that one of
    two values of it is the better.

    Args:
        key, measure: of the study's file.
        whose: a run, for the error.
        tool, recipe: of the run.

    Raises:
        UserError: it does not, or that is not known.
    """
    with own_rows(engine.declared_rows(recipe.objective, getattr(recipe, "target", ""))):
        _check_known(key, measure, whose, tool, recipe)


def _check_known(key: str, measure: str, whose: str, tool: str, recipe: Recipe) -> None:
    name, rows = measure.rpartition("/")[2], all_metrics()
    known = _probed(recipe) if tool == "evaluate" else _online(recipe)
    others = [row.name for row in rows if not row.compared]  # of the features
    if tool == "finetune":  # whose probes have names of their own
        known = [*(row.name for row in rows if row.compared and not _is_probed(row)), *known]
    elif tool == "pretrain":
        own = not (name.startswith(PROBED) or _is_probed(find_metric(name)))  # of its own task
        known, others = [*known, "loss"], [*others, *([name] if own else [])]
    if name not in (*known, *others):
        text = f"{key}: {measure}: {whose} does not measure that"
        raise UserError(f"{text}; {suggest(measure, known)}")
    if not has_direction(measure):
        text = "whether lower is better is not known; expected a metric, or a Metric of the plugin"
        raise UserError(f"{key}: {measure}: {text}")


def _is_probed(row: Metric) -> bool:
    """Whether it is a probe's alone."""
    probes = {*engine.MEASURES} - {"top1"}
    return row.unit == PIXEL_SHARE or row.name.removesuffix("_*") in probes


def _probed(recipe: Recipe) -> list[str]:
    """The metrics of a frozen encoder's evaluation."""
    of_measures = {
        "few_shot": [f"few_shot_{shots}" for shots in recipe.probe.shots],
        "top1": ["top1", "top5", "real"],
        engine.SEGMENTATION: ["miou", "pixel_accuracy"],
    }
    measures = recipe.probe.measures
    return [name for one in measures for name in of_measures.get(one, [one])]


def _online(recipe: Recipe) -> list[str]:
    """The probes' metrics in the result.json of a training run."""
    knn = recipe.eval.knn and not engine.predicts_labels(recipe.objective)
    measured = _probed(recipe) if recipe.probe.every else ["knn"] if knn else []
    return [PROBED + one for one in measured]


def with_values(tasks: Tasks, found: Recipes) -> Tasks:
    """The tasks with what their recipes say of them; without the best values, and what the weights
    of another task bring."""
    settled = {}
    for name, task in tasks.items():
        unknown = {key for other in (task.best or [()])[0] for key in tasks[other].tried}
        named = sources(task.options).values()
        unknown |= {one.network_key for one in named if REFERENCE.search(one.place)}
        if _origin(task, tasks) or "init" in unknown:
            unknown |= {*engine.from_init()} - task.options.keys()
        values = engine.computed_values(found[name]) | {"seed": task.seed}
        known = {key: value for key, value in values.items() if key not in unknown}
        settled[name] = replace(task, values=known)
    return settled


def _words(task: Task, tasks: Tasks, found: Recipes) -> list[str]:
    """A task's options before the runs that it needs are there."""
    options = plain_options(task.options)
    if before := _origin(task, tasks):
        options = engine.with_origin(options, found[before.name])
    tried = tasks[task.best[0][0]].tried if task.best else {}
    options |= plain_options({key: option_text(value) for key, value in tried.items()})
    options.pop("hub.repo", None)  # one for each task
    if _origin(task, tasks, "resume"):  # by the name of that task
        options["resume"] = REFERENCE.sub(r"\1", task.options["resume"])
    return words_of(options)


def images(study: Study, tasks: Tasks, found: Recipes) -> list[str]:
    """Lines about splits of few images, each once, with the first task that is measured on it. Each
    data set is read once.

    Raises:
        UserError: a split that a task needs is not there, or images cannot be read.
    """
    read: dict[str, Any] = {}
    lines: dict[str, str] = {}
    judged = _judged(tasks)
    for name, recipe in found.items():
        task = tasks[name]
        place = where(task.run, task.at)
        chosen = ["the best of what is tried"] if name in judged else []
        try:
            texts = engine.images(recipe, chosen, task.run == study.report.test, read)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        for text in texts:
            lines.setdefault(text, f"{place}: {text}")
    return list(lines.values())


def not_here(found: Recipes) -> list[str]:
    """A line about images that are not on this machine and so were not read; none where all are.

    Raises:
        UserError: a data set has no place.
    """
    away: dict[str, None] = {}
    for data in (recipe.data for recipe in found.values()):
        if data.path and not engine.exists(data.path):
            away[data.path] = None
        else:
            engine.check_place(data)
    text = "not checked, as they are not here: splits, labels and numbers of the images of"
    return [f"{text} {some([*away])}"] if away else []


def _pool(task: Task, tasks: Tasks, found: Recipes) -> str:
    """How an evaluation pools a feature; empty where it pools none, or that is not known."""
    probe, origin = found[task.name].probe, _origin(task, tasks)
    if task.tool != "evaluate" or probe.feature == "hidden" or {*probe.measures} <= engine.TOKENS:
        return ""
    fresh = "token" if task.options.get("init", engine.SCRATCH) == engine.SCRATCH else ""
    return probe.pool or (found[origin.name].pool if origin else fresh)


def architectures(study: Study, tasks: Tasks, found: Recipes) -> Iterator[str]:
    """A line where the report compares encoders of different architectures, unless that is what its
    axis is about: each of its names says the model; and one where it compares frozen encoders by
    features that are pooled otherwise, as far as it is known how."""
    rule = rule_of(study)
    if rule is None or rule.axis is None:
        return
    test, axis = rule.test, rule.axis
    own = [task for task in tasks.values() if task.run == test]
    pools = {task.at[axis]: _pool(task, tasks, found) for task in own}
    both = [one[:2] for one in rule.asked if len({"", pools[one.a], pools[one.b]}) > 2]
    if named := dict.fromkeys(name for pair in both for name in pair):
        texts = [f"{name} probe.pool={pools[name]}" for name in named]
        yield f"{test} compares encoders by features that are pooled otherwise: {', '.join(texts)}"
    models = {task.at[axis]: found[task.name].model.model_dump() | {"name": ""} for task in own}
    says = [
        any(key.split(".")[0] == "model" for one in settings.values() for key in one.options)
        for name, settings in study.axes[axis].items()
        if name in models
    ]
    first = next(iter(models.values()))
    differ = [key for key in first if any(one[key] != first[key] for one in models.values())]
    if differ and not all(says):
        texts = [f"{name} model.{differ[0]}={one[differ[0]]}" for name, one in models.items()]
        yield f"{test} compares encoders of different architectures: {', '.join(texts)}"
