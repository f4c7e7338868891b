"""Numbers of README.md and docs/ are those of results/*.json: results/tables.py prints the tables that
stand there, and what is printed nowhere is computed here."""

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest

from helpers.options import ROOT
from ssl_vit import stats

sys.path.insert(0, str(ROOT / "results"))
import tables

# Heads of the tables on the printed pages that are not computed from results/*.json, and why
OTHERS = {
    "| | the paper | here |": "what was run, in words",
    "| measured with | |": "how it was run",
    "| how to read them | |": "words",
    "| question | answer | where |": "words",
    "| data | size | accuracy |": "one run each, of which no file is committed",
    "| data | loss | to beat": "the same runs",
    "| | |": "the plan",
    "| | tasks | core-hours, estimated |": "what is left to run",
    "| step | tasks | core-hours": "estimates, beside the seconds of the runs",
    "| | DINO | iBOT | I-JEPA |": "products of the recipes' momenta",
    "| | planned | now | why |": "words",
}
SECTIONS = [ROOT / "docs" / f"results_{name}.md" for name in ("labels", "objectives")]
RECORDS = ["docs/speed.md", "docs/runs.md"]  # step.json and loader.json, collapse.json
IN_PROSE = ["docs/distributed.md"]  # no table of theirs is of a file
PRINTED = [(page, one) for page, found in tables.PAGES.items() for one in found]
NUMBER = r"[+-]?\d+(?:\.\d+)?"
# a value and its interval: "+3.06 (+2.20 to +3.92)", "1.083 | 1.078 to 1.094"
QUOTED = re.compile(rf"({NUMBER})%?\*{{0,2}}(?: \||(?: points)?,?) \(?({NUMBER})%? to ({NUMBER})")


def quoted(text: str) -> list[list[str]]:
    return [list(found) for found in QUOTED.findall(" ".join(text.split()))]


def tables_of(text: str) -> list[str]:
    return re.findall(r"^\|.*\n(?:\|.*(?:\n|$))+", text, re.MULTILINE)


@pytest.mark.parametrize(("page", "printed"), PRINTED, ids=lambda one: getattr(one, "__name__", ""))
def test_a_printed_table_stands_on_its_page(page: str, printed: Callable[[], str]) -> None:
    assert f"\n{printed()}\n" in (ROOT / page).read_text()


@pytest.mark.parametrize("page", tables.PAGES)
def test_a_table_of_a_page_is_printed_or_not_of_a_file(page: str) -> None:
    printed = [one() for one in tables.PAGES[page]]
    for found in tables_of((ROOT / page).read_text()):
        assert found.strip() in printed or found.startswith(tuple(OTHERS)), found


def test_every_page_that_names_a_file_is_looked_at() -> None:
    sections = [str(path.relative_to(ROOT)) for path in SECTIONS]
    known = {*tables.PAGES, *sections, *RECORDS, *IN_PROSE}
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        if re.search(r"results/\w+\.json", path.read_text()):
            assert str(path.relative_to(ROOT)) in known


def test_the_readme_gives_no_difference_outside_its_table() -> None:
    text = (ROOT / "README.md").read_text().replace(tables.headline(), "")
    assert quoted(text) == [] and re.findall(rf"{NUMBER} points", text) == []


def test_a_claimed_difference_excludes_zero_and_a_factor_one() -> None:
    for row, none in ((tables.differences(), 0), (tables.factors(), 1)):
        claims = [found for line in row.splitlines()[2:] for found in quoted(line)[:1]]
        assert len(claims) == len(row.splitlines()) - 2
        assert all(float(low) > none or float(high) < none for _, low, high in claims)


def test_the_smallest_share_gave_the_same_numbers_twice() -> None:
    again = {row["name"]: row["metrics"] for row in tables.read("worth")}
    first_time = tables.read("worth_1")
    assert len(first_time) == 40
    for row in first_time:
        name = row["name"].replace("final-", "final_0.01-").replace("scratch-s", "scratch_0.01-s")
        assert again[name] == row["metrics"]


def test_the_steps_of_methods_are_those_of_its_runs() -> None:
    page = (ROOT / "docs" / "methods.md").read_text()
    (row,) = re.findall(r"\| that is, in steps \| (.*) \|", page)
    steps = {
        row["arm"]: int(option.removeprefix("optim.steps="))
        for row in tables.read("methods_64px")
        for option in row["options"]
        if row["part"] == "pretrain" and option.startswith("optim.steps=")
    }
    assert row == ", ".join(f"{name} {steps[arm]:,}" for arm, (name, _) in tables.METHODS.items())


def sections() -> list[tuple[str, list[str]]]:
    """Each section that names files of studies, and these."""
    texts = [text for path in SECTIONS for text in path.read_text().split("\n## ")]
    named = [(text, re.findall(r"\(\.\./results/(\w+)\.json\)", text)) for text in texts]
    return [(text, names) for text, names in named if names]


