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
    Mistakes,
    Node,
    have_tools,
    likely_meant,
    listed,
    mapping,
    pretraining,
    require,
    seeds,
)
from .study import Part, Study


def read(path: Path, mistakes: Mistakes | None = None) -> Study:
    """The study in a file.

    Args:
        path: of the file.
        mistakes: collects those after which others can be found. What they are about is left out
            of the study.

    Raises:
        UserError: the first mistake, in one line; with `mistakes` one that hides all others.
    """
    return build(study_file.load(path), str(path), mistakes)


def build(raw: Node, where: str, mistakes: Mistakes | None = None) -> Study:
    """Build the study from a mapping; errors begin with `where`."""
    mistakes = mistakes or Mistakes()
    mistakes.reject_unknown(raw, study_keys.STUDY, where)
    misspelt = likely_meant(raw, study_keys.STUDY)
    mistakes.names |= _words_in([raw[key] for key in raw if key not in study_keys.STUDY])
    bodies = mistakes.read_or(_bodies, {}, raw, where, mistakes)
    axes, settings, vary = _arms_as_known(raw, bodies, where, mistakes)
    curve = _curve_as_known(raw, bodies, vary, where, mistakes)
    for key, value in (
        ("title", raw.get("title")),
        ("arms", settings),
        ("parts", raw.get("parts")),
    ):
        mistakes.require(value or key in misspelt, where, f"{key}: is missing")
    match = str(raw.get("match", MATCHES[0]))
    mistakes.require(match in MATCHES, where, f"match={match}: unknown; {suggest(match, MATCHES)}")
    several = "match" not in raw or len(settings) > 1 or not mistakes.arms
    mistakes.require(several, where, "match: expected several arms, there is one")
    repeated = _repeated(bodies, curve)
    report, points = read_report.read(raw, curve, repeated, where, mistakes)
    own_seeds = mistakes.read_or(seeds, None, raw, where)
    places = mistakes.read_or(listed, [], raw, "places", where)
    study = Study(
        str(raw.get("title")),
        tuple(_names_as_texts("places", places, where, mistakes)),
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
            mistakes.require(
                not taken, where, f"parts: {new}: is what {name} is called at that share"
            )
            # what is wrong at one place is at all
            own = mistakes if point is points_of[0] or not mistakes.collect else Mistakes(True)
            before = own.count
            there = _at_point(body, point, repeated)
            with own.of():
                study.parts[new] = _part(new, there, point, study, f"{where}: part {new}", own)
            if own.count > before or name in mistakes.parts:
                mistakes.parts.add(new)
    checks.check(study, where, mistakes)
    with mistakes.of():
        return dataclasses.replace(study, parts=_ordered(study.parts, where))
    mistakes.unmade |= study.parts.keys()
    return study


def _arms_as_known(
    raw: dict[str, Any], bodies: dict[str, Any], where: str, mistakes: Mistakes
) -> tuple[tuple[Axis, ...], dict[str, Setting], Settings]:
    """As `_arms`; where these have mistakes, the arms that parts name."""
    before = mistakes.count
    with mistakes.of():
        found = _arms(raw, bodies, where, mistakes)
        misspelt = likely_meant(raw, study_keys.STUDY) & {"arms", "vary", "benchmark"}
        if mistakes.count == before and not misspelt:
            return found
    mistakes.arms = False
    mistakes.names |= _words_in(raw.get("vary")) | {"task", "classes"}
    named = [body.get("by_arm") for body in bodies.values() if isinstance(body, dict)]
    arms = {str(arm) for own in named if isinstance(own, dict) for arm in own}
    return (), {arm: Setting(arm) for arm in sorted(arms) or [""]}, {}


def _words_in(node: Any) -> set[str]:
    """All keys, dotted, and texts in a node of a file."""
    if isinstance(node, list):
        return {word for one in node for word in _words_in(one)}
    if isinstance(node, dict):
        return {*flatten(node), *_words_in([*flatten(node).values()])}
    return {node} if isinstance(node, str) else set()


def _curve_as_known(
    raw: dict[str, Any], bodies: dict[str, Any], vary: Settings, where: str, mistakes: Mistakes
) -> Axis | None:
    """As read_axes.curve; None where it has mistakes."""
    before = mistakes.count
    varied = {key for own in vary.values() for key in own}
    with mistakes.of():
        found = read_axes.curve(raw, bodies, varied, where, mistakes) if bodies else None
        if mistakes.count == before:
            return found
    along = [raw.get(name) for name in read_axes.CURVES]
    mistakes.names |= _words_in(along) | {*read_axes.CURVES.values()}
    return None


def _arms(
    raw: Node, bodies: Node, where: str, mistakes: Mistakes
) -> tuple[tuple[Axis, ...], dict[str, Setting], Settings]:
    """The axes whose combinations the arms are, each arm's setting, and of those that vary keys the
    values; arms that the file names stand beside them."""
    if raw.get("benchmark") is not None:
        return *read_axes.benchmark(raw, bodies, where, mistakes), {}
    texts = mapping(raw, "arms", where)
    for arm in texts:  # which YAML may have read as a number
        text = f"arms: {arm}: expected a name of letters, digits, _ and ."
        mistakes.require(isinstance(arm, str), where, text)
    named = {arm: Setting(arm, text=text) for arm, text in texts.items()}
    if "vary" not in raw:
        return (), named, {}
    taken = (*bodies, *listed(raw, "places", where))
    axes, varied = read_axes.vary(raw["vary"], taken, f"{where}: vary", mistakes)
    for arm in named:
        text = f"arms: {arm} is the name of a setting under vary; take another one"
        mistakes.require(arm not in varied, where, text)
    text = "vary: no part with tool: pretrain, whose options could be varied"
    mistakes.require(pretraining(bodies) or not have_tools(bodies), where, text)
    return axes, varied | named, {arm: setting.options for arm, setting in varied.items()}


def _bodies(raw: Node, where: str, mistakes: Mistakes) -> Node:
    """The parts as the file has them, over the study's options; one that `extends` another has the
    other's tool, options and by_arm unless it sets others.

    Raises:
        UserError: a part extends none that it can.
    """
    parts = mapping(raw, "parts", where)
    texts = _names_as_texts("parts", parts, where, mistakes)
    mistakes.parts |= {text for text, name in zip(texts, parts, strict=True) if text != name}
    parts = dict(zip(texts, parts.values(), strict=True))
    options = flatten(mistakes.read_or(mapping, {}, raw, "options", where))
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
                mistakes.parts.add(name)
                others = [part for part in parts if part != name]
                why = "is the part itself; " if other == name else ""
                text = f"extends={other}: {why}expected a part that extends none"
                choices = suggest(str(other), others) if others else "there is no other part"
                with mistakes.of():
                    require(False, f"{where}: part {name}", f"{text}; {choices}")
        whole[name] = study_file.extended({"options": options}, study_file.extended(shared, body))
    return whole


def _names_as_texts(kind: str, names: Collection[Any], where: str, mistakes: Mistakes) -> list[str]:
    """Names of places or parts; of one that YAML has read as a number, a mistake, the text."""
    for name in names:
        text = f"{kind}: {name}: expected a name of letters, digits, _ and ."
        mistakes.require(isinstance(name, str), where, f"{text}; in quotes where it is a number")
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


def _part(
    name: str, body: Any, point: Setting, study: Study, where: str, mistakes: Mistakes
) -> Part:
    """A part, with the options of its arms: the part's, those that the arm sets, and the arm's own
    of this part."""
    require(isinstance(body, dict), where, "expected a mapping")
    mistakes.reject_unknown(body, study_keys.PART, where)
    tool = body.get("tool")
    # of a part whose `extends` is wrong, what it extends would say it
    unsaid = tool is None and ("extends" in body or "tool" in likely_meant(body, study_keys.PART))
    unknown = "tool: is missing" if tool is None else f"tool={tool}: unknown"
    text = f"{unknown}; {suggest(str(tool), TOOLS)}"
    mistakes.require(tool in TOOLS or unsaid, where, text)
    by_arm, best = (mistakes.read_or(mapping, {}, body, key, where) for key in ("by_arm", "best"))
    common = _options(mistakes.read_or(mapping, {}, body, "options", where), where, mistakes)
    listed_arms = "by_arm" in body and study.benchmark
    mistakes.require(not listed_arms, where, "expected options, no by_arm")
    for arm, own in by_arm.items():
        there = arm in study.arms or not mistakes.arms or listed_arms
        choices = suggest(str(arm), study.arms)
        mistakes.require(there, where, f"by_arm: unknown arm {arm}; {choices}")
        fits = isinstance(own, dict | None)
        mistakes.require(fits, where, f"by_arm: {arm}: expected a mapping")
        by_arm[arm] = own if fits else {}
    varied = study.vary if tool == "pretrain" else {}
    options = {}
    for arm, setting in study.settings.items():
        if not by_arm or arm in by_arm or arm in varied:
            flat = varied.get(arm, {}) | flatten(by_arm.get(arm) or {})
            options[arm] = fill(common | _options(flat, where, mistakes), setting.placeholders)
    mistakes.reject_unknown(best, ("of", "by"), f"{where}: best")
    complete = not best or {"of", "by"} <= best.keys() | likely_meant(best, ("of", "by"))
    mistakes.require(complete, where, "best: expected of (a part) and by (a metric)")
    none: dict[str, tuple[Axis, ...]] = dict.fromkeys(options, ())
    return Part(
        name,
        tool,
        options,
        common,
        point,
        mistakes.read_or(seeds, None, body, where),
        mistakes.read_or(read_axes.grids, none, name, body, options, where, mistakes),
        None if best.get("of") is None else str(best["of"]),
        str(best.get("by", "")),
    )


def _options(node: Node, where: str, mistakes: Mistakes) -> dict[str, str]:
    """A mapping of a part as {key: text}, as on a command line."""
    options = {key: option_text(value) for key, value in flatten(node).items()}
    for key, value in options.items():
        ours = OURS.get(key)
        mistakes.require(not ours, where, f"{key}={value}: that is {ours}; leave it out")
        text = f"{key}={' '.join(value.split())}: cannot be taken as a value"
        mistakes.require(not has_interpolation(value), where, text)
    return options


def _ordered(parts: dict[str, Part], where: str) -> dict[str, Part]:
    """Sort the parts, each after those that it needs."""
    needs = {part.name: sorted(part.needs() & parts.keys()) for part in parts.values()}
    try:
        return {name: parts[name] for name in graphlib.TopologicalSorter(needs).static_order()}
    except graphlib.CycleError as error:
        raise UserError(f"{where}: parts in a circle: {' -> '.join(error.args[1])}") from None
