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
from ...measurements import (
    PIXEL_SHARE,
    MetricKey,
    all_metrics,
    find_metric,
    flat_name,
    read_flat_name,
    use_plugin_rows,
)
from ...metrics import has_direction, is_frozen_metric
from ...recipe import augmentations
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

    Options refer to another task by its name in braces. For example, with `init={mae-0}` the result
    is the task `mae-0`. If tuning chooses `init`, the result is the task in the first tried value.

    Args:
        task: Task that may start from another task.
        tasks: All tasks of the study.
        key: Option that names the other task: `init` or `resume`.
    """
    weights = task.options.get(key, "")
    if key not in task.options and task.tries:
        first_try = tasks[task.tries[0]]
        weights = first_try.options.get(key, "")
    named_tasks = [tasks[name] for name in REFERENCE.findall(str(weights)) if name in tasks]
    return named_tasks[0] if named_tasks else None


def _tried_task_names(tasks: Tasks) -> set[str]:
    """Return the names of the tries: the tasks among which another task chooses the best."""
    return {name for task in tasks.values() for name in task.tries}


def recipes(study: Study, tasks: Tasks, check_images: bool = True) -> Recipes:
    """Resolve and check the options of every task, and return `{task: recipe}`.

    A task that starts from another task's run gets the model and images of that run. The best tried
    values are not known yet, so the first tried values stand in for them.

    Args:
        study: Study of the tasks.
        tasks: Tasks to check.
        check_images: Check that the images exist on this machine.

    Raises:
        UserError: An option is wrong, or one of these checks fails:

            - A task can resume from another task: their options are equal, and the checkpoint is
              kept.
            - A compared run measures test images and the metrics of the report.
            - A run that tries values has held-out images and measures the metric of the choice.
            - Two names of an axis do not give the same run, because it would count twice.
    """
    by_task: Recipes = {}
    first_tasks: dict[str, Task] = {}  # {options and recipe: first task with both}
    resolved: dict[str, Recipe] = {}  # shared by tasks that differ only in their seed
    tried_names = _tried_task_names(tasks)
    for task in tasks.values():
        place = place_text(task.run, task.at)
        # a fixed name, because composing the default name takes longer than everything else
        options = _known_options(task, tasks, by_task) | {"name": task.run}
        key = str(sorted(options.items()))
        if key not in resolved:
            resolved[key] = resolve_options(options, place, check_images)
        recipe = by_task[task.name] = resolved[key]
        own = recipe.data.augment if recipe.trains else None
        if own is not None and own not in augmentations.PLUGINS:
            raise UserError(
                f"{place}: data.augment={own}: each run of a study is a process without this"
                " augmentation. Register the augmentation in a plugin (plugin=FILE.py)."
            )
        # Options with names in braces, such as init={mae-0}, are compared separately, because the
        # recipe does not contain these names.
        in_recipe = plain_options(task.options) | OWN_KEYS
        references = [(key, value) for key, value in task.options.items() if key not in in_recipe]
        values = recipe.values() | OWN_KEYS
        identity = str([task.tool, task.seed, task.best, task.tried, references, values])
        first_task = first_tasks.setdefault(identity, task)
        if first_task is not task and task.run == first_task.run:
            raise UserError(
                f"{place}: this run has the same options as"
                f" {place_text(first_task.run, first_task.at)}. Change an option, or leave one of"
                " the two out, as in only: {arm: [mae]}."
            )
        if trunk := _source_task(task, tasks, "resume"):
            _check_trunk(task, trunk, by_task)
        if task.run == study.report.test:
            if task.tool == "finetune" and not recipe.eval.test:
                raise UserError(
                    f"{place}: eval.test=false: the report compares predictions of test images."
                    " Use eval.test=true."
                )
            for measure in study.report.measures:
                _check_measured(f"{place}: report.measures", measure, task.run, task.tool, recipe)
        best = study.runs[task.run].best
        if best and task.best:
            first_try = task.tries[0]
            _check_choice(place, best, tasks[first_try].tool, by_task[first_try])
        if task.name in tried_names and recipe.data.validation == 0:
            raise UserError(
                f"{place}: data.validation=0: the values of this run are compared on held-out"
                " images, and there are none. Hold out training images with data.validation=0.1,"
                " or name a split."
            )
    return by_task


def _check_trunk(task: Task, trunk: Task, resolved: Recipes) -> None:
    """Check that a task can resume from a checkpoint of another task, the trunk.

    Args:
        task: Task that resumes from the trunk.
        trunk: Task whose checkpoint is resumed.
        resolved: `{task: recipe}` of both tasks.

    Raises:
        UserError: The seeds or recipes differ, or the trunk will not keep the checkpoint.
    """
    recipe, trunk_recipe = resolved[task.name], resolved[trunk.name]
    assert recipe.trunk is not None
    place, step = place_text(task.run, task.at), recipe.trunk.step
    if task.seed != trunk.seed:
        raise UserError(
            f"{place}: resume={recipe.resume}: run {trunk.run} has no seed {task.seed}. Give run"
            f" {task.run} and run {trunk.run} the same seeds."
        )
    try:
        check_trunk(recipe, trunk_recipe)
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    missing_options = options_to_keep(trunk_recipe, step)
    if missing_options:
        raise UserError(
            f"{place}: resume={recipe.resume}: run {trunk.run} does not keep this checkpoint. In"
            f" the study's file, give run {trunk.run} the option {missing_options}."
        )


def _check_choice(place: str, best: BestChoice, tool: str, recipe: Recipe) -> None:
    """Check that the tries of a run measure the metric by which the run chooses the best try.

    The study file names the run with the tries and the metric, as in `best: {of: tune, by: knn}`.
    Without a metric in the file, the choice is by accuracy. Tries of self-supervised pre-training
    need a metric in the file, because accuracy and loss of pre-training say nothing about the
    features.

    Args:
        place: Text that names the run that chooses, for error messages.
        best: Choice from the study file: the run with the tries, and the metric or `""`.
        tool: Tool of the tries, such as `pretrain`.
        recipe: Recipe of one of the tries.

    Raises:
        UserError: The study file must name a metric, or the tries do not measure the metric, or it
            is not known whether higher or lower values of the metric are better.
    """
    if not best.by and tool == "pretrain" and not predicts_labels(recipe.objective):
        measure = next(iter(_online_probe_metrics(recipe)), "MEASURE")
        raise UserError(
            f"{place}: best: {best.of}: accuracy and loss of pre-training say nothing about the"
            f" features. Write best: {{of: {best.of}, by: {measure}}} to choose by a probe of the"
            " features."
        )
    _check_measured(f"{place}: best.by", best.by or "accuracy", best.of, tool, recipe)


def _check_measured(place: str, measure: str, run: str, tool: str, recipe: Recipe) -> None:
    """Check that a run measures a metric, and that it is known whether higher or lower is better.

    Args:
        place: Key of the study file that names the metric, for error messages.
        measure: Name of the metric, for example `probe_knn`.
        run: Name of the run, for error messages.
        tool: Tool of the run, for example `pretrain`.
        recipe: Recipe of the run. If it has a plugin, the metrics that the plugin declares count.

    Raises:
        UserError: The run does not measure the metric, or the better direction is not known.
    """
    with use_plugin_rows(recipe.plugin_rows):
        metrics = _measured_metrics(tool, recipe)
        # also allowed: metrics by which no report compares arms, such as `loss_masked`
        allowed = [*metrics, *(metric.name for metric in all_metrics() if not metric.is_compared)]
        key = read_flat_name(measure)
        needs_probe = key.is_probe or _needs_probe(key)
        # in pre-training, the objective of a plugin may measure anything that needs no probe
        may_be_from_plugin = tool == "pretrain" and not needs_probe
        if key.name not in allowed and not may_be_from_plugin:
            raise UserError(
                f"{place}: {measure}: run {run} does not measure this metric,"
                f" {suggest(measure, metrics)}"
            )
        if not has_direction(key):
            raise UserError(
                f"{place}: {measure}: ssl_vit does not know whether higher or lower values of this"
                " metric are better. Use another metric, or declare a Metric of this name in the"
                " plugin."
            )


def _measured_metrics(tool: str, recipe: Recipe) -> list[str]:
    """Return the metrics that a run measures with this tool: `pretrain`, `finetune` or `evaluate`.

    A plugin's pre-training may measure further metrics, which are not in the list.
    """
    if tool == "evaluate":
        return recipe.probe.metrics_of(recipe.probe.measures)
    probe_metrics = _online_probe_metrics(recipe)
    if tool == "pretrain":
        return [*probe_metrics, "loss"]
    # reports compare arms by these metrics, such as `accuracy`. All further metrics, such as
    # `loss_masked`, only describe the course of training
    compared_metrics = [metric.name for metric in all_metrics() if metric.is_compared]
    classifier_metrics = [
        name for name in compared_metrics if not _needs_probe(read_flat_name(name))
    ]
    return [*classifier_metrics, *probe_metrics]


def _needs_probe(key: MetricKey) -> bool:
    """Return whether only probes measure the metric."""
    return find_metric(key).unit == PIXEL_SHARE or is_frozen_metric(key)


def _online_probe_metrics(recipe: Recipe) -> list[str]:
    """Return the metrics that probes measure during training, such as `probe_knn`.

    If `probe.every` is not set, only k-NN may be measured: by `eval.knn`, for an objective that
    predicts no labels.
    """
    if recipe.probe.every:
        measured = recipe.probe.metrics_of(recipe.probe.measures)
    else:
        has_knn = recipe.eval.knn and not predicts_labels(recipe.objective)
        measured = ["knn"] if has_knn else []
    return [flat_name(MetricKey(name, is_probe=True)) for name in measured]


def add_recipe_values(tasks: Tasks, resolved: Recipes) -> Tasks:
    """Set the `values` of each task to the recipe values that are known before the study starts.

    Keys whose values depend on tasks that have not run yet are left out.

    Args:
        tasks: All tasks of the study.
        resolved: `{task: recipe}` of all tasks.
    """
    completed = {}
    # several tasks share a recipe, so its values are computed only once
    values_by_recipe_id: dict[int, dict[str, Any]] = {}
    for name, task in tasks.items():
        recipe = resolved[name]
        if id(recipe) not in values_by_recipe_id:
            values_by_recipe_id[id(recipe)] = computed_values(recipe)
        values = values_by_recipe_id[id(recipe)] | {"seed": task.seed}
        unknown = _unknown_keys(task, tasks)
        known = {key: value for key, value in values.items() if key not in unknown}
        completed[name] = replace(task, values=known)
    return completed


def _unknown_keys(task: Task, tasks: Tasks) -> set[str]:
    """Return the keys of a task's recipe whose values depend on tasks that have not run yet.

    The result has these keys:

    - the keys that tuning chooses
    - the key that describes the network of another task's weights. For example, if
      `distill.teacher={mae}`, this key is `distill.network`.
    - the keys that a recipe takes from its initial weights, such as `data.mean`, if these weights
      come from another task or tuning chooses them, and the task does not set the key itself
    """
    unknown = {key for name in task.tries for key in tasks[name].tried}
    weights = sources(task.options).values()
    # a source with a name in braces, such as {mae}, is the weights of another task
    unknown |= {source.network_key for source in weights if REFERENCE.search(source.place)}
    if _source_task(task, tasks) or "init" in unknown:
        keys_from_weights = {key for key, declared in all_keys().items() if declared.from_init}
        unknown |= keys_from_weights - task.options.keys()
    return unknown


def _known_options(task: Task, tasks: Tasks, resolved: Recipes) -> Values:
    """Return options from which a task's recipe can be resolved before the needed tasks run.

    The model and images of another task's weights come from the recipe of that task. The values of
    the first try stand in for the best values.

    Args:
        task: Task to resolve.
        tasks: All tasks of the study.
        resolved: `{task: recipe}` of at least the tasks that this task needs.
    """
    options = plain_options(task.options)
    origin = _source_task(task, tasks)
    if origin:
        options = with_origin(options, resolved[origin.name])
    if task.tries:
        first_try = tasks[task.tries[0]]
        options |= plain_options(first_try.tried)
    # each task uploads to its own repository, and without the key equal tasks share one recipe
    options.pop("hub.repo", None)
    if _source_task(task, tasks, "resume"):
        # The checkpoint does not exist yet, and resolving needs only a path. {mae-0} becomes mae-0.
        options["resume"] = REFERENCE.sub(r"\1", task.options["resume"])
    return options


def images(study: Study, tasks: Tasks, resolved: Recipes) -> list[str]:
    """Check the images of every task and return warnings about splits with too few images.

    If several tasks cause the same warning, it appears once, with the first of these tasks.

    Args:
        study: Study of the tasks.
        tasks: All tasks of the study.
        resolved: `{task: recipe}` of all tasks.

    Raises:
        UserError: A split that a task needs does not exist, or images cannot be read.
    """
    known_data: dict[str, Any] = {}  # `few_image_lines` stores here what it has read
    lines: dict[str, str] = {}
    tried_names = _tried_task_names(tasks)
    for name, recipe in resolved.items():
        task = tasks[name]
        place = place_text(task.run, task.at)
        # what other tasks choose on the held-out images of this task, for the text of a warning
        choices = ["the best tried values"] if name in tried_names else []
        is_tested = task.run == study.report.test
        try:
            warnings = few_image_lines(recipe, choices, is_tested, known_data)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        for warning in warnings:
            lines.setdefault(warning, f"{place}: {warning}")
    return list(lines.values())


def describe_absent_data(resolved: Recipes) -> list[str]:
    """Return a line about data sets that were not read because they are not on this machine.

    Raises:
        UserError: A recipe names no images: neither `data.path` nor `data.hub` (a data set on the
            Hugging Face Hub) nor the generated images.
    """
    absent: dict[str, None] = {}  # each path once, in order
    for data in (recipe.data for recipe in resolved.values()):
        if data.path and not exists(data.path):
            absent[data.path] = None  # a path on another machine is not an error
        else:
            check_place(data)  # raises an error if the images have no location
    if not absent:
        return []
    return [
        "splits, labels and numbers of images were not checked, because this machine has no"
        f" {list_names([*absent])}"
    ]


def _pool(task: Task, tasks: Tasks, resolved: Recipes) -> str:
    """Return how an evaluation pools the tokens of an image into its feature.

    Returns:
        `token` (class token) or another value of `probe.pool`. `""` if the task does not evaluate
            pooled features. Also `""` if `probe.pool` is not set and the encoder comes from outside
            the study, because its pooling is not known here.
    """
    probe, origin = resolved[task.name].probe, _source_task(task, tasks)
    # Probes on "feature" or "head" use the pooled feature. The hidden feature of a supervised run
    # is the output of a layer after the encoder, so `probe.pool` does not change it.
    pooling_probes = probe.measures_that_read("feature", "head")
    if task.tool != "evaluate" or probe.feature == "hidden" or not pooling_probes:
        return ""
    if probe.pool:
        return probe.pool
    if origin:
        return resolved[origin.name].pool
    is_untrained = task.options.get("init", SCRATCH) == SCRATCH
    return "token" if is_untrained else ""  # the class token is the default of a new encoder


def architectures(study: Study, tasks: Tasks, resolved: Recipes) -> Iterator[str]:
    """Warn about comparisons of encoders that differ in architecture or in the pooling of features.

    If every compared name sets options of the model, the study compares models on purpose. Then
    different architectures give no warning. The pooling of two encoders is compared only if the
    pooling of both is known.
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
    compared = {name for a, b, _ in rule.asked for name in (a, b)}
    models = {
        task.at[axis]: resolved[task.name].model.network
        for task in tested
        if task.at[axis] in compared
    }
    if not models:
        return
    sets_model = []  # for each compared name, whether its settings have options of the model
    for name in models:
        settings = study.axes[axis][name].values()
        keys = [key for setting in settings for key in setting.options]
        sets_model.append(any(key.split(".")[0] == "model" for key in keys))
    first = next(iter(models.values()))
    differing_keys = [
        key for key in first if any(network[key] != first[key] for network in models.values())
    ]
    if differing_keys and not all(sets_model):
        key = differing_keys[0]
        texts = [f"{name} model.{key}={network[key]}" for name, network in models.items()]
        yield f"run {test} compares encoders of different architectures: {', '.join(texts)}"
