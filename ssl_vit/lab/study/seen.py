"""Whether weights have learned labels that a study measures them by, as far as the recipes of its
tasks, and of runs that are here, tell it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ...config.schema import Data, Recipe
from ...errors import UserError
from ...formatting import option_text
from .. import engine
from .read import ALL, REFERENCE, Study
from .tasks import Task, Tasks, where

# what decides which images a share for testing are (data.test)
TEST_CUT = ("test", "group", "label_column", "image_column")
HINT = "or labels_seen=true"


def check(study: Study, task: Task, tasks: Tasks, recipes: Mapping[str, Recipe]) -> None:
    """Check what the weights that a task starts from have learned.

    Args:
        study, task, tasks: the study, the task and all of its tasks.
        recipes: those of the task and of all that it needs.

    Raises:
        UserError: they have learned labels of its test images; of held-out images by which values
            are chosen; or, of a run compared at shares of the labels, other labels than the
            share's.
    """
    recipe = recipes[task.name]
    text = ""
    for run, before in _trained_before(task, tasks, recipes):
        labels = engine.learns_labels(before)
        if labels and _is_tested(recipe) and _trains_on_test(before.data, recipe.data):
            was = _differences(before.data, recipe.data)
            text = f"data.test={option_text(recipe.data.test)}: {run} ({was}) has learned labels of"
            text += " these images; expected the same test images there"
        elif labels and _is_share(study, task) and _other_labels(before.data, recipe.data):
            share = f"{before.data.share:g} of the labels"
            text = f"data.share={recipe.data.share:g}: {run} has learned {share}, or others"
        elif labels and task.tried and _other_held_out(before.data, recipe.data):
            there = _differences(before.data, recipe.data)
            text = f"data.validation={recipe.data.validation}: {run} ({there}) has learned their"
            text += " labels; expected the same held-out images there"
        if text:
            raise UserError(f"{where(task.run, task.at)}: {text}, {HINT}")


def _trained_before(
    task: Task, tasks: Tasks, recipes: Mapping[str, Recipe]
) -> Iterator[tuple[str, Recipe]]:
    """What a task's weights come through, the latest first: tasks, then runs that are here."""
    init = task.options.get("init", "")
    while name := next((one for one in REFERENCE.findall(init) if one in tasks), None):
        yield f"run {tasks[name].run}", recipes[name]
        init = tasks[name].options.get("init", "")
    yield from engine.runs_before(init)


def _is_share(study: Study, task: Task) -> bool:
    """Whether a task of the test stands at a share of the labels: a name of its axes says which."""
    settings = [study.axes[axis].settings[name] for axis, name in task.at.items()]
    return task.run == study.report.test and any(
        "data.share" in one.options
        for own in settings
        for key, one in own.items()
        if key == ALL or key.partition("@")[0] == task.run
    )


def _is_tested(recipe: Recipe) -> bool:
    """Whether a run measures by the labels of test images."""
    if recipe.objective == "probe":
        return engine.uses_labels(recipe)
    return recipe.eval.test and recipe.declared.labels


def _same_images(one: Data, other: Data) -> bool:
    """Whether both name one set: in the same place, or by the same name."""
    paths = {None if path is None else str(Path(path).resolve()) for path in (one.path, other.path)}
    return one.name == other.name or (one.path is not None and len(paths) == 1)


def _same_split(one: Data, other: Data) -> bool:
    return engine.role(one.train) == engine.role(other.train) and _same_images(one, other)


def _trains_on_test(was: Data, now: Data) -> bool:
    """Whether training on `was` trains on test images of `now`. Of a share for testing a run with
    the same cut sees none, nor does one that cuts off a larger share of all images."""
    if not _same_images(was, now):
        return False
    if isinstance(now.test, str):
        return engine.role(was.train) == engine.role(now.test)
    if not _same_split(was, now) or isinstance(was.test, str):
        return _same_split(was, now)
    same_order = all(getattr(was, key) == getattr(now, key) for key in TEST_CUT[1:])
    nested = was.test > now.test and now.group is None
    return not (same_order and (was.test == now.test or nested))


def _other_labels(was: Data, now: Data) -> bool:
    """Whether training on `was` learned other labels than those of the share that `now` has."""
    more = was.share > now.share
    return _same_split(was, now) and (more or (now.share < 1 and _cut(was) != _cut(now)))


def _other_held_out(was: Data, now: Data) -> bool:
    """Whether training on `was` learned labels of images that `now` holds out."""
    same = _cut(was) == _cut(now) and now.validation != 0
    return _same_split(was, now) and not same and not isinstance(now.validation, str)


def _cut(data: Data) -> tuple[object, ...]:
    """What decides which images a share of the labels are, and which are held out; these depend on
    the share only where they are cut off it."""
    of = 1 if data.validation_from == "train" else data.share
    return data.validation, data.test, data.group, data.share_seed, of


def _differences(was: Data, now: Data) -> str:
    """The keys that choose images, of another value than now."""
    keys = ("train", *TEST_CUT, "validation", "validation_from", "share", "share_seed")
    differ = [key for key in keys if getattr(was, key) != getattr(now, key)]
    return " ".join(f"data.{key}={option_text(getattr(was, key))}" for key in differ)
