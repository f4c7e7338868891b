"""Resolve and check the recipes of all tasks before the first task of a study starts.

The check ends at the first mistake. The message names the run and its names on the axes. The check
does not cover whether initial weights have learned labels of test images: each evaluation counts
such images, and the report opens with the count.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...errors import UserError, suggest
from ...formatting import list_names
from ...metrics import (
    PIXEL_SHARE,
    PROBED,
    Metric,
    all_metrics,
    find_metric,
    has_direction,
    is_frozen_metric,
    use_plugin_rows,
)
from ...recipe.check import check_place
from ...recipe.declaration import predicts_labels
from ...recipe.init_source import SCRATCH
from ...recipe.keys import Values
from ...recipe.parsing import exists
from ...recipe.schema import Recipe, all_keys, sources
from ...runs.identity import check_trunk, options_to_keep
from ..images import few_image_lines
from .read import REFERENCE, BestChoice, Study
from .record import rule_of
from .task_options import computed_values, resolve_options, with_origin
from .tasks import Task, Tasks, place_text, plain_options

Recipes = dict[str, Recipe]  # {task: recipe}
# keys that differ between tasks without changing a result
OWN_KEYS = {"name": "", "hub.repo": None, "resume": True}


def _source_task(task: Task, tasks: Tasks, key: str = "init") -> Task | None:
    """Return the task whose weights a task starts from, or None.

    If the task chooses among several tasks, the first of them is returned.

    Args:
        task: Task that may start from another task.
        tasks: All tasks of the study.
        key: Option that names the other task: `init` or `resume`.
    """
    options_of_try = tasks[task.best[0][0]].options if task.best else {}
    place = task.options.get(key, options_of_try.get(key, ""))
    return next((tasks[name] for name in REFERENCE.findall(str(place)) if name in tasks), None)


def _tried_task_names(tasks: Tasks) -> set[str]:
    """Return the names of all tasks whose tried values another task chooses from."""
    return {name for task in tasks.values() if task.best for name in task.best[0]}


def recipes(study: Study, tasks: Tasks, here: bool = True) -> Recipes:
    """Resolve and check the options of every task, and return `{task: recipe}`.

    A task that starts from another task's run gets the model and images of that run. The best tried
    values are not known yet, so the first tried values stand in for them.

    Args:
        study: Study of the tasks.
        tasks: Tasks to check.
        here: Check that images are on this machine.

    Raises:
        UserError: Options are wrong. Or a task cannot resume another task, because their options
            differ or the checkpoint will not be kept. Or a compared run measures no test images, or
            a run that provides best values has no held-out images or does not measure the deciding
            metric. Or two names of an axis give the same run, which would count twice.
    """
    by_task: Recipes = {}
    first_tasks: dict[str, Task] = {}  # {options and recipe: first task with both}
    resolved: dict[str, Recipe] = {}  # shared by tasks that differ only in their seed
    judged = _tried_task_names(tasks)
    for task in tasks.values():
        place = place_text(task.run, task.at)
        # a fixed name, because composing the default name takes longer than everything else
        options = _known_options(task, tasks, by_task) | {"name": task.run}
        key = str(sorted(options.items()))
        if key not in resolved:
            resolved[key] = resolve_options(options, place, here)
        recipe = by_task[task.name] = resolved[key]
        # the recipe does not show which tasks an option names in braces
        in_recipe = plain_options(task.options) | OWN_KEYS
        with_braces = [(key, value) for key, value in task.options.items() if key not in in_recipe]
        identity = [task.tool, task.seed, task.best, task.tried, with_braces]
        first_task = first_tasks.setdefault(str([*identity, recipe.values() | OWN_KEYS]), task)
        if first_task is not task and task.run == first_task.run:
            text = f"this run has the same options as {place_text(first_task.run, first_task.at)}"
            remedy = "Change an option, or leave a name out with `only`."
            raise UserError(f"{place}: {text}. {remedy}")
        if trunk := _source_task(task, tasks, "resume"):
            _check_trunk(task, trunk, by_task)
        if task.run == study.report.test and task.tool == "finetune" and not recipe.eval.test:
            text = "the report compares predictions of test images. Use eval.test=true."
            raise UserError(f"{place}: eval.test=false: {text}")
        for measure in study.report.measures if task.run == study.report.test else ():
            _check_measured(f"{place}: report.measures", measure, task.run, task.tool, recipe)
        best = study.runs[task.run].best
        if best and task.best:
            first = task.best[0][0]
            _check_choice(place, best, tasks[first].tool, by_task[first])
        if task.name in judged and recipe.data.validation == 0:
            text = "the best values are chosen on held-out images. Use data.validation=0.1"
            raise UserError(f"{place}: data.validation=0: {text}, or name a split.")
    return by_task


def _check_trunk(task: Task, trunk: Task, resolved: Recipes) -> None:
    """Check that a task can resume from a step of another task, its trunk.

    Raises:
        UserError: The seeds or recipes differ, or the trunk will not keep the checkpoint.
    """
    recipe, trunk_recipe = resolved[task.name], resolved[trunk.name]
    assert recipe.trunk is not None
    place, step = place_text(task.run, task.at), recipe.trunk.step
    if task.seed != trunk.seed:
        text = f"run {trunk.run} has no seed {task.seed}. Give both runs the same seeds."
        raise UserError(f"{place}: resume={recipe.resume}: {text}")
    try:
        check_trunk(recipe, trunk_recipe)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    keys = options_to_keep(trunk_recipe, step)
    if keys:
        text = f"run {trunk.run} does not keep this checkpoint. Write into run {trunk.run}: {keys}."
        raise UserError(f"{place}: resume={recipe.resume}: {text}")


def _check_choice(place: str, best: BestChoice, tool: str, recipe: Recipe) -> None:
    """Check that the measure of tried values tells which value is better.

    Tries of pre-training need an explicit measure, because the accuracy and loss of a pre-training
    task say nothing about the features.

    Args:
        place: Place of the choosing run, for error messages.
        best: Choice from the study file.
        tool: Tool of the tries.
        recipe: Recipe of one of the tries.

    Raises:
        UserError: The measure cannot tell which value is better."""
    if not best.by and tool == "pretrain" and not predicts_labels(recipe.objective):
        text = f"best: {best.of}: accuracy and loss of pre-training say nothing about the features"
        measure = (*_online(recipe), "MEASURE")[0]
        raise UserError(f"{place}: {text}. Write best: {{of: {best.of}, by: {measure}}}.")
    _check_measured(f"{place}: best.by", best.by or "accuracy", best.of, tool, recipe)


def _check_measured(key: str, measure: str, run: str, tool: str, recipe: Recipe) -> None:
    """Check that a run measures a metric and that the metric has a better direction.

    Args:
        key: Key of the study file, for error messages.
        measure: Metric that the key names.
        run: Name of the run, for error messages.
        tool: Tool of the run.
        recipe: Recipe of the run. Metrics of a plugin objective are known only as far as the plugin
            declares them.

    Raises:
        UserError: The run does not measure the metric, or its better direction is not known.
    """
    with use_plugin_rows(recipe.plugin_rows):
        _check_known(key, measure, run, tool, recipe)


def _check_known(key: str, measure: str, run: str, tool: str, recipe: Recipe) -> None:
    """Check a metric as `_check_measured` does, with the metrics of the recipe's plugin."""
    name, rows = measure.rpartition("/")[2], all_metrics()
    probe = recipe.probe
    suggested = probe.metrics_of(probe.measures) if tool == "evaluate" else _online(recipe)
    # also allowed: metrics by which no report compares runs
    allowed = [row.name for row in rows if not row.is_compared]
    if tool == "finetune":  # probes during fine-tuning have names that begin with probe_
        of_classifier = [row.name for row in rows if row.is_compared and not _is_probed(row)]
        suggested = [*of_classifier, *suggested]
    elif tool == "pretrain":
        suggested = [*suggested, "loss"]
        is_of_task = not (name.startswith(PROBED) or _is_probed(find_metric(name)))
        if is_of_task:  # a plugin may measure anything in its pre-training task
            allowed.append(name)
    if name not in (*suggested, *allowed):
        text = f"run {run} does not measure this metric, {suggest(measure, suggested)}"
        raise UserError(f"{key}: {measure}: {text}")
    if not has_direction(measure):
        text = "ssl_vit does not know whether lower values are better. Use another metric, or"
        raise UserError(f"{key}: {measure}: {text} declare a Metric of this name in the plugin.")


