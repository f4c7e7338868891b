"""The recipes of a study's tasks, resolved and checked before any of them starts."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from ...config.computed import computed_values
from ...config.fields import Values
from ...config.recipe_images import names_images, of_images
from ...config.resolve import resolve
from ...config.schema import Data, Recipe, learns_labels, options, uses_labels
from ...data.layout import role
from ...errors import UserError
from ...formatting import option_text
from ...runs.identity import runs_before
from . import compared_parts
from .axes import PLACEHOLDER
from .command_line_sweep import image_options
from .expand import Plan, Task
from .mistakes import within
from .study import Study

# what decides which images a share for testing are (data.test)
TEST_CUT = ("test", "group", "label_column", "image_column")


def check(
    study: Study,
    plan: Plan,
    here: bool = True,
    labels_seen: bool = False,
) -> dict[str, Recipe]:
    """Resolve and check every task's options; {task: its recipe}.

    A task that starts from another task's run has that run's model; what else such a run decides is
    checked when it is there.

    Args:
        study, plan: the study and its tasks.
        here: check that images are on this machine.
        labels_seen: weights may have learned labels of the images that they are tested on.

    Raises:
        UserError: options are wrong, two arms train the same, or weights have learned more labels
            than the share that their part stands for, or those of test images; it names part and
            arm.
    """
    tested = compared_parts.final_parts(study)
    recipes: dict[str, Recipe] = {}
    resolved: dict[tuple[object, ...], Recipe] = {}  # once for seeds that do not differ
    computed: dict[tuple[str, int, str], dict[str, Values]] = {}  # {place: {arm: what it is}}
    for task in plan.values():
        before = origin(task, plan)
        with within(f"part {task.part[:80]}, arm {task.arm[:80]}"):
            if not options()["name"].allows(task.name):
                text = f"the name of its run is too long, {task.name[:80]}..."
                raise UserError(f"{text}; expected {options()['name'].allowed}")
            values = task.values or next((plan[name].values for name in task.needs[:1]), {})
            same = _decisive(task, values, plan, recipes)
            found = resolved.get(same) or _recipe(task, values, plan, recipes, here)
            recipes[task.name] = found
            if before is None and _is_decided(task, here):
                arms = computed.setdefault((task.part, task.seed, str(task.values)), {})
                grid = study.parts[task.part].grids[task.arm]
                arms[task.arm] = _computed(found) | {"grid": grid}
                if same not in resolved:
                    _check_distinct(task.arm, arms)
            resolved[same] = found
            if task.part in tested and task.tool == "finetune":
                _check_tests(found)
            if task.part in study.chosen_among:
                _check_held_out(found)
            if task.part in tested and "labels" in task.coordinates:
                _check_labels_seen(task, plan, recipes)
            if not labels_seen and _is_tested(found):
                _check_test_unseen(task, plan, recipes)
    return recipes


def _decisive(
    task: Task, values: Values, plan: Plan, recipes: dict[str, Recipe]
) -> tuple[object, ...]:
    """What decides a task's recipe: its options, and the recipe of the run that it starts from."""
    options = known_options(task)
    options.pop("hub.repo", None)  # one for each task
    before = origin(task, plan)
    start = None if before is None else id(recipes[before.name])
    return task.part, task.arm, str(values), tuple(options.items()), start


def origin(task: Task, plan: Plan) -> Task | None:
    """The task whose weights a task starts from."""
    names = PLACEHOLDER.findall(task.options.get("init", ""))
    return next((plan[name] for name in names if name in plan), None)


def known_options(task: Task) -> dict[str, str]:
    """The options that name no other task."""
    return {key: value for key, value in task.options.items() if not PLACEHOLDER.search(value)}


def planned_options(
    task: Task, values: Values, plan: Plan, recipes: dict[str, Recipe]
) -> list[str]:
    """A task's options before the runs that it needs exist: with the model and the images of the
    run that it starts from, each unless the options name it, and in place of a sweep's best values
    these."""
    options = known_options(task)
    before = origin(task, plan)
    brought: dict[str, str] = {}
    if before is not None and not names_images(f"{key}={one}" for key, one in options.items()):
        brought = image_options(recipes[before.name], of_images())
    if before is not None and "model" not in options:
        brought |= model_options(recipes[before.name])
    chosen = {key: option_text(value) for key, value in values.items()} if task.best else {}
    return [f"{key}={value}" for key, value in (brought | options | chosen).items()]


def _recipe(
    task: Task, values: Values, plan: Plan, recipes: dict[str, Recipe], here: bool
) -> Recipe:
    before = origin(task, plan)
    recipe = resolve(planned_options(task, values, plan, recipes), here)
    if task.values and before is not None:
        _check_unseen(recipes[before.name], recipe, before.part)
    return recipe


def _is_decided(task: Task, here: bool) -> bool:
    """Whether the options of a task without a run before it decide what it computes: `best` depends
    on a sweep, and with `here=False` first weights may be stand-ins."""
    return not task.best and (here or task.tool == "pretrain")


def _computed(recipe: Recipe) -> Values:
    """What a recipe computes; where its images are, as what they are is not known yet; and what
    decides its result besides."""
    option, values = options(), recipe.values()
    beside = {key: one for key, one in values.items() if option[key].place or option[key].in_result}
    return computed_values(recipe) | beside | {"model.name": ""}


def _check_distinct(arm: str, computed: Mapping[str, Values]) -> None:
    """Check that no other arm computes the same as one.

    Raises:
        UserError: one does.
    """
    others = (other for other, values in computed.items() if values == computed[arm])
    if same := next((other for other in others if other != arm), None):
        raise UserError(f"computes the very same as arm {same}; leave one out")


