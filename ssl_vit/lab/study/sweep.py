"""A sweep from the command line: an ordinary recipe, and keys with several values each, as a study.

`recipe=mpp sweep corruption.rate=0.15,0.5 optim.lr=1e-3,3e-3` pre-trains every combination and
measures its frozen encoder on the recipe's images; where these are here and have no labels, the
held-out loss stands in its place. Each key is an axis; the first one's values are compared.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import UserError
from ...recipe.schema import Recipe
from .. import engine

SWEEP = "sweep"
COMMA = re.compile(r",(?![^\[]*\]|[^{]*\})")  # none inside a list's brackets or a mapping's braces


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without `sweep`, and the keys that follow it."""
    behind = words[words.index(SWEEP) + 1 :]
    keys = [key for key, equals, _ in (word.partition("=") for word in behind) if equals]
    return [word for word in words if word != SWEEP], keys


def content(
    recipe: str | None, given: Mapping[str, str], swept: Iterable[str], match: str | None
) -> tuple[dict[str, Any], str]:
    """The study as a file has it, and its name.

    Args:
        recipe: that all runs start from.
        given: {key: text} of its options.
        swept: those of several values.
        match: exaflop where the first one's values have equal compute.

    Raises:
        UserError: nothing is swept, or an option is wrong.
    """
    axes = {key: COMMA.split(given[key]) for key in swept}
    if not axes:
        example = "say what is swept, as in sweep corruption.rate=0.15,0.5"
        raise UserError(f"{SWEEP}: no key follows; {example}")
    if recipe in engine.studies():
        text = f"{SWEEP} starts from an ordinary recipe; a study has axes in its file"
        raise UserError(f"recipe={recipe}: {text}")
    for key, values in axes.items():
        if "" in values:
            raise UserError(f"{key}={given[key]}: a value is empty")
        if len(values) == 1:
            wanted = f"expected two values at least after {SWEEP}; others stand before it"
            raise UserError(f"{key}={given[key]}: {wanted}")
    start = {key: text for key, text in given.items() if key not in axes}
    start |= {"recipe": recipe} if recipe else {}
    trained = {key: text for key, text in start.items() if not key.startswith("probe.")}
    probed = {key: text for key, text in start.items() if key.startswith(("probe.", "compute."))}
    base = _base(trained, {key: values[0] for key, values in axes.items()})
    if not base.trains:
        raise UserError(f"recipe={recipe}: trains nothing that could be swept")
    trained.pop("plugin", None)  # the command line's
    if base.data.path:
        trained["data.path"] = base.data.path  # found again from any folder
    runs = {"pretrain": {"tool": "pretrain", "over": [*axes], "options": trained}}
    report: dict[str, Any] = {"test": "pretrain", "measures": ["loss"]}
    if engine.labelled(base):
        images = engine.evaluated_images(base)
        options = {"recipe": "evaluate", "init": "{pretrain}"} | images | probed
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
    """{name: the option of what pre-trains}; of a text that is no name its letters and digits."""
    names: dict[str, Any] = {}
    for value in values:
        name = re.sub(r"[^A-Za-z0-9_.%=,+-]", "_", value).strip("_.%=,+-") or "0"
        if name in names:
            raise UserError(f"{key}={value}: is there twice, or gives the name {name} too")
        names[name] = {"pretrain": {key: value}}
    return names


def _base(start: Mapping[str, str], first: Mapping[str, str]) -> Recipe:
    """The recipe before any value or, where it cannot be without one, with the first."""
    options = [f"{key}={text}" for key, text in start.items()]
    try:
        return engine.resolve(options, SWEEP)
    except UserError:
        return engine.resolve([*options, *(f"{key}={text}" for key, text in first.items())], SWEEP)
