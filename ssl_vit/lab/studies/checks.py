"""The checks of a study: whether its axes, arms, parts and report fit one another. What a single
axis or part says wrong is found where it is read; what its recipes say, in task_recipes.py."""

import re
from collections.abc import Iterable
from typing import Any

from ...errors import suggest
from ...evaluation import vtab_folder
from ...metrics import find_metric
from ..arms import arm_pairs
from . import study_keys
from .axes import Axis
from .mistakes import Node, listed, mapping, reject_unknown, require, within
from .read_axes import CURVES
from .study import SEED, Part, Study

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
PATH = "data.path"


def check(study: Study, where: str) -> None:
    """Check a study.

    Args:
        study: as read from its file.
        where: begins errors.

    Raises:
        UserError: the first mistake.
    """
    _names(study, where)
    for part in study.parts.values():
        _part(part, study, f"{where}: part {part.name}")
    _curve(study, where)
    _report(study, f"{where}: report")
    _used(study, where)


def _names(study: Study, where: str) -> None:
    """Check that names can be names of folders and do not clash."""
    named = [arm for arm in study.arms if arm not in study.vary]
    for kind, names in (("arms", named), ("parts", study.parts), ("places", study.places)):
        for name in names:
            text = f"{kind}: {name}: expected a name of letters, digits, _ and ."
            require(NAME.fullmatch(name), where, text)
            taken = kind != "arms" and name == SEED
            text = f"{kind}: {name}: is each task's seed; take another name"
            require(not taken, where, text)
    for place in study.places:
        text = f"{place} is a place and a part; take another name for one"
        require(place not in study.parts, where, text)


def _part(part: Part, study: Study, where: str) -> None:
    """Check that what a part needs exists, for each of its arms."""
    text = "that is of the test images; nothing is chosen on them"
    require(not find_metric(part.by).tested, where, f"best: by={part.by}: {text}")
    if study.benchmark:
        ends = tuple(f"/{{task}}/{name}" for name in vtab_folder.SIZES)
        path = part.base.get(PATH) if "{task}" in part.base.get(PATH, "") else None
        text = f"expected one that ends in {' or '.join(ends)}"
        require(str(path).endswith(ends), where, f"{PATH}={path}: {text}")
    gridded = [other.name for other in study.parts.values() if other.swept]
    if part.best is not None:
        text = f"no part with a grid; {suggest(str(part.best), gridded)}"
        require(part.best in gridded, where, f"best: of={part.best}: {text}")
    for arm, options in part.options.items():
        there = part.tool != "finetune" or "init" in options
        require(there, where, f"arm {arm}: init= is missing")
        needed = {} if part.best is None else {f"best: of={part.best}": part.best}
        for name in sorted(part.references(arm)):
            choices = suggest(name, [str(one) for one in (*study.parts, *study.places)])
            exists = name in (*study.parts, *study.places, SEED)
            require(exists, where, f"{{{name}}}: no such part or place; {choices}")
            reason = "has several runs, one for each value of its grid; `best` chooses among them"
            require(name not in gridded, where, f"{{{name}}}: part {name} {reason}")
            needed |= {f"{{{name}}}": name}
        for reference, name in needed.items():
            there = name not in study.parts or arm in study.parts[name].options
            text = f"that part has no arm {arm}; name part {part.name}'s arms in its by_arm"
            require(there, where, f"{reference}: {text}")


def _curve(study: Study, where: str) -> None:
    """Check that the report is of parts along the curve, and that each arm of them trains on the
    share that it stands for."""
    curve = study.curve
    if curve is None:
        return
    along, at = f"{{{CURVES[curve.name]}}}", f"{where}: report"
    repeated = {part.name for part in study.parts.values() if part.point.label}
    final, extra = study.report.get("final"), listed(study.report, "extra", at)
    text = f"final: {final}: expected a part with {along} in its options"
    require(final in repeated, at, text)
    known = [str(name) for name in extra if str(name) in study.parts]  # others are none at all
    beside = dict.fromkeys(name for name in known if name not in repeated)
    require(not beside, at, f"extra: {', '.join(beside)}: no {along} in its options")
    probes = _repeated_probes(study, curve, at)
    if curve.name != "labels":
        return
    tested = [(one.share, name) for one in study.points for name in (one.final, *one.extra)]
    tested += [
        (float(part.point.coordinates[curve.name]), part.name)
        for part in probes  # some may learn from all labels: an encoder's own share is enough
        if any("data.share" in options for options in part.options.values())
    ]
    for share, name in tested:
        if name in study.parts:
            for arm, options in study.parts[name].options.items():
                given = options.get("data.share")
                text = f"part {name}, arm {arm}: data.share={given}: expected {along}"
                require(_number(given) == share, where, text)


