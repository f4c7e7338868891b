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
from .mistakes import Mistakes, Node, likely_meant, listed, mapping
from .read_axes import CURVES
from .study import SEED, Part, Study

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
PATH = "data.path"


def check(study: Study, where: str, mistakes: Mistakes) -> None:
    """Check a study.

    Args:
        study: as read from its file.
        where: begins errors.
        mistakes: collects them; of what it knows to be wrong nothing is said that may follow.

    Raises:
        UserError: the first mistake.
    """
    _names(study, where, mistakes)
    ends = [one.label for one in study.curve.settings] if study.curve else []
    for part in study.parts.values():
        before, end = mistakes.count, part.point.label
        # what is wrong at one place along the curve is at all
        if end in ("", *ends[:1]) or not mistakes.collect:
            _part(part, study, f"{where}: part {part.name}", mistakes)
        if mistakes.count > before:
            stem = part.name.removesuffix(f"_{end}")
            mistakes.unmade |= {part.name, *(f"{stem}_{one}" for one in ends if end)}
    _curve(study, where, mistakes)
    _report(study, f"{where}: report", mistakes)
    if mistakes.arms and not mistakes.parts:
        _used(study, where, mistakes)


def _names(study: Study, where: str, mistakes: Mistakes) -> None:
    """Check that names can be names of folders and do not clash."""
    named = [arm for arm in study.arms if arm not in study.vary and mistakes.arms]
    for kind, names in (("arms", named), ("parts", study.parts), ("places", study.places)):
        for name in names:
            text = f"{kind}: {name}: expected a name of letters, digits, _ and ."
            mistakes.require(NAME.fullmatch(name), where, text)
            taken = kind != "arms" and name == SEED
            text = f"{kind}: {name}: is each task's seed; take another name"
            mistakes.require(not taken, where, text)
    for place in study.places:
        text = f"{place} is a place and a part; take another name for one"
        mistakes.require(place not in study.parts, where, text)


def _part(part: Part, study: Study, where: str, mistakes: Mistakes) -> None:
    """Check that what a part needs exists, for each of its arms."""
    text = "that is of the test images; nothing is chosen on them"
    mistakes.require(not find_metric(part.by).tested, where, f"best: by={part.by}: {text}")
    if study.benchmark:
        ends = tuple(f"/{{task}}/{name}" for name in vtab_folder.SIZES)
        path = part.base.get(PATH) if "{task}" in part.base.get(PATH, "") else None
        text = f"expected one that ends in {' or '.join(ends)}"
        mistakes.require(str(path).endswith(ends), where, f"{PATH}={path}: {text}")
    wrong = mistakes.parts
    gridded = [other.name for other in study.parts.values() if other.swept]
    if part.best is not None:
        found = part.best in (*gridded, *wrong)
        text = f"no part with a grid; {suggest(str(part.best), gridded)}"
        mistakes.require(found, where, f"best: of={part.best}: {text}")
    for arm, options in part.options.items():
        there = part.tool != "finetune" or "init" in options or part.name in wrong
        mistakes.require(there, where, f"arm {arm}: init= is missing")
        needed = {} if part.best is None else {f"best: of={part.best}": part.best}
        for name in sorted(part.references(arm)):
            choices = suggest(name, [str(one) for one in (*study.parts, *study.places)])
            exists = name in (*study.parts, *wrong, *mistakes.names, *study.places, SEED)
            mistakes.require(exists, where, f"{{{name}}}: no such part or place; {choices}")
            reason = "has several runs, one for each value of its grid; `best` chooses among them"
            mistakes.require(name not in gridded, where, f"{{{name}}}: part {name} {reason}")
            needed |= {f"{{{name}}}": name}
        for reference, name in needed.items():
            known = wrong.isdisjoint((name, part.name)) and mistakes.arms
            other = study.parts.get(name) if known else None
            there = other is None or arm in other.options
            text = f"that part has no arm {arm}; name part {part.name}'s arms in its by_arm"
            mistakes.require(there, where, f"{reference}: {text}")


def _curve(study: Study, where: str, mistakes: Mistakes) -> None:
    """Check that the report is of parts along the curve, and that each arm of them trains on the
    share that it stands for."""
    curve, wrong = study.curve, mistakes.parts
    if curve is None:
        return
    along, at = f"{{{CURVES[curve.name]}}}", f"{where}: report"
    repeated = {part.name for part in study.parts.values() if part.point.label} | {*wrong}
    final, extra = (
        study.report.get("final"),
        mistakes.read_or(listed, [], study.report, "extra", at),
    )
    text = f"final: {final}: expected a part with {along} in its options"
    mistakes.require(final in repeated or (mistakes.collect and final not in study.parts), at, text)
    known = [str(name) for name in extra if str(name) in study.parts]  # others are none at all
    beside = dict.fromkeys(name for name in known if name not in repeated)
    mistakes.require(not beside, at, f"extra: {', '.join(beside)}: no {along} in its options")
    probes = _repeated_probes(study, curve, at, mistakes)
    if curve.name != "labels":
        return
    tested = [(one.share, name) for one in study.points for name in (one.final, *one.extra)]
    tested += [
        (float(part.point.coordinates[curve.name]), part.name)
        for part in probes  # some may learn from all labels: an encoder's own share is enough
        if any("data.share" in options for options in part.options.values())
    ]
    for share, name in tested:
        if name in study.parts and name not in wrong:
            for arm, options in study.parts[name].options.items():
                given = options.get("data.share")
                text = f"part {name}, arm {arm}: data.share={given}: expected {along}"
                mistakes.require(_number(given) == share, where, text)


