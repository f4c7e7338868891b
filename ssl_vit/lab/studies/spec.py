"""A study's file, read and checked: arms, seeds, and parts that depend on other parts."""

import dataclasses
import graphlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config.fields import LONGEST_NAME
from ...config.parsing import flatten, has_interpolation, load_yaml
from ...config.parsing import parse_path as place_of
from ...config.recipe_files import RECIPES
from ...errors import UserError, suggest
from ...formatting import option_text
from ..arms import Settings, arm_pairs
from ..lab_tools import MATCHES
from . import benchmark, scaling, study_keys
from .scaling import Scaling
from .spec_fields import Mistakes, arm_grids, grid_of, hold, known, listed, mapping, seeds
from .vary import check_report, expand

TOOLS = ("pretrain", "finetune", "evaluate")
TESTED = ("top1", "top5", "real")  # metrics of the test split
# options that no part may set
OURS = {"name": "the task's", "out": "the study's folder", "seed": "the study's seeds"}
SEED = "seed"  # {seed} in options: the task's seed
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Part:
    """One step of a study, repeated over arms and seeds."""

    name: str
    tool: str
    # arm -> {key: text}, with {place}, {part} and {part@arm} in the text
    options: dict[str, dict[str, str]]
    seeds: tuple[int, ...] | None = None  # default: the study's
    # key -> values; one run for each combination
    grid: dict[str, list[Any]] = field(default_factory=dict)
    # arm -> other values of the grid's keys
    arm_grids: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    best: str | None = None  # the part whose best run gives its grid values
    by: str = ""  # metric; higher is better
    base: dict[str, str] = field(default_factory=dict)  # options of every arm, before its own

    def grid_of(self, arm: str) -> dict[str, list[Any]]:
        """The values that an arm is swept over."""
        return self.grid | self.arm_grids.get(arm, {})

    def references(self, arm: str) -> set[str]:
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
    scaling: Scaling = field(default_factory=Scaling)  # for which parts are repeated
    benchmark: str | None = None  # whose tasks the arms are
    optional: tuple[str, ...] = ()  # places without which the arms that need them are left out


def split_reference(reference: str, arm: str) -> tuple[str, str]:
    """The part and the arm that `{PART}` or `{PART@ARM}` in options of `arm` stands for."""
    part, _, other = reference.partition("@")
    return part, other or arm


def find(name: str | None) -> Path:
    """A study's file.

    Args:
        name: as `recipe=`: study/NAME, or a path.

    Raises:
        UserError: there is no such study.
    """
    paths = (RECIPES / "study").rglob("*.yaml")
    names = sorted(str(path.relative_to(RECIPES).with_suffix("")) for path in paths)
    if name is None:
        raise UserError(f"recipe= is missing; choices: {', '.join(names)}, or a file's path")
    if name in names:
        return RECIPES / f"{name}.yaml"
    path = place_of(name, "recipe")
    if len(name) < LONGEST_NAME - 5 and (RECIPES / f"{name}.yaml").is_file():
        text = "is no study; to sweep it, say sweep and keys with several values"
        raise UserError(f"recipe={name}: {text}")
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"recipe={name}: no such study; {suggest(name, names)}, or a file's path")
    if not path.is_file():
        raise UserError(f"recipe={name}: no such file")
    return path


def read(path: Path, mistakes: Mistakes | None = None) -> Study:
    """The study in a file.

    Args:
        path: of the file.
        mistakes: collects those after which others can be found. What it found is left out of the
            study.

    Raises:
        UserError: the first mistake, in one line; with `mistakes` one that is none of theirs.
    """
    return build(_extended(path), str(path), mistakes)


