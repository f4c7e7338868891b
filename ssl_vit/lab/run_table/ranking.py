"""Runs ranked by a metric, in groups within which it answers one question. No torch here.

Losses and accuracies compare only on the same images of one split and for one objective; those of
held-out patches only at one difficulty (comparable.question_keys).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...config.computed import keys
from ...config.schema import defaults
from ...errors import UserError, suggest
from ...formatting import format_value
from ...metrics import find_metric, is_of_model
from ...runs.objective_facts import facts_of
from ..reports.comparable import question_keys
from .index_page import NONE
from .run_list import ListedRun


class RankedGroup(NamedTuple):
    """Runs whose values of a metric compare.

    Attributes:
        facts: {what: value} that all of them share and another group does not.
        runs: the best one first.
    """

    facts: dict[str, str]
    runs: list[ListedRun]


class Ranking(NamedTuple):
    """Groups by size; `left_out` are runs with the metric that have not finished or are damaged."""

    metric: str
    higher: bool
    groups: list[RankedGroup]
    left_out: list[ListedRun]

    @property
    def differing(self) -> list[str]:
        """The facts in which the groups differ."""
        names = dict.fromkeys(name for group in self.groups for name in group.facts)
        return [name for name in names if len(self._values(name)) > 1]

    def _values(self, name: str) -> set[str]:
        return {group.facts[name] for group in self.groups if name in group.facts}


def check_metric(key: str, metric: str, runs: Sequence[ListedRun], others: Sequence[str]) -> None:
    """Check that a run has the metric that `key=metric` names; `others` are further choices.

    Raises:
        UserError: none has; or it is a baseline.
    """
    known = dict.fromkeys(name for run in runs for name in run.measured)
    if metric in known:
        return
    if not is_of_model(metric):
        raise UserError(f"{key}={metric}: expected a metric of the model, not a baseline")
    text = "no run here has this metric" if not others else "neither a column nor a metric"
    raise UserError(f"{key}={metric}: {text}; {suggest(metric, [*others, *known])}")


def rank(runs: Sequence[ListedRun], metric: str) -> Ranking:
    """The finished runs that have a metric, the best first, in groups that compare."""
    having = [run for run in runs if metric in run.measured]
    sound = [run for run in having if run.record.result is not None and not run.damage]
    whole: dict[tuple[Any, ...], list[ListedRun]] = {}
    for run in sound:
        whole.setdefault(tuple(_facts(run, metric).items()), []).append(run)
    higher = find_metric(metric).higher
    groups = []
    for facts, members in whole.items():
        for more, same in _split_by_question(metric, members):
            best = sorted(same, key=lambda run: run.measured[metric].value, reverse=higher)
            groups.append(RankedGroup(dict(facts) | more, best))
    groups.sort(key=lambda group: -len(group.runs))
    left_out = [run for run in having if run not in sound]
    return Ranking(metric, higher, groups, left_out)


def _facts(run: ListedRun, metric: str) -> dict[str, str]:
    """What a metric's question is, besides what `question_keys` compares."""
    record = run.record
    split = str(run.measured[metric].split)
    prints = record.environment.data or {}
    facts = {
        "split": split,
        "data": str(record.values.get("data.name", NONE)),
        "images": str(prints.get(split, NONE)),
        "objective": str(record.values.get("objective", NONE)),
    }
    if split == "test":
        return facts
    held_out = keys(lambda option: tuple(option.splits) == ("validation",))
    return facts | {key: format_value(record.values.get(key)) for key in held_out}


def _split_by_question(
    metric: str, runs: Sequence[ListedRun]
) -> list[tuple[dict[str, str], list[ListedRun]]]:
    """Runs by the values of the keys that make a held-out metric another question."""
    recipes = [run.record.values for run in runs]
    if runs[0].measured[metric].split == "test":
        return [({}, list(runs))]
    first = runs[0].record
    facts = facts_of(first.environment, first.values)
    keys, corruption = question_keys(metric, recipes, facts)
    default = defaults()
    found: dict[tuple[tuple[str, str], ...], list[ListedRun]] = {}
    for run in runs:
        values = tuple(
            (key, format_value(run.record.values.get(key, default.get(key))))
            for key in (*keys, *corruption)
        )
        found.setdefault(values, []).append(run)
    return [(dict(values), same) for values, same in found.items()]
