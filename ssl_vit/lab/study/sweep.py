"""Turn a sweep on the command line into a study: a recipe, and several values for some keys.

`recipe=mpp sweep corruption.rate=0.15,0.5 optim.lr=1e-3,3e-3` pre-trains every combination of
values and measures each frozen encoder on the recipe's images. If the images are on this machine
and have no labels, the held-out loss is compared instead. Each key is an axis, and the report
compares the values of the first key.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import UserError
from ...recipe.schema import Recipe
from .. import engine

SWEEP = "sweep"
# matches commas outside the brackets of a list and the braces of a mapping
COMMA = re.compile(r",(?![^\[]*\]|[^{]*\})")


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words without `sweep`, and the keys of the options after `sweep`."""
    words_after = words[words.index(SWEEP) + 1 :]
    keys = [word.partition("=")[0] for word in words_after if "=" in word]
    return [word for word in words if word != SWEEP], keys


def content(
    recipe: str | None, texts: Mapping[str, str], swept: Iterable[str], match: str | None
) -> tuple[dict[str, Any], str]:
    """Return the study of a sweep with the structure of a study file, and the study's name.

    Args:
        recipe: Name of the recipe of all runs.
        texts: `{key: text}` of all options. The text of a swept key has its values with commas.
        swept: Keys that have several values.
        match: `exaflop` if the values of the first key get equal compute, else None.

    Raises:
        UserError: No key is swept, or an option is wrong.
    """
    axes = {key: COMMA.split(texts[key]) for key in swept}
    if not axes:
        example = "Type a key with several values, such as sweep corruption.rate=0.15,0.5."
        raise UserError(f"{SWEEP}: no key follows. {example}")
    if recipe in engine.studies():
        text = f"{SWEEP} needs a recipe, not a study. Use recipe=mpp, or leave {SWEEP} out."
        raise UserError(f"recipe={recipe}: {text}")
    for key, values in axes.items():
        if "" in values:
            raise UserError(f"{key}={texts[key]}: a value is empty. Write every value.")
        if len(values) == 1:
            wanted = f"Add a value, or write {key}= before the word {SWEEP}."
            raise UserError(f"{key}={texts[key]}: only a single value after {SWEEP}. {wanted}")
    shared_options = {key: text for key, text in texts.items() if key not in axes}
    shared_options |= {"recipe": recipe} if recipe else {}
    pretrain_options = {
        key: text for key, text in shared_options.items() if not key.startswith("probe.")
    }
    probe_options = {
        key: text for key, text in shared_options.items() if key.startswith(("probe.", "compute."))
    }
    base = _base(pretrain_options, {key: values[0] for key, values in axes.items()})
    if not base.trains:
        raise UserError(f"recipe={recipe}: this recipe trains no encoder. Use recipe=mpp.")
    pretrain_options.pop("plugin", None)  # the study passes on the plugin of the command line
    if base.data.path:
        # absolute, so that runs find the images from any folder
        pretrain_options["data.path"] = base.data.path
    runs = {"pretrain": {"tool": "pretrain", "over": [*axes], "options": pretrain_options}}
    report: dict[str, Any] = {"test": "pretrain", "measures": ["loss"]}
    if engine.has_labels(base):
        images = engine.evaluated_images(base)
        options = {"recipe": "evaluate", "init": "{pretrain}"} | images | probe_options
        runs["probe"] = {"tool": "evaluate", "over": [*axes], "options": options}
        report = {"test": "probe"}
    return {
        "title": f"{recipe}: {' and '.join(axes)}",
        "match": {match: next(iter(axes))} if match else None,
        "axes": {key: _names(key, values) for key, values in axes.items()},
        "runs": runs,
        "report": report,
    }, f"{base.name}-{SWEEP}-{'-'.join(axes)}"


def _names(key: str, values: list[str]) -> dict[str, Any]:
    """Return `{name: settings}` of an axis, with characters that no name can have replaced."""
    names: dict[str, Any] = {}
    for value in values:
        name = re.sub(r"[^A-Za-z0-9_.%=,+-]", "_", value).strip("_.%=,+-") or "0"
        if name in names:
            text = f"another value has the same name {name}. Remove either value."
            raise UserError(f"{key}={value}: {text}")
        names[name] = {"pretrain": {key: value}}
    return names


def _base(start: Mapping[str, str], first: Mapping[str, str]) -> Recipe:
    """Resolve the recipe of a sweep without the swept keys.

    If the recipe needs a swept key, each swept key gets its first value.

    Args:
        start: `{key: text}` of the options that are not swept.
        first: `{key: text}` of the first value of each swept key.
    """
    options = [f"{key}={text}" for key, text in start.items()]
    try:
        return engine.resolve(options, SWEEP)
    except UserError:
        return engine.resolve([*options, *(f"{key}={text}" for key, text in first.items())], SWEEP)
