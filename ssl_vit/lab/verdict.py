"""The first sentences of a study's report, by a rule that is fixed before the first task.

Comparisons: the study's pairs; else every name against the baseline; else all pairs; on the first
measure, at every place of the other axes. One is claimed where there are three independent seeds
and the interval of the paired differences at level 1 - 0.05/m, m comparisons in all, does not
include zero; where there are predictions, the wider of it and the one over images drawn again. A
report that is made again after more seeds, names or another measure is another look: m is
multiplied by the number of looks so far, so that k looks claim what is not so in at most
5% (1 + 1/2 + ... + 1/k). Fresh weights are a family of their own, of 5% too.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..config import records
from ..config.records import Record, Whole
from ..errors import UserError, suggest
from ..formatting import NAMED, some
from ..metrics import SHARE, find_metric, is_of_model, label
from ..runs.files import write_atomically
from . import run_folder
from .compare import (
    FEWEST,
    Comparison,
    Correct,
    Difference,
    Place,
    Rule,
    difference,
    on_different_images,
    pairs,
)
from .results import PREDICTED, Results, pandas
from .study.read import UNTRAINED
from .study.record import TaskRecord

if TYPE_CHECKING:
    from pandas import DataFrame

FRESH = "fresh weights"
LOOKS = "looks.json"
Pairs = list[tuple[Comparison, "DataFrame"]]  # each comparison with its pairs over seeds


class Measure(NamedTuple):
    """What decides.

    Attributes:
        name: of the metric.
        split: that it is of.
        label: for readers.
        scale: that values are multiplied by: 100 of a share.
        unit: of differences.
        higher: whether higher values are better.
    """

    name: str
    split: str
    label: str
    scale: float
    unit: str
    higher: bool

    @property
    def sign(self) -> int:
        """What makes higher values the better ones."""
        return 1 if self.higher else -1

    @property
    def digits(self) -> int:
        """Decimals that are shown."""
        return 2 if self.scale == 100 else 4


@dataclass(frozen=True)
class Found:
    """What was found of a family of comparisons.

    Attributes:
        differences: of those that were asked and measured.
        family: how many comparisons the level is divided among.
        missing: that were asked and have no seed on both sides.
        claimed: that are claimed.
    """

    differences: tuple[Difference, ...]
    family: int
    missing: tuple[Comparison, ...] = ()
    claimed: tuple[Difference, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "claimed", tuple(d for d in self.differences if d.claimed))

    @property
    def asked(self) -> int:
        return len(self.differences) + len(self.missing)

    @property
    def n(self) -> int:
        """The most independent seeds of a comparison."""
        return max((one.n for one in self.differences), default=0)


@dataclass(frozen=True)
class Verdict:
    """What a study's report claims.

    Attributes:
        rule: by which it does.
        measure: that decides; None where nothing is measured yet.
        rows: of the results that are compared.
        found: of the study's comparisons; none where its names are tested on images of their own.
        fresh: of the trained names minus fresh weights; None where none are measured.
        looks: how many reports were made, each of other results.
        sentences: what it claims, of the comparisons and of fresh weights.
    """

    rule: Rule
    measure: Measure | None
    rows: "DataFrame"
    found: Found
    fresh: Found | None
    looks: int
    sentences: tuple[str, ...]


class Look(Record):
    """A report that was made: a hash of the pairs that it compared, how many comparisons there
    were, and by which measure."""

    results: str
    comparisons: Whole
    measure: str


def decide(results: Results) -> Verdict:
    """What a study's results claim by its rule. Where they are others than those of earlier
    reports, that is noted in its folder as another look.

    Raises:
        UserError: the study compares nothing, no run has the measure, names that it asks to
            compare were tested on different images, or looks.json or predictions are damaged.
    """
    if results.plan.rule is None:
        raise UserError(f"{results.folder}: its study.json has no report: with a test to compare")
    rule = results.plan.rule
    measure = find_measure(results, rule)
    if measure is None:
        waiting = Found((), len(rule.asked), rule.asked)
        text = f"No run of {rule.test} has finished yet."
        return Verdict(rule, None, results.rows(rule.test), waiting, None, 0, (text,))
    rows = results.rows(rule.test, measure.name, measure.split)
    asked = [(one, pairs(rows, rule.axis or "run", one)) for one in rule.asked]
    fresh = _with_fresh(results, rule, measure)
    apart = [one for one, both in (*asked, *(fresh or ())) if on_different_images(both)]
    by_default = not results.plan.report.keys() & {"pairs", "baseline"}
    if apart and not (by_default and apart[0] in rule.asked):
        raise UserError(f"{results.folder}: {apart[0]}: they were tested on different images")
    asked = [] if apart else asked
    every = [*asked, *(fresh or ())]
    looks = count_looks(results.folder, every, measure.name)
    tasks = {name for _, both in every for name in (*both["folder_a"], *both["folder_b"])}
    correct = results.correct(tasks) if measure.name == PREDICTED else {}
    found = _found(asked, looks, correct, measure.scale)
    against = None if fresh is None else _found(fresh, looks, correct, measure.scale)
    first = first_sentence(found, rule, measure, looks)
    if not asked:
        why = f": each {rule.axis} is tested on images of its own" if apart else ""
        first = f"Nothing is compared{why}."
    second = fresh_sentence(against, measure.higher, 1 if asked else looks)
    sentences = tuple(one for one in (first, second) if one)
    return Verdict(rule, measure, rows, found, against, looks, sentences)


def find_measure(results: Results, rule: Rule) -> Measure | None:
    """The measure that decides; None where no run of the test has finished.

    Raises:
        UserError: those that have finished have not measured it.
    """
    rows = results.rows(rule.test)
    rows = rows[rows["metric"].isin(list(filter(is_of_model, rows["metric"].unique())))]
    if rows.empty:
        return None
    tested = rows[rows["split"] == "test"]
    name = rule.measure or (rows if tested.empty else tested)["metric"].iloc[0]
    splits = {*rows[rows["metric"] == name]["split"]}
    if not splits:
        text = f"{results.folder}: no finished run of {rule.test} has measured {name}"
        raise UserError(f"{text}; {suggest(name, [*rows['metric'].unique()])}")
    row, split = find_metric(name), "test" if "test" in splits else min(splits)
    scale, unit = (100, "points") if row.unit == SHARE else (1, "")
    title = row.tested or row.column or label(name)
    return Measure(name, split, title, scale, unit, row.higher)


def _with_fresh(results: Results, rule: Rule, measure: Measure) -> Pairs | None:
    """The pairs of each trained name, at each place, with fresh weights in the test's own measure.
    None where no task of the study measures those; no pairs where no name is trained."""
    tasks = [task for task in results.plan.tasks if not task.tried]
    cells: dict[tuple[str, Place], list[TaskRecord]] = {}
    for task in tasks:
        if task.run == rule.test and _is_trained(task):
            place = tuple(one for one in task.at.items() if one[0] != rule.axis)
            cells.setdefault((_called(task, rule), place), []).append(task)
    runs = {rule.test, UNTRAINED, *results.plan.report.get("beside", ())}
    tools = {task.tool for task in tasks if task.run == rule.test}
    fresh = [one for one in tasks if one.run in runs and one.tool in tools and not _is_trained(one)]
    if cells and not fresh:
        return None
    table = results.rows(metric=measure.name, split=measure.split)
    found = []
    for (arm, place), own in cells.items():
        others: dict[str, list[str]] = {}
        for task in fresh:
            if _is_measured_alike(results, rule, own, task):
                others.setdefault(_called(task, rule), []).append(task.name)
        for name, those in (others or {FRESH: []}).items():
            here = table[table["folder"].isin([task.name for task in own])].assign(called=arm)
            there = table[table["folder"].isin(those)].assign(called=name)
            both = pairs(pandas().concat([here, there]), "called", Comparison(arm, name))
            found.append((Comparison(arm, name, place), both))
    return found


def _is_trained(task: TaskRecord) -> bool:
    """Whether its weights come from somewhere."""
    return any(one.startswith("init=") and one != "init=scratch" for one in task.options)


def _called(task: TaskRecord, rule: Rule) -> str:
    """The name that a task is compared under."""
    if task.run == rule.test:
        return task.at.get(rule.axis or "", rule.test)
    return FRESH if task.run == UNTRAINED else task.run


def _is_measured_alike(
    results: Results, rule: Rule, own: Sequence[TaskRecord], fresh: TaskRecord
) -> bool:
    """Whether fresh weights are measured as the tasks of one trained name at one place are: there
    and, evaluated frozen, with the same architecture, labels, pooling and probes. Of those that
    the study adds, one serves all names and places that are evaluated alike."""
    at = own[0].at
    there = all(at.get(axis, name) == name for axis, name in fresh.at.items() if axis != rule.axis)
    if fresh.run == UNTRAINED:
        if all(at.get(axis, name) == name for axis, name in fresh.at.items()):
            return True
    elif fresh.tool != "evaluate" or not there:
        return there
    same_seed = [one.name for one in own if one.seed == fresh.seed]
    both = [name for name in (fresh.name, *same_seed) if name in results.finished]
    pools = {results.finished[name].result.pool for name in both}
    measures = [run_folder.frozen_measure(results.folder / name) for name in both]
    return len(both) == 2 and len(pools) == 1 and measures[0] == measures[1]


def count_looks(folder: Path, asked: Pairs, measure: str) -> int:
    """How many reports were made of the study in a folder, this one among them, each of other
    pairs; the folder remembers them.

    Raises:
        UserError: looks.json is damaged.
    """
    content = [
        (str(one), both[["value_a", "value_b"]].reset_index().values.tolist())
        for one, both in asked
        if len(both)
    ]
    path = folder / LOOKS
    before = []
    if path.exists():
        hint = "it says how often the results were looked at; restore it"
        before = records.require(path, list[Look], hint)
    if content:
        text = json.dumps([measure, content])
        seen = hashlib.sha256(text.encode()).hexdigest()[:16]
        if seen not in {one.results for one in before}:
            before.append(Look(results=seen, comparisons=len(asked), measure=measure))
            found = [one.model_dump() for one in before]
            write_atomically(path, json.dumps(found, indent=1) + "\n")
    return max(1, len(before))


def _found(asked: Pairs, looks: int, correct: Correct, scale: float) -> Found:
    family = max(1, len(asked)) * looks
    every = [(one, difference(one, both, family, correct, scale)) for one, both in asked]
    return Found(
        tuple(found for _, found in every if found),
        family,
        tuple(one for one, found in every if not found),
    )


def first_sentence(found: Found, rule: Rule, measure: Measure, looks: int = 1) -> str:
    """What the comparisons claim.

    Args:
        found: of the study's comparisons.
        rule: of the study.
        measure: that they are of.
        looks: how many reports were made, each with other results.
    """
    condition = _condition(found, looks)
    if found.n < FEWEST:
        return f"No difference is claimed: {_too_few(found)} ({condition})."
    against = {one.asked.b for one in found.differences}
    others = f" from {against.pop()}" if len(against) == 1 else ""
    opening = f"By {measure.label} on {_images(measure.split)},"
    if not found.claimed:
        return f"{opening} no {rule.axis} is distinguished{others} at 95% ({condition})."
    texts = [difference_text(one, measure) for one in found.claimed[:NAMED]]
    texts += [f"{len(found.claimed) - NAMED} more, in the table"] if found.claimed[NAMED:] else []
    names = [str(one.asked) for one in found.differences if one not in found.claimed]
    rest = f" Not distinguished from zero: {some(names)}." if names else ""
    best = _best(found, rule, measure.higher)
    ending = f" {best} is the best of all." if best else ""
    return f"{opening} {'; '.join(texts)} (95% in all, {condition}).{ending}{rest}"


def _condition(found: Found, looks: int) -> str:
    """How many comparisons share the 5%."""
    text = f"{found.asked} comparison{'s' if found.asked != 1 else ''}"
    text += f", {len(found.missing)} of them without results yet" if found.missing else ""
    return text + (f", and this is look {looks} at the results" if looks > 1 else "")


def _too_few(found: Found) -> str:
    seeds = f"{found.n} independent seed{'s' if found.n != 1 else ''}"
    return f"{seeds} on both sides, and a claim needs {FEWEST}"


def _images(split: str) -> str:
    return {"validation": "held-out images", "train": "training images"}.get(split, "test images")


def difference_text(one: Difference, measure: Measure) -> str:
    """A claimed difference: mae is 2.75 points above scratch (+2.39 to +3.11, n = 5)."""
    place = ", ".join(name for _, name in one.asked.at)
    side = "above" if one.mean > 0 else "below"
    word = "" if measure.higher else f" ({'better' if one.mean < 0 else 'worse'})"
    interval = one.wider
    assert interval is not None
    return (
        f"{one.asked.a} is {abs(one.mean):.2f}{' ' if measure.unit else ''}{measure.unit} {side}"
        f" {one.asked.b}{f' at {place}' if place else ''}{word}"
        f" ({interval.low:+.2f} to {interval.high:+.2f}, n = {one.n})"
    )


def fresh_sentence(found: Found | None, higher: bool, looks: int = 1) -> str:
    """What the trained names claim against fresh weights in the test's own measure; empty where no
    name is trained.

    Args:
        found: of each trained name minus fresh weights; None where none are measured.
        higher: whether higher values are better.
        looks: as of `first_sentence`.
    """
    if found is None:
        return "What training without pre-training reaches was not measured."
    if not found.asked:
        return ""
    condition = f" ({_condition(found, looks)})"
    if found.n < FEWEST:
        return f"Nothing is claimed against fresh weights: {_too_few(found)}{condition}."
    sign = 1 if higher else -1
    above = [one for one in found.claimed if sign * one.mean > 0]
    below = [one for one in found.claimed if sign * one.mean < 0]
    if len(above) == found.asked:
        every = "Each is" if found.asked > 1 else f"{above[0].asked.a} is"
        return f"{every} better than fresh weights{condition}."
    clauses = [f"{_listed(above)} better than fresh weights"] if above else []
    clauses += [f"{_listed(below)} worse than fresh weights"] if below else []
    if not above:
        clauses.append("none is shown to be better than fresh weights")
    text = "; ".join(clauses)
    return f"{text[0].upper() if not (above or below) else text[0]}{text[1:]}{condition}."


def _listed(found: Iterable[Difference]) -> str:
    """Their names, each once, with the places where it is not at all of them."""
    names = []
    for one in found:
        place = ", ".join(name for _, name in one.asked.at)
        names.append(one.asked.a + (f" at {place}" if place else ""))
    return f"{some(names)} {'is' if len(names) == 1 else 'are'}"


def _best(found: Found, rule: Rule, higher: bool) -> str | None:
    """The name that is claimed to be better than every other one, at every place."""
    wins: dict[str, set[tuple[str, Place]]] = {}
    for one in found.claimed:
        winner, loser = one.asked.a, one.asked.b
        if (one.mean > 0) != higher:
            winner, loser = loser, winner
        wins.setdefault(winner, set()).add((loser, one.asked.at))
    for arm, beaten in wins.items():
        others = {(other, at) for other in rule.arms if other != arm for at in rule.places or [()]}
        if len(rule.arms) > 2 and beaten >= others:
            return arm
    return None
