"""The checks of a study: whether its axes, arms, parts and report fit one another. What a single
axis or part says wrong is found where it is read; what its recipes say, in task_recipes.py."""

import re
from collections.abc import Collection, Iterable
from typing import Any

from ...errors import UserError, suggest
from ...evaluation import vtab_folder
from ...metrics import find_metric
from ..arms import arm_pairs
from . import study_keys
from .read_axes import CURVES
from .spec_fields import Mistakes, Node, hold, known, listed, mapping
from .study import SEED, Part, Study, split_reference

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
PATH = "data.path"


def check(study: Study, wrong: Collection[str], where: str, mistakes: Mistakes) -> None:
    """Check a study.

    Args:
        study: as read from its file.
        wrong: names of parts that are left out of it, for their own mistakes.
        where: begins errors.
        mistakes: collects one of the names, of each part and of the report.

    Raises:
        UserError: the first mistake.
    """
    with mistakes.of():
        _names(study, where)
    for part in study.parts.values():
        with mistakes.of():
            _part(part, study, wrong, f"{where}: part {part.name}")
    with mistakes.of():
        _curve(study, wrong, where)
        _report(study, wrong, f"{where}: report")


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


def _part(part: Part, study: Study, wrong: Collection[str], where: str) -> None:
    """Check that what a part needs exists, for each of its arms."""
    text = "that is of the test images; nothing is chosen on them"
    hold(not find_metric(part.by).tested, where, f"best: by={part.by}: {text}")
    if study.benchmark:
        ends = tuple(f"/{{task}}/{name}" for name in vtab_folder.SIZES)
        path = part.base.get(PATH) if "{task}" in part.base.get(PATH, "") else None
        text = f"expected one that ends in {' or '.join(ends)}"
        hold(str(path).endswith(ends), where, f"{PATH}={path}: {text}")
    gridded = [other.name for other in study.parts.values() if other.swept]
    if part.best is not None:
        found = part.best in (*gridded, *wrong)
        text = f"no part with a grid; {suggest(str(part.best), gridded)}"
        hold(found, where, f"best: of={part.best}: {text}")
    for arm, options in part.options.items():
        hold(part.tool != "finetune" or "init" in options, where, f"arm {arm}: init= is missing")
        for reference in sorted(part.references(arm)):
            name, of_arm = split_reference(reference, arm)
            choices = suggest(name, [str(one) for one in (*study.parts, *study.places)])
            exists = name in (*study.parts, *wrong) or reference in (*study.places, SEED)
            hold(exists, where, f"{{{reference}}}: no such part or place; {choices}")
            _need(part, study.parts.get(name), of_arm, f"{{{reference}}}", where)
            reason = "has several runs, one for each value of its grid; `best` chooses among them"
            hold(name not in gridded, where, f"{{{reference}}}: part {name} {reason}")
        if part.best is not None:
            _need(part, study.parts.get(part.best), arm, f"best: of={part.best}", where)


def _need(part: Part, other: Part | None, arm: str, reference: str, where: str) -> None:
    """Check that the part that another one needs has the arm."""
    there = other is None or arm in other.options
    text = f"that part has no arm {arm}; name part {part.name}'s arms in its by_arm"
    hold(there, where, f"{reference}: {text}")


def _curve(study: Study, wrong: Collection[str], where: str) -> None:
    """Check that the report is of parts along the curve, and that each arm of them trains on the
    share that it stands for."""
    curve = study.curve
    if curve is None:
        return
    along, at = f"{{{CURVES[curve.name]}}}", f"{where}: report"
    repeated = {part.name for part in study.parts.values() if part.point.label} | {*wrong}
    final, extra = study.report.get("final"), listed(study.report, "extra", at)
    hold(final in repeated, at, f"final: {final}: expected a part with {along} in its options")
    for name in listed(study.report, "probes", at):
        text = f"has {along} in its options, which no probe may"
        hold(f"{name}_{curve.settings[0].label}" not in repeated, at, f"probes: {name}: {text}")
    beside = dict.fromkeys(str(name) for name in extra if name not in repeated)
    hold(not beside, at, f"extra: {', '.join(beside)}: no {along} in its options")
    if curve.name != "labels":
        return
    for point in study.points:
        for part in (
            study.parts[name] for name in (point.final, *point.extra) if name not in wrong
        ):
            for arm, options in part.options.items():
                given = options.get("data.share")
                text = f"part {part.name}, arm {arm}: data.share={given}: expected {along}"
                hold(_number(given) == point.share, where, text)


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _report(study: Study, wrong: Collection[str], where: str) -> None:
    """Check that a report's keys name parts and arms of the study, and comparable ones."""
    report = study.report
    known(report, study_keys.REPORT, where)
    parts, arms = [*study.parts, *wrong], list(study.arms)
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
            hold(name in choices, where, f"{key}: unknown {name}; {suggest(str(name), choices)}")
    texts = all(isinstance(one, str) for one in listed(report, "differs", where))
    hold(texts, where, "differs: expected texts")
    pairs = map(str, listed(report, "pairs", where))
    try:
        arm_pairs(pairs, study.arms, study.vary)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    _claim(report, study, where)
    if report and not study.vary and not study.benchmark:
        compared = roles or study.points  # a curve is compared with the baseline's
        needed = ("final", "baseline", "candidate") if compared else ("final",)
        lacking = ", ".join(key for key in needed if key not in report)
        hold(not lacking, where, f"missing: {lacking}; a report of arms needs {', '.join(needed)}")
    in_roles = [report[role] for role in roles]
    text = f"baseline, candidate and reference are {', '.join(in_roles)}: expected different arms"
    hold(len(set(in_roles)) == len(in_roles), where, text)
    for part in (study.parts[name] for name in tested if name not in wrong):
        text = "is no part of tool finetune without a grid, whose test images could be compared"
        hold(part.tool == "finetune" and not part.swept, where, f"{part.name} {text}")
    for arm, value in paper.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        hold(number, where, f"paper: {arm}: {value}: expected a number")


def _claim(report: Node, study: Study, where: str) -> None:
    """Check that a report's claim, axis and measure are about keys that the study varies."""
    known(mapping(report, "claim", where), study_keys.CLAIM, f"{where}: claim")
    keys = list(dict.fromkeys(key for options in study.vary.values() for key in options))
    for key in ("claim", "axis", "measure"):
        text = f"{key}: the study varies nothing that it could be about"
        hold(key not in report or study.vary, where, text)
    axis = report.get("axis")
    hold(axis in (None, *keys), where, f"axis: {axis} is not varied; choices: {', '.join(keys)}")
