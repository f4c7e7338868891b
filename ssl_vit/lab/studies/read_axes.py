"""The axes in a study's file, each as an `Axis`: the curve (labels, images or compute), the arms
(vary, benchmark, arms) and the grid of a part.

`labels: [{share: 0.01, steps: 500}, {share: 0.1, steps: 2000}]` repeats every part with `{share}`
or `{steps}` in its options, or that needs such a part, as PART_0.01 and PART_0.1. `vary:
{corruption.rate: [0.15, 0.5], optim.lr: [1e-3, 3e-3]}` is every combination, `vary: [{name: all,
corruption.mask: 1.0, corruption.random: 0, corruption.keep: 0}, ...]` one arm for each setting.
"""

import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from ...config.computed import counts
from ...config.fields import Values
from ...config.parsing import flatten, has_interpolation
from ...config.values import check_key, typed
from ...errors import UserError, suggest
from ...evaluation import vtab
from ...formatting import option_text
from ..lab_tools import MATCHES
from .axes import OURS, Axis, Setting, keys_axis, keys_naming, names_in, product
from .mistakes import (
    Node,
    have_tools,
    listed,
    mapping,
    pretraining,
    reject_unknown,
    require,
)

CURVES = {"labels": "share", "images": "share", "compute": "steps"}  # and what lies along each
# what a curve of pre-training has to set in the parts that pre-train
TRAINED = {"images": "data.share", "compute": "optim.steps"}
# benchmark -> its table: {task: row}
BENCHMARKS: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {"vtab": vtab.tasks}
ALONE = ("arms", "vary", "match", *CURVES)  # keys that a study of a benchmark cannot have
PRESETS = ("recipe", "model", "data")
# keys that change what is computed, whatever their group says
PLACE = ("data.path", "data.hub", "compute.precision")


def curve(
    raw: Node,
    parts: Node,
    varied: Collection[str],
    where: str,
) -> Axis | None:
    """The axis along which whole parts are repeated; None of a study without one.

    Args:
        raw: a study's mapping.
        parts: {name: its mapping}, with the options of the study and of parts that they extend.
        varied: keys that the study varies.
        where: begins errors.

    Raises:
        UserError: shares or lengths are wrong, are named by no part or like something else, or the
            parts that pre-train do not follow a curve of pre-training or vary what it sets.
    """
    given = [name for name in CURVES if raw.get(name) is not None]
    if not given:
        return None
    name, along = given[0], CURVES[given[0]]
    at, trained = f"{where}: {name}", pretraining(parts)
    require(len(given) == 1, where, f"{' and '.join(given)}: expected one of them")
    entries = _entries(raw[name], along, at)
    if name in TRAINED:
        matched = name != "compute" or raw.get("match", MATCHES[0]) not in MATCHES[:1]
        require(matched, at, "expected match: exaflop, which makes the arms cost the same")
        key, wanted = TRAINED[name], f"{{{along}}}"
        options = [mapping(body, "options", f"{where}: part {p}") for p, body in trained.items()]
        fits = options and all(str(flatten(one).get(key)) == wanted for one in options)
        require(
            fits or not have_tools(parts),
            at,
            f"expected {key}: {wanted} in the parts that pre-train",
        )
    for key in entries[0]:
        taken = key in (*parts, *listed(raw, "places", where))
        require(not taken, at, f"{key}: is also a part or a place; rename it")
        require(str(key) in names_in(parts), at, f"{key}: no part has {{{key}}} in its options")
    settings = tuple(
        Setting(
            np.format_float_positional(entry[along], trim="-"),
            {name: entry[along]},
            placeholders={str(key): option_text(value) for key, value in entry.items()},
        )
        for entry in entries
    )
    _check_distinct(along, settings, at)
    names = settings[0].placeholders
    for key in sorted(keys_naming(trained, names)):
        require(key not in varied, where, f"vary: {key}: {name}: sets it")
    return Axis(name, settings, f"the study's {name} set", keys_naming(parts, names))


