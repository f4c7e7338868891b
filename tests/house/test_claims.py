"""What README and docs/ claim is what the committed measurements support: each difference is computed
again from its study by the reports' own code, and its interval excludes what would be none."""

import itertools
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.options import ROOT
from helpers.recorded_studies import curve_of, study
from ssl_vit import stats
from ssl_vit.lab.reports.measures import Measure, Result

PAGES = sorted((ROOT / "docs").glob("results*.md"))
RESULTS = "\n".join(path.read_text() for path in PAGES)
SPEED = (ROOT / "docs" / "speed.md").read_text()
README = (ROOT / "README.md").read_text()
NUMBER = r"[+-]?\d+(?:\.\d+)?"
# a value and its interval: "+3.06 (+2.20 to +3.92)", "+3.23 points, +0.55 to +5.92"
QUOTED = re.compile(rf"({NUMBER})%?\*{{0,2}}(?: points)?,? \(?({NUMBER})%? to ({NUMBER})")
Values = dict[int, float]  # points of each seed
WHY = ("not centred", "not centred, sharp")


def quoted(text: str) -> list[list[float]]:
    """Every value with an interval in a text, however its lines are broken."""
    return [[float(end) for end in found] for found in QUOTED.findall(" ".join(text.split()))]


def table(text: str, head: str) -> Iterator[list[str]]:
    """The rows of the table with this head. An empty one of the first three cells is that above."""
    above = [""] * 3
    for row in text.partition(head)[2].partition("\n\n")[0].splitlines()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        above = [own or old for own, old in zip(cells[:3], above, strict=True)]
        yield [*above, *cells[3:]]


def of_arms(measure: Measure) -> dict[str, Values]:
    return {
        one.arm: {seed: 100 * value for seed, value in one.seeds.items()} for one in measure.results
    }


def of_arm(name: str, arm: str, claimed: str) -> Result:
    """`claimed` is a metric, and the share of the labels where there is one."""
    metric, _, place = claimed.partition(",")
    share = re.search(r"([\d.]+)%", place)
    parts = {f"final_{float(share[1]) / 100:g}", "final"} if share else {"probe"}
    (found,) = [one for one in study(name).measures if one.part in parts and one.metric == metric]
    return next(one for one in found.results if one.arm == arm)


@pytest.mark.parametrize("name", ["labels_cifar10", "labels_long", "methods", "methods_grid"])
def test_the_numbers_of_a_file_are_those_that_its_values_give(name: str) -> None:
    found = study(name)
    compared: list[tuple[Any, Any]] = []
    for old, new in zip(found.numbers["measures"], found.measures, strict=True):
        for kind in ("results", "not_compared"):
            for was, one in zip(old[kind], getattr(new, kind), strict=True):
                compared += [(was[key], getattr(one, key)) for key in ("value", "gain")]
                compared.append((was["probability"], one.probability))
    for pair in found.numbers["pairs"]:
        measure = next(one for one in found.measures if one.name == pair["measure"])
        compared.append((pair["difference"], measure.difference(pair["arm"], pair["other"])))
    curve = curve_of(found.numbers)
    assert (curve is None) is (found.curve is None)
    if curve and found.curve:
        compared += [(curve["comparisons"], found.curve.comparisons)]
        points = zip(curve["points"], found.curve.points, strict=True)
        compared += [(was["apart"], point.apart) for was, point in points]
    assert len(compared) > 20
    for was, now in compared:
        assert same(was, stats.as_json(now)), (was, now)


def same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are equal, numbers within 1e-12 of their size."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return math.isclose(one, other, rel_tol=1e-12) if isinstance(one, float) else one == other


DIFFERENCES = [*table(RESULTS, "| study | A | B | measure | seeds | A minus B (95%) |")]
FACTORS = [
    *table(
        RESULTS, "| study | arm | at | times scratch's labels (95%) | crosses scratch at (95%) |"
    )
]


