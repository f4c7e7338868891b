"""A varied study's numbers: every measure of every setting, the best of them, a claim, the cost. No
torch here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import stats
from ..config.parsing import flatten, load_yaml
from ..errors import UserError, suggest
from ..stats import SeedSummary
from .finished import Finished, Study
from .numbers import measures_of

FIRST = (
    "few_shot_5",
    "few_shot_10",
    "few_shot_1",
    "linear",
    "knn",
    "top1",
)  # what settings are judged by, where nothing is said
# of a pre-training's figures; all that a probe tells are shares
PERCENT = ("accuracy", "accuracy_masked")
PROBED = "probe_"  # a frozen encoder's figure, measured while it was pre-trained
# keys that make a loss on patches another question
PATCHES = ("target", "model.patch", "data.name", "data.size")
LABELS = ("data.name", "supervised.loss", "supervised.smoothing")  # and one on labels
MIXED = ("objective", "joint.mpp", "joint.supervised")  # and a loss that may be a sum


class Result(NamedTuple):
    """A setting on one measure. `probability` that it is the best; None where seeds are few or the
    question is its own."""

    arm: str
    seeds: dict[int, float]
    value: SeedSummary
    probability: float | None


class Measure(NamedTuple):
    """`results` of the settings, `beside` of the arms that are none. A share where `percent`;
    `higher` is better or not. `own`: keys whose values differ and are a part of the question, so
    that each setting was asked one of its own."""

    name: str
    label: str
    percent: bool
    higher: bool
    results: list[Result]
    beside: list[Result]
    own: list[str]

    @property
    def best(self) -> Result:
        return max(self.results, key=lambda one: one.value.mean if self.higher else -one.value.mean)


class Claim(NamedTuple):
    """`better` minus `worse`, in pairs of one seed, and who says that it is above zero."""

    better: str
    worse: str
    measure: Measure
    difference: SeedSummary | None
    source: str
    says: str


class Cost(NamedTuple):
    """Of one arm: a pre-training run's steps, corrupted patches and exaFLOP, and all its runs
    together, probes included."""

    arm: str
    steps: list[int]
    corrupted: float | None
    each: float
    runs: int
    exaflop: float
    device_hours: float


class Varied(NamedTuple):
    """`incomparable` {measure: keys}: figures that are answers to different questions, which are
    not shown."""

    study: str
    title: str
    tasks: int
    missing: list[str]
    broken: list[str]  # runs that measured something not finite
    match: str
    settings: dict[str, dict[str, Any]]
    measures: list[Measure]
    incomparable: dict[str, list[str]]
    main: str
    claim: Claim | None
    costs: list[Cost]

    def measure(self, name: str) -> Measure:
        return next(one for one in self.measures if one.name == name)


def measure(study: Study) -> Varied:
    """All numbers of a study that varies keys, as far as it is finished.

    Raises:
        UserError: no run tells the measure that the report asks for.
    """
    found, apart = [*_tested(study)], dict(_held_out(study))
    found += [one for one, keys in apart.values() if not keys]
    names, asked = [one.name for one in found], (study.report.get("claim") or {}).get("measure")
    for name in (asked, study.report.get("measure")):
        if name is not None and name not in names:
            raise UserError(
                f"{study.folder}: no finished run tells {name}, which the report asks for; {suggest(name, names)}"
            )
    if not names:
        raise UserError(
            f"{study.folder}: nothing that could be compared is measured; give report: probes: the parts that measure"
        )
    main = (
        study.report.get("measure")
        or asked
        or next((name for name in FIRST if name in names), names[0])
    )
    told = {name: keys for name, (_, keys) in apart.items() if keys}
    about, costs = study.about, list(_costs(study))
    measures = {one.name: one for one in found}
    return Varied(
        about["name"],
        about["title"],
        len(about["tasks"]),
        study.missing,
        [
            run.name
            for run in study.done.values()
            if not all(math.isfinite(run.metric(name)) for name in run.result["metrics"])
        ],
        about.get("match", "steps"),
        study.vary,
        found,
        told,
        main,
        _claim(study, measures, main),
        costs,
    )


def _tested(study: Study) -> Iterable[Measure]:
    """What the probes and the final part measured on the test split."""
    final = study.report.get("final")
    found = [(part, name) for part in study.probes for name in measures_of(study, part)]
    for part, name in [*found, *([(final, "top1")] if final else [])]:
        several = sum(name == other for _, other in found) > 1
        label = "fine-tuned" if part == final else name.replace("_", " ")
        values = {arm: _values(study.runs(part, arm), name) for arm in study.about["arms"]}
        full = f"{name} ({part})" if several else name
        yield from _measure(
            study, full, f"{label} ({part})" if several else label, values, True, True, []
        )


def _held_out(study: Study) -> Iterable[tuple[str, tuple[Measure, list[str]]]]:
    """What pre-training measured on held-out images, with the keys that make it incomparable, if
    any do."""
    recipes = [recipe for arm in study.vary if (recipe := _recipe(study, arm))]
    runs = {
        arm: {seed: run for part in study.trained for seed, run in study.runs(part, arm).items()}
        for arm in study.vary
    }
    every = [run for one in runs.values() for run in one.values()]
    told = {name for run in every for name in run.on("validation")}
    watched = ["the images held out"] if len({_watched(run) for run in every}) > 1 else []
    for name in sorted(told):
        group, _, last = name.rpartition("/")
        probed = name.startswith(PROBED)
        if (last not in ("loss", *PERCENT) and not probed) or (
            last == "accuracy" and f"{name}_masked" in told
        ):
            continue
        question, corruption = _questions("supervised/accuracy" if probed else name, recipes)
        question += watched
        values = {arm: _values(found, name) for arm, found in runs.items()}
        label = (
            f"held-out {f'{group} ' if group else ''}{last.removeprefix(PROBED).replace('_', ' ')}"
        )
        for one in _measure(
            study, name, label, values, probed or last in PERCENT, last != "loss", corruption
        ):
            yield name, (one, question)


def _watched(run: Finished) -> str:
    """What names the images that a run held out."""
    return str(run.environment["data"].get("validation"))


def _questions(name: str, recipes: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The keys that differ between the settings and make a held-out figure another question; and
    those of its corruption."""
    group, _, last = name.rpartition("/")
    differ = {
        key
        for recipe in recipes
        for key in recipe
        if len({str(other.get(key)) for other in recipes}) > 1
    }
    patches = (group or next((recipe["objective"] for recipe in recipes), "mpp")) != "supervised"
    asked = [
        *(() if group else MIXED),
        *(PATCHES if patches else LABELS if last == "loss" else LABELS[:1]),
    ]
    return [key for key in asked if key in differ], sorted(
        key for key in differ if patches and key.startswith("corruption.")
    )


