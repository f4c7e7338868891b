"""Find the encoder that `init=` names, the same model with untrained weights, and the images to
show.

`load_figure_input` loads the encoder and the images for figures.
"""

import copy
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ..data import check_pixels, layout, loaders, run_splits
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch, check_unreadable
from ..data.open import open_splits
from ..data.source import Source, without_lists
from ..errors import UserError, is_first_process, suggest
from ..evaluation.baselines import initial_network
from ..evaluation.features import ENCODER, check_finite, is_finite
from ..formatting import text_line
from ..inspection.base import FigureInput
from ..measurements import UNTRAINED
from ..models import weights
from ..models.encoder import Backbone, Encoder, build_backbone
from ..recipe import parsing, recipe_files, schema
from ..recipe.check import check_place
from ..recipe.given import Given
from ..recipe.images import PIXEL_KEYS
from ..recipe.init_source import InitSource
from ..recipe.load import resolve_encoder
from ..recipe.schema import Data, Recipe
from ..recipe.which_images import OTHERS, images_taken, names_images_directly
from .heads import load_trained

DEFAULT_SIZE = 224  # pixels, if the weights come without a config.json
ADAPT_CHANNELS = "model.adapt_channels"  # may be given although weights describe the model
SCRATCH_PREFIX = "scratch,"  # init=scratch,RUN: RUN's model, with untrained weights
TRAINING = "training images"  # description of the images that are used if none are held out
LARGEST_BATCH = 32
ATTENTION_BYTES = 2**28  # largest size of the attention maps of a batch in one block


@dataclass
class NamedEncoder:
    """Encoder that a value of `init=` (a "place") names.

    Attributes:
        source: The parsed value of `init=`.
        identity: The value of `init=`, with the absolute path for local weights.
        label: Short name for tables and figures.
        recipe: Recipe with the model, the image size and the preprocessing of the encoder.
        pool: How the encoder pooled tokens into a feature in training: "token" or "avg".
        run: Folder of the run that trained the encoder, or None.
        trained_encoder: For `scratch,PLACE`, the encoder of PLACE, whose model and images are used.
            Otherwise None.
        trained_recipe: Recipe of the run that began with these untrained weights, or None.
    """

    source: InitSource
    identity: str
    label: str
    recipe: Recipe
    pool: str
    run: Path | None
    trained_encoder: "NamedEncoder | None" = None
    trained_recipe: Recipe | None = None

    def load(self) -> tuple[Backbone, str]:
        """Build the network, in evaluation mode, and load the weights.

        Returns:
            The network, and the hash of the weights.

        Raises:
            UserError: The weights are missing, damaged or belong to another model.
        """
        recipe = self.recipe
        if self.source.is_scratch:
            fresh = initial_network(self.trained_recipe, recipe.model, recipe.data, recipe.seed)
            return fresh, weights.fingerprint(fresh.backbone.state_dict())
        network = build_backbone(recipe.model, recipe.data).eval()
        weights_hash = weights.load_weights(network, self.source)
        return network, weights_hash

    def describe(self) -> str:
        """Describe the model, the image size and, for untrained weights, the seed."""
        model = self.recipe.model
        text = (
            f"{model.name or model.timm} ({model.depth} blocks, {model.width} wide, patches of "
            f"{model.patch} px) at {self.recipe.data.size} px"
        )
        if not self.source.is_scratch:
            return text
        return f"{text}, untrained weights of seed {self.recipe.seed}"


def with_fresh_weights(place: str, given: Given) -> list[NamedEncoder]:
    """Find the encoders that figures compare: a trained encoder and its untrained model.

    The untrained weights are the initial weights of the run that trained the encoder. If this run
    is unknown, they are drawn with the seed of the encoder's recipe.

    Args:
        place: Value of `init=`.
        given: The user's options.

    Returns:
        The model with untrained weights, then the encoder of `init=`. Only the encoder of `init=`
        if its own weights are untrained.

    Raises:
        UserError: As for `find_encoder`, or the network is no Vision Transformer.
    """
    encoder = find_encoder(place, given)
    if encoder.recipe.model.convolutional:
        raise UserError(
            f"init={place}: {encoder.recipe.model.timm} has no patches and no attention. "
            "Use a Vision Transformer."
        )
    if encoder.source.is_scratch:
        return [encoder]
    return [_untrained_encoder(encoder, given), encoder]


