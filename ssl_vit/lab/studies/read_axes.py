"""The axes in a study's file, each as an `Axis`: the curve (labels, images or compute), the arms
(vary, benchmark, arms) and the grid of a part.

`labels: [{share: 0.01, steps: 500}, {share: 0.1, steps: 2000}]` repeats every part with `{share}`
or `{steps}` in its options, or that needs such a part, as PART_0.01 and PART_0.1. `vary:
{corruption.rate: [0.15, 0.5], optim.lr: [1e-3, 3e-3]}` is every combination, `vary: [{name: all,
corruption.mask: 1.0, corruption.random: 0, corruption.keep: 0}, ...]` one arm for each setting.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ...config.computed import counts
from ...config.parsing import flatten, has_interpolation
from ...config.values import check_key, typed
from ...errors import UserError, suggest
from ...evaluation import vtab
from ...formatting import option_text
from ..arms import Settings
from .axes import Axis, Setting, keys_axis, keys_naming, names_in, product
from .spec_fields import hold, known, listed, mapping, pretraining

CURVES = {"labels": "share", "images": "share", "compute": "steps"}  # and what lies along each
# what a curve of pre-training has to set in the parts that pre-train
TRAINED = {"images": "data.share", "compute": "optim.steps"}
# benchmark -> its table: {task: row}
BENCHMARKS: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {"vtab": vtab.tasks}
ALONE = ("arms", "vary", "match", *CURVES)  # keys that a study of a benchmark cannot have
PRESETS = ("recipe", "model", "data")
# keys that change what is computed, whatever their group says
PLACE = ("data.path", "data.hub", "compute.precision")


class Arms(NamedTuple):
    """The arms of a study.

    Attributes:
        axes: whose combinations they are; none of arms that the file names.
        texts: {arm: description}.
        settings: {arm: its setting}.
        vary: {arm: {key: value}} of those that differ in values of keys.
    """

    axes: tuple[Axis, ...]
    texts: dict[str, str]
    settings: dict[str, Setting]
    vary: Settings


def curve(raw: dict[str, Any], parts: dict[str, Any], where: str) -> Axis | None:
    """The axis along which whole parts are repeated; None of a study without one.

    Args:
        raw: a study's mapping.
        parts: {name: its mapping}, with the options of the study and of parts that they extend.
        where: begins errors.

    Raises:
        UserError: shares or lengths are wrong, are named by no part or like something else, or the
            parts that pre-train do not follow a curve of pre-training.
    """
    given = [name for name in CURVES if raw.get(name) is not None]
    if not given:
        return None
    name, along = given[0], CURVES[given[0]]
    hold(len(given) == 1, where, f"{' and '.join(given)}: expected one of them")
    entries = _entries(raw[name], along, f"{where}: {name}")
    trained = pretraining(parts)
    if name in TRAINED:
        matched = name != "compute" or raw.get("match") == "exaflop"
        hold(matched, where, "compute: expected match: exaflop, which makes the arms cost the same")
        bodies = [
            mapping(body, "options", f"{where}: part {part}") for part, body in trained.items()
        ]
        values = [flatten(options).get(TRAINED[name]) for options in bodies]
        fits = values and all(str(value) == f"{{{along}}}" for value in values)
        text = f"expected {TRAINED[name]}: {{{along}}} in the parts that pre-train"
        hold(fits, where, f"{name}: {text}")
    for key in entries[0]:
        taken = key in (*parts, *listed(raw, "places", where))
        hold(not taken, where, f"{name}: {key}: is also a part or a place; rename it")
        used = str(key) in names_in(parts)
        hold(used, where, f"{name}: {key}: no part has {{{key}}} in its options")
    settings = tuple(
        Setting(
            np.format_float_positional(entry[along], trim="-"),
            {name: entry[along]},
            placeholders={str(key): option_text(value) for key, value in entry.items()},
        )
        for entry in entries
    )
    return _deciding(Axis(name, settings, f"the study's {name} set"), parts)


def _entries(entries: Any, along: str, where: str) -> list[dict[str, Any]]:
    """The settings of a curve as the file has them, each with a share or a length."""
    share = along == "share"
    places, example = ("shares", "0.01") if share else ("lengths", "100")
    complete = isinstance(entries, list) and len(entries) > 1
    hold(complete, where, f"expected two {places} or more, each as {{{along}: {example}, ...}}")
    for entry in entries:
        hold(isinstance(entry, dict), where, f"{entry}: expected a mapping with {along}")
        value = entry.get(along)
        number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        fits = number and (value <= 1 if share else float(value).is_integer())
        expected = "a number in (0, 1]" if share else "a whole number above 0"
        hold(fits, where, f"{along}={value}: expected {expected}")
        lacking = sorted(map(str, entries[0].keys() ^ entry.keys()))
        hold(not lacking, where, f"{', '.join(lacking)}: is missing in some {places}")
    _distinct(along, [float(entry[along]) for entry in entries], where)
    return entries


def _distinct(key: str, values: list[Any], where: str) -> None:
    once = len(set(map(option_text, values))) == len(values)
    hold(once, where, f"{key}: a value is there twice")


def _deciding(axis: Axis, parts: dict[str, Any]) -> Axis:
    """The axis with the recipe's keys whose values name its placeholders."""
    names = axis.settings[0].placeholders
    keys = {name: keys_naming(body, names) for name, body in parts.items()}
    trained = frozenset[str]().union(*(keys[name] for name in pretraining(parts)))
    return dataclasses.replace(axis, keys=frozenset[str]().union(*keys.values()), trained=trained)


