"""Compute the fingerprints by which the images of a run are recognised. No torch."""

import json
from functools import cache

from ..errors import UserError
from ..recipe.check import check_place
from ..recipe.images import READING, SPLIT_KEYS, Data
from ..recipe.schema import Recipe, measures_masks

NOT_COMPARED = "the images were not compared with the images of the finished run"


def fingerprint(recipe: Recipe) -> tuple[dict[str, str], str]:
    """Return a fingerprint of the images of each split.

    The fingerprint shows whether images have changed. A fingerprint covers the whole split, even if
    a run uses only a part. Images of the Hub, and images that are not on this machine, have no
    fingerprint.

    Returns:
        `{split: fingerprint}` and an empty text. Without fingerprints, an empty mapping and the
        reason.

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
    options = {key.removeprefix("data."): recipe.value(key) for key in (*SPLIT_KEYS, *READING)}
    # Pass the options as text, because arguments of a cached function must be hashable
    hashes = _fingerprints(
        json.dumps(options),
        test=recipe.eval.test or recipe.objective == "probe",  # every evaluation has test images
        # Only the images of a stream depend on the seed. Otherwise pass 0, so that runs with
        # different seeds share the cached fingerprints
        seed=recipe.seed if data.stream else 0,
        masks=measures_masks(recipe),
    )
    return hashes, ""


@cache  # the runs of a study share their images
def _fingerprints(data_options: str, test: bool, seed: int, masks: bool) -> dict[str, str]:
    from ..data import fingerprints, run_splits  # a second of imports

    data = Data(**json.loads(data_options))
    splits = run_splits.load(data, test, seed=seed)
    return fingerprints.fingerprint_splits(splits, data.path, masks, bool(data.group))
