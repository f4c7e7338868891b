"""The embed tool: features of every image of a data set, in shards. Torch is imported late."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, report_errors
from ..recipe.tool import parse
from ..recipe.tools import EmbedOptions

if TYPE_CHECKING:
    from ..evaluation.embedding import Neighbor
    from ..recipe.schema import Data
    from .encoders import NamedEncoder


@dataclass(frozen=True)
class EmbeddedImages:
    """The features of a data set's images, in files.

    Attributes:
        folder: which holds embed.json and the shards.
        files: the shards of these splits: a row an image with `index`, `file`, `label`, `embedding`
            and, with patches=true, `patches`.
        nearest: with query=, the most similar images to each query, best first: `similarity`
            (cosine), `split`, `index`, `file`, `label`, the class's number or -1, and `query`, its
            name as it was given. Empty on other processes than rank 0.
    """

    folder: Path
    files: list[Path]
    nearest: "list[Neighbor]"


def main(arguments: list[str]) -> None:
    """Write the features that are missing; answer the queries.

    Raises:
        UserError: an option, the encoder, the images or the folder do not suit.
    """
    prepared = prepare(parse(EmbedOptions, arguments))
    with report_errors(everywhere=True):
        embed(*prepared)


def prepare(options: EmbedOptions) -> tuple[EmbedOptions, "NamedEncoder", "Data"]:
    """The options with their encoder, whose recipe names the folder, and their images.

    Raises:
        UserError: there is no such encoder, or the images are not on this machine.
    """
    if options.top is not None and options.query is None:
        raise UserError(f"top={options.top}: has no use without query=IMAGE")
    from . import encoders

    named = encoders.resolve_one(options.init, options.overrides)
    data = encoders.data_of(named.owner or named, options.overrides)
    recipe = named.recipe
    for key in ("labels", "name", "path", "hub"):  # where images are; how they are cut is one's own
        setattr(recipe.data, key, getattr(data, key))
    label, place = (re.sub(r"[^\w.-]", "_", text)[-60:] for text in (named.label, data.name))
    recipe.out = options.out
    recipe.name = options.name or f"features-{label}-{place}"
    folder = Path(recipe.out) / recipe.name
    if data.path and folder.resolve().is_relative_to(Path(data.path).resolve()):
        text = "lies in data.path=, where it would be taken for images; give another out="
        raise UserError(f"out={recipe.out}: {folder} {text}")
    return options, named, data


def embed(options: EmbedOptions, named: "NamedEncoder", data: "Data") -> EmbeddedImages:
    """Write the features that are missing, on all processes; answer the queries.

    Raises:
        UserError: the weights, the images or the folder do not suit.
    """
    from ..runs.folder import Run
    from .feature_folder import FeatureFolder
    from .session import session

    run = Run(named.recipe)
    with session(run) as current:
        features = FeatureFolder(options, named, data, current)
        files, nearest = features.run()
    return EmbeddedImages(features.folder, files, nearest)