def model_options(recipe: Recipe) -> dict[str, str]:
    """The options that describe a recipe's model."""
    values = asdict(recipe.model)
    return {f"model.{key}": option_text(value) for key, value in values.items() if key != "name"}


def _check_tests(recipe: Recipe) -> None:
    """Check that a part which the report compares measures test images.

    Raises:
        UserError: it does not.
    """
    if not recipe.eval.test:
        text = "the report compares its predictions of test images; expected true"
        raise UserError(f"eval.test=false: {text}, or a report without this part")


def _check_held_out(recipe: Recipe) -> None:
    """Check that a part whose best run another takes holds images out.

    Raises:
        UserError: it does not.
    """
    if recipe.data.validation == 0:
        text = "its best run is chosen on held-out images; expected a share above 0 or a split"
        raise UserError(f"data.validation=0: {text}")


def _check_labels_seen(task: Task, plan: Plan, recipes: dict[str, Recipe]) -> None:
    """Check that the weights a task starts from have learned no other labels of its images than the
    share of them that it stands for.

    Raises:
        UserError: they have.
    """
    share, before = task.coordinates["labels"], origin(task, plan)
    while before is not None:
        recipe = recipes[before.name]
        data = recipes[task.name].data
        learned = recipe.data.share
        same_cut = _cut(recipe.data, learned) == _cut(data, share)
        if _learned_labels(recipe, data) and (learned > share or (share < 1 and not same_cut)):
            which = f"{learned:g} of the labels" if learned > share else "another share's labels"
            text = f"part {before.part} has learned {which}"
            raise UserError(f"data.share={share:g}: {text}")
        before = origin(before, plan)


def _learned_labels(recipe: Recipe, data: Data) -> bool:
    """Whether a recipe trains on labels of the images of `data`: those of the same name, wherever
    they are, or in the same place, whatever their name."""
    same_split = role(recipe.data.train) == role(data.train)
    return same_split and _same_images(recipe.data, data) and recipe.declared.labels


def _same_images(one: Data, other: Data) -> bool:
    paths = {None if path is None else str(Path(path).resolve()) for path in (one.path, other.path)}
    same_place = one.path is not None and len(paths) == 1
    return one.name == other.name or same_place


def _is_tested(recipe: Recipe) -> bool:
    """Whether a run measures by the labels of test images."""
    if recipe.objective == "probe":
        return uses_labels(recipe)
    return recipe.eval.test and recipe.declared.labels


def _check_test_unseen(task: Task, plan: Plan, recipes: dict[str, Recipe]) -> None:
    """Check that what a task's weights come from has learned no labels of its test images, as far
    as keys tell it: parts of the study, and runs that are here.

    Raises:
        UserError: it has.
    """
    now = recipes[task.name].data
    for name, recipe in _trained_before(task, plan, recipes):
        if learns_labels(recipe) and _trains_on_test(recipe.data, now):
            was = " ".join(
                f"data.{key}={option_text(getattr(recipe.data, key))}"
                for key in ("train", *TEST_CUT)
                if key == "train" or getattr(recipe.data, key) != getattr(now, key)
            )
            text = f"{name} ({was}) has learned labels of these images; expected the same"
            raise UserError(
                f"data.test={option_text(now.test)}: {text} test images there, or labels_seen=true"
            )


def _trained_before(
    task: Task, plan: Plan, recipes: dict[str, Recipe]
) -> Iterator[tuple[str, Recipe]]:
    """What a task's weights come through and its recipe, the latest first."""
    recipe, before = recipes[task.name], origin(task, plan)
    while before is not None:
        recipe = recipes[before.name]
        yield f"part {before.part}", recipe
        before = origin(before, plan)
    with suppress(UserError):  # a run that is not here any more, or of a plugin
        for run, known in runs_before(recipe.init):
            yield str(run), known


def _trains_on_test(was: Data, now: Data) -> bool:
    """Whether training on `was` trains on test images of `now`. Of a share for testing a run with
    the same cut sees none, nor does one that cuts off a larger share of all images."""
    if not _same_images(was, now):
        return False
    if isinstance(now.test, str):
        return role(was.train) == role(now.test)
    if role(was.train) != role(now.train) or isinstance(was.test, str):
        return role(was.train) == role(now.train)
    same_order = all(getattr(was, key) == getattr(now, key) for key in TEST_CUT[1:])
    nested = was.test > now.test and now.group is None
    return not (same_order and (was.test == now.test or nested))


def _cut(data: Data, share: float) -> tuple[object, ...]:
    """What decides which images a share of the labels are, and which are held out; these depend on
    the share only where they are cut off it."""
    of = 1 if data.validation_from == "train" else share
    return data.validation, data.test, data.group, data.share_seed, of


def _check_unseen(before: Recipe, sweep: Recipe, part: str) -> None:
    """Check that a sweep is not judged on labels that its initial weights were trained on.

    Raises:
        UserError: it is.
    """
    was = before.data
    now = sweep.data
    learned = _learned_labels(before, now)
    same_cut = _cut(was, was.share) == _cut(now, now.share) and now.validation != 0
    if learned and not same_cut and not isinstance(now.validation, str):
        there = f"data.share={was.share:g} data.validation={was.validation}"
        there += f" data.validation_from={was.validation_from} data.share_seed={was.share_seed}"
        there += f" data.test={was.test} data.group={was.group}"
        text = f"part {part} ({there}) has learned their labels; hold the same ones out there"
        raise UserError(f"data.validation={now.validation}: {text}")