def _extended(path: Path, derived: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A study's file over the one that it `extends`: its keys replace the other's, but `options`
    (which go over the options of the other's parts, too) and the options of parts are added to
    it, and a part of null is left out. A title is not inherited.

    Raises:
        UserError: files extend one another in a circle.
    """
    raw = load_yaml(path)
    name = raw.pop("extends", None)
    if name is None:
        return raw
    hold(isinstance(name, str), str(path), f"extends={name}: expected a study or a file's path")
    beside = path.parent / name
    is_path = name.endswith((".yaml", ".yml"))
    hold(not is_path or beside.is_file(), str(path), f"extends={name}: no such file")
    below = beside if is_path else find(name)
    circle = below.resolve() in (path.resolve(), *derived)
    hold(not circle, str(path), f"extends={name}: files extend one another in a circle")
    base = _extended(below, (path.resolve(), *derived))
    base.pop("title", None)
    where = str(path)
    options = flatten(mapping(base, "options", where)) | flatten(mapping(raw, "options", where))
    parts = {
        key: _without_options(body, flatten(mapping(raw, "options", where)))
        for key, body in mapping(base, "parts", where).items()
    }
    for key, body in mapping(raw, "parts", where).items():
        parts[key] = _extended_part(parts.get(key), body)
    parts = {key: body for key, body in parts.items() if body is not None}
    return base | raw | {"options": options, "parts": parts}


def _without_options(body: Any, keys: Collection[str]) -> Any:
    """A part without its own values of these keys; what is not a mapping is left to `_part`."""
    if not isinstance(body, dict) or not isinstance(body.get("options"), dict):
        return body
    options = {key: value for key, value in flatten(body["options"]).items() if key not in keys}
    return body | {"options": options}


def _extended_part(base: Any, body: Any) -> Any:
    """A part over another one; what is not a mapping is left to `_part` to reject."""
    if not isinstance(base, dict) or not isinstance(body, dict):
        return body
    below = base.get("options") or {}
    own = body.get("options") or {}
    if not isinstance(below, dict) or not isinstance(own, dict):
        return body
    return base | body | {"options": flatten(below) | flatten(own)}


def build(raw: dict[str, Any], where: str, mistakes: Mistakes | None = None) -> Study:
    """Build the study from a mapping; errors begin with `where`."""
    mistakes = mistakes or Mistakes()
    for key in raw:
        with mistakes.of():
            known({key: None}, study_keys.STUDY, where)
    raw = benchmark.expand(raw, where)
    raw, curve = scaling.expand(raw, where)
    raw, settings = expand(raw, where)
    for key in ("title", "arms", "parts"):
        hold(raw.get(key), where, f"{key}: is missing")
    arms, report = mapping(raw, "arms", where), mapping(raw, "report", where)
    places = tuple(listed(raw, "places", where))
    match = str(raw.get("match", MATCHES[0]))
    hold(match in MATCHES, where, f"match={match}: unknown; {suggest(match, MATCHES)}")
    hold("match" not in raw or len(arms) > 1, where, "match: expected several arms, there is one")
    study = Study(
        str(raw["title"]),
        places,
        seeds(raw, where) or (0,),
        arms,
        {},
        report,
        settings,
        match,
        curve,
        raw.get("benchmark"),
        tuple(listed(raw, "optional", where)),
    )
    options = flatten(mapping(raw, "options", where))
    for name, body in _whole_parts(raw, where).items():
        if isinstance(body, dict):
            body = _extended_part({"options": options}, body)
        with mistakes.of():
            body = benchmark.options_by_task(body, study.benchmark, f"{where}: part {name}")
            study.parts[name] = _part(name, body, tuple(arms), f"{where}: part {name}")
    with mistakes.of():
        _names(study, where)
    for part in study.parts.values():
        with mistakes.of():
            _check_part(part, study, f"{where}: part {part.name}")
    with mistakes.of():
        _check_report(study, f"{where}: report")
    scaling.check(curve, study.parts, settings, where)
    return dataclasses.replace(study, parts=_ordered(study.parts, where))


def _whole_parts(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The parts; one that `extends` another has the other's tool and options unless it sets
    others."""
    parts = mapping(raw, "parts", where)
    whole: dict[str, Any] = {}
    for name, body in parts.items():
        other = body.get("extends") if isinstance(body, dict) else None
        if other is None:
            whole[name] = body
            continue
        base = parts.get(other) if isinstance(other, str) else None
        if not isinstance(base, dict) or "extends" in base:
            text = f"extends={other}: expected a part that extends none"
            raise UserError(f"{where}: part {name}: {text}; {suggest(str(other), parts)}")
        shared = {key: base[key] for key in ("tool", "options") if key in base}
        whole[name] = _extended_part(shared, body)
    return whole


def _part(name: str, body: Any, arms: tuple[str, ...], where: str) -> Part:
    hold(isinstance(body, dict), where, "expected a mapping")
    known(body, study_keys.PART, where)
    tool = body.get("tool")
    hold(tool in TOOLS, where, f"tool={tool}: unknown; {suggest(str(tool), TOOLS)}")
    common = _options(mapping(body, "options", where), where)
    by_arm = mapping(body, "by_arm", where)
    for arm, own in by_arm.items():
        hold(arm in arms, where, f"by_arm: unknown arm {arm}; {suggest(str(arm), arms)}")
        hold(isinstance(own, dict | None), where, f"by_arm: {arm}: expected a mapping")
    chosen = [arm for arm in arms if arm in by_arm or not by_arm]
    options = {arm: common | _options(by_arm.get(arm) or {}, where) for arm in chosen}
    best = mapping(body, "best", where)
    known(best, ("of", "by"), f"{where}: best")
    complete = not best or {"of", "by"} <= best.keys()
    hold(complete, where, "best: expected of (a part) and by (a metric)")
    return Part(
        name,
        tool,
        options,
        seeds=seeds(body, where),
        grid=(grid := grid_of(body, where)),
        arm_grids=arm_grids(body, grid, chosen, where),
        best=best.get("of"),
        by=str(best.get("by", "")),
        base=common,
    )


def _options(node: dict[str, Any], where: str) -> dict[str, str]:
    """A mapping of a part as {key: text}, as on a command line."""
    options = {key: option_text(value) for key, value in flatten(node).items()}
    for key, value in options.items():
        hold(key not in OURS, where, f"{key}={value}: that is {OURS.get(key)}; leave it out")
        shown = " ".join(value.split())
        hold(not has_interpolation(value), where, f"{key}={shown}: cannot be taken as a value")
    return options


def _names(study: Study, where: str) -> None:
    """Check that names can be names of folders and do not clash."""
    named = [arm for arm in study.arms if arm not in study.vary]
    for kind, names in (("arms", named), ("parts", study.parts), ("places", study.places)):
        for name in names:
            plain = isinstance(name, str) and NAME.fullmatch(name)
            hold(plain, where, f"{kind}: {name}: expected a name of letters, digits, _ and .")
            taken = kind != "arms" and name == SEED
            hold(not taken, where, f"{kind}: {name}: is each task's seed; take another name")
    for place in study.optional:
        choices = suggest(str(place), study.places)
        hold(place in study.places, where, f"optional: {place} is no place; {choices}")
    for place in study.places:
        text = f"{place} is a place and a part; take another name for one"
        hold(place not in study.parts, where, text)


def _check_part(part: Part, study: Study, where: str) -> None:
    """Check that what a part needs exists, for each of its arms."""
    hold(
        part.by not in TESTED,
        where,
        f"best: by={part.by}: that is of the test images; nothing is chosen on them",
    )
    for arm, options in part.options.items():
        hold(part.tool != "finetune" or "init" in options, where, f"arm {arm}: init= is missing")
        for reference in sorted(part.references(arm)):
            name, of_arm = split_reference(reference, arm)
            choices = suggest(name, [*study.parts, *study.places])
            exists = name in study.parts or reference in (*study.places, SEED)
            hold(exists, where, f"{{{reference}}}: no such part or place; {choices}")
            _check_need(part, study.parts.get(name), of_arm, f"{{{reference}}}", where)
            reason = "has several runs, one for each value of its grid; `best` chooses among them"
            single = name not in study.parts or not study.parts[name].grid
            hold(single, where, f"{{{reference}}}: part {name} {reason}")
        if part.best is not None:
            gridded = [other.name for other in study.parts.values() if other.grid]
            choices = suggest(str(part.best), gridded)
            hold(
                part.best in gridded, where, f"best: of={part.best}: no part with a grid; {choices}"
            )
            _check_need(part, study.parts[part.best], arm, f"best: of={part.best}", where)


def _check_need(part: Part, other: Part | None, arm: str, reference: str, where: str) -> None:
    absent = other is not None and arm not in other.options
    hold(
        not absent,
        where,
        f"{reference}: that part has no arm {arm}; name part {part.name}'s arms in its by_arm",
    )


def _ordered(parts: dict[str, Part], where: str) -> dict[str, Part]:
    """Sort the parts, each after those that it needs."""
    needs = {}
    for part in parts.values():
        named = {
            split_reference(reference, arm)[0]
            for arm in part.options
            for reference in part.references(arm)
        } & parts.keys()
        if part.best:
            named.add(part.best)
        needs[part.name] = sorted(named)
    try:
        return {name: parts[name] for name in graphlib.TopologicalSorter(needs).static_order()}
    except graphlib.CycleError as error:
        raise UserError(f"{where}: parts in a circle: {' -> '.join(error.args[1])}") from None


def _check_report(study: Study, where: str) -> None:
    """Check that a report's keys name parts and arms of the study, and comparable ones."""
    report = study.report
    known(report, study_keys.REPORT, where)
    parts = list(study.parts)
    arms = list(study.arms)
    roles = [key for key in ("baseline", "candidate", "reference") if key in report]
    final = [report["final"]] if "final" in report else []
    extra = listed(report, "extra", where)
    paper = mapping(report, "paper", where)
    named: list[tuple[str, Iterable[Any], list[str]]] = [
        ("final", final, parts),
        *((role, [report[role]], arms) for role in roles),
        ("probes", listed(report, "probes", where), parts),
        ("extra", extra, parts),
        ("paper", paper, arms),
    ]
    for key, names, choices in named:
        for name in names:
            hold(name in choices, where, f"{key}: unknown {name}; {suggest(str(name), choices)}")
    texts = all(isinstance(one, str) for one in listed(report, "differs", where))
    hold(texts, where, "differs: expected texts")
    pairs = [str(one) for one in listed(report, "pairs", where)]
    try:
        arm_pairs(pairs, study.arms, study.vary)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    check_report(report, study.vary, where)
    if report and not study.vary and not study.benchmark:
        compared = roles or study.scaling.points  # a curve is compared with the baseline's
        needed = ("final", "baseline", "candidate") if compared else ("final",)
        lacking = ", ".join(key for key in needed if key not in report)
        hold(not lacking, where, f"missing: {lacking}; a report of arms needs {', '.join(needed)}")
    in_roles = [report[role] for role in roles]
    distinct = len(set(in_roles)) == len(in_roles)
    text = f"baseline, candidate and reference are {', '.join(in_roles)}: expected different arms"
    hold(distinct, where, text)
    for name in [*final, *extra]:
        part = study.parts[name]
        text = "is no part of tool finetune without a grid, whose test images could be compared"
        hold(part.tool == "finetune" and not part.grid, where, f"{name} {text}")
    for arm, value in paper.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        hold(number, where, f"paper: {arm}: {value}: expected a number")
