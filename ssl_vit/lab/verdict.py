"""The first sentence of a study's report, by a rule that is fixed before the first task.

Comparisons: the study's pairs; else every name against the baseline; else all pairs; on the first
measure, at every place of the other axes. One is claimed where there are three independent seeds
and the interval of the paired differences at level 1 - 0.05/m, m comparisons in all, does not
include zero; where there are predictions, the wider of it and the one over images drawn again. A
report that is made again after more seeds, names or another measure is another look: m is
multiplied by the number of looks. Fresh weights are a family of their own, of 5% too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..formatting import some
from .compare import FEWEST, Comparison, Difference, family_of_pairs


@dataclass(frozen=True)
class Rule:
    """What is fixed in study.json.

    Attributes:
        test: the run that is measured.
        axis: whose names are compared; None of a study without axes.
        arms: these names.
        places: of the other axes, each as ((axis, name), ...).
        asked: the comparisons.
        measure: that decides; None: the first of the test run's.
    """

    test: str
    axis: str | None
    arms: tuple[str, ...]
    places: tuple[tuple[tuple[str, str], ...], ...]
    asked: tuple[Comparison, ...]
    measure: str | None = None


def comparisons(
    arms: Sequence[str],
    places: Sequence[tuple[tuple[str, str], ...]],
    pairs: Sequence[tuple[str, str]] = (),
    baseline: str | None = None,
) -> tuple[Comparison, ...]:
    """All that a study compares."""
    named = list(pairs)
    if not named and baseline is not None:
        named = [(arm, baseline) for arm in arms if arm != baseline]
    named = named or family_of_pairs(arms)
    return tuple(Comparison(a, b, place) for place in places or [()] for a, b in named)


@dataclass(frozen=True)
class Found:
    """What was found of a family of comparisons.

    Attributes:
        differences: of those that were asked and measured.
        family: how many comparisons the level is divided among.
        missing: that were asked and have no seed on both sides.
    """

    differences: tuple[Difference, ...]
    family: int
    missing: tuple[Comparison, ...] = ()
    claimed: tuple[Difference, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "claimed", tuple(d for d in self.differences if d.claimed))


def first_sentence(found: Found, unit: str = "points", higher: bool = True, looks: int = 1) -> str:
    """What the comparisons claim, in one sentence.

    Args:
        found: of the study's comparisons.
        unit: of the differences.
        higher: whether higher values are better.
        looks: how many reports were made, each with other results.
    """
    asked = len(found.differences) + len(found.missing)
    condition = f"{asked} comparison{'s' if asked != 1 else ''}"
    if looks > 1:
        condition += f", {looks} looks at the results"
    if not found.differences:
        return f"Nothing is compared yet: no seed of both sides is finished ({condition})."
    most = max(one.n for one in found.differences)
    if most < FEWEST:
        text = f"{most} independent seed{'s' if most != 1 else ''}, a claim needs {FEWEST}"
        return f"No difference can be claimed: {text} ({condition})."
    if not found.claimed:
        return f"No difference is distinguished at 95% ({condition})."
    best = _best(found, higher)
    texts = [difference_text(one, unit, higher) for one in found.claimed]
    rest = asked - len(found.claimed)
    ending = f"; the other {rest} not distinguished" if rest else ""
    opening = f"{best} is the best. " if best else ""
    return f"{opening}{'; '.join(texts)}{ending} (95% in all, {condition})."


def difference_text(one: Difference, unit: str, higher: bool = True) -> str:
    """A claimed difference: MAE is 2.75 points above scratch (+2.39 to +3.11)."""
    better = (one.mean > 0) == higher
    side = "above" if one.mean > 0 else "below"
    place = ", ".join(name for _, name in one.asked.at)
    where = f" at {place}" if place else ""
    word = "" if higher else (" (better)" if better else " (worse)")
    interval = one.wider
    assert interval is not None
    return (
        f"{one.asked.a} is {abs(one.mean):.2f} {unit} {side} {one.asked.b}{where}{word}"
        f" ({interval.low:+.2f} to {interval.high:+.2f}, n = {one.n})"
    )


def fresh_sentence(found: Found | None, trained: Sequence[str], unit: str, higher: bool) -> str:
    """What the trained names claim against fresh weights in the test's own measure.

    Args:
        found: of each trained name minus fresh weights; None where none were measured.
        trained: these names.
        unit, higher: as in `first_sentence`.
    """
    if found is None:
        return "What training without pre-training reaches was not measured."
    if not found.differences:
        return "Fresh weights are not measured yet."
    sign = 1 if higher else -1
    above = [one for one in found.claimed if sign * one.mean > 0]
    below = [one for one in found.claimed if sign * one.mean < 0]
    clauses = []
    if above:
        every = {one.asked.a for one in above} == {*trained} and len(above) == len(
            found.differences
        )
        who = "Each is" if every else f"{_arms(above)} {'is' if len(above) == 1 else 'are'}"
        clauses.append(f"{who} better than fresh weights")
    else:
        clauses.append("None is distinguished as better than fresh weights")
    if below:
        clauses.append(f"{_arms(below)} {'is' if len(below) == 1 else 'are'} worse")
    return f"{'; '.join(clauses)}."


def _arms(found: Sequence[Difference]) -> str:
    names = []
    for one in found:
        place = ", ".join(name for _, name in one.asked.at)
        names.append(one.asked.a + (f" at {place}" if place else ""))
    return some(names)


def _best(found: Found, higher: bool) -> str | None:
    """The arm that is claimed to be better than every other one, at every place."""
    sign = 1 if higher else -1
    arms = {name for one in found.differences for name in (one.asked.a, one.asked.b)}
    places = {one.asked.at for one in found.differences}
    wins: dict[str, set[tuple[str, object]]] = {}
    for one in found.claimed:
        winner, loser = one.asked.a, one.asked.b
        if sign * one.mean < 0:
            winner, loser = loser, winner
        wins.setdefault(winner, set()).add((loser, one.asked.at))
    for arm, beaten in wins.items():
        if len(arms) > 2 and beaten >= {(o, at) for o in arms - {arm} for at in places}:
            return arm
    return None


def with_looks(asked: int, looks: int) -> int:
    """How many comparisons the level of 5% is divided among."""
    return max(1, asked) * max(1, looks)


def by_place(found: Found) -> Mapping[tuple[tuple[str, str], ...], list[Difference]]:
    """The differences at each place of the other axes."""
    places: dict[tuple[tuple[str, str], ...], list[Difference]] = {}
    for one in found.differences:
        places.setdefault(one.asked.at, []).append(one)
    return places
