"""An encoder of `init=`: its model and label, fresh weights of it, the images that it is shown; and
the encoder ready to be inspected."""

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..data import layout, loaders, sources
from ..data.batch_layout import BatchLayout
from ..data.batching import Batch
from ..data.files import FOLDERS
from ..data.open import open_splits
from ..data.source import Source, without_lists
from ..errors import UserError, suggest
from ..inspection.base import Subject
from ..models import architectures, weights
from ..models.encoder import Encoder, build_backbone
from ..recipe import export_files, parsing, recipe_files, schema, words
from ..recipe.check import check_place
from ..recipe.images import OF_PIXELS
from ..recipe.init_source import InitSource
from ..recipe.load import resolve_encoder
from ..recipe.schema import Data, Recipe
from ..recipe.which_images import OTHERS, gives_images, images_taken
from .heads import load_trained

DEFAULT_SIZE = 224  # pixels, where the weights come without a config.json
BESIDE = "scratch,"  # opens a place: fresh weights of the encoder that follows
TRAINING = "training images"  # what is looked at where none are held out
LARGEST_BATCH = 32
ATTENTION_BYTES = 2**28  # of a block's attention maps, at most, of a batch


@dataclass
class NamedEncoder:
    """An encoder of `init=`. `identity` is the place in full, `pool` the feature of an image that
    it was trained to give, `run` the folder of the run that made it, None where no run did. `owner`
    is the one whose model and images fresh weights have (`scratch,PLACE`)."""

    source: InitSource
    identity: str
    label: str
    recipe: Recipe
    pool: str
    run: Path | None
    owner: "NamedEncoder | None" = None

    def describe(self) -> str:
        model = self.recipe.model
        fresh = f", fresh weights of seed {self.recipe.seed}" if self.source.is_scratch else ""
        parts = f"{model.depth} blocks, {model.width} wide, patches of {model.patch} px"
        return f"{model.name or model.timm} ({parts}) at {self.recipe.data.size} px{fresh}"


def with_fresh_weights(place: str, given: Mapping[str, str]) -> list[NamedEncoder]:
    """The encoder that a place names, after fresh weights of its model with its seed: of a run,
    those that it began with. `scratch` alone is fresh weights already.

    Raises:
        UserError: as `resolve_one`; or it is no Vision Transformer.
    """
    one = _resolve(place, given)
    if one.recipe.model.convolutional:
        text = f"{one.recipe.model.timm} has no patches and no attention"
        raise UserError(f"init={place}: expected a Vision Transformer; {text}")
    return [one] if one.source.is_scratch else [_scratch(one, given), one]


def resolve_one(place: str, given: Mapping[str, str]) -> NamedEncoder:
    """The encoder that a place names, with its own image size, normalisation and evaluation's
    preprocessing. The place `scratch,PLACE` is fresh weights of that one's model, with its seed.

    Args:
        place: as `init=`.
        given: options of recipes. `model=` is for weights that do not describe theirs.

    Raises:
        UserError: there is none; an option is wrong or has no use.
    """
    other = place.removeprefix(BESIDE)
    if other == place or parsing.exists(place):
        return _resolve(place, given)
    owner = resolve_one(other, given)
    one = _scratch(owner, given)
    one.owner, one.identity = owner, f"{BESIDE}{owner.identity}"
    one.label = f"{BESIDE}{owner.label}"
    return one


def _resolve(place: str, given: Mapping[str, str]) -> NamedEncoder:
    source = InitSource(place)
    if source.is_scratch:
        return _scratch(None, given)
    unused = next((key for key in given if key.split(".")[0] == "model"), None)
    if unused and _describes_model(source):
        raise UserError(f"{unused}={given[unused]}: init={place} describes its own model")
    return _resolved(source, given)


def _describes_model(source: InitSource) -> bool:
    return "model.width" in source.described_values()