def _repeated_probes(study: Study, curve: Axis, at: str) -> list[Part]:
    """The probes that are repeated along the axis; check that all points of each are reported."""
    named = listed(study.report, "probes", at)
    known = [study.parts[str(name)] for name in named if str(name) in study.parts]
    probes = [part for part in known if part.point.label]
    for part in probes:
        whole = part.name.removesuffix(f"_{part.point.label}")
        every = {f"{whole}_{one.label}" for one in curve.settings}
        text = f"probes: {part.name}: is {whole} at one {CURVES[curve.name]}; expected {whole}"
        require(every <= {one.name for one in probes}, at, text)
    return probes


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _report(study: Study, where: str) -> None:
    """Check that a report's keys name parts and arms of the study, and comparable ones."""
    report = study.report
    reject_unknown(report, study_keys.REPORT, where)
    parts, arms = list(study.parts), list(study.arms)
    roles = [key for key in ("baseline", "candidate", "reference") if key in report]
    final = [report["final"]] if "final" in report else []
    tested = [*final, *listed(report, "extra", where)]
    paper = mapping(report, "paper", where)
    named: list[tuple[str, Iterable[Any], list[str]]] = [
        ("final", final, parts),
        *((role, [report[role]], arms) for role in roles),
        ("probes", listed(report, "probes", where), parts),
        ("extra", tested[len(final) :], parts),
        ("paper", paper, arms),
    ]
    for key, names, choices in named:
        for name in names:
            text = f"{key}: unknown {name}; {suggest(str(name), choices)}"
            require(name in choices, where, text)
    texts = all(isinstance(one, str) for one in listed(report, "differs", where))
    require(texts, where, "differs: expected texts")
    for pair in listed(report, "pairs", where):
        with within(where):
            arm_pairs([str(pair)], study.arms, study.vary)
    _varied(report, study, where)
    if report and not study.vary and not study.benchmark:
        compared = roles or study.points  # a curve is compared with the baseline's
        needed = ("final", "baseline", "candidate") if compared else ("final",)
        lacking = ", ".join(key for key in needed if key not in report)
        text = f"missing: {lacking}; a report of arms needs {', '.join(needed)}"
        require(not lacking, where, text)
    in_roles = [str(report[role]) for role in roles]
    text = f"baseline, candidate and reference are {', '.join(in_roles)}: expected different arms"
    require(len(set(in_roles)) == len(in_roles), where, text)
    for part in (part for name, part in study.parts.items() if name in tested):
        text = "is no part of tool finetune without a grid, whose test images could be compared"
        require(part.tool == "finetune" and not part.swept, where, f"{part.name} {text}")
    for name in listed(report, "probes", where):
        if str(name) in study.parts:
            text = f"probes: {name}: is no part of tool evaluate"
            require(study.parts[str(name)].tool == "evaluate", where, text)
    for arm, value in paper.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number, where, f"paper: {arm}: {value}: expected a number")


def _used(study: Study, where: str) -> None:
    """Check that each arm has a part, and those that the report names the part that it is of."""
    of_arm = {
        arm: [name for name, part in study.parts.items() if arm in part.options]
        for arm in study.arms
    }
    for arm, parts in of_arm.items():
        require(parts, where, f"arms: {arm}: is in no part; name it in a part's by_arm")
    final = study.report.get("final")
    for role in ("baseline", "candidate", "reference") if final in study.parts else ():
        named = str(study.report.get(role))
        there = not of_arm.get(named) or final in of_arm[named]  # else it is said already
        text = f"{role}: {named}: is not in part {final}, whose arms are compared"
        require(there, f"{where}: report", text)


def _varied(report: Node, study: Study, where: str) -> None:
    """Check that a report's axis and measure are about keys that the study varies."""
    keys = list(dict.fromkeys(key for options in study.vary.values() for key in options))
    for key in ("axis", "measure"):
        text = f"{key}: the study varies nothing that it could be about"
        require(key not in report or study.vary, where, text)
    axis = report.get("axis")
    text = f"axis: {axis} is not varied; choices: {', '.join(keys)}"
    require(axis in (None, *keys) or not study.vary, where, text)