def _is_probed(row: Metric) -> bool:
    """Return whether only probes measure the metric."""
    return row.unit == PIXEL_SHARE or is_frozen_metric(row.name)


def _online(recipe: Recipe) -> list[str]:
    """Return the probe metrics in the result.json of a training run."""
    if recipe.probe.every:
        return [PROBED + name for name in recipe.probe.metrics_of(recipe.probe.measures)]
    has_knn = recipe.eval.knn and not predicts_labels(recipe.objective)
    return [f"{PROBED}knn"] if has_knn else []


def add_recipe_values(tasks: Tasks, resolved: Recipes) -> Tasks:
    """Return the tasks with the recipes' values that are known before the study starts.

    Unknown are the best tried values and the values that the weights of another task decide.
    """
    completed = {}
    # {id of a recipe: values}, because several tasks share a recipe
    computed: dict[int, dict[str, Any]] = {}
    for name, task in tasks.items():
        unknown = {key for try_name in (task.best or [()])[0] for key in tasks[try_name].tried}
        weights = sources(task.options).values()
        unknown |= {source.network_key for source in weights if REFERENCE.search(source.place)}
        if _source_task(task, tasks) or "init" in unknown:
            from_init = {key for key, declared in all_keys().items() if declared.from_init}
            unknown |= from_init - task.options.keys()
        recipe = resolved[name]
        if id(recipe) not in computed:
            computed[id(recipe)] = computed_values(recipe)
        values = computed[id(recipe)] | {"seed": task.seed}
        known = {key: value for key, value in values.items() if key not in unknown}
        completed[name] = replace(task, values=known)
    return completed