def _repeated_probes(study: Study, curve: Axis, at: str, mistakes: Mistakes) -> list[Part]:
    """The probes that are repeated along the axis; check that all points of each are reported."""
    named = mistakes.read_or(listed, [], study.report, "probes", at)
    known = [study.parts[str(name)] for name in named if str(name) in study.parts]
    probes = [part for part in known if part.point.label]
    for part in probes:
        whole = part.name.removesuffix(f"_{part.point.label}")
        every = {f"{whole}_{one.label}" for one in curve.settings}
        text = f"probes: {part.name}: is {whole} at one {CURVES[curve.name]}; expected {whole}"
        mistakes.require(every <= {one.name for one in probes}, at, text)
    return probes


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _report(study: Study, where: str, mistakes: Mistakes) -> None:
    """Check that a report's keys name parts and arms of the study, and comparable ones."""
    report, wrong = study.report, mistakes.parts
    mistakes.reject_unknown(report, study_keys.REPORT, where)
    parts, arms = [*study.parts, *wrong], list(study.arms)
    roles = [key for key in ("baseline", "candidate", "reference") if key in report]
    final = [report["final"]] if "final" in report else []
    tested = [*final, *mistakes.read_or(listed, [], report, "extra", where)]
    paper = mistakes.read_or(mapping, {}, report, "paper", where)
    named: list[tuple[str, Iterable[Any], list[str]]] = [
        ("final", final, parts),
        *((role, [report[role]], arms) for role in roles),
        ("probes", mistakes.read_or(listed, [], report, "probes", where), parts),
        ("extra", tested[len(final) :], parts),
        ("paper", paper, arms),
    ]
    for key, names, choices in named:
        sure = mistakes.arms if choices is arms else study.parts
        for name in names if sure else ():
            text = f"{key}: unknown {name}; {suggest(str(name), choices)}"
            known = name in choices or str(name) in wrong
            mistakes.require(known, where, text)
    texts = all(
        isinstance(one, str) for one in mistakes.read_or(listed, [], report, "differs", where)
    )
    mistakes.require(texts, where, "differs: expected texts")
    for pair in mistakes.read_or(listed, [], report, "pairs", where) if mistakes.arms else ():
        with mistakes.of(where):
            arm_pairs([str(pair)], study.arms, study.vary)
    with mistakes.of():
        _varied(report, study, where, mistakes)
    if report and not study.vary and not study.benchmark:
        compared = roles or study.points  # a curve is compared with the baseline's
        needed = ("final", "baseline", "candidate") if compared else ("final",)
        given = report.keys() | likely_meant(report, study_keys.REPORT)
        lacking = ", ".join(key for key in needed if key not in given)
        text = f"missing: {lacking}; a report of arms needs {', '.join(needed)}"
        mistakes.require(not lacking or not mistakes.arms, where, text)
    in_roles = [str(report[role]) for role in roles]
    text = f"baseline, candidate and reference are {', '.join(in_roles)}: expected different arms"
    mistakes.require(len(set(in_roles)) == len(in_roles), where, text)
    for part in (
        part for name, part in study.parts.items() if name in tested and name not in wrong
    ):
        text = "is no part of tool finetune without a grid, whose test images could be compared"
        mistakes.require(part.tool == "finetune" and not part.swept, where, f"{part.name} {text}")
    for name in mistakes.read_or(listed, [], report, "probes", where):
        if str(name) in study.parts and name not in wrong:
            text = f"probes: {name}: is no part of tool evaluate"
            mistakes.require(study.parts[str(name)].tool == "evaluate", where, text)
    for arm, value in paper.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        mistakes.require(number, where, f"paper: {arm}: {value}: expected a number")


def _used(study: Study, where: str, mistakes: Mistakes) -> None:
    """Check that each arm has a part, and those that the report names the part that it is of."""
    of_arm = {
        arm: [name for name, part in study.parts.items() if arm in part.options]
        for arm in study.arms
    }
    for arm, parts in of_arm.items():
        mistakes.require(parts, where, f"arms: {arm}: is in no part; name it in a part's by_arm")
    final = study.report.get("final")
    for role in ("baseline", "candidate", "reference") if final in study.parts else ():
        named = str(study.report.get(role))
        there = not of_arm.get(named) or final in of_arm[named]  # else it is said already
        text = f"{role}: {named}: is not in part {final}, whose arms are compared"
        mistakes.require(there, f"{where}: report", text)


def _varied(report: Node, study: Study, where: str, mistakes: Mistakes) -> None:
    """Check that a report's axis and measure are about keys that the study varies."""
    if not mistakes.arms:
        return
    keys = list(dict.fromkeys(key for options in study.vary.values() for key in options))
    for key in ("axis", "measure"):
        text = f"{key}: the study varies nothing that it could be about"
        mistakes.require(key not in report or study.vary, where, text)
    axis = report.get("axis")
    text = f"axis: {axis} is not varied; choices: {', '.join(keys)}"
    mistakes.require(axis in (None, *keys) or not study.vary, where, text)
