"""Runs ranked by a metric, in groups within which its values compare. No torch here.

They compare on the same images of one split, with one objective; those of held-out images, which
the objective corrupts or crops, only at one difficulty. Those of images whose labels the first
weights had learned compare with no others, and neither do those of images that are not known.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ...config import declaration
from ...config.computed import counts, keys
from ...config.schema import defaults
from ...formatting import format_value
from .listed import NONE, ListedRun, of_metric, ordered

LEARNED = "labels learned before"  # how many of the images had theirs
HEAD = ("split", "data", "n", "objective")  # facts that the line over a group always names


class RankedGroup(NamedTuple):
    """Runs whose values of a metric compare.

    Attributes:
        facts: {what: value} that all of them share.
        runs: the best one first.
    """

    facts: dict[str, str]
    runs: list[ListedRun]


def rank(runs: Sequence[ListedRun], metric: str) -> list[RankedGroup]:
    """The finished and sound runs that have a metric, the best first, in groups that compare, the
    largest group first."""
    groups: dict[tuple[tuple[str, str], ...], list[ListedRun]] = {}
    for run in ordered(runs, of_metric(metric)):
        if metric in run.measured and run.record.result is not None and not run.damage:
            groups.setdefault(tuple(_facts(run, metric).items()), []).append(run)
    found = [RankedGroup(dict(facts), same) for facts, same in groups.items()]
    return sorted(found, key=lambda group: -len(group.runs))


def differing_facts(groups: Sequence[RankedGroup]) -> list[str]:
    """The facts in which groups differ."""
    names = dict.fromkeys(name for group in groups for name in group.facts)
    return [name for name in names if len({group.facts.get(name) for group in groups}) > 1]


def _facts(run: ListedRun, metric: str) -> dict[str, str]:
    """What has to be equal for the values of a metric to compare."""
    split, environment = str(run.measured[metric].split), run.record.environment
    images = environment.data.get(split)
    if split == "validation":  # of which environment.data names the whole that they are a share of
        images = environment.held_out or images
    count, learned = run.count(metric), run.learned(split)
    facts = {
        "split": split,
        "data": run.setting("data.name"),
        "n": NONE if count is None else f"{count:,}",
        "objective": run.setting("objective"),
        "images": str(images or f"those of {run.name}, which are not known"),
        LEARNED: f"{learned:,}" if learned else NONE,
    }
    if split == "test":
        return facts
    values = run.record.values
    shares = keys(lambda option: option.subset) if split == "train" else ()
    own = {key: format_value(values.get(key)) for key in shares}
    return facts | own | question(metric, values, environment.free)


def question(metric: str, values: Mapping[str, Any], free: Collection[str]) -> dict[str, str]:
    """{key: value as text} of what makes a held-out metric another question or a harder one, as the
    objective declares; of one that declares nothing, or is not known here, of all that counts.

    Args:
        metric: its name: `loss`, `accuracy_masked`, in joint training `mpp/loss`.
        values: {dotted key: value} of a recipe; one that it lacks has its default.
        free: as in `counts`.
    """
    part, _, last = metric.rpartition("/")
    asked = declaration.known_or_bare(part or str(values.get("objective"))).question(last)
    known = {**defaults(), **values}
    if asked is None:
        chosen = [key for key in values if counts(key, free)]
    else:
        names = (*asked.keys, *asked.difficulty)
        groups = tuple(name for name in names if name.endswith("."))
        chosen = [key for key in known if key in names or key.startswith(groups)]
    return {key: format_value(known[key]) for key in sorted(chosen)}
