"""What the first lines of a run say of the weights that it begins with."""

from collections.abc import Iterator
from contextlib import suppress

from ..errors import UserError
from ..models import architectures
from ..recipe import export_files
from ..recipe.init_source import InitSource
from ..recipe.records.run import SeenImages
from ..recipe.schema import Recipe
from ..runs import seen_text
from ..runs.folder import Run


def init_notes(run: Run, seen: list[SeenImages]) -> Iterator[str]:
    """What these weights have seen, and their image size where it is another.

    Args:
        run: the run that begins with them.
        seen: of the images that it is measured on, as `seen_images`.
    """
    yield from _other_size(run.recipe)
    yield from seen_text.lines(seen)


def _other_size(recipe: Recipe) -> Iterator[str]:
    with suppress(UserError):  # weights that are gone since
        size = trained_size(recipe.init_source)
        if size not in (None, recipe.data.size):
            here = f"here they are {recipe.data.size} px"
            yield f"trained on images of {size} px; {here} (data.size={size} is as there)"


def trained_size(init: InitSource) -> int | None:
    """The side in pixels of the images that weights were trained on; None where they do not say.

    Raises:
        UserError: there are no weights of that name.
    """
    if init.is_timm:
        return int(architectures.published(init).input_size[-1])
    folder = init.fetch_export("config.json")
    return None if folder is None else export_files.image_size(folder)