def _entries(entries: Any, along: str, where: str) -> list[Node]:
    """The settings of a curve as the file has them, each with a share or a length."""
    share = along == "share"
    places, example = ("shares", "0.01") if share else ("lengths", "100")
    complete = isinstance(entries, list) and len(entries) > 1
    require(complete, where, f"expected two {places} or more, each as {{{along}: {example}, ...}}")
    keys = next((entry.keys() for entry in entries if isinstance(entry, dict)), {}.keys())
    for entry in entries:
        require(isinstance(entry, dict), where, f"{entry}: expected a mapping with {along}")
        value = entry.get(along)
        number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        fits = number and (value <= 1 if share else float(value).is_integer())
        expected = "a number in (0, 1]" if share else "a whole number above 0"
        require(fits, where, f"{along}={value}: expected {expected}")
        lacking = sorted(map(str, keys ^ entry.keys()))
        require(not lacking, where, f"{', '.join(lacking)}: is missing in some {places}")
    return entries


def _check_distinct(key: str, settings: Collection[Setting], where: str) -> None:
    distinct = len({setting.label for setting in settings}) == len(settings)
    require(distinct, where, f"{key}: a value is there twice")


def benchmark(raw: Node, parts: Node, where: str) -> tuple[tuple[Axis, ...], dict[str, Setting]]:
    """The axis of a benchmark's tasks, and each as an arm: in options {task} stands for the task
    and {classes} for the number of its classes, both of the benchmark's table.

    Raises:
        UserError: the benchmark is unknown, or the study names arms or compares them.
    """
    name = raw["benchmark"]
    fits = isinstance(name, str) and name in BENCHMARKS
    require(fits, where, f"benchmark={name}: unknown; {suggest(str(name), BENCHMARKS)}")
    for key in ALONE:
        require(key not in raw, where, f"{key}: the arms are the tasks of {name}; leave it out")
    report = raw.get("report")
    only = isinstance(report, dict) and report.keys() <= {"final", "differs"} and "final" in report
    require(only, where, f"report: of {name} expected final and perhaps differs, as tasks differ")
    arms = {}
    for task, row in BENCHMARKS[name]().items():
        names = {"task": task, "classes": option_text(row["classes"])}
        text = f"{row['group']}, {row['classes']} classes"
        arms[task] = Setting(task, {"task": task}, placeholders=names, text=text)
    keys = keys_naming(parts, ("task", "classes"))
    return (Axis("task", tuple(arms.values()), "the study's benchmark sets", keys),), arms


def vary(
    vary: Any, taken: Collection[str], where: str
) -> tuple[tuple[Axis, ...], dict[str, Setting]]:
    """The axes over varied keys, and their combinations as arms; {KEY} in options of an arm stands
    for its value.

    Args:
        vary: as the study's file has it.
        taken: names of parts and places, which stand for these in braces.
        where: begins errors.

    Raises:
        UserError: a key is unknown or changes nothing, a value is alone or there twice.
    """
    if isinstance(vary, dict):
        found = _keys_axes(vary, "the study varies", where, _values, fewest=2)
        require(vary, where, "no key is there")
        axes = tuple(found.values())
        every = product(axes)
        arms = {_arm(setting.options): setting for setting in every}
        text = "two combinations would have one name; say them as a list of named settings"
        require(len(arms) == len(every), where, text)
    else:
        axis, arms = _named_settings(vary, where)
        axes = (axis,)
    for arm, setting in arms.items():
        options = setting.options
        names = {key: option_text(value) for key, value in options.items() if key not in taken}
        arms[arm] = Setting(arm, options, options, names, _described(options))
    return axes, arms


def _named_settings(vary: Any, where: str) -> tuple[Axis, dict[str, Setting]]:
    several = isinstance(vary, list) and len(vary) > 1
    require(several, where, "expected keys with lists of values, or two settings or more")
    named: dict[str, Values] = {}
    for entry in vary:
        text = "a setting is a mapping of keys to values, and a name"
        require(isinstance(entry, dict), where, f"{entry}: {text}")
        flat = flatten({key: value for key, value in entry.items() if key != "name"})
        options = _values(flat, where)
        arm = _plain(str(entry.get("name") or "")) or _arm(options)
        require(arm, where, "a setting without keys needs a name")
        require(arm not in named, where, f"{arm}: two settings have that name")
        twice = options in named.values()
        require(not twice, where, f"{_described(options)}: a setting is there twice")
        named[arm] = options
    axis = keys_axis("vary", named.values(), "the study varies")
    return axis, dict(zip(named, axis.settings, strict=True))


