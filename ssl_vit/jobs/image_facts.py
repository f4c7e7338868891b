"""Compute the fingerprints by which the images of a run are recognised. No torch."""

import json
from functools import cache

from ..errors import UserError
from ..recipe.check import check_place
from ..recipe.images import READING, SPLIT_KEYS, Data
from ..recipe.schema import Recipe, measures_masks

NOT_COMPARED = "the images were not compared with the images of the finished run"


def fingerprint(recipe: Recipe) -> tuple[dict[str, str], str]:
    """Return the fingerprint of each split that a recipe names, or why there are none.

    Raises:
        UserError: The images exist on this machine and cannot be read.
    """
    data = recipe.data
    if data.hub and not data.path:
        return {}, f"data.hub={data.hub}: {NOT_COMPARED}"
    try:
        check_place(data)
    except UserError as error:
        return {}, f"{error} ({NOT_COMPARED})"
    # fingerprints are of whole splits, even if a run uses only a part
    place = {key.removeprefix("data."): recipe.value(key) for key in (*SPLIT_KEYS, *READING)}
    test = recipe.eval.test or recipe.objective == "probe"
    seed = recipe.seed if data.stream else 0
    return _fingerprints(json.dumps(place), test, seed, measures_masks(recipe)), ""


@cache  # the runs of a study share their images
def _fingerprints(place: str, test: bool, seed: int, masks: bool) -> dict[str, str]:
    from ..data import fingerprints, run_splits  # a second of imports

    data = Data(**json.loads(place))
    splits = run_splits.load(data, test, seed=seed)
    return fingerprints.fingerprint_splits(splits, data.path, masks, bool(data.group))
