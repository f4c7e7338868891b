"""Give the lab access to the engine: the identity and cost of recipes, and images.

The lab reaches the engine only through this module and through the files in the folders of runs."""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psutil

from .. import costs, hub_files
from ..data.batch_layout import BatchLayout
from ..errors import UserError
from ..formatting import few_images, option_text
from ..jobs import reuse
from ..recipe import declaration, identity, recipe_files, schema, which_images
from ..recipe.check import ONLINE_PROBE_KEYS, has_use
from ..recipe.check import check_place as check_place
from ..recipe.identity import changes_experiment as changes_experiment
from ..recipe.images import CROPPING, PART, PLACE, PREPROCESSING, READING, SPLIT_KEYS
from ..recipe.init_source import SCRATCH as SCRATCH
from ..recipe.load import resolve as resolve_options
from ..recipe.parsing import exists as exists
from ..recipe.parsing import load_yaml
from ..recipe.plugins import run_plugin as run_plugin
from ..recipe.probe import CHOSEN as CHOSEN
from ..recipe.probe import MEASURES as MEASURES
from ..recipe.probe import SEGMENTATION as SEGMENTATION
from ..recipe.probe import TOKENS as TOKENS
from ..recipe.recipe_files import file_values, find_recipe
from ..recipe.recipe_files import recipe_names as recipe_names
from ..recipe.schema import Recipe, all_groups, all_keys
from ..recipe.schema import uses_labels as uses_labels
from ..recipe.which_images import image_notice as image_notice
from ..recipe.words import parse as parse
from ..runs import environment, lock
from ..runs import identity as run_identity
from ..runs.folder import Run

if TYPE_CHECKING:
    from ..data.run_splits import Splits
    from ..data.source import Source
    from ..jobs.step_time import StepTime

WITHOUT_GPU = 3 << 28  # 0.75 GiB: Python, torch and the libraries of a process
WITH_GPU = 4 << 30  # the same with CUDA and data workers: a guess

SAMPLED = 16  # number of images whose sides are measured

# keys that change the experiment but not the time of a step
NOT_TIMED = (
    *("seed", "init", "optim.steps", "optim.lr", "optim.warmup", "model.name"),
    *("data.share", "data.validation", "data.validation_from", "data.group"),
)

# functions used unchanged
check_trunk = run_identity.check_trunk
cores = environment.cores
requested_threads = environment.requested_threads
cpu_model = environment.cpu_model
differences = identity.differences
exaflop = costs.exaflop
fitting_images = costs.fitting_images
is_written = lock.is_held
options_to_keep = run_identity.options_to_keep
repository_for_run = hub_files.repository_for_run
tensor_bytes = costs.memory_bytes
wait_until_free = lock.wait_until_free
compute_network_cost = costs.compute_network_cost


class Cost(NamedTuple):
    """Steps, warm-up steps and exaFLOP per step of a training run."""

    steps: int
    warmup: int
    exaflop_a_step: float


def tool_uses(tool: str, key: str, options: Mapping[str, str]) -> bool:
    """Return whether a tool with these options also uses the recipe key `key`.

    Args:
        tool: `pretrain`, `finetune` or `evaluate`.
        key: Dotted key of a recipe.
        options: `{key: text}` of the tool.
    """
    group = key.split(".")[0]
    if tool == "evaluate":
        groups = ("probe", "data", "model", "compute")
        return group in groups and key not in ONLINE_PROBE_KEYS
    values = file_values(find_recipe(options.get("recipe"))) | dict(options)
    if group == "probe":
        return key == "probe.every" or values.get("probe.every") not in (None, "null")
    objective = values.get("objective", schema.DEFAULT_OBJECTIVE)
    declared = declaration.objectives().get(objective)
    target = values.get("target", schema.DEFAULT_TARGET)
    used = declared.groups_with(str(target)) if declared is not None else ()
    return group not in _optional_groups() or group in used


