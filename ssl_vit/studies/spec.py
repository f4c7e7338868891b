"""A study's file, read and checked: arms, seeds, and parts that say which other parts they need."""

import dataclasses
import graphlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.fields import LONGEST_NAME
from ..config.parsing import flatten, has_interpolation, load_yaml
from ..config.parsing import parse_path as place_of
from ..config.resolve import RECIPES
from ..errors import UserError, suggest
from .spec_fields import hold, known, listed, mapping, text
from .vary import MATCHES, Settings, expand

TOOLS = ("pretrain", "finetune", "evaluate")
STUDY_KEYS = (
    "title",
    "extends",
    "places",
    "seeds",
    "arms",
    "vary",
    "match",
    "options",
    "parts",
    "report",
)
PART_KEYS = ("extends", "tool", "seeds", "options", "by_arm", "grid", "best")
REPORT_KEYS = (
    "final",
    "probes",
    "baseline",
    "candidate",
    "reference",
    "extra",
    "paper",
    "differs",
    "claim",
    "measure",
    "axis",
)
CLAIM_KEYS = ("better", "worse", "measure", "source", "says")
TESTED = ("top1", "top5", "real")  # metrics of the test split
# options that a study sets itself
OURS = {"name": "the task's", "out": "the study's folder", "seed": "the study's seeds"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Part:
    """One step of a study, repeated over arms and seeds."""

    name: str
    tool: str
    # arm -> its options, {key: text}, with {place} and {part} in them
    options: dict[str, dict[str, str]]
    seeds: tuple[int, ...] | None = None  # default: the study's
    # key -> values; one run for each combination
    grid: dict[str, list[Any]] = field(default_factory=dict)
    best: str | None = None  # the part whose best run gives its grid values
    by: str = ""  # and the metric, higher is better
    base: dict[str, str] = field(default_factory=dict)  # the options of every arm, before its own

    def asks(self, arm: str) -> set[str]:
        """The names in braces in this arm's options."""
        return {name for text in self.options[arm].values() for name in PLACEHOLDER.findall(text)}


@dataclass(frozen=True)
class Study:
    title: str
    places: tuple[str, ...]
    seeds: tuple[int, ...]
    arms: dict[str, str]
    parts: dict[str, Part]  # each after those that it needs
    report: dict[str, Any]
    vary: Settings = field(default_factory=dict)  # of the arms that differ in values of keys
    match: str = MATCHES[0]  # what those arms have in common


def find(word: str | None) -> Path:
    """A study's file, from `recipe=study/NAME` or its path."""
    names = sorted(
        str(path.relative_to(RECIPES).with_suffix(""))
        for path in (RECIPES / "study").rglob("*.yaml")
    )
    if word is None:
        raise UserError(f"recipe= is missing; choices: {', '.join(names)}, or a file's path")
    path = RECIPES / f"{word}.yaml" if word in names else place_of(word, "recipe")
    if word not in names and len(word) < LONGEST_NAME - 5 and (RECIPES / f"{word}.yaml").is_file():
        raise UserError(
            f"recipe={word}: is no study; to sweep it, say sweep and keys with several values"
        )
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"recipe={word}: no such study; {suggest(word, names)}, or a file's path")
    if not path.is_file():
        raise UserError(f"recipe={word}: no such file")
    return path


def read(path: Path) -> Study:
    """The study in a file.

    Raises:
        UserError: the first mistake in it, in one line.
    """
    return build(_extended(path), str(path))


