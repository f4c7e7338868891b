"""Runs ranked by a metric, in groups within which it answers one question. No torch here.

Losses and accuracies compare only on the same images of one split and for one objective; those of
held-out patches only at one difficulty (questions.question_keys). Those of images whose labels the
first weights had learned compare with no others.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from ...config.computed import keys
from ...config.fields import Option
from ...config.schema import defaults
from ...errors import UserError, suggest
from ...formatting import format_value
from ...metrics import find_metric, is_of_model
from .listed_run import NONE, ListedRun
from .questions import question_keys

LEARNED = "labels learned before"  # how many of the images had theirs


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
        values: dict[str, set[str]] = {}
        for group in self.groups:
            for name, value in group.facts.items():
                values.setdefault(name, set()).add(value)
        return [name for name, known in values.items() if len(known) > 1]


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
    higher = find_metric(metric).higher
    groups = []
    for facts, members in _grouped(sound, partial(_facts, metric=metric)):
        question = partial(
            _question, keys=_question_keys(metric, members), apart=_have_others(metric, members)
        )
        for more, same in _grouped(members, question):
            best = sorted(same, key=lambda run: run.measured[metric].value, reverse=higher)
            groups.append(RankedGroup(facts | more, best))
    groups.sort(key=lambda group: -len(group.runs))
    left_out = [run for run in having if run not in sound]
    return Ranking(metric, higher, groups, left_out)


def _grouped(
    runs: Sequence[ListedRun], facts: Callable[[ListedRun], dict[str, str]]
) -> list[tuple[dict[str, str], list[ListedRun]]]:
    """Runs by their facts, in the order of the first of each group."""
    found: dict[tuple[tuple[str, str], ...], list[ListedRun]] = {}
    for run in runs:
        found.setdefault(tuple(facts(run).items()), []).append(run)
    return [(dict(key), same) for key, same in found.items()]


def _facts(run: ListedRun, metric: str) -> dict[str, str]:
    """What a metric's question is, besides what `question_keys` compares."""
    split = str(run.measured[metric].split)
    prints = run.record.environment.data or {}
    facts = {
        "split": split,
        "data": run.setting("data.name"),
        "images": str(prints.get(split, NONE)),
        "objective": run.setting("objective"),
        LEARNED: f"{run.learned(split):,}" if run.learned(split) else NONE,
    }
    if split == "test":
        return facts
    return facts | _settings(run, keys(_chooses_held_out))


def _have_others(metric: str, runs: Sequence[ListedRun]) -> bool:
    """Whether runs have different held-out images, as far as that is recorded: of a share of the
    training images `_facts` has the fingerprint of all, and what is tested on and data.share decide
    which are left to hold out."""
    if runs[0].measured[metric].split == "test":
        return False
    return len({run.record.environment.held_out for run in runs} - {None}) > 1


def _question(run: ListedRun, keys: Iterable[str], apart: bool) -> dict[str, str]:
    """What a held-out metric's question is, besides `_facts`."""
    held_out = {"held-out images": run.record.environment.held_out or NONE} if apart else {}
    return _settings(run, keys) | held_out


def _question_keys(metric: str, runs: Sequence[ListedRun]) -> list[str]:
    """The keys that make a held-out metric another question; of the test split none does."""
    if runs[0].measured[metric].split == "test":
        return []
    first = runs[0].record
    values = [run.record.values for run in runs]
    question, corruption = question_keys(metric, values, first.environment.free)
    return [*question, *corruption]


def _chooses_held_out(option: Option) -> bool:
    """Whether a key chooses held-out images among the training images."""
    return "validation" in option.splits and "train" not in option.splits


def _settings(run: ListedRun, keys: Iterable[str]) -> dict[str, str]:
    """A run's values of keys; one that its recipe lacks has its default."""
    values = defaults() | run.record.values
    return {key: format_value(values.get(key)) for key in keys}