def from_init() -> list[str]:
    """Return the keys that the initial weights decide if a task starts from another run."""
    return [key for key, recipe_key in all_keys().items() if recipe_key.from_init]


def resolve(options: Sequence[str], where: str, here: bool = True) -> Recipe:
    """Resolve options to a recipe.

    Args:
        options: Words KEY=VALUE.
        where: Prefix of error messages, or an empty text.
        here: Check that images are on this machine.

    Raises:
        UserError: An option is wrong.
    """
    try:
        return resolve_options(list(options), here)
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from None


def cost(options: Sequence[str], where: str) -> Cost:
    """Return the cost of a training run from options. The images need not exist.

    Raises:
        UserError: An option is wrong, or the work of the objective is not counted.
    """
    recipe = resolve(options, where, here=False)
    a_step = costs.exaflop(recipe, recipe.optim.batch)
    if a_step is None:
        text = f"objective={recipe.objective}: ssl_vit cannot count the exaFLOP of this objective"
        raise UserError(f"{where}: {text} (docs/extend.md). Leave out `match`.")
    return Cost(recipe.optim.steps, recipe.optim.warmup, a_step)


def study_keys() -> list[str]:
    """Return the recipe keys that a command line may set for a whole study."""
    fixed = ("name", "out", "seed", "init", "data.name", "model.name")
    return [key for key in (*schema.all_keys(), "model", "data") if key not in fixed]


def studies() -> dict[str, Path]:
    """Return `{name for recipe=: file}` of the studies in the package."""
    return {name: recipe_files.RECIPES / f"{name}.yaml" for name in recipe_files.study_names()}


def computed_values(recipe: Recipe) -> dict[str, Any]:
    """Return `{dotted key: value}` of the keys that decide a run's computation or its result.

    Keys that name weights or images are left out.
    """
    effects = ("compute", "result")
    excluded = {key for key, recipe_key in all_keys().items() if recipe_key.effect not in effects}
    excluded |= {*recipe.sources()}
    return {key: value for key, value in recipe.values().items() if key not in excluded}


def keys_of_task(values: Mapping[str, Any]) -> list[str]:
    """Return the keys that decide what an objective predicts and how difficult the prediction is.

    The keys are those of the objective's groups, the sizes of images and patches, and with several
    views also the batch and the preprocessing. If the objective is unknown, for example because its
    plugin is not loaded, all groups count that only some objectives have.

    Args:
        values: `{dotted key: value}` of the recipe.
    """
    declared = declaration.objectives().get(str(values.get("objective")))
    target = str(values.get("target", schema.DEFAULT_TARGET))
    if declared:
        groups = {*declared.groups_with(target)}
    else:
        groups = _optional_groups() & {key.split(".")[0] for key in values}
        # keys that ssl_vit does not know belong to the plugin
        groups |= {key.split(".")[0] for key in values.keys() - schema.all_keys().keys()}
    keys = [key for key in {**schema.defaults(), **values} if key.split(".")[0] in groups]
    keys += ["objective", "data.size", "model.patch"]
    # objectives with views distinguish the images of a batch
    return [*keys, "optim.batch", *PREPROCESSING] if "views" in groups else keys


def predicts_labels(objective: str) -> bool:
    """Return whether an objective predicts labels and nothing else."""
    declared = declaration.find_objective_or_stub(objective)
    return declared.labels and not declared.parts


def _optional_groups() -> set[str]:
    """Return the groups of keys that not every recipe has."""
    return {"target", *(group.name for group in all_groups())}


def lock_study(folder: Path) -> AbstractContextManager[None]:
    """Lock a study's folder against further writers.

    Raises:
        UserError: A live process is writing in the folder.
    """
    return Run(Recipe(name=folder.name, out=str(folder.parent))).lock()


