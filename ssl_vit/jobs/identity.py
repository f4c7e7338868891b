"""Whether a finished run's result answers a recipe: the same values, images, first weights and
files. No torch here."""

import dataclasses
import json
from functools import cache
from typing import Any

from ..config.init_source import is_local, weights_hash
from ..config.schema import Data, Recipe
from ..config.validate import check_place
from ..errors import UserError
from ..runs.folder import Run

# Which images a recipe reads; what becomes of them is compared with the recipe
PLACE = (
    "name",
    "path",
    "hub",
    "size",
    "window",
    "stream",
    "train",
    "validation",
    "test",
    "image_column",
    "label_column",
)


def check(run: Run) -> list[str]:
    """That the result of the folder, whose recipe `adopt` has compared, is one of the recipe's
    images, first weights and files; in words, what could not be checked because it is not here.

    Raises:
        UserError: it is of others; it names which.
    """
    recipe = run.recipe
    run.check_options()
    doubts = []
    weights = weights_hash(recipe.init)
    if weights is not None:
        run.compare("init", {"file": weights})
    elif is_local(recipe.init):
        doubts.append(
            f"init={recipe.init}: is not here, so whether the weights are the same was not checked"
        )
    stamps = run.file_hashes()
    for key in ("plugin", "real"):
        run.compare(key, stamps.get(key) or {})
    images, why = _images(recipe)
    run.compare("data", images)
    return [*doubts, why] if why else doubts


def check_begun(run: Run) -> None:
    """The same of a run that is to go on, as far as it costs nothing: its images and first weights
    are compared when they are read.

    Raises:
        UserError: its plugin is another.
    """
    if (run.folder / "environment.json").exists():
        run.compare("plugin", run.file_hashes().get("plugin") or {})


def finished(run: Run) -> dict[str, Any] | None:
    """The result that another process has left since this one first looked; to be asked while the
    lock is held, before anything is written. Doubts are printed.

    Raises:
        UserError: the folder holds another run by now, or its result is of other images.
    """
    run.reconcile()
    result = run.result()
    if result is not None:
        for doubt in check(run):
            print(f"warning: {doubt}", flush=True)
    return result


def _images(recipe: Recipe) -> tuple[dict[str, str], str]:
    """The fingerprints of the images that a recipe names, or why there are none.

    Raises:
        UserError: they are here and cannot be read.
    """
    data = recipe.data
    if data.hub and not data.path:
        return (
            {},
            f"data.hub={data.hub}: is not read again, so whether its images are the same was not checked",
        )
    try:
        check_place(data)
    except UserError as error:
        return {}, f"{error}; whether the images are the same was not checked"
    place = {key: getattr(data, key) for key in PLACE}
    test = recipe.eval.test or recipe.objective == "probe"
    return _fingerprints(json.dumps(place), test, recipe.seed if data.stream else 0), ""


@cache  # the runs of a study share their images
def _fingerprints(place: str, test: bool, seed: int) -> dict[str, str]:
    from ..data import fingerprints, sources  # a second of imports

    data = dataclasses.replace(Data(), **json.loads(place))
    return fingerprints.fingerprint_splits(sources.load(data, test, seed=seed), data.path)
