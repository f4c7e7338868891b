"""Turn the options of `recipe=study/worth` into a setup: the images, objective and network."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....errors import UserError, suggest
from ....formatting import FEW_IMAGES, TEST_SHARE, format_count
from ....recipe.declaration import objectives
from ....recipe.init_source import DESCRIBED, InitSource
from ....recipe.keys import Values
from ....recipe.parsing import exists
from ....recipe.recipe_files import file_values, find_recipe, recipe_names
from ....recipe.schema import DEFAULT_OBJECTIVE, Data, Recipe
from ....recipe.words import write
from ....runs import seen_text
from ...images import (
    MOST_BYTES,
    MOST_PAIRS,
    SplitLabels,
    count_copies,
    shorter_side,
    split_labels,
)
from ..options import RELEASED, WORTH
from ..task_options import cost, network_options, resolve_options

NAME = WORTH
OBJECTIVE = "mae"
EPOCHS = 20  # fewest epochs of pre-training, and of supervised training for the arm `scratch`
FINE_EPOCHS, FINE_STEPS = 10, 100  # fewest epochs and fewest steps of fine-tuning
# ratio of the images seen in fine-tuning to the images seen in pre-training, as in recipe=finetune
# and recipe=mae
FINE = 4 / 9
# shares of the training images to hold out; the first share with enough images is used
HELD_OUT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
SHARED = ("data", "model", "compute")  # groups of keys that apply to every run
TRAIN = "model.train"  # applies to further pre-training only: fine-tuning trains the whole encoder
# a released encoder brings values of its own for these keys
NETWORK_KEYS = ("data.size", "data.mean", "data.std")
LEAST_SIDE = 4  # fewest patches along a side of an image for a released encoder


class ReleasedEncoder(NamedTuple):
    """Released encoder that is fine-tuned as a third arm.

    Attributes:
        place: Source of the weights, as for `init=`.
        options: Options of the arm's runs: `init` and `data.size`.
        pool: How the encoder pools tokens into the feature that is fine-tuned and probed.
        network: Network and image size in words.
    """

    place: str
    options: Values
    pool: str
    network: str


class StudyImages(NamedTuple):
    """Numbers of images of a study, and how the splits are made.

    Attributes:
        options: `{key: value}` that select the test and validation images.
        train: Number of images that pre-training sees.
        labelled: Number of labelled training images.
        classes: Number of classes of the labelled training images.
        smallest: Number of labelled training images of the class with the fewest.
        validation: Number of labelled validation images.
        test: Number of labelled test images.
        notes: Lines that say what each split was read from.
        guesses: Lines that say what was assumed about the images.
        side: Median of the images' shorter sides, in pixels.
    """

    options: Values
    train: int
    labelled: int
    classes: int
    smallest: int
    validation: int
    test: int
    notes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()
    side: int = 64


class StudySetup(NamedTuple):
    """Setup of a study of whether pre-training helps: images, recipe and network.

    Attributes:
        objective: Name of the pre-training recipe.
        init: Encoder that pre-training starts from, or `""` for untrained weights.
        shared_options: Options of every run.
        pretraining_options: Options of pre-training alone.
        images: Images of the study.
        recipe: Resolved recipe of pre-training.
        model: Options that give the same network to runs from untrained weights.
        pool: How the encoder pools tokens into the feature that is fine-tuned and probed.
        supervised_ratio: Steps of supervised training that cost as much as one step of
            pre-training.
        fine_ratio: Steps of fine-tuning for each step of pre-training.
        batch: Batch size of supervised training and of fine-tuning.
        command_options: `{key: value}` of the command.
        released: Released encoder to compare with, or None.
    """

    objective: str
    init: str
    shared_options: Values
    pretraining_options: Values
    images: StudyImages
    recipe: Recipe
    model: Values
    pool: str
    supervised_ratio: float
    fine_ratio: float
    batch: int = 128
    command_options: Mapping[str, Any] = {}
    released: ReleasedEncoder | None = None

    @property
    def arms(self) -> tuple[str, str]:
        """Names of the two arms of the primary comparison."""
        return self.objective, "start" if self.init else "scratch"

    @property
    def all_arms(self) -> tuple[str, ...]:
        """Names of all arms, including the released encoder."""
        return (*self.arms, RELEASED) if self.released else self.arms

    @property
    def arms_text(self) -> str:
        """Names of all arms in words, such as "mae, scratch and released"."""
        *arms, last = self.all_arms
        return f"{', '.join(arms)} and {last}"

    @property
    def network_options(self) -> Values:
        """Shared options that set the network. They do not apply to a released encoder."""
        return {key: value for key, value in self.shared_options.items() if _is_network_key(key)}

    @property
    def network(self) -> str:
        """Network and image size in words."""
        return f"{self.recipe.model.name} at {self.recipe.data.size} px"

    @property
    def least_steps(self) -> int:
        """Fewest steps of pre-training with which pre-training has at least `EPOCHS` epochs.

        Without `init`, the arm `scratch` has supervised training with `supervised_ratio` steps for
        each step of pre-training. Then the supervised training also has at least `EPOCHS` epochs.
        """
        steps = math.ceil(EPOCHS * self.images.train / self.recipe.optim.batch)
        if self.init:
            return steps
        supervised_steps = EPOCHS * self.images.labelled / self.batch
        return max(steps, math.ceil(supervised_steps / self.supervised_ratio))

    def fine_steps(self, steps: int) -> int:
        """Return the number of fine-tuning steps after a number of pre-training steps.

        The result is `steps` times `fine_ratio`, but at least `FINE_STEPS` steps and `FINE_EPOCHS`
        epochs.
        """
        least = math.ceil(FINE_EPOCHS * self.images.labelled / self.batch)
        return max(FINE_STEPS, least, round(steps * self.fine_ratio))

    def num_epochs(self, steps: int) -> str:
        """Convert pre-training steps to epochs, rounded down, such as `1,200`."""
        return f"{math.floor(steps * self.recipe.optim.batch / self.images.train):,}"

    def epochs(self, steps: int) -> str:
        """Convert pre-training steps to epochs in words, such as `20 epochs`."""
        return f"{self.num_epochs(steps)} epochs"


def sort_options(given: Values) -> tuple[Values, Values]:
    """Split the user's options into options of every run and options of pre-training alone.

    Keys of images, model and computation are options of every run. Keys of the objective are
    options of pre-training. For example, `{"data.size": 64, "mae.rate": 0.6}` gives
    `({"data.size": 64}, {"mae.rate": 0.6})`.

    Args:
        given: `{key: value}` of `objective`, `init`, `released` and recipe keys.

    Raises:
        UserError: The study does not take an option, or the released encoder is not found.
    """
    _check_released(given)
    objective = given.get("objective", OBJECTIVE)
    if not is_pretraining(objective):
        choices = filter(is_pretraining, recipe_names())
        raise UserError(
            f"objective={objective}: not a recipe that pre-trains without labels,"
            f" {suggest(objective, choices)}"
        )
    recipe = resolve_options({"recipe": objective}, NAME, check_images=False)
    # the groups of keys that the objective uses with its target, such as `mae` or `decoder`
    groups = [*SHARED, *recipe.declared.groups_with(recipe.target)]
    shared: Values = {}
    pretraining: Values = {}
    for key, value in given.items():
        if key in ("objective", "init", "plugin", RELEASED):
            continue
        if key in ("data.share", "data.mixup"):
            raise UserError(
                f"{write(key, value)}: {NAME} tries several values of this key. Leave out {key}=."
            )
        if key == TRAIN and "init" not in given:
            raise UserError(f"{write(key, value)}: there is no encoder to train. Add init=ENCODER.")
        group = key.split(".")[0]
        if group not in groups:
            raise UserError(
                f"{write(key, value)}: {NAME} sets this key itself. You can set objective, init,"
                f" released, hours, and keys of {', '.join(groups)}."
            )
        options = shared if group in SHARED and key != TRAIN else pretraining
        options[key] = value
    path = shared.get("data.path")
    if path and exists(path):
        shared["data.path"] = str(Path(path).resolve())
    return shared, pretraining


def _is_network_key(key: str) -> bool:
    return key in NETWORK_KEYS or key.split(".")[0] == "model"


def _check_released(given: Values) -> None:
    """Check that `released=` names a trained encoder whose network is known.

    The network of an export is described in a file. The network of a timm model is known by its
    name. A file with nothing but weights cannot be used. `scratch`, which means untrained weights,
    cannot be used.

    Raises:
        UserError: `released=` names no such encoder, or `init=` names the same encoder.
    """
    place = given.get(RELEASED)
    if place is None:
        return
    if place == given.get("init"):
        raise UserError(
            f"{RELEASED}={place}: init={place} already names this encoder. Leave {RELEASED}= out."
        )
    source = InitSource(place, RELEASED)
    # is_scratch: `released=scratch`, which names no encoder
    if source.is_scratch or not source.read_description():
        raise UserError(f"{RELEASED}={place}: not a released encoder. Choose from: {DESCRIBED}")


def _find_released(place: str, shared: Values, size: int) -> ReleasedEncoder:
    """Return the released encoder and its options: the weights and the image size.

    The image size is the study's size, rounded up to a multiple of the encoder's patches, with at
    least `LEAST_SIDE` patches along a side. For example, patches of 14 px and images of 32 px give
    56 px.

    Args:
        place: Source of the weights, as for `init=`.
        shared: Options of every run.
        size: Side of the study's images in pixels.

    Raises:
        UserError: The encoder is not found or cannot read these images.
    """
    options = {key: value for key, value in shared.items() if not _is_network_key(key)}
    options |= {"recipe": "finetune", "init": place}
    try:
        recipe = resolve_options(options, NAME)
        if not recipe.model.convolutional:
            patch = recipe.model.patch
            size = patch * max(LEAST_SIDE, math.ceil(size / patch))
        recipe = resolve_options(options | {"data.size": size}, NAME)
    except UserError as error:  # name the option that the user has typed
        raise UserError(str(error).replace(f"init={place}", f"{RELEASED}={place}")) from None
    network = f"{InitSource(place).short_name} at {size} px"
    return ReleasedEncoder(place, {"init": place, "data.size": size}, recipe.pool, network)


def build_setup(given: Values, images: StudyImages | None = None) -> StudySetup:
    """Build the setup of a study, with its images, recipe and network, from the user's options.

    Args:
        given: `{key: value}` of `objective`, `init`, `released` and recipe keys.
        images: Images of the study, or None to count them.

    Raises:
        UserError: An option is wrong, or there are too few images.
    """
    objective, init = given.get("objective", OBJECTIVE), given.get("init", "")
    place = given.get(RELEASED)
    shared, pretraining_only = sort_options(given)
    images = images or find_images(shared)
    shared = shared | images.options
    start = {"init": init} if init else {}
    pretraining = {"recipe": objective} | shared | pretraining_only | start
    recipe = resolve_options(pretraining, NAME)
    model = {} if init else _model_options(recipe, shared)
    supervised_cost = cost({"recipe": "supervised"} | shared | model | start, NAME)
    # steps of supervised training that cost as much as one step of pre-training
    supervised_ratio = cost(pretraining, NAME).exaflop_per_step / supervised_cost.exaflop_per_step
    batch = resolve_options({"recipe": "finetune"} | shared, NAME).optim.batch
    released = _find_released(place, shared, recipe.data.size) if place else None
    return StudySetup(
        objective=objective,
        init=init,
        shared_options=shared,
        pretraining_options=pretraining,
        images=images,
        recipe=recipe,
        model=model,
        pool=recipe.pool,
        supervised_ratio=supervised_ratio,
        # Steps of fine-tuning for each step of pre-training. FINE is the ratio of the numbers of
        # images, and the ratio of the batches turns images into steps.
        fine_ratio=FINE * recipe.optim.batch / batch,
        batch=batch,
        command_options=given,
        released=released,
    )


def _model_options(recipe: Recipe, shared: Values) -> Values:
    """Return the options with which a run from untrained weights gets the network of a recipe.

    One option with the network's name, such as `model=vit_p8`, suffices if it gives the network of
    the recipe. If the recipe has changed a size, for example the depth, the result has all sizes of
    the network.

    Args:
        recipe: Recipe with the network.
        shared: Options of every run.
    """
    named = {"recipe": "supervised", "model": recipe.model.name} | shared
    if resolve_options(named, NAME, check_images=False).model == recipe.model:
        return {"model": recipe.model.name}
    return network_options(recipe)


def is_pretraining(name: str) -> bool:
    """Return whether a name belongs to a recipe that trains without labels."""
    if name not in recipe_names():
        return False
    objective = file_values(find_recipe(name)).get("objective", DEFAULT_OBJECTIVE)
    declared = objectives().get(objective)
    return declared is not None and not declared.labels


def find_images(shared: Values) -> StudyImages:
    """Count the images and choose how test and validation images are taken.

    - A test split with labels is used unchanged. Otherwise a share of the images is held out.
    - A validation split of its own with at least `FEW_IMAGES` labelled images is used unchanged.
      Otherwise a share of the training images is held out: the first share of `HELD_OUT` that has
      enough labelled images. If the user sets a share, this share comes first.
    - If some training images have no label, only labelled images are held out for validation.
      Settings cannot be chosen on unlabelled images, and pre-training can use unlabelled images.

    Args:
        shared: Options of every run.

    Raises:
        UserError: The images cannot be read, have no labels or several labels each, or are too few.
    """
    data = resolve_options({"recipe": "finetune"} | shared, NAME).data
    options: Values = {}
    labels = split_labels(data)
    if not _count_labelled(labels.test):
        options["data.test"] = TEST_SHARE
        data = data.model_copy(update={"test": TEST_SHARE})
        labels = split_labels(data)
    if not _count_labelled(labels.train):
        raise UserError(
            f"{NAME}: the images have no labels. Put the images of each class into a folder of"
            " their own."
        )
    if labels.train.ndim > 1:
        raise UserError(
            f"data.label_column={data.label_column}: the study needs a single label per image. Use"
            " another column."
        )
    has_own_images = labels.splits.validation.store is not labels.splits.train.store
    is_enough = has_own_images and _count_labelled(labels.validation) >= FEW_IMAGES
    user_share = data.validation if isinstance(data.validation, float) else 0.0
    shares = (user_share, *HELD_OUT) if user_share else HELD_OUT
    source = "train" if _count_labelled(labels.train) == len(labels.train) else "labelled"
    for share in shares:
        if is_enough:
            break
        data = data.model_copy(update={"validation": share, "validation_from": source})
        options |= {"data.validation": share, "data.validation_from": source}
        labels = split_labels(data)
        is_enough = _count_labelled(labels.validation) >= FEW_IMAGES
    if not is_enough:
        available = _count_labelled(labels.train) + _count_labelled(labels.validation)
        raise UserError(
            f"{NAME}: found only {format_count(available, 'labelled images')} that are no test"
            f" images, too few to hold out {FEW_IMAGES} for choosing settings. Label about"
            f" {FEW_IMAGES / HELD_OUT[-1]:.0f} images in all that are not test images."
        )
    guesses = labels.splits.guesses
    if user_share and data.validation != user_share:
        guesses += (
            f"data.validation={user_share:g}: fewer than {FEW_IMAGES} of these images have a label."
            f" The share {data.validation} is held out instead",
        )
    return _count(labels, data, options, guesses)


def _count(
    labels: SplitLabels, data: Data, options: Values, guesses: tuple[str, ...]
) -> StudyImages:
    """Count the images and the labelled images of each split.

    Args:
        labels: Labels of the splits.
        data: Options of the images.
        options: `{key: value}` that select the test and validation images.
        guesses: Lines that say what was assumed about the images.

    Raises:
        UserError: The labelled training images have fewer than two classes.
    """
    train_labels = labels.train  # -1 for an image without a label
    _, class_sizes = np.unique(train_labels[train_labels >= 0], return_counts=True)
    if len(class_sizes) < 2:
        raise UserError(
            "data: the labelled training images belong to fewer than 2 classes. Label images of at"
            " least 2 classes."
        )
    return StudyImages(
        options=options,
        train=len(train_labels),
        labelled=int(class_sizes.sum()),
        classes=len(class_sizes),
        smallest=int(class_sizes.min()),
        validation=_count_labelled(labels.validation),
        test=_count_labelled(labels.test),
        notes=labels.splits.notes,
        guesses=guesses,
        # only images under a path are measured. Others count as images of `data.size` pixels
        side=shorter_side(labels.splits.train, data) if data.path else data.size,
    )


def find_copies(shared: Values) -> tuple[str, str]:
    """Count the test images that are copies of training images.

    Args:
        shared: Options of every run, with the options that select the test images.

    Returns:
        A sentence with the number of copies, and the page as HTML, "" without copies.
    """
    copies, page = count_copies(resolve_options({"recipe": "finetune"} | shared, NAME).data)
    if copies is None:
        return (
            f"test: not compared with the training images, because there are more than"
            f" {MOST_PAIRS:,} pairs or {MOST_BYTES >> 20} MiB of images. To find copies of training"
            " images, use ssl-vit evaluate with probe.find_copies=true",
            "",
        )
    sentence = f"test: {seen_text.describe_copies(copies)}"
    if page:  # reports are shared, so the sentence must not name folders of this machine
        sentence = (
            f"{sentence}. When the study starts, its folder gets the page {seen_text.COPIES_PAGE}"
            " with the pairs. The study tests all arms on these images, too"
        )
    return sentence, page


def _count_labelled(label_N: np.ndarray | None) -> int:
    return 0 if label_N is None else int((label_N >= 0).sum())


def image_lines(images: StudyImages) -> Iterator[str]:
    """Yield lines that describe the images of the study."""
    all_labelled = images.labelled + images.validation + images.test
    yield (
        f"images      {images.train:,} for pre-training. {all_labelled:,} labelled images in"
        f" {images.classes} classes: {images.labelled:,} for training, {images.validation:,} to"
        f" choose settings, {images.test:,} for the test"
    )
    yield from (f"            {note}" for note in images.notes)
    yield from (f"warning     {guess}" for guess in images.guesses)