def _known_options(task: Task, tasks: Tasks, resolved: Recipes) -> Values:
    """Return the options of a task that can be resolved before the needed runs exist."""
    options = plain_options(task.options)
    origin = _source_task(task, tasks)
    if origin:
        options = with_origin(options, resolved[origin.name])
    tried = tasks[task.best[0][0]].tried if task.best else {}
    options |= plain_options(tried)
    options.pop("hub.repo", None)  # the repository differs between tasks
    if _source_task(task, tasks, "resume"):  # use the other task's name as its path
        options["resume"] = REFERENCE.sub(r"\1", task.options["resume"])
    return options


def images(study: Study, tasks: Tasks, resolved: Recipes) -> list[str]:
    """Check the images of every task and return lines about splits of few images.

    Each line appears once, with the first task that is measured on the split. Each data set is read
    once.

    Raises:
        UserError: A split that a task needs does not exist, or images cannot be read.
    """
    read: dict[str, Any] = {}
    lines: dict[str, str] = {}
    judged = _tried_task_names(tasks)
    for name, recipe in resolved.items():
        task = tasks[name]
        place = place_text(task.run, task.at)
        chosen = ["the best tried values"] if name in judged else []
        try:
            texts = few_image_lines(recipe, chosen, task.run == study.report.test, read)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        for text in texts:
            lines.setdefault(text, f"{place}: {text}")
    return list(lines.values())


def describe_absent_data(resolved: Recipes) -> list[str]:
    """Return a line about data sets that were not read because they are not on this machine.

    Raises:
        UserError: A data set has no place.
    """
    away: dict[str, None] = {}
    for data in (recipe.data for recipe in resolved.values()):
        if data.path and not exists(data.path):
            away[data.path] = None
        else:
            check_place(data)
    text = "splits, labels and numbers of images were not checked, because this machine has no"
    return [f"{text} {list_names([*away])}"] if away else []


def _pool(task: Task, tasks: Tasks, resolved: Recipes) -> str:
    """Return how an evaluation pools features, or an empty text without pooling or if unknown."""
    probe, origin = resolved[task.name].probe, _source_task(task, tasks)
    pools = probe.measures_that_read("feature", "head")
    if task.tool != "evaluate" or probe.feature == "hidden" or not pools:
        return ""
    if probe.pool:
        return probe.pool
    if origin:
        return resolved[origin.name].pool
    is_fresh = task.options.get("init", SCRATCH) == SCRATCH
    return "token" if is_fresh else ""


def architectures(study: Study, tasks: Tasks, resolved: Recipes) -> Iterator[str]:
    """Warn about comparisons of encoders that differ in architecture or in the pooling of features.

    Different architectures give no warning if every name of the compared axis sets model options,
    because the axis is then about the model. Pooling is compared as far as it is known.
    """
    rule = rule_of(study)
    if rule is None or rule.axis is None:
        return
    test, axis = rule.test, rule.axis
    tested = [task for task in tasks.values() if task.run == test]
    pools = {task.at[axis]: _pool(task, tasks, resolved) for task in tested}
    unequal: dict[str, None] = {}
    for a, b, _ in rule.asked:
        if pools[a] and pools[b] and pools[a] != pools[b]:
            unequal |= {a: None, b: None}
    if unequal:
        texts = [f"{name} probe.pool={pools[name]}" for name in unequal]
        yield f"run {test} compares encoders with different pooling: {', '.join(texts)}"
    compared = {name for comparison in rule.asked for name in comparison[:2]}
    models = {
        task.at[axis]: resolved[task.name].model.model_dump() | {"name": ""}
        for task in tested
        if task.at[axis] in compared
    }
    if not models:
        return
    sets_model = [
        any(
            key.split(".")[0] == "model" for setting in settings.values() for key in setting.options
        )
        for name, settings in study.axes[axis].items()
        if name in models
    ]
    first = next(iter(models.values()))
    differing = [
        key for key in first if any(network[key] != first[key] for network in models.values())
    ]
    if differing and not all(sets_model):
        key = differing[0]
        texts = [f"{name} model.{key}={network[key]}" for name, network in models.items()]
        yield f"run {test} compares encoders of different architectures: {', '.join(texts)}"
