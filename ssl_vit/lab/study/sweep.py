"""Turn a sweep on the command line into a study: a recipe, and several values for some keys.

`recipe=mpp sweep corruption.rate=0.15,0.5 optim.lr=1e-3,3e-3` pre-trains every combination of
values and measures each frozen encoder on the recipe's images. If the images are on this machine
and have no labels, the held-out loss is compared instead. Each key is an axis, and the report
compares the values of the first key.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ...errors import UserError
from ...formatting import option_text
from ...recipe.given import (
    Arguments,
    Given,
    Pairs,
    Unread,
    add_pairs,
    dotted_pairs,
    plain_value,
)
from ...recipe.keys import Values
from ...recipe.recipe_files import study_names
from ...recipe.schema import Recipe, all_keys, changes_experiment
from ...recipe.words import NAMED, SWEEP, read, write
from ..images import has_labels
from .options import StudyOptions
from .task_options import evaluated_images, resolve_options

# a value of a list VALUE,VALUE: commas may be inside double quotes, brackets and braces
SEPARATORS = set('",[]{}')
QUOTED = r'"(?:[^"\\]|\\.)*"'
VALUE = re.compile(rf"(?:{QUOTED}|\[[^\]]*\]|\{{[^}}]*\}}|[^,])*")
# what the runs of a sweep do, for readers of the report
RUNS = {
    "pretrain": "pre-training with each combination of the values",
    "probe": "classifiers on the features of the frozen encoder",
}
Axes = dict[str, dict[str, Any]]  # {key: {value as text: value}}


class Swept(NamedTuple):
    """Keys that a user wants to sweep.

    Attributes:
        words: Keys after the word `sweep` on the command line.
        values: `{key: value, or list of values}` of a call from Python.
    """

    words: list[str]
    values: Values


def write_values(key: str, values: Any) -> str:
    """Return the argument KEY=VALUE,VALUE for a value or a list of values of a call from Python.

    A text with a comma is quoted, so that `axes` reads the same values.
    """
    items = values if isinstance(values, list | tuple) else [values]
    return f"{key}={','.join(_write_value(key, item) for item in items)}"


def _write_value(key: str, value: Any) -> str:
    if isinstance(value, str | os.PathLike) and SEPARATORS & set(os.fspath(value)):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    return write(key, value).partition("=")[2]


def _read_value(key: str, text: str) -> tuple[str, Any]:
    """Return the name and the value that a part of VALUE,VALUE stands for."""
    if text[0] == '"' and set(text[1:-1]) & SEPARATORS:
        with suppress(ValueError):
            value = json.loads(text)  # as `_write_value` writes it
            return value, value
    return text, text if key in NAMED else read(all_keys()[key], text)


def _split_values(text: str) -> list[str]:
    """Split VALUE,VALUE at the commas outside quotes and brackets, as `write_values` writes it."""
    texts, position = [], 0
    while position <= len(text):
        match = VALUE.match(text, position)
        assert match is not None  # the pattern also matches nothing
        texts.append(match[0])
        position = match.end() + 1
    return texts


def split(arguments: Arguments) -> tuple[Arguments, Swept | None]:
    """Split the sweep off the arguments of the study tool.

    On the command line, a sweep is every KEY=VALUES after the word `sweep`. A call from Python has
    the argument `sweep={"optim.lr": [1e-3, 3e-3]}`.

    Args:
        arguments: Words of the command line, and pairs (key, value) from Python.

    Returns:
        First, the arguments without the word or argument `sweep`. Words KEY=VALUES of the command
            line stay in the arguments, and `axes` reads their values later. Second, the swept keys,
            or None without a sweep.

    Raises:
        UserError: `sweep` from Python is no mapping, or a key has two values.
    """
    words, pairs = arguments
    keys: list[str] = []
    if SWEEP in words:  # on the command line
        words_after = words[words.index(SWEEP) + 1 :]
        keys = [word.partition("=")[0] for word in words_after if "=" in word]
    mappings = [value for key, value in pairs or () if key == SWEEP and value is not None]
    tool_pairs, values = _read_mappings(mappings)
    swept = Swept(keys, values) if SWEEP in words or mappings else None
    words = [word for word in words if word != SWEEP]
    if pairs is not None:  # from Python
        pairs = [pair for pair in pairs if pair[0] != SWEEP] + tool_pairs
    return Arguments(words, pairs), swept


def _read_mappings(mappings: list[Any]) -> tuple[Pairs, Values]:
    """Read the values of the argument `sweep` from Python.

    The mapping may also have options of the study tool, such as `seeds`. For example,
    `{"optim.lr": [1e-3, 3e-3], "seeds": 3}` has the option `seeds` and the swept key `optim.lr`.

    Returns:
        Pairs (key, value) of the options of the tool, and `{key: value or values}` of the swept
            keys.

    Raises:
        UserError: A value is no mapping, or a key has two values.
    """
    pairs: list[tuple[str, Any]] = []
    values: Values = {}
    for mapping in mappings:
        if not isinstance(mapping, Mapping):
            raise UserError(
                f"{SWEEP}={option_text(mapping)}: expected a mapping from keys to lists of values"
            )
        for pair in dotted_pairs(mapping):
            if pair[0] in StudyOptions.options():
                pairs.append(pair)
            else:
                add_pairs(values, [pair])
    return pairs, values


def axes(swept: Swept, unread: Unread) -> tuple[Axes, Unread]:
    """Split the user's keys into swept keys with their values and all other keys.

    A key after the word `sweep` is an option of all runs if it has a single value and does not
    change the experiment. For example, in `sweep optim.lr=1e-3,3e-3 compute.threads=1`, the key
    `compute.threads` is an option of all runs.

    Returns:
        First, the swept keys, for example `{"optim.lr": {"1e-3": 0.001, "3e-3": 0.003}}`. Second,
            all other keys, which are options of all runs.

    Raises:
        UserError: A key has an impossible value, has a value twice, or is given twice.
    """
    keys = [
        key
        for key in swept.words
        if key in unread.texts and ("," in unread.texts[key] or changes_experiment(key))
    ]
    texts = {key: text for key, text in unread.texts.items() if key not in keys}
    pairs = [*(unread.pairs or ())]
    # {key: [(value as text, value)]}
    values: dict[str, Pairs] = {}
    for key in dict.fromkeys(keys):
        names = _split_values(unread.texts[key])
        if "" in names:
            raise UserError(f"{key}={unread.texts[key]}: a value is empty. Write every value.")
        values[key] = [_read_value(key, name) for name in names]
    for key, value in swept.values.items():
        is_list = isinstance(value, list | tuple)
        if not is_list and not changes_experiment(key):
            pairs.append((key, value))
        elif key in values:
            raise UserError(f"{key}: the values are given twice. Use a single list.")
        else:
            items = value if is_list else [value]
            values[key] = [(option_text(item), plain_value(key, item)) for item in items]
    others = Unread(texts, None if unread.pairs is None else pairs)
    for key, named_values in values.items():
        text = f"{key}={','.join(name for name, _ in named_values)}"
        if len({name for name, _ in named_values}) < len(named_values):
            raise UserError(f"{text}: a value appears twice. Write each value once.")
        if key in others.keys:
            raise UserError(
                f"{text}: you sweep this key and also set it for all runs. Leave"
                f" {key}={others.text(key)} out."
            )
    return {key: dict(named_values) for key, named_values in values.items()}, others


def content(
    recipe: str | None, given: Given, axes: Axes, match: str | None
) -> tuple[dict[str, Any], str]:
    """Return a sweep as a mapping with the structure of a study file, and the study's name.

    Args:
        recipe: Name of the recipe of all runs.
        given: Values of the user for all runs.
        axes: Values of the swept keys.
        match: `exaflop` if the values of the first key get equal compute, else None.

    Raises:
        UserError: No key is swept, or an option is wrong.
    """
    if not axes:
        raise UserError(
            f"{SWEEP}: no key follows. Type a key with several values, such as sweep"
            " corruption.rate=0.15,0.5."
        )
    if recipe in study_names():
        raise UserError(
            f"recipe={recipe}: {SWEEP} needs a recipe, not a study. Use a recipe such as"
            f" recipe=mpp, or leave {SWEEP} out."
        )
    for key, values in axes.items():
        if len(values) < 2:
            raise UserError(
                f"{key}={','.join(values)}: a key after the word {SWEEP} needs at least two values."
                f" Add a value, or write {key}= before the word {SWEEP} to use this value in all"
                " runs."
            )
    shared = given.values | ({"recipe": recipe} if recipe else {})
    pretrain_options = {key: shared[key] for key in shared if not key.startswith("probe.")}
    probe_options = {key: shared[key] for key in shared if key.startswith(("probe.", "compute."))}
    first_values = {key: next(iter(axes[key].values())) for key in axes}
    base = _base(pretrain_options, first_values)
    if not base.trains:
        raise UserError(
            f"recipe={recipe}: this recipe trains no encoder. Use a recipe that does, such as"
            " recipe=mpp."
        )
    pretrain_options.pop("plugin", None)  # the study passes on the plugin of the command line
    if base.data.path:
        # absolute, so that runs find the images from any folder
        pretrain_options["data.path"] = base.data.path
    runs = {"pretrain": {"tool": "pretrain", "over": [*axes], "options": pretrain_options}}
    report: dict[str, Any] = {"test": "pretrain", "measures": ["loss"]}
    if has_labels(base):
        images = evaluated_images(base)
        options = {"recipe": "evaluate", "init": "{pretrain}"} | images | probe_options
        runs["probe"] = {"tool": "evaluate", "over": [*axes], "options": options}
        report = {"test": "probe"}
    report["explain"] = {key: f"the option {key} of pre-training" for key in axes}
    report["explain"] |= {name: RUNS[name] for name in runs}
    return {
        "title": f"{recipe}: {' and '.join(axes)}",
        "match": {match: next(iter(axes))} if match else None,
        "axes": {key: _names(key, values) for key, values in axes.items()},
        "runs": runs,
        "report": report,
    }, f"{base.name}-{SWEEP}-{'-'.join(axes)}"


def _names(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the axis of a swept key, as in a study file, with a name for each value.

    For example, the result for key `optim.lr` and value `1e-3` is
    `{"1e-3": {"pretrain": {"optim.lr": 0.001}}}`. The swept key is set for run `pretrain`, which
    every sweep has. In names, `_` replaces characters that names must not have.

    Args:
        key: Swept key, such as `optim.lr`.
        values: `{value as text: value}`.

    Raises:
        UserError: Two values have the same name.
    """
    names: dict[str, Any] = {}
    for text, value in values.items():
        # a value without letters and digits, such as [], gets the name 0
        name = re.sub(r"[^A-Za-z0-9_.%=,+-]", "_", text).strip("_.%=,+-") or "0"
        if name in names:
            raise UserError(
                f"{key}={text}: another value has the same name {name} in folder names. Leave out"
                " one of the two values."
            )
        names[name] = {"pretrain": {key: value}}
    return names


def _base(start: Values, first: Values) -> Recipe:
    """Resolve the recipe of a sweep without the swept keys.

    Some recipes cannot be resolved without a swept key, for example without `data.path`. Then each
    swept key gets its first value.

    Args:
        start: `{key: value}` of the options that are not swept.
        first: `{key: value}` of the first value of each swept key.
    """
    try:
        return resolve_options(start, SWEEP)
    except UserError:
        return resolve_options(start | first, SWEEP)