def find_encoder(place: str, given: Given) -> NamedEncoder:
    """Describe the encoder that a value of `init=` names, without loading the weights.

    The recipe of the encoder has the image size, the normalisation and the preprocessing that the
    weights describe. `scratch,PLACE` means the model of the encoder at PLACE with untrained
    weights, drawn with the seed of that encoder.

    Args:
        place: Value of `init=`.
        given: The user's options. `model=` is only for weights that do not describe their model.

    Raises:
        UserError: The encoder does not exist, or an option is wrong or has no effect.
    """
    # "scratch,PLACE", unless a file or folder has this name
    trained_place = place.removeprefix(SCRATCH_PREFIX)
    if trained_place != place and not parsing.exists(place):
        trained = find_encoder(trained_place, given)
        untrained = _untrained_encoder(trained, given)
        untrained.trained_encoder = trained
        untrained.identity = f"{SCRATCH_PREFIX}{trained.identity}"
        untrained.label = f"{SCRATCH_PREFIX}{trained.label}"
        return untrained
    source = InitSource(place)
    if source.is_scratch:
        return _untrained_encoder(None, given)
    model_keys = [
        key for key in given.values if key.split(".")[0] == "model" and key != ADAPT_CHANNELS
    ]
    try:
        described = source.read_description()
    except UserError:
        if not model_keys:
            raise
        # The model of a network without patches cannot be described. The user's options name it
        described = source.read_description(model=False)
    # Drop the user's options about pixels that the weights describe, such as the normalisation
    pixel_keys = [f"data.{key}" for key in PIXEL_KEYS]
    given = given.without([key for key in pixel_keys if key in described])
    if model_keys and "model.width" in described:
        raise UserError(
            f"{model_keys[0]}={given.text(model_keys[0])}: the weights of init={place} describe"
            " the model. Leave out options of the model."
        )
    if "data.size" not in given.values:
        given = given.with_values({"data.size": source.image_size() or DEFAULT_SIZE})
    recipe = resolve_encoder(place, given)
    located = source.locate()
    identity = label = place
    if source.is_local:
        identity = str(Path(located.run or located.export or place).resolve())
        label = Path(identity).name
    return NamedEncoder(source, identity, label, recipe, source.pooling(), located.run)


def _untrained_encoder(trained: NamedEncoder | None, given: Given) -> NamedEncoder:
    """Describe an encoder with untrained weights.

    Args:
        trained: Trained encoder with the same model and images. If a run trained this encoder, the
            untrained weights are the initial weights of the run, unless the user sets a seed. None:
            the user's options describe the model.
        given: The user's options.
    """
    if trained is None:
        recipe = resolve_encoder("scratch", given)
        pool = "token"
    else:
        recipe = copy.deepcopy(trained.recipe)
        pool = trained.pool
        recipe.init = "scratch"
    trained_recipe = None
    if trained and trained.run and "seed" not in given.values:
        trained_recipe = recipe_files.read(trained.run / "recipe.yaml")
        recipe.seed = trained_recipe.seed
    identity = label = "scratch"
    return NamedEncoder(
        InitSource("scratch"), identity, label, recipe, pool, None, trained_recipe=trained_recipe
    )


class ImageSet(NamedTuple):
    """Images for an encoder, with the name of the data set and a description of the split."""

    source: Source
    name: str
    split: str


def find_images(encoder: NamedEncoder, given: Given, split: str | None = None) -> ImageSet:
    """Open the images from which figures of an encoder are drawn.

    Warnings about the images are printed, and lists of labels are left out.

    Args:
        encoder: Encoder.
        given: The user's options. If they name no images, the data set that the encoder was trained
            on is used.
        split: Name of the split. None: the test images, or the held-out images if there is no test
            split.

    Raises:
        UserError: The images are not on this machine or cannot be read, or the split does not
            exist.
    """
    data = find_data(encoder, given)
    if split is None:
        source, name, guesses = _open_test_images(data)
    elif data.stream:
        raise UserError(
            f"split={split}: data.stream=true cannot read a single split. Use data.stream=false."
        )
    else:
        opened = open_splits(data)
        split_name = named_split(split, opened.splits)
        source, name = opened.splits[split_name], f"split {split_name}"
        guesses = opened.guesses
        if not data.labels:
            source = source.without_labels()
    # Pass RANGE_OF_ENCODER so that warnings do not recommend data.range=, which the encoder's
    # recipe fixes, also for untrained weights
    warnings = check_pixels.check({data.name: source}, data, check_pixels.RANGE_OF_ENCODER)
    for text in (*guesses, *warnings):
        print(f"warning: {text_line(text)}", flush=True)
    source = without_lists(source, "the figures")
    return ImageSet(source, data.name, name)


def _open_test_images(data: Data) -> tuple[Source, str, Sequence[str]]:
    """Open the test images, or the held-out images if there is no test split.

    With data.validation=0, no images are held out, and training images are opened instead. Test
    images are not read from a stream.

    Returns:
        The images, a description of the split, and warnings about what was guessed from the files.
    """
    try:
        splits = run_splits.load(data, test=not data.stream)
    except layout.NoTestSplitError:
        splits = run_splits.load(data)
    if splits.test is not None:
        return splits.test, "test images", splits.guesses
    # With data.validation=0, `splits.validation` holds training images
    description = TRAINING if data.validation == 0 else "held-out images"
    return splits.validation, description, splits.guesses