def arms(raw: dict[str, Any], parts: dict[str, Any], where: str) -> Arms:
    """The arms of a study: of a benchmark its tasks, else those that it varies and, beside them,
    those that it names.

    Args:
        raw, parts, where: as of `curve`.

    Raises:
        UserError: the benchmark is unknown or the study names arms beside it; a varied key is
            unknown or changes nothing, a value is alone or there twice; nothing pre-trains.
    """
    if raw.get("benchmark") is not None:
        return _tasks(raw, parts, where)
    texts = mapping(raw, "arms", where)
    named = {arm: Setting(str(arm)) for arm in texts}
    if "vary" not in raw:
        return Arms((), texts, named, {})
    names = (*parts, *listed(raw, "places", where))
    axes, varied = _vary(raw["vary"], f"{where}: vary")
    for arm in named:
        text = f"arms: {arm} is the name of a setting under vary; take another one"
        hold(arm not in varied, where, text)
    trained = pretraining(parts)
    hold(trained, where, "vary: no part with tool: pretrain, whose options could be varied")
    settings = {
        arm: dataclasses.replace(
            setting,
            label=arm,
            placeholders={k: option_text(v) for k, v in setting.options.items() if k not in names},
        )
        for arm, setting in varied.items()
    }
    vary = {arm: setting.options for arm, setting in settings.items()}
    return Arms(
        axes,
        {arm: describe(setting) for arm, setting in vary.items()} | texts,
        settings | named,
        vary,
    )


def _tasks(raw: dict[str, Any], parts: dict[str, Any], where: str) -> Arms:
    """The tasks of a benchmark: in options {task} stands for the task and {classes} for the number
    of its classes, both of the benchmark's table."""
    name = raw["benchmark"]
    fits = isinstance(name, str) and name in BENCHMARKS
    hold(fits, where, f"benchmark={name}: unknown; {suggest(str(name), BENCHMARKS)}")
    for key in ALONE:
        hold(key not in raw, where, f"{key}: the arms are the tasks of {name}; leave it out")
    report = raw.get("report")
    only = isinstance(report, dict) and report.keys() <= {"final", "differs"} and "final" in report
    hold(only, where, f"report: of {name} expected final and perhaps differs, as tasks differ")
    rows = BENCHMARKS[name]()
    settings = {
        task: Setting(
            task,
            {"task": task},
            placeholders={"task": task, "classes": option_text(row["classes"])},
        )
        for task, row in rows.items()
    }
    axis = Axis("task", tuple(settings.values()), "the study's benchmark sets")
    texts = {task: f"{row['group']}, {row['classes']} classes" for task, row in rows.items()}
    return Arms((_deciding(axis, parts),), texts, settings, {})