def _of_timm(source: InitSource) -> dict[str, str]:
    """Options for weights that name one of timm's architectures, and describe it no further: the
    model and, of timm:NAME, the images that it was trained on. Empty for a .npz file.

    Raises:
        UserError: it is no Vision Transformer.
    """
    folder = source.fetch_export("config.json", "preprocessor_config.json")
    found: dict[str, Any] = {}
    config: dict[str, Any] = {"architecture": source.timm_name.partition(".")[0]}
    if folder is not None:
        config = export_files.read(folder)
    elif source.is_timm:
        cfg = architectures.published(source)
        found = {"data.size": cfg.input_size[-1], "data.mean": cfg.mean, "data.std": cfg.std}
        crop = export_files.of_pretrained_cfg(vars(cfg))
        found |= {f"data.{key}": value for key, value in crop.items()}
    else:
        return {}
    try:
        args = config.get("model_args") or {}
        model = architectures.values_of_timm(str(config.get("architecture")), args)
    except Exception as error:  # whatever timm makes of another architecture
        text = " ".join(str(error).split())[:200]
        raise UserError(f"init={source.place}: {text}; or say what it is with model=") from None
    found |= {f"model.{key}": value for key, value in model.items()}
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()
    }


def _resolved(source: InitSource, given: Mapping[str, str]) -> NamedEncoder:
    """An encoder with weights; at its own image size unless data.size= is given."""
    described = source.described_values()
    # the normalisation, which options give the encoders that do not state it
    brought = [f"data.{key}" for key in OF_PIXELS]
    own = {
        key: text
        for key, text in given.items()
        if not ("model.width" in described and key.split(".")[0] == "model")
        and not (key in brought and key in described)
    }
    if "model.width" not in described and not any(key.split(".")[0] == "model" for key in given):
        own = _of_timm(source) | own
    folder = source.fetch_export("config.json", "preprocessor_config.json")
    size = None if folder is None else export_files.image_size(folder)
    own.setdefault("data.size", str(size or DEFAULT_SIZE))
    name = own.pop("model.name", None)  # which only model= sets
    recipe = resolve_encoder(source.place, own)
    recipe.model.name = name or recipe.model.name
    located = source.locate()
    identity = source.place
    if source.is_local:
        identity = str(Path(located.run or located.export or source.place).resolve())
    label = Path(identity).name if source.is_local else identity
    return NamedEncoder(source, identity, label, recipe, source.pooling(), located.run)


def _scratch(owner: NamedEncoder | None, given: Mapping[str, str]) -> NamedEncoder:
    """Fresh weights; of the owner's model, for its images and with its seed, if there is one."""
    if owner is None:
        recipe = resolve_encoder("scratch", given)
        return NamedEncoder(InitSource("scratch"), "scratch", "scratch", recipe, "token", None)
    recipe = copy.deepcopy(owner.recipe)
    recipe.init = "scratch"
    if owner.run and "seed" not in given:
        recipe.seed = recipe_files.read(owner.run / "recipe.yaml").seed
    return NamedEncoder(InitSource("scratch"), "scratch", "scratch", recipe, owner.pool, None)


class ImageSet(NamedTuple):
    """The images that an encoder is shown, and the names of their data set and split."""

    source: Source
    name: str
    split: str


def find_images(one: NamedEncoder, given: Mapping[str, str], split: str | None = None) -> ImageSet:
    """A split, without one the test split, else the held-out images, of the images that the options
    name; without such options, of those that the run was trained on.

    Raises:
        UserError: the images are not on this machine, or cannot be read; there is no such split.
    """
    data = data_of(one, given)
    if split is not None:
        return _split_images(split, one, given, data)
    test = None if data.stream else _test_images(data)
    splits = sources.load(data, test=test is not None)
    for text in splits.guesses:
        print(f"warning: {text}", flush=True)
    source = splits.validation if splits.test is None else splits.test
    source = without_lists(source, "the figures")
    source = _coloured(source, splits.train, data, one, given)
    if test is not None:
        return ImageSet(source, data.name, test)
    if data.validation == 0:
        return ImageSet(source, data.name, TRAINING)
    return ImageSet(source, data.name, "held-out images")


def _split_images(split: str, one: NamedEncoder, given: Mapping[str, str], data: Data) -> ImageSet:
    """The images of the split that `split=` names. Raises as `find_images`."""
    if data.stream:
        text = "a stream is not looked at as a whole; expected data.stream=false"
        raise UserError(f"split={split}: {text}")
    found = open_splits(data)
    for text in found.guesses:
        print(f"warning: {text}", flush=True)
    chosen = named_split(split, found.splits)
    source = without_lists(found.splits[chosen], "the figures")
    source = _coloured(source, source, data, one, given)
    if not data.labels:
        source = source.without_labels()
    return ImageSet(source, data.name, f"split {chosen}")


