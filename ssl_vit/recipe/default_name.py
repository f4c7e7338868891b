"""Choose the name of a run that the user did not name. This module does not import torch."""

import hashlib
from typing import Any

from . import schema
from .schema import Recipe, computed_values

# in characters; in bytes, which file systems count, the limit is twice this number
LONGEST_DEFAULT_NAME = 120


def default_name(parts: list[str], before: Recipe, recipe: Recipe) -> str:
    """Return the default name of a run, such as `mpp-vit_s16-optim.lr=0.01`.

    The name begins with `parts`. Each option of the user that changes what is computed follows. The
    options are sorted by key. A long name is cut and ends in a hash.

    Args:
        parts: Names of the recipe, the data set and the model, and short names of weights, such as
            ["mpp", "vit_s16"].
        before: The recipe without the user's options, but with the presets that the user named.
        recipe: The recipe with the user's options.
    """
    values_before = computed_values(before)
    values = computed_values(recipe)
    default = schema.defaults()
    # `parts` already has the data set, the weights and the networks of the weights
    named_keys = {"data.hub"}
    for key, source in recipe.sources().items():
        named_keys |= {key, source.network_key}
    # a key that `before` lacks is compared with its default
    changed_keys = sorted(
        key
        for key in values.keys() - named_keys
        if values[key] != values_before.get(key, default.get(key))
    )
    options = [f"{key}={_name_text(values[key])}" for key in changed_keys]
    name = "-".join([*parts, *options]).replace("/", "_").strip()
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    if len(name) > LONGEST_DEFAULT_NAME:
        return f"{name[:110]}-{digest}"  # 119 characters, with the hyphen and 8 of the digest
    if len(name.encode(errors="replace")) > 2 * LONGEST_DEFAULT_NAME:
        return f"{name[:50]}-{digest}"  # at most 209 bytes, as a character takes at most 4
    return name


def _name_text(value: Any) -> str:
    """Format a value for the name of a folder, without brackets and quotes.

    For example, [1, 5] becomes "1,5", {"a": 1, "b": 2} becomes "a=1,b=2", an empty list becomes
    "empty", None "none" and True "true".
    """
    if isinstance(value, dict):
        value = [f"{name}={_name_text(item)}" for name, item in sorted(value.items())]
    if isinstance(value, list):
        return ",".join(map(_name_text, value)) or "empty"
    text = str(value)
    return text.lower() if isinstance(value, bool) or value is None else text
