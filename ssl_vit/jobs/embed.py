"""Write the features of every image of a data set, in shards. Torch is imported late."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, report_errors
from ..recipe.given import Arguments
from ..recipe.tool import parse
from ..recipe.tools import EmbedOptions
from ..runs import notebook

if TYPE_CHECKING:
    from ..evaluation.embedding import Neighbor
    from ..recipe.schema import Data
    from .encoders import NamedEncoder


@dataclass(frozen=True)
class EmbeddedImages:
    """Files with the features of the images of a data set. A notebook shows the nearest images.

    Attributes:
        folder: Contains embed.json and the shards.
        files: The shards of the embedded splits. Each row of a shard describes an image: `index`,
            `file`, `label`, `embedding` and, with patches=true, `patches`.
        nearest: The images that are most similar to each query, best first. Each has `similarity`
            (cosine similarity), `split`, `index`, `file`, `label` (the number of the class, or -1)
            and `query` (the value of `query=`). Empty without `query=`, and on processes other than
            rank 0.
        page: Content of nearest.html, the page with the nearest images. Empty if `nearest` is.
    """

    folder: Path
    files: list[Path]
    nearest: "list[Neighbor]"
    page: str = field(default="", repr=False)

    def _repr_html_(self) -> str | None:
        """Return the page, or None if a notebook should show the text of this object."""
        return notebook.inline_page(self.page) if self.page else None


def main(arguments: list[str]) -> None:
    """Write the features of images into a folder, and find the images nearest to the queries.

    Features from an interrupted command are kept. If a process fails, the error is printed with
    the number of the process.

    Args:
        arguments: Arguments of the command line.

    Raises:
        UserError: An option, the encoder, the images or the folder are unsuitable.
    """
    prepared = prepare(parse(EmbedOptions, Arguments(arguments)))
    with report_errors(everywhere=True):
        embed(*prepared)


def prepare(options: EmbedOptions) -> tuple[EmbedOptions, "NamedEncoder", "Data"]:
    """Find the encoder and the images that the options name, without loading the weights.

    Returns:
        The options, the encoder and the data. The encoder's recipe is changed: `out` and `name` now
        give the folder of the features, and `data` says where the images are.

    Raises:
        UserError: The encoder does not exist, the images are not on this machine, `top=` is given
            without `query=`, or the folder would lie among the images.
    """
    if options.top is not None and options.query is None:
        raise UserError(
            f"top={options.top}: the option has no effect without query=IMAGE. Add query=."
        )
    from . import encoders

    encoder = encoders.find_encoder(options.init, options.given)
    # With init=scratch,RUN (RUN's model with untrained weights), the images are those of RUN
    data = encoders.find_data(encoder.trained_encoder or encoder, options.given)
    recipe = encoder.recipe
    # Copy only the keys that say where the images are and whether labels are read. The encoder
    # decides the size and the cropping of the images
    for key in ("labels", "name", "path", "hub"):
        setattr(recipe.data, key, getattr(data, key))
    recipe.out = options.out
    recipe.name = options.name or f"features-{_file_name(encoder.label)}-{_file_name(data.name)}"
    folder = Path(recipe.out) / recipe.name
    if data.path and folder.resolve().is_relative_to(Path(data.path).resolve()):
        raise UserError(
            f"out={recipe.out}: {folder} is inside data.path=, where only images may be. "
            "Use another out=."
        )
    return options, encoder, data


def _file_name(text: str) -> str:
    """Return a text as part of a file name.

    The last 60 characters are kept, and unsuitable characters become _. For example,
    "hf-hub:USER/NAME" becomes "hf-hub_USER_NAME".
    """
    return re.sub(r"[^\w.-]", "_", text)[-60:]


def embed(options: EmbedOptions, named: "NamedEncoder", data: "Data") -> EmbeddedImages:
    """Write the features that are missing, and find the images nearest to the queries.

    Call this function on all processes, with the results of `prepare`.

    Args:
        options: Options of the tool.
        named: Encoder. `out` and `name` of its recipe give the folder.
        data: Data set of the images.

    Raises:
        UserError: The weights, the images or the folder are unsuitable.
    """
    from ..runs.folder import Run
    from .feature_folder import FeatureFolder
    from .session import session

    run = Run(named.recipe)
    with session(run) as current:
        features = FeatureFolder(options, named, data, current)
        return EmbeddedImages(features.folder, *features.run())