def _values(options: dict[str, Any], where: str) -> dict[str, Any]:
    """The values of keys that can be varied, as their keys' types."""
    return {key: _value(key, value, where) for key, value in options.items()}


def _value(key: str, value: Any, where: str) -> Any:
    """A value of a key that can be varied, as its key's type."""
    require(not has_interpolation(value), where, f"{key}: {value}: cannot be taken as a value")
    require(key != "seed", where, "seed: say seeds= for that")
    if key in PRESETS:
        return str(value)
    try:
        check_key(key, "")
        idle = not counts(key) and key not in PLACE
        require(not idle, key, "changes nothing that is computed, so there is nothing to compare")
        return typed(key, value)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _described(options: Values) -> str:
    texts = (f"{key}={option_text(value)}" for key, value in options.items())
    return ", ".join(texts) or "as the study's options say"


def _arm(options: Values) -> str:
    """An arm's name from its values: rate=0.5,lr=0.001; a key that shares its last part with
    another is written in full."""
    last = [key.rpartition(".")[2] for key in options]
    names = (key if last.count(end) > 1 else end for key, end in zip(options, last, strict=True))
    return _plain(",".join(map("{}={}".format, names, map(option_text, options.values()))))


def _plain(name: str) -> str:
    """As it can stand in a folder's name."""
    return re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", name)


def grids(
    name: str, body: Node, chosen: Collection[str], where: str
) -> dict[str, tuple[Axis, ...]]:
    """The axes that each arm of a part is swept over.

    Args:
        name: of the part.
        body: its mapping.
        chosen: its arms.
        where: begins errors.

    Raises:
        UserError: values are wrong (`_keys_axes`), or an arm is unknown.
    """
    decides = f"part {name} sweeps"
    common = _keys_axes(mapping(body, "grid", where), decides, f"{where}: grid")
    found = dict.fromkeys(chosen, tuple(common.values()))
    for arm, own in mapping(body, "grid_by_arm", where).items():
        at = f"{where}: grid_by_arm: {arm}"
        text = f"grid_by_arm: unknown arm {arm}; {suggest(str(arm), chosen)}"
        require(arm in chosen, where, text)
        axes = _keys_axes(mapping({"grid": own}, "grid", at), decides, f"{at}: grid")
        reject_unknown(axes, list(flatten(mapping(body, "grid", where))), at)
        found[arm] = tuple((common | axes).values())
    return found


def _keys_axes(
    node: Node,
    decides: str,
    where: str,
    read: Callable[[dict[str, Any], str], dict[str, Any]] = lambda one, _: one,
    fewest: int = 1,
) -> dict[str, Axis]:
    """An axis for each entry: {key: values}, or {any name: mappings of the same keys} for keys that
    are set together.

    Raises:
        UserError: no list, too few values or one twice, mappings of other keys or of keys that
            another entry has.
    """
    axes: dict[str, Axis] = {}
    for name, values in flatten(node).items():
        require(isinstance(values, list) and values, where, f"{name}: expected a list of values")
        kinds = {tuple(sorted(flatten(one))) if isinstance(one, dict) else None for one in values}
        fits = len(kinds) == 1 and () not in kinds
        require(fits, where, f"{name}: expected values, or mappings of the same keys")
        together = [flatten(one) if isinstance(one, dict) else {name: one} for one in values]
        several = len(together) >= fewest
        require(several, where, f"{name}: one value cannot be compared; expected two at least")
        settings = [read(one, where) for one in together]
        axes[name] = keys_axis(name, settings, decides)
        _check_distinct(name, axes[name].settings, where)
    keys = [key for axis in axes.values() for key in axis.keys]
    for key in keys:
        require(keys.count(key) == 1, where, f"{key}: is swept twice")
        require(key not in OURS, where, f"{key}: that is {OURS.get(key)}; leave it out")
    return axes