def _vary(vary: Any, where: str) -> tuple[tuple[Axis, ...], dict[str, Setting]]:
    """The axes over varied keys, and their combinations by the name of the arm."""
    if isinstance(vary, dict):
        axes = tuple(_key_axis(key, values, where) for key, values in flatten(vary).items())
        hold(axes, where, "no key is there")
        every = product(axes)
        found = {_plain(_short(setting.options)): setting for setting in every}
        text = "two combinations would have one name; say them as a list of named settings"
        hold(len(found) == len(every), where, text)
        return axes, found
    several = isinstance(vary, list) and len(vary) > 1
    hold(several, where, "expected keys with lists of values, or two settings or more")
    named: dict[str, dict[str, Any]] = {}
    for entry in vary:
        text = "a setting is a mapping of keys to values, and a name"
        hold(isinstance(entry, dict), where, f"{entry}: {text}")
        flat = flatten({key: value for key, value in entry.items() if key != "name"})
        options = {key: _value(key, value, where) for key, value in flat.items()}
        arm = _plain(str(entry.get("name") or _short(options)))
        hold(arm, where, "a setting without keys needs a name")
        hold(arm not in named, where, f"{arm}: two settings have that name")
        twice = options in named.values()
        hold(not twice, where, f"{describe(options)}: a setting is there twice")
        named[arm] = options
    axis = keys_axis("vary", named.values(), "the study varies")
    return (axis,), dict(zip(named, axis.settings, strict=True))


def _key_axis(key: str, values: Any, where: str) -> Axis:
    hold(isinstance(values, list), where, f"{key}: expected a list of values")
    found = [_value(key, value, where) for value in values]
    text = "one value cannot be compared; expected two at least"
    hold(len(found) > 1, where, f"{key}: {text}")
    _distinct(key, found, where)
    return keys_axis(key, ({key: value} for value in found), "the study varies")


def _value(key: str, value: Any, where: str) -> Any:
    """A value of a key that can be varied, as its key's type."""
    hold(not has_interpolation(value), where, f"{key}: {value}: cannot be taken as a value")
    hold(key != "seed", where, "seed: say seeds= for that")
    if key in PRESETS:
        return str(value)
    try:
        check_key(key, "")
        idle = not counts(key) and key not in PLACE
        hold(not idle, key, "changes nothing that is computed, so there is nothing to compare")
        return typed(key, value)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def describe(options: dict[str, Any]) -> str:
    """Description of an arm by the values of keys that it has."""
    texts = (f"{key}={option_text(value)}" for key, value in options.items())
    return ", ".join(texts) or "as the study's options say"


def _short(options: dict[str, Any]) -> str:
    """An arm's name from its values: rate=0.5,lr=0.001; a key that shares its last part with
    another is written in full."""
    last = [key.rpartition(".")[2] for key in options]
    names = {
        key: key if last.count(end) > 1 else end for key, end in zip(options, last, strict=True)
    }
    return ",".join(f"{names[key]}={option_text(value)}" for key, value in options.items())


def _plain(name: str) -> str:
    """As it can stand in a folder's name."""
    return re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", name)


def grids(
    name: str, body: dict[str, Any], chosen: Iterable[str], where: str
) -> tuple[tuple[Axis, ...], dict[str, tuple[Axis, ...]]]:
    """The axes that a part sweeps, and those of the arms that have other values.

    Args:
        name: of the part.
        body: its mapping: `grid` has {key: values}, or {any name: mappings of the same keys} for
            keys that are swept together; `grid_by_arm` {arm: other values of the grid's entries}.
        chosen: its arms.
        where: begins errors.

    Raises:
        UserError: no list, a value twice, mappings of other keys or of keys that are swept already,
            or an unknown arm.
    """
    decides = f"part {name} sweeps"
    common = _grid(mapping(body, "grid", where), decides, where)
    found = {}
    for arm, own in mapping(body, "grid_by_arm", where).items():
        at = f"{where}: grid_by_arm: {arm}"
        choices = suggest(str(arm), list(chosen))
        hold(arm in chosen, where, f"grid_by_arm: unknown arm {arm}; {choices}")
        axes = _grid(mapping({"grid": own}, "grid", at), decides, at)
        known(axes, tuple(common), at)
        found[arm] = tuple((common | axes).values())
    return tuple(common.values()), found


def _grid(node: dict[str, Any], decides: str, where: str) -> dict[str, Axis]:
    axes: dict[str, Axis] = {}
    for name, values in flatten(node).items():
        filled = isinstance(values, list) and values
        hold(filled, where, f"grid: {name}: expected a list of values")
        _distinct(f"grid: {name}", values, where)
        kinds = {tuple(sorted(flatten(one))) if isinstance(one, dict) else None for one in values}
        fits = len(kinds) == 1 and () not in kinds
        hold(fits, where, f"grid: {name}: expected values, or mappings of the same keys")
        settings = [flatten(one) if isinstance(one, dict) else {name: one} for one in values]
        axes[name] = keys_axis(name, settings, decides)
    swept = [key for axis in axes.values() for key in axis.keys]
    for key in swept:
        hold(swept.count(key) == 1, where, f"grid: {key}: is swept twice")
    return axes