@pytest.mark.parametrize("row", DIFFERENCES, ids=" ".join)
def test_a_claimed_difference_is_that_of_its_study_and_excludes_zero(row: list[str]) -> None:
    name, arm, other, measure, seeds, claimed = row
    *elsewhere, other = other.split()
    first, last = map(int, seeds.split("-"))
    own, others = of_arm(name, arm, measure), of_arm((elsewhere or [name])[0], other, measure)
    found = stats.summarize(
        [100 * (own.seeds[seed] - others.seeds[seed]) for seed in range(first, last + 1)]
    )
    assert found.interval and found.interval.excludes_zero
    assert quoted(claimed) == [pytest.approx([found.mean, *found.interval], abs=0.006)]


@pytest.mark.parametrize("row", FACTORS, ids=" ".join)
def test_a_claimed_factor_is_that_of_its_study_and_excludes_one(row: list[str]) -> None:
    name, arm, share, claimed, crossing = row
    curve = study(name).curve
    assert curve
    (found,) = [one for one in curve.comparisons if one.arm == arm]
    (factor,) = [one.factor for one in found.worth if 100 * one.share == float(share.strip("%"))]
    assert not factor.low <= 1 <= factor.high
    expected = [factor.value, factor.low, factor.high]
    assert quoted(claimed) == [[float(f"{value:.2g}") for value in expected]]
    if crossing:
        (place,) = found.crossovers
        expected = [100 * end for end in (place.value, place.low, place.high)]
        assert quoted(crossing) == [pytest.approx(expected, abs=0.051)]


WORTH = [*table(RESULTS, "| labels | arm | n | top-1, % | sd | minus scratch, points (95%) |")]
README_WORTH = [
    *table(README, "| labels | pre-training | top-1, % | points over tuned scratch (95")
]


@pytest.mark.parametrize("row", README_WORTH, ids=" ".join)
def test_a_row_of_the_readme_is_one_of_the_results(row: list[str]) -> None:
    """Whose table is that of results/worth_tables.py."""
    share, arm, top1, apart = row
    name = "scratch" if arm.startswith("none") else arm
    (found,) = [one for one in WORTH if (one[0], one[1]) == (share, name)]
    points, _, verdict = apart.partition(":")
    assert [top1, points] == [found[3], found[5]]
    for _, low, high in quoted(points):
        assert (low <= 0 <= high) is (verdict.strip() == "not distinguished")


def test_the_readme_gives_no_difference_that_is_not_claimed() -> None:
    """And none without its interval: there are no points but in its table."""
    shown = DIFFERENCES + FACTORS + WORTH
    claimed = [*itertools.chain(*(quoted(cell) for row in shown for cell in row))]
    found = quoted(README)
    assert found and [one for one in found if one not in claimed] == []
    assert re.findall(rf"{NUMBER} points", README) == []


def sections() -> list[tuple[str, list[str]]]:
    """Each section of the results that names files of studies, and these."""
    texts = re.split(r"^##+ ", RESULTS, flags=re.MULTILINE)
    named = [(text, re.findall(r"\(\.\./results/(\w+)\.json\)", text)) for text in texts]
    return [(text, names) for text, names in named if names]


def possible(names: list[str]) -> Iterator[list[float]]:
    """Every difference of two arms of these studies, and by how much it grows from one study to
    another: on all seeds that they share, on these but the first, on the first and the last
    three."""
    arms = {
        (measure.name, name, arm): by_seed
        for name in names
        for measure in study(name).measures
        for arm, by_seed in of_arms(measure).items()
    }
    apart = {
        (*a, *b): minus(arms[a], arms[b])
        for a, b in itertools.permutations(arms, 2)
        if a[0] == b[0]
    }
    grown = [
        minus(apart[metric, name, arm, metric, name, other], early)
        for (metric, before, arm, _, same, other), early in apart.items()
        for name in names
        if before == same != name and (metric, name, arm, metric, name, other) in apart
    ]
    for found in (*apart.values(), *grown):
        every = [found[seed] for seed in sorted(found)]
        for values in (every, every[1:], every[:3], every[3:]):
            if len(values) > 1:
                mean, interval = stats.summarize(values)[1::2]
                yield [mean, *interval]


def minus(own: Values, other: Values) -> Values:
    return {seed: own[seed] - other[seed] for seed in own.keys() & other.keys()}