def with_origin(options: Mapping[str, str], origin: Recipe) -> dict[str, str]:
    """Add the model and the images of the run that a task starts from to the task's options.

    Options that already name the model or the images are kept.
    """
    texts: dict[str, str] = {}
    if not which_images.names_images(f"{key}={text}" for key, text in options.items()):
        texts = image_options(origin, which_images.image_keys())
    if "model" not in options:
        network = origin.model.model_dump()
        texts |= {f"model.{key}": option_text(network[key]) for key in network if key != "name"}
    return texts | dict(options)


def has_labels(recipe: Recipe) -> bool:
    """Return whether a recipe's images have labels. Images on another machine count as labelled.

    Raises:
        UserError: The images cannot be read.
    """
    data = recipe.data
    if not data.path or not exists(data.path) or data.stream:
        return True
    return bool(splits_of(data, False).train.labels.source)


def image_options(recipe: Recipe, wanted: Iterable[str]) -> dict[str, str]:
    """Return the options with which another recipe reads the images of a recipe.

    Args:
        recipe: Recipe with the images.
        wanted: Keys of `data` to add if the place of the images does not already imply the same
            value.
    """
    options = {}
    if recipe.data.name in load_yaml(recipe_files.TABLES / "datasets.yaml"):
        options["data"] = recipe.data.name
    if place := [key for key in ("path", "hub") if getattr(recipe.data, key)]:
        options[f"data.{place[0]}"] = str(getattr(recipe.data, place[0]))
    image_words = [f"{key}={text}" for key, text in options.items()]
    implied = resolve_options(["recipe=evaluate", *image_words], here=False).values()
    values = recipe.values()
    changed = [key for key in wanted if key not in PLACE and values[key] != implied[key]]
    return options | {key: option_text(values[key]) for key in changed}


def evaluated_images(recipe: Recipe) -> dict[str, str]:
    """Return the options with which an evaluation reads all images of a recipe.

    The options include the recipe's cropping and ignore which part of the images the recipe trains
    on.
    """
    wanted = [key for key in which_images.image_keys() if key not in PART]
    # a frozen encoder brings values of its own for these keys
    return image_options(recipe, [*wanted, *(key for key in CROPPING if has_use(recipe, key))])


def few_image_lines(
    recipe: Recipe, chosen: Sequence[str], tested: bool, known: dict[str, Any]
) -> list[str]:
    """Return a line for each split with few images that a run is measured on.

    The list is empty if the images are not on this machine.

    Args:
        recipe: Recipe of the run.
        chosen: What other tasks choose on the run's held-out images, in words.
        tested: Whether the run must measure test images.
        known: Cache of splits and classes, so that several calls read each data set once.

    Raises:
        UserError: A split does not exist, images cannot be read, or labels are missing or not among
            the classes.
    """
    data = recipe.data
    if not data.path or not exists(data.path) or data.stream:
        return []
    from ..data import class_numbers  # the import takes seconds
    from ..data.layout import NoTestSplitError
    from ..evaluation import split_images

    test = recipe.eval.test or recipe.objective == "probe"
    deciding_keys = {*SPLIT_KEYS, *PART, *READING, "eval.images"}
    values = {key: value for key, value in recipe.values().items() if key in deciding_keys}
    # the number of images does not depend on which share is drawn
    splits_key = str((test, values | {"data.share_seed": 0}))
    if splits_key not in known:
        try:
            known[splits_key] = splits_of(data, test)
        except NoTestSplitError as error:
            raise UserError(split_images.explain_missing_test(recipe, error, not tested)) from None
    classes_key = f"{splits_key} {recipe.objective} {data.classes}"
    if uses_labels(recipe) and classes_key not in known:  # checks the labels
        splits = known[splits_key]
        known[classes_key] = class_numbers.num_classes(splits, data, recipe.objective)
    counts = split_images.count_measured_images(
        recipe, split_images.drop_unlabelled(recipe, known[splits_key])
    )
    return few_images(
        counts,
        [*schema.describe_held_out_choices(recipe), *chosen],
        schema.option_for_more_held_out(recipe),
        data.group,
    )