def named_split(name: str, splits: Mapping[str, Source]) -> str:
    """The split with images that `split=` names.

    Raises:
        UserError: there is none.
    """
    filled = [each for each, source in splits.items() if len(source)]
    chosen = layout.choose(name, filled)
    if chosen is None:
        raise UserError(f"split={name}: no such split with images; {suggest(name, filled)}")
    return chosen


def _coloured(
    source: Source,
    labelled: Source,
    data: Data,
    one: NamedEncoder,
    given: Mapping[str, str],
) -> Source:
    """The source, without its labels where these are names of folders, which need not be classes:
    the encoder has learned no labels, and no option says that they are; prints what labels are, as
    `labelled` has them."""
    guessed = labelled.labels.source == FOLDERS and "data.labels" not in given
    if not guessed or _learned_labels(one):
        print(f"labels      {sources.describe_labels(labelled, data)}", flush=True)
        return source
    count = f"{len(labelled.classes):,} folders, of which this encoder has not learned"
    print(f"labels      none; data.labels=true colours image_map by {count}", flush=True)
    return source.without_labels()


def _learned_labels(one: NamedEncoder) -> bool:
    """Whether an encoder's run learned labels."""
    try:
        return one.run is not None and recipe_files.read(one.run / "recipe.yaml").declared.labels
    except UserError:  # of a plugin that is not given
        return False


def data_of(one: NamedEncoder, given: Mapping[str, str]) -> Data:
    """The data that the options name; without such options, those that the run was trained on,
    which it prints.

    Raises:
        UserError: they are not on this machine.
    """
    data = one.recipe.data
    if not gives_images(given):
        if one.run:
            data = recipe_files.read(one.run / "recipe.yaml").data
            own = words.typed({k: text for k, text in given.items() if k.startswith("data.")})
            changed = {f"data.{key}": value for key, value in data} | own
            data = schema.build(changed).data
        notice = images_taken(one.source, data)
        if one.source.is_scratch:
            text = f"no images are named; data={data.name} is used"
            notice = f"warning: init={one.source.place}: {text}; for others {OTHERS}"
        if notice and os.environ.get("RANK", "0") == "0":
            print(notice, flush=True)
    check_place(data)
    return data


def _test_images(data: Data) -> str | None:
    """The test images in words: a split or a share; None where there are none."""
    if not isinstance(data.test, str):
        return f"data.test={data.test:g}"
    found = open_splits(data).splits
    chosen = sources.split_to_test(data, found, layout.choose(data.train, found) or "")
    return f"split {chosen}" if chosen is not None and len(found[chosen]) else None


def load_subject(one: NamedEncoder, images: ImageSet, count: int, shown: int) -> Subject:
    """The encoder with its weights, in its objective if that has a figure; and `count` images of
    the set.

    Raises:
        UserError: the weights are missing, damaged or another model's; images cannot be read.
    """
    recipe = one.recipe
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.seed)
    network = build_backbone(recipe.model, recipe.data, class_token=False)
    assert isinstance(network, Encoder)  # with_fresh_weights refuses others
    if not one.source.is_scratch:
        weights.load_weights(network, one.source)
    objective, unknown = load_trained(one.source, network, lambda part: bool(part.figure))
    tokens = network.patches + network.prefix
    fitting = ATTENTION_BYTES // (4 * recipe.model.heads * tokens**2)
    size = max(shown, min(LARGEST_BATCH, fitting))
    batch_layout = BatchLayout(size, size, 0, 1)
    batches = loaders.held_out_batches(images.source, recipe.data, batch_layout, count)
    batches = [batch.map(lambda values: values.to(device)) for batch in batches]
    for text in (text for batch in batches for text in batch.unreadable):
        print(f"warning: replaced by the next image: {text}", flush=True)
    network.to(device).eval()
    if objective is not None:
        objective.to(device).eval()
    first: Batch = batches[0].map(lambda values: values[:shown])
    return Subject(network, one.pool, batches, first, objective, images.source.classes, unknown)