@pytest.mark.parametrize(("text", "names"), sections(), ids=lambda given: str(given)[:30])
def test_a_difference_beside_a_file_can_be_computed_from_it(text: str, names: list[str]) -> None:
    known = [*possible(names)]
    signed = [found for found in QUOTED.finditer(" ".join(text.split())) if found[2][0] in "+-"]
    assert signed
    for found in signed:
        ends = [float(end) for end in found.groups()]
        near = [max(abs(a - b) for a, b in zip(ends, one, strict=True)) for one in known]
        assert min(near) < 0.006, found[0]


PEERS = {
    "timm": "timm, supervised",
    "stable_pretraining": "stable-pretraining 0.1.8, SimMIM",
    "transformers": "transformers, masked image modelling",
    "vit_pytorch": "vit-pytorch 1.15.0, MPP",
}
OURS = {"mpp": "this project, MPP", "simmim": "SimMIM", "mae": "MAE", "moco_v3": "MoCo v3"}


def test_the_speed_of_steps_is_that_of_its_file() -> None:
    """MPP stands beside a peer only where the file has an interval of their ratio."""
    report = json.loads((ROOT / "results" / "step.json").read_text())
    case = report["vit_s16, 224 px, batch 4, cpu, float32"]
    over = case["over floor"]
    names = OURS | PEERS | {"supervised": "supervised"}
    shown = {row[0]: row[1:3] for row in table(SPEED, "| | over the floor | least to most |")}
    assert shown == {
        name: [f"{one['median']:.3f}", f"{one['least']:.3f} to {one['most']:.3f}"]
        for name, one in ((name, over[way]) for way, name in names.items() if way in over)
    }
    claimed = {row[0]: row[1:3] for row in table(SPEED, "| MPP over | time (95%) |")}
    ratios = case.get("over peers", {}).get("mpp", {})
    work = case.get("over peers, per multiply-add", {}).get("mpp", {})
    assert claimed == {
        PEERS[peer]: [
            f"{one['median']:.3f} ({one['95%'][0]:.3f} to {one['95%'][1]:.3f})"
            for one in (ratios[peer], work[peer])
        ]
        for peer in ratios
    }


def test_the_table_of_warnings_is_that_of_its_file() -> None:
    report = json.loads((ROOT / "results" / "collapse.json").read_text())
    found, teachers, others = report["runs"], ("dino", "ibot"), ("mpp", "mae", "moco_v3", "ijepa")
    wanted = [teachers, tuple(f"{name}, longer" for name in teachers), others]
    wanted += [tuple(f"{name}, {why}" for name in teachers) for why in WHY]
    wanted += [(f"{name}, rate too high",) for name in others]
    text = (ROOT / "docs" / "runs.md").read_text()
    rows = list(table(text, "| run | steps | warned by information |"))
    kinds = (" tells ", "effective rank", "mean cosine")
    for row, names in zip(rows, wanted, strict=True):
        runs = [one for name in names for one in found[name]]
        warned = [sum(any(kind in says for says in one["says"]) for one in runs) for kind in kinds]
        longer = any(name.endswith(("longer", *WHY)) for name in names)
        assert row[1] == str(report["steps"] * (3 if longer else 1))
        assert row[2] == (
            f"{warned[0]} of {len(runs)}" if "information" in runs[0] else "not measured"
        )
        assert row[3:] == [f"{count} of {len(runs)}" for count in warned[1:]]
    text = " ".join(text.split())
    made = [one for name in teachers for why in WHY for one in found[f"{name}, {why}"]]
    assert min(one["information"][0] for one in made) > 0.05
    steps = [one["warned at"] for one in made if one["warned at"]]
    assert f"at steps {min(steps)} to {max(steps)}" in text
    (kept,) = (one["information"][1] for one in made if not one["warned at"])
    assert f"not warned kept an information of {kept:.0%}" in text
    says = " ".join(line for runs in found.values() for one in runs for line in one["says"])
    assert "a patch tells" not in says
    assert f"0 of 30 healthy runs of 300 steps, at most {stats.proportion(0, 30)[1]:.0%}" in text
    low = stats.proportion(len(steps) / len(made), len(made))[0]
    assert f"{len(steps)} of {len(made)}, at least {low:.0%}" in text