def _recipe(study: Study, arm: str) -> dict[str, Any]:
    """The recipe of an arm's pre-training as {dotted key: value}; empty where none is finished."""
    runs = [run for part in study.trained for run in study.runs(part, arm).values()]
    path = runs[0].run.folder / "recipe.yaml" if runs else None
    return flatten(load_yaml(path)) if path and path.exists() else {}


def _values(runs: Mapping[int, Finished], name: str) -> dict[int, float]:
    """{seed: finite value} of a metric."""
    found = {
        seed: float(run.result["metrics"].get(name, {"value": math.nan})["value"])
        for seed, run in runs.items()
    }
    return {seed: value for seed, value in found.items() if math.isfinite(value)}


def _measure(
    study: Study,
    name: str,
    label: str,
    values: Mapping[str, dict[int, float]],
    percent: bool,
    higher: bool,
    own: list[str],
) -> Iterable[Measure]:
    """One measure; none where no setting has a value."""
    told = {arm: seeds for arm, seeds in values.items() if seeds}
    sure = {
        arm: list(seeds.values())
        for arm, seeds in told.items()
        if arm in study.vary and len(set(seeds.values())) > 1
    }
    sign = 1 if higher else -1
    drawn = (
        stats.best([[sign * value for value in seeds] for seeds in sure.values()])
        if len(sure) > 1 and not own
        else []
    )
    chance = dict(zip(sure, drawn, strict=False))
    found = [
        Result(arm, seeds, stats.summarize(list(seeds.values())), chance.get(arm))
        for arm, seeds in told.items()
    ]
    settings, beside = (
        [one for one in found if one.arm in study.vary],
        [one for one in found if one.arm not in study.vary],
    )
    if settings:
        yield Measure(name, label, percent, higher, settings, beside, own)


def _claim(study: Study, measures: Mapping[str, Measure], main: str) -> Claim | None:
    """The claim's difference; the words of it are the study's."""
    claim = study.report.get("claim")
    if not claim:
        return None
    measure = measures[claim.get("measure") or main]
    seeds = {one.arm: one.seeds for one in measure.results}
    first, second = (seeds.get(claim[role], {}) for role in ("better", "worse"))
    sign = 1 if measure.higher else -1
    apart = [sign * (first[seed] - second[seed]) for seed in first if seed in second]
    difference = stats.summarize(apart) if apart else None
    return Claim(
        claim["better"],
        claim["worse"],
        measure,
        difference,
        str(claim.get("source", "")),
        str(claim.get("says", "")),
    )


def _costs(study: Study) -> Iterable[Cost]:
    for arm in study.about["arms"]:
        every = [run for run in study.done.values() if run.arm == arm]
        trained = [run for run in every if run.part in study.trained]
        if every:
            steps = sorted({int(run.result["steps"]) for run in trained})
            hits = [
                run.metric(name)
                for run in trained
                for name in run.result["metrics"]
                if name.endswith("corrupted")
            ]
            each = sum(run.result["exaflop"] for run in trained) / max(1, len(trained))
            exaflop, hours = (
                sum(run.result[key] for run in every) for key in ("exaflop", "device_hours")
            )
            yield Cost(arm, steps, hits[0] if hits else None, each, len(every), exaflop, hours)