def _extended(path: Path, derived: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A study's file over the one that it `extends`: its keys replace the other's, but `options` and
    the options of parts are added to it, and a part of null is left out. A title is not inherited.

    Raises:
        UserError: files extend one another in a circle.
    """
    raw = load_yaml(path)
    name = raw.pop("extends", None)
    if name is None:
        return raw
    below = find(str(name))
    circle = below.resolve() in (path.resolve(), *derived)
    hold(not circle, str(path), f"extends={name}: files extend one another in a circle")
    base = _extended(below, (path.resolve(), *derived))
    base.pop("title", None)
    where = str(path)
    options = flatten(mapping(base, "options", where)) | flatten(mapping(raw, "options", where))
    parts = mapping(base, "parts", where)
    for key, body in mapping(raw, "parts", where).items():
        parts[key] = _extended_part(parts.get(key), body)
    parts = {key: body for key, body in parts.items() if body is not None}
    return base | raw | {"options": options, "parts": parts}


def _extended_part(base: Any, body: Any) -> Any:
    """A part over another one; what is no mapping is left to `_part` to refuse."""
    if not isinstance(base, dict) or not isinstance(body, dict):
        return body
    options = [node.get("options") or {} for node in (base, body)]
    if not all(isinstance(node, dict) for node in options):
        return body
    return base | body | {"options": flatten(options[0]) | flatten(options[1])}


def build(raw: dict[str, Any], where: str) -> Study:
    """The study that a mapping means; `where` opens its errors."""
    known(raw, STUDY_KEYS, where)
    raw, settings = expand(raw, where)
    for key in ("title", "arms", "parts"):
        hold(raw.get(key), where, f"{key}: is missing")
    arms, report = mapping(raw, "arms", where), mapping(raw, "report", where)
    places = tuple(listed(raw, "places", where))
    match = str(raw.get("match", MATCHES[0]))
    hold(match in MATCHES, where, f"match={match}: unknown; {suggest(match, MATCHES)}")
    study = Study(
        str(raw["title"]), places, _seeds(raw, where) or (0,), arms, {}, report, settings, match
    )
    options = flatten(mapping(raw, "options", where))
    for name, body in _whole_parts(raw, where).items():
        if isinstance(body, dict):
            body = _extended_part({"options": options}, body)
        study.parts[name] = _part(name, body, tuple(arms), f"{where}: part {name}")
    _names(study, where)
    for part in study.parts.values():
        _check_part(part, study, f"{where}: part {part.name}")
    _check_report(study, f"{where}: report")
    return dataclasses.replace(study, parts=_ordered(study.parts, where))


def _whole_parts(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The parts; one that `extends` another has the other's tool and options unless it sets others."""
    parts = mapping(raw, "parts", where)
    whole: dict[str, Any] = {}
    for name, body in parts.items():
        other = body.get("extends") if isinstance(body, dict) else None
        if other is None:
            whole[name] = body
            continue
        base = parts.get(other)
        if not isinstance(base, dict) or "extends" in base:
            text = f"extends={other}: expected a part that extends none"
            raise UserError(f"{where}: part {name}: {text}; {suggest(str(other), parts)}")
        shared = {key: base[key] for key in ("tool", "options") if key in base}
        whole[name] = _extended_part(shared, body)
    return whole


def _part(name: str, body: Any, arms: tuple[str, ...], where: str) -> Part:
    hold(isinstance(body, dict), where, "a mapping is asked for")
    hold("words" not in body, where, "words is called options now")
    known(body, PART_KEYS, where)
    hold(
        body.get("tool") in TOOLS,
        where,
        f"tool={body.get('tool')}: unknown; {suggest(str(body.get('tool')), TOOLS)}",
    )
    common, by_arm = (
        _options(mapping(body, "options", where), where),
        mapping(body, "by_arm", where),
    )
    for arm, options in by_arm.items():
        hold(arm in arms, where, f"by_arm: unknown arm {arm}; {suggest(str(arm), arms)}")
        hold(isinstance(options, dict | None), where, f"by_arm: {arm}: a mapping is asked for")
    chosen = {
        arm: common | _options(by_arm.get(arm) or {}, where)
        for arm in arms
        if arm in by_arm or not by_arm
    }
    best = mapping(body, "best", where)
    known(best, ("of", "by"), f"{where}: best")
    hold(
        not best or {"of", "by"} <= best.keys(),
        where,
        "best: of (a part) and by (a metric) are asked for",
    )
    seeds = _seeds(body, where)
    return Part(
        name,
        body["tool"],
        chosen,
        seeds,
        _grid(body, where),
        best.get("of"),
        str(best.get("by", "")),
        common,
    )


def _options(node: dict[str, Any], where: str) -> dict[str, str]:
    """A mapping of a part as {key: text}, as on a command line."""
    options = {key: text(value) for key, value in flatten(node).items()}
    for key, value in options.items():
        hold(key not in OURS, where, f"{key}={value}: that is {OURS.get(key)}; leave it out")
        hold(
            not has_interpolation(value),
            where,
            f"{key}={' '.join(value.split())}: cannot be taken as a value",
        )
    return options


def _grid(body: dict[str, Any], where: str) -> dict[str, list[Any]]:
    grid = flatten(mapping(body, "grid", where))
    for key, values in grid.items():
        hold(
            isinstance(values, list) and values,
            where,
            f"grid: {key}: a list of values is asked for",
        )
        hold(
            len({text(v) for v in values}) == len(values),
            where,
            f"grid: {key}: a value is there twice",
        )
    return grid


def _names(study: Study, where: str) -> None:
    """That names can be folders' and do not clash."""
    named = [arm for arm in study.arms if arm not in study.vary]
    for kind, names in (("arms", named), ("parts", study.parts), ("places", study.places)):
        for name in names:
            plain = isinstance(name, str) and NAME.fullmatch(name)
            hold(plain, where, f"{kind}: {name}: a name of letters, digits, _ and . is asked for")
    for place in study.places:
        hold(
            place not in study.parts,
            where,
            f"{place} is a place and a part; take another name for one",
        )


def _check_part(part: Part, study: Study, where: str) -> None:
    """That what a part needs is there, for each of its arms."""
    for arm, options in part.options.items():
        hold(part.tool != "finetune" or "init" in options, where, f"arm {arm}: init= is missing")
        for name in sorted(part.asks(arm)):
            unknown = (
                f"{{{name}}}: no such part or place; {suggest(name, [*study.parts, *study.places])}"
            )
            hold(name in study.parts or name in study.places, where, unknown)
            _check_need(part, study.parts.get(name), arm, f"{{{name}}}", where)
            many = f"{{{name}}}: part {name} has several runs, one for each value of its grid; `best` chooses among them"
            hold(name not in study.parts or not study.parts[name].grid, where, many)
        hold(
            part.by not in TESTED,
            where,
            f"best: by={part.by}: that is of the test images; nothing is chosen on them",
        )
        if part.best is not None:
            gridded = [other.name for other in study.parts.values() if other.grid]
            unknown = (
                f"best: of={part.best}: no part with a grid; {suggest(str(part.best), gridded)}"
            )
            hold(part.best in gridded, where, unknown)
            _check_need(part, study.parts[part.best], arm, f"best: of={part.best}", where)


def _check_need(part: Part, other: Part | None, arm: str, reference: str, where: str) -> None:
    absent = other is not None and arm not in other.options
    hold(
        not absent,
        where,
        f"{reference}: that part has no arm {arm}; name part {part.name}'s arms in its by_arm",
    )


def _ordered(parts: dict[str, Part], where: str) -> dict[str, Part]:
    """The parts, each after those that it needs."""
    needs = {
        part.name: sorted(
            {name for arm in part.options for name in part.asks(arm) if name in parts}
            | {part.best or ""} - {""}
        )
        for part in parts.values()
    }
    try:
        return {name: parts[name] for name in graphlib.TopologicalSorter(needs).static_order()}
    except graphlib.CycleError as error:
        raise UserError(f"{where}: parts in a circle: {' -> '.join(error.args[1])}") from None


def _check_report(study: Study, where: str) -> None:
    report = study.report
    known(report, REPORT_KEYS, where)
    parts, arms = list(study.parts), list(study.arms)
    chosen: list[tuple[str, Iterable[Any], list[str]]] = [
        *((key, [report[key]], parts) for key in ("final",) if key in report),
        *(
            (key, [report[key]], arms)
            for key in ("baseline", "candidate", "reference")
            if key in report
        ),
        ("probes", listed(report, "probes", where), parts),
        ("extra", listed(report, "extra", where), parts),
        ("paper", mapping(report, "paper", where), arms),
    ]
    for key, names, choices in chosen:
        for name in names:
            hold(name in choices, where, f"{key}: unknown {name}; {suggest(str(name), choices)}")
    listed(report, "differs", where)
    _check_varied(study, report, where)
    roles = [report[key] for key in ("baseline", "candidate", "reference") if key in report]
    hold(
        len(set(roles)) == len(roles),
        where,
        f"baseline, candidate and reference are {', '.join(roles)}: different arms are asked for",
    )
    for name in [
        *([report["final"]] if "final" in report else []),
        *listed(report, "extra", where),
    ]:
        part = study.parts[name]
        message = f"{name} is no part of tool finetune without a grid, whose test images could be compared"
        hold(part.tool == "finetune" and not part.grid, where, message)
    for arm, value in mapping(report, "paper", where).items():
        hold(isinstance(value, int | float), where, f"paper: {arm}: {value}: a number is asked for")


def _check_varied(study: Study, report: dict[str, Any], where: str) -> None:
    """That a claim and an axis are about what the study varies."""
    known(mapping(report, "claim", where), CLAIM_KEYS, f"{where}: claim")
    axes = list(dict.fromkeys(key for setting in study.vary.values() for key in setting))
    for key in ("claim", "axis", "measure"):
        hold(
            key not in report or study.vary,
            where,
            f"{key}: the study varies nothing that it could be about",
        )
    axis = report.get("axis")
    hold(axis in (None, *axes), where, f"axis: {axis} is not varied; choices: {', '.join(axes)}")


def _seeds(node: dict[str, Any], where: str) -> tuple[int, ...] | None:
    seeds = tuple(listed(node, "seeds", where))
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds) and len(
        set(seeds)
    ) == len(seeds)
    hold(whole, where, f"seeds: {text(list(seeds))}: different whole numbers are asked for")
    return seeds or None
