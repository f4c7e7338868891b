"""A study's file, read: its axes and its parts, which depend on other parts."""

import dataclasses
import graphlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ...config.parsing import flatten, has_interpolation
from ...errors import UserError, suggest
from ...formatting import option_text
from ..arms import Settings
from ..lab_tools import MATCHES
from . import checks, read_axes, read_report, study_file, study_keys
from .axes import OURS, Axis, Setting, fill, name_at, names_in, product
from .mistakes import (
    TOOLS,
    Node,
    have_tools,
    listed,
    mapping,
    pretraining,
    reject_unknown,
    require,
    seeds,
)
from .study import Part, Study


def read(path: Path) -> Study:
    """The study in a file.

    Raises:
        UserError: the first mistake, in one line.
    """
    return build(study_file.load(path), str(path))


def build(raw: Node, where: str) -> Study:
    """Build the study from a mapping; errors begin with `where`."""
    reject_unknown(raw, study_keys.STUDY, where)
    bodies = _bodies(raw, where)
    axes, settings, vary = _arms(raw, bodies, where)
    varied = {key for own in vary.values() for key in own}
    curve = read_axes.curve(raw, bodies, varied, where) if bodies else None
    for key, value in (
        ("title", raw.get("title")),
        ("arms", settings),
        ("parts", raw.get("parts")),
    ):
        require(value, where, f"{key}: is missing")
    match = str(raw.get("match", MATCHES[0]))
    require(match in MATCHES, where, f"match={match}: unknown; {suggest(match, MATCHES)}")
    several = "match" not in raw or len(settings) > 1
    require(several, where, "match: expected several arms, there is one")
    repeated = _repeated(bodies, curve)
    report, points = read_report.read(raw, curve, repeated, where)
    own_seeds = seeds(raw, where)
    places = listed(raw, "places", where)
    study = Study(
        str(raw.get("title")),
        tuple(_names_as_texts("places", places, where)),
        own_seeds or (0,),
        {arm: setting.text for arm, setting in settings.items()},
        {},
        report,
        axes if curve is None else (curve, *axes),
        settings,
        vary,
        match,
        points,
        raw.get("benchmark"),
    )
    for name, body in bodies.items():
        points_of = product([curve] if curve and name in repeated else [])
        for point in points_of:
            new = name_at(name, point, repeated)
            taken = new != name and new in bodies
            require(not taken, where, f"parts: {new}: is what {name} is called at that share")
            there = _at_point(body, point, repeated)
            study.parts[new] = _part(new, there, point, study, f"{where}: part {new}")
    checks.check(study, where)
    return dataclasses.replace(study, parts=_ordered(study.parts, where))


def _arms(
    raw: Node, bodies: Node, where: str
) -> tuple[tuple[Axis, ...], dict[str, Setting], Settings]:
    """The axes whose combinations the arms are, each arm's setting, and of those that vary keys the
    values; arms that the file names stand beside them."""
    if raw.get("benchmark") is not None:
        return *read_axes.benchmark(raw, bodies, where), {}
    texts = mapping(raw, "arms", where)
    for arm in texts:  # which YAML may have read as a number
        text = f"arms: {arm}: expected a name of letters, digits, _ and ."
        require(isinstance(arm, str), where, text)
    named = {arm: Setting(arm, text=text) for arm, text in texts.items()}
    if "vary" not in raw:
        return (), named, {}
    taken = (*bodies, *listed(raw, "places", where))
    axes, varied = read_axes.vary(raw["vary"], taken, f"{where}: vary")
    for arm in named:
        text = f"arms: {arm} is the name of a setting under vary; take another one"
        require(arm not in varied, where, text)
    text = "vary: no part with tool: pretrain, whose options could be varied"
    require(pretraining(bodies) or not have_tools(bodies), where, text)
    return axes, varied | named, {arm: setting.options for arm, setting in varied.items()}


def _bodies(raw: Node, where: str) -> Node:
    """The parts as the file has them, over the study's options; one that `extends` another has the
    other's tool, options and by_arm unless it sets others.

    Raises:
        UserError: a part extends none that it can.
    """
    parts = mapping(raw, "parts", where)
    texts = _names_as_texts("parts", parts, where)
    parts = dict(zip(texts, parts.values(), strict=True))
    options = flatten(mapping(raw, "options", where))
    whole: Node = {}
    for name, body in parts.items():
        shared: Node = {}
        if isinstance(body, dict) and body.get("extends") is not None:
            other = body["extends"]
            base = parts.get(other) if isinstance(other, str) else None
            if isinstance(base, dict) and "extends" not in base:
                shared = {key: base[key] for key in ("tool", "options", "by_arm") if key in base}
                shared |= study_file.arms_without(shared.get("by_arm"), body.get("options"))
            else:
                others = [part for part in parts if part != name]
                why = "is the part itself; " if other == name else ""
                text = f"extends={other}: {why}expected a part that extends none"
                choices = suggest(str(other), others) if others else "there is no other part"
                raise UserError(f"{where}: part {name}: {text}; {choices}")
        whole[name] = study_file.extended({"options": options}, study_file.extended(shared, body))
    return whole