def changed_since(run: Path, options: Sequence[str]) -> list[str]:
    """Check that the images, weights and files of a finished run have not changed since the run.

    Args:
        run: Folder of the run.
        options: Options that resolve to the recipe of the run.

    Returns:
        Lines about what could not be checked.

    Raises:
        UserError: The images, weights or files have changed."""
    try:
        recipe = resolve_options(options, here=False)
    except UserError:  # the initial weights of the run no longer exist
        recipe = recipe_files.read(run / "recipe.yaml")
        recipe.out = str(run.parent)
    return reuse.check_finished(Run(recipe))


class ImageCounts(NamedTuple):
    """Numbers of images of a run.

    Attributes:
        trained: Training images, or None if unknown.
        seen: Images that the run sends through the encoder, or None if unknown.
        source: Words that say where the number of training images comes from.
    """

    trained: int | None
    seen: int | None
    source: str


def count_images(recipe: Recipe, train_images: int | None) -> ImageCounts:
    """Return the numbers of images of a run.

    The images are counted if they are in a folder on this machine. Otherwise the published number
    is used.

    Args:
        recipe: Recipe of the run.
        train_images: Number of training images to use instead, or None.
    """
    count = costs.training_images(recipe.data, train_images)
    seen = costs.images_seen(recipe, train_images)
    path = recipe.data.path
    if train_images is None and path and exists(path) and not recipe.data.stream:
        # every draw has the same number of images
        data = recipe.data.model_dump() | {"share_seed": 0}
        count, total = _counted(json.dumps(data), not recipe.trains)
        if not recipe.trains:
            seen = costs.evaluated_images(recipe, count, total - count)
        return ImageCounts(count, seen, "on this machine")
    published = train_images or costs.PUBLISHED.get(recipe.data.name, {}).get("train")
    source = "given by images=" if train_images else "as published"
    if count != published:
        source = f"of {published:,} {source}"
    return ImageCounts(count, seen, source)


@functools.cache  # many tasks of a study have the same images
def _counted(data: str, test: bool) -> tuple[int, int]:
    """Return the numbers of training images and of all images that an evaluation uses.

    Args:
        data: Keys of `data` as JSON, because a cache needs a text.
        test: Whether the test split counts.
    """
    splits = splits_of(schema.Data(**json.loads(data)), test)
    trained = len(splits.train)
    held_out = 0 if json.loads(data)["validation"] == 0 else len(splits.validation)
    return trained, trained + held_out + (0 if splits.test is None else len(splits.test))


def splits_of(data: schema.Data, test: bool) -> "Splits":
    """Return the splits of a recipe's data, with the test split if `test` is set.

    Raises:
        UserError: The images cannot be read, or a split does not exist.
    """
    from ..data import run_splits  # the import takes seconds

    return run_splits.load(data, test)


def activation_bytes(recipe: Recipe, fused: bool) -> int:
    """Return the activation bytes of an image, or 0 for an evaluation."""
    return costs.activation_bytes(recipe, fused) if recipe.trains else 0


def device_batch(recipe: Recipe, processes: int, wanted: int | None, most: int) -> int:
    """Return the images per pass: the wanted number, else as many as fit and divide the batch.

    Raises:
        UserError: The processes or the wanted images do not divide the batch.
    """
    return BatchLayout.divide(recipe.optim.batch, wanted, most, 0, processes).device_batch


def timing_key(recipe: Recipe) -> str:
    """Return a text that is equal for recipes with equally long steps."""
    values = identity.computed_values(recipe).items()
    return str(sorted((key, str(value)) for key, value in values if key not in NOT_TIMED))


def measure(recipe: Recipe) -> "StepTime":
    """Time the first steps of a run on this machine.

    Raises:
        UserError: The recipe is an evaluation, or the run itself raises the error.
    """
    from ..jobs import step_time

    return step_time.measure(recipe)