def possible(names: list[str]) -> Iterator[list[float]]:
    """Every difference of two arms of these studies, and by how much it grows from one study to
    another, in points with its interval: on all seeds that they share, on these but the first, on
    the first and the last three."""
    values: dict[tuple[str, str], dict[tuple[str, str], pd.Series]] = {}
    for name in names:
        for (part, arm, metric), rows in tables.runs(name).groupby(["part", "arm", "metric"]):
            place = "final_0.01" if part == "final" else part  # labels_long has no other share
            values.setdefault((metric, place), {})[name, arm] = 100 * rows.value
    for arms in values.values():
        apart = {(a, b): arms[a] - arms[b] for a, b in itertools.permutations(arms, 2)}
        grown = [
            own - apart[(name, a[1]), (name, b[1])]
            for (a, b), own in apart.items()
            for name in names
            if a[0] == b[0] != name and ((name, a[1]), (name, b[1])) in apart
        ]
        for found in (*apart.values(), *grown):
            every = found.dropna()
            for one in (every, every[1:], every[:3], every[3:]):
                if len(one) > 1:
                    half = tables.reach(len(one)) * one.std()
                    yield [one.mean(), one.mean() - half, one.mean() + half]


@pytest.mark.parametrize(("text", "names"), sections(), ids=lambda given: str(given)[:30])
def test_a_difference_beside_a_file_can_be_computed_from_it(text: str, names: list[str]) -> None:
    known = [*possible(names)]
    signed = [found for found in quoted(text) if found[1][0] in "+-"]
    assert len(signed) > 5
    for found in signed:
        near = [max(abs(float(a) - b) for a, b in zip(found, one, strict=True)) for one in known]
        assert min(near) < 0.0051, found


def recorded(found: Any) -> Iterator[dict[str, float]]:
    """Every median of a file, with its least and most."""
    if isinstance(found, dict) and "median" in found:
        yield found
    elif isinstance(found, dict):
        yield from (one for value in found.values() for one in recorded(value))


@pytest.mark.parametrize(
    ("head", "name", "rows"),
    [
        ("| | over the floor | least to most |", "step", 9),
        ("| MPP over | time (95%) |", "step", 8),
        ("| | CIFAR-10, 32 px WebP |", "loader", 10),
        ("| steps on fixed batches, over | CPU time (n = 9) |", "loader", 2),
    ],
)
def test_ratios_of_the_speed_page_are_those_of_its_files(head: str, name: str, rows: int) -> None:
    (shown,) = (
        found
        for found in tables_of((ROOT / "docs" / "speed.md").read_text())
        if found.startswith(head)
    )
    ratios = [found for line in shown.splitlines() for found in quoted(line)]
    assert len(ratios) == rows
    for digits in ratios:
        places = len(digits[0].partition(".")[2])
        known = [
            [f"{one[key]:.{places}f}" for key in ("median", "least", "most")]
            for one in recorded(tables.read(name))
        ]
        assert digits in known


def test_the_table_of_warnings_is_that_of_its_file() -> None:
    report, why = tables.read("collapse"), ("not centred", "not centred, sharp")
    found, teachers, others = report["runs"], ("dino", "ibot"), ("mpp", "mae", "moco_v3", "ijepa")
    wanted = [teachers, tuple(f"{name}, longer" for name in teachers), others]
    wanted += [tuple(f"{name}, {one}" for name in teachers) for one in why]
    wanted += [(f"{name}, rate too high",) for name in others]
    text = (ROOT / "docs" / "runs.md").read_text()
    (shown,) = (one for one in tables_of(text) if one.startswith("| run | steps | warned by"))
    for line, names in zip(shown.splitlines()[2:], wanted, strict=True):
        runs = [one for name in names for one in found[name]]
        warned = [
            f"{sum(any(kind in says for says in one['says']) for one in runs)} of {len(runs)}"
            for kind in (" tells ", "effective rank", "mean cosine")
        ]
        warned[0] = warned[0] if "information" in runs[0] else "not measured"
        longer = any(name.endswith(("longer", *why)) for name in names)
        steps = str(report["steps"] * (3 if longer else 1))
        assert [cell.strip() for cell in line.split("|")][2:-1] == [steps, *warned]
    text = " ".join(text.split())
    made = [one for name in teachers for kind in why for one in found[f"{name}, {kind}"]]
    steps_warned = [one["warned at"] for one in made if one["warned at"]]
    assert f"at steps {min(steps_warned)} to {max(steps_warned)}" in text
    (kept,) = (one["information"][1] for one in made if not one["warned at"])
    assert f"not warned kept an information of {kept:.0%}" in text
    assert f"0 of 30 healthy runs of 300 steps, at most {stats.proportion(0, 30)[1]:.0%}" in text
    low = stats.proportion(len(steps_warned) / len(made), len(made))[0]
    assert f"{len(steps_warned)} of {len(made)}, at least {low:.0%}" in text