def _names_as_texts(kind: str, names: Collection[Any], where: str) -> list[str]:
    """Names of places or parts; of one that YAML has read as a number, a mistake, the text."""
    for name in names:
        text = f"{kind}: {name}: expected a name of letters, digits, _ and ."
        require(isinstance(name, str), where, f"{text}; in quotes where it is a number")
    return [str(name) for name in names]


def _repeated(bodies: Node, curve: Axis | None) -> list[str]:
    """The parts that name a placeholder of the curve in braces, or need such a part."""
    names = set(curve.settings[0].placeholders) if curve else set()
    found: list[str] = []
    while names:
        new = [name for name, body in bodies.items() if name not in found and _names(body) & names]
        found += new
        names = set(new)
    return found


def _names(body: Any) -> set[Any]:
    """What a part names: in braces, and as the part whose best values it takes."""
    best = body.get("best") if isinstance(body, dict) else None
    of = best.get("of") if isinstance(best, dict) else None
    return names_in(body) | ({of} if isinstance(of, str) else set())


def _at_point(body: Any, point: Setting, repeated: Collection[str]) -> Any:
    """A part with its placeholders, and the parts that it names, at a place along the curve."""
    if not point.label:
        return body
    others = {name: f"{{{name_at(name, point, repeated)}}}" for name in repeated}
    filled = fill(body, point.placeholders | others)
    best = filled.get("best") if isinstance(filled, dict) else None
    if isinstance(best, dict) and best.get("of") in repeated:
        filled["best"] = best | {"of": name_at(best["of"], point, repeated)}
    return filled


def _part(name: str, body: Any, point: Setting, study: Study, where: str) -> Part:
    """A part, with the options of its arms: the part's, those that the arm sets, and the arm's own
    of this part."""
    require(isinstance(body, dict), where, "expected a mapping")
    reject_unknown(body, study_keys.PART, where)
    tool = body.get("tool")
    unknown = "tool: is missing" if tool is None else f"tool={tool}: unknown"
    text = f"{unknown}; {suggest(str(tool), TOOLS)}"
    require(tool in TOOLS, where, text)
    by_arm, best = (mapping(body, key, where) for key in ("by_arm", "best"))
    common = _options(mapping(body, "options", where), where)
    listed_arms = "by_arm" in body and study.benchmark
    require(not listed_arms, where, "expected options, no by_arm")
    for arm, own in by_arm.items():
        choices = suggest(str(arm), study.arms)
        require(arm in study.arms, where, f"by_arm: unknown arm {arm}; {choices}")
        require(isinstance(own, dict | None), where, f"by_arm: {arm}: expected a mapping")
    varied = study.vary if tool == "pretrain" else {}
    options = {}
    for arm, setting in study.settings.items():
        if not by_arm or arm in by_arm or arm in varied:
            flat = varied.get(arm, {}) | flatten(by_arm.get(arm) or {})
            options[arm] = fill(common | _options(flat, where), setting.placeholders)
    reject_unknown(best, ("of", "by"), f"{where}: best")
    complete = not best or {"of", "by"} <= best.keys()
    require(complete, where, "best: expected of (a part) and by (a metric)")
    return Part(
        name,
        tool,
        options,
        common,
        point,
        seeds(body, where),
        read_axes.grids(name, body, options, where),
        None if best.get("of") is None else str(best["of"]),
        str(best.get("by", "")),
    )


def _options(node: Node, where: str) -> dict[str, str]:
    """A mapping of a part as {key: text}, as on a command line."""
    options = {key: option_text(value) for key, value in flatten(node).items()}
    for key, value in options.items():
        ours = OURS.get(key)
        require(not ours, where, f"{key}={value}: that is {ours}; leave it out")
        text = f"{key}={' '.join(value.split())}: cannot be taken as a value"
        require(not has_interpolation(value), where, text)
    return options


def _ordered(parts: dict[str, Part], where: str) -> dict[str, Part]:
    """Sort the parts, each after those that it needs."""
    needs = {part.name: sorted(part.needs() & parts.keys()) for part in parts.values()}
    try:
        return {name: parts[name] for name in graphlib.TopologicalSorter(needs).static_order()}
    except graphlib.CycleError as error:
        raise UserError(f"{where}: parts in a circle: {' -> '.join(error.args[1])}") from None