def draw_predictions(run: Path) -> None:
    """Draw what a finished run predicts, as `draw_figures.draw_predictions`."""
    from ..jobs import draw_figures

    draw_figures.draw_predictions(run)


def is_pretraining(name: str) -> bool:
    """Return whether a name belongs to a recipe that trains without labels."""
    if name not in recipe_names():
        return False
    objective = file_values(find_recipe(name)).get("objective", schema.DEFAULT_OBJECTIVE)
    declared = declaration.objectives().get(objective)
    return declared is not None and not declared.labels


def model_options(recipe: Recipe, shared: Sequence[str]) -> dict[str, str]:
    """Return the options that give a run from fresh weights the network of a recipe.

    The options are the network's name or, if the recipe has changed a size of the named network,
    all sizes.

    Args:
        recipe: Recipe with the network.
        shared: Further options of the run, as words.
    """
    named = resolve_options(["recipe=supervised", f"model={recipe.model.name}", *shared], False)
    if named.model == recipe.model:
        return {"model": recipe.model.name}
    network = recipe.model.model_dump()
    return {f"model.{key}": option_text(network[key]) for key in network if key != "name"}


class SplitLabels(NamedTuple):
    """Labels of the images of each split, and the splits.

    A split's labels have shape (N,), with -1 for no label, or (N, L) for lists of labels. `test` is
    None if there are no test images.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray | None
    splits: "Splits"


def split_labels(data: schema.Data) -> SplitLabels:
    """Return the labels of each split.

    Raises:
        UserError: The images cannot be read.
    """
    from ..data.layout import NoTestSplitError

    try:
        splits = splits_of(data, True)
    except NoTestSplitError:
        splits = splits_of(data, False)
    used = splits.train, splits.validation
    train, validation = (source.label_of(np.arange(len(source))) for source in used)
    test = None if splits.test is None else splits.test.label_of(np.arange(len(splits.test)))
    return SplitLabels(train, validation, test, splits)


def shorter_side(images: "Source", data: schema.Data) -> int:
    """Return the median of the shorter sides, in pixels, of a few images of a split.

    Raises:
        UserError: None of the images can be read.
    """
    from ..data.pixel_values import decoder

    decode, sides = decoder(data), list[int]()
    rows = np.linspace(0, len(images) - 1, min(SAMPLED, len(images))).astype(int)
    for raw in images.fetch(rows)[0]:
        with suppress(ValueError):
            sides.append(min(decode(raw).shape[1:]))
    if not sides:
        raise UserError(f"{data.place}: no image can be read (tried {len(rows)}). Check the files.")
    return int(np.median(sides))


def memory_need(recipe: Recipe, gpu: bool) -> int:
    """Estimate the bytes of CPU memory of a run: libraries and, without a GPU, tensors.

    Activations are those of a whole batch, but at most half of the memory, because
    jobs/resources.py chooses the device batch in this way. An evaluation keeps the features of all
    images, twice while the features are concatenated.
    """
    features = 0
    if recipe.objective == "probe":  # float32, twice
        features = 2 * 4 * recipe.model.width * (costs.images_seen(recipe) or 0)
    if gpu:
        return WITH_GPU + features
    batch = recipe.compute.batch or recipe.optim.batch
    tensors = costs.memory_bytes(recipe, processes=1, zero=0, batch=batch, fused=False)
    activations = min(tensors.pop("activations"), psutil.virtual_memory().total // 2)
    return WITHOUT_GPU + activations + sum(tensors.values()) + features


def check_processes(recipe: Recipe, processes: int) -> None:
    """Check that the number of processes divides the batch of a recipe that trains.

    Raises:
        UserError: The number does not divide the batch."""
    if recipe.objective != "probe":  # an evaluation runs with any number of processes
        batch = recipe.optim.batch
        BatchLayout.divide(batch, recipe.compute.batch, batch, 0, processes)