def named_split(name: str, splits: Mapping[str, Sized]) -> str:
    """Find the split that a value of `split=` means, and return its name.

    Common names are accepted: for example, `test` means the split `eval` if there is no split
    `test`. Without any test split, `test` means the validation split, because runs then test on the
    validation split. Splits without images are ignored.

    Args:
        name: Value of `split=`.
        splits: {name: images}.

    Raises:
        UserError: No such split has images.
    """
    filled = [split for split, source in splits.items() if len(source)]
    chosen = layout.choose(name, filled)
    if chosen is None and layout.role(name) == "test":
        chosen = layout.choose("validation", filled)
    if chosen is None:
        roles = {layout.role(split) for split in filled}
        if layout.role(name) == "validation" and "validation" not in roles:
            raise UserError(
                f"split={name}: no split with images has this name, {suggest(name, filled)}. If a "
                "run held out a share of train, split= cannot read only this share. Leave out "
                "split= to use all images."
            )
        raise UserError(
            f"split={name}: no split with images has this name, {suggest(name, filled)}"
        )
    return chosen


def find_data(encoder: NamedEncoder, given: Given) -> Data:
    """Return the data set that the options name.

    If the options name no images, the data that trained the encoder are used, and a printed line
    says so. The line is a warning if the images that trained the encoder are unknown, or if the
    encoder has untrained weights.

    Args:
        encoder: Encoder.
        given: The user's options. Options of `data` that do not name images, such as data.size,
            change the encoder's training data.

    Raises:
        UserError: The images are not on this machine.
    """
    data = encoder.recipe.data
    notice = None
    if not names_images_directly(given.values):
        data = _training_data(encoder, given)
        notice = images_taken(encoder.source, data)
        if encoder.source.is_scratch:
            notice = (
                f"warning: init={encoder.source.place}: the options name no images, so "
                f"data={data.name} is used. For other images, {OTHERS}."
            )
    if notice and is_first_process():
        print(notice, flush=True)
    check_place(data)
    return data


def _training_data(encoder: NamedEncoder, given: Given) -> Data:
    """Return the data that trained an encoder, changed by the user's options of `data`.

    If the run that trained the encoder is unknown, return the data of the encoder's recipe.
    """
    if not encoder.run:
        return encoder.recipe.data
    run_data = recipe_files.read(encoder.run / "recipe.yaml").data
    values = {f"data.{key}": value for key, value in run_data}
    values |= {key: given.values[key] for key in given.values if key.startswith("data.")}
    # Pass the texts that the user typed, for error messages
    return schema.build(values, typed=given.texts).data


def load_figure_input(
    encoder: NamedEncoder, images: ImageSet, count: int, shown: int
) -> FigureInput:
    """Load an encoder and images for computing figures, on the GPU if there is one.

    The objective that trained the encoder is also loaded if the objective has a figure of its own.

    Args:
        encoder: Encoder.
        images: Images.
        count: Number of images to load.
        shown: Number of these images that figures show.

    Raises:
        UserError: The weights are missing, damaged or belong to another model; or too many images
            cannot be read.
        NonFiniteError: Features are not finite.
    """
    recipe = encoder.recipe
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.seed)  # for parameters that the weights lack
    network, _ = encoder.load()
    assert isinstance(network, Encoder)  # with_fresh_weights rejects other networks
    objective, why_not_loaded = load_trained(
        encoder.source, network, lambda part: bool(part.figure)
    )
    tokens = network.patches + network.prefix
    attention_bytes = 4 * recipe.model.heads * tokens**2  # float32, for one image in one block
    fitting = min(LARGEST_BATCH, ATTENTION_BYTES // attention_bytes)
    size = max(shown, fitting)  # at least `shown`, so that the first batch has all images to show
    batch_layout = BatchLayout(size, size, 0, 1)
    batches = loaders.held_out_batches(images.source, recipe.data, batch_layout, count)
    unreadable = [text for batch in batches for text in batch.unreadable]
    batches = [batch.map(lambda values: values.to(device)) for batch in batches if len(batch.key)]
    total = sum(len(batch.key) for batch in batches) + len(unreadable)
    check_unreadable(len(unreadable), total, recipe.data, unreadable)
    for text in unreadable:
        print(f"warning: an image is left out: {text}", flush=True)
    network.to(device).eval()
    if objective is not None:
        objective.to(device).eval()
    shown_batch: Batch = batches[0].map(lambda values: values[:shown])
    pool = encoder.pool if network.has_class_token else "avg"
    with torch.no_grad():
        feature_BD = network.feature(shown_batch.image, pool)
    name = UNTRAINED if encoder.source.is_scratch else ENCODER
    check_finite(name, is_finite(feature_BD))
    return FigureInput(network, encoder.pool, batches, shown_batch, objective, why_not_loaded)
