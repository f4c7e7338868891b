"""Numbers of README.md and docs/ are those of results/*.json: results/tables.py prints the tables that
stand there; ratios of speed and warnings are compared with their files here."""

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.options import ROOT
from ssl_vit import stats

sys.path.insert(0, str(ROOT / "results"))
import tables

# Heads of the tables on the printed pages that are not computed from results/*.json, and why
OTHERS = {
    "| data | accuracy |": "no file is committed: here and below",
    "| question | answer | n |": "",
    "| table | command | n |": "how it was run",
    "| not measured | what we measured instead |": "words",
    "| part of the study |": "the plan",
    "| with | took | on |": "how it was run",
    "| line | what it says |": "words",
}
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


@pytest.mark.parametrize("page", [page for page in tables.PAGES if page not in RECORDS])
def test_a_table_of_a_page_is_printed_or_not_of_a_file(page: str) -> None:
    printed = [one() for one in tables.PAGES[page]]
    for found in tables_of((ROOT / page).read_text()):
        assert found.strip() in printed or found.startswith(tuple(OTHERS)), found


def test_every_page_that_names_a_file_is_looked_at() -> None:
    known = {*tables.PAGES, *RECORDS, *IN_PROSE}
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        if re.search(r"results/\w+\.json", path.read_text()):
            assert str(path.relative_to(ROOT)) in known


def test_answers_of_smaller_studies_are_what_their_tables_say() -> None:
    """docs/results.md, Smaller studies: the lower end of which interval is above zero."""
    rows = [line.split(" | ") for line in tables.targets().splitlines()[2:]]
    few, many = ({row[0].strip("| ") for row in rows if "(+" in row[at]} for at in (2, 4))
    assert few == {*tables.TARGETS.values()} - {"MoCo v3", "scratch"} and not many
    at_1 = ["(+" in line for line in tables.curve().splitlines()[2:]]
    assert at_1 == [True, True, False, False, False]


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_sentences_give_no_difference(page: str) -> None:
    """A difference stands in a table, with its interval; README's are printed all."""
    text = (ROOT / page).read_text()
    for found in tables_of(text):
        text = text.replace(found, "")
    assert quoted(text) == [] and re.findall(rf"{NUMBER} points", text) == []


def test_the_smallest_share_gave_the_same_numbers_twice() -> None:
    again = {row["name"]: row["metrics"] for row in tables.read("worth")}
    first_time = tables.read("worth_1")
    assert len(first_time) == 40
    for row in first_time:
        name = row["name"].replace("final-", "final_0.01-").replace("scratch-s", "scratch_0.01-s")
        assert again[name] == row["metrics"]


def recorded(found: Any) -> Iterator[dict[str, float]]:
    """Every median of a file, with its least and most."""
    if isinstance(found, dict) and "median" in found:
        yield found
    elif isinstance(found, dict):
        yield from (one for value in found.values() for one in recorded(value))


@pytest.mark.parametrize(
    ("head", "name", "rows"),
    [
        ("| library and objective | time over the floor |", "step", 9),
        ("| MPP of ssl_vit divided by | time (95%) |", "step", 8),
        ("| loader | CIFAR-10, 32 px WebP |", "loader", 10),
        ("| steps on batches in memory, divided by | CPU time (n = 9) |", "loader", 2),
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_table_of_whole_runs_is_that_of_its_file(precision: str) -> None:
    (shown,) = (
        found
        for found in tables_of((ROOT / "docs" / "speed.md").read_text())
        if found.startswith(f"| case, {precision}, one thread |")
    )
    measured = {
        name.partition(",")[0]: found
        for name, found in tables.read("runs").items()
        if isinstance(found, dict) and f", {precision}, " in name
    }
    shown_of: dict[tuple[str, str], list[str]] = {}
    case = ""  # an empty first cell: that of the line before
    for line in shown.splitlines()[2:]:
        first, rate, peer, _ = (cell.strip() for cell in line.strip("|").split("|"))
        case = first.partition("`")[2].partition("`")[0] or case
        if rate:
            own = measured[case]["images/s, CPU time"]["ssl_vit"]
            assert rate == (f"{own:.0f}" if own > 10 else f"{own:.2f}")
        (shown_of[case, peer.partition(" ")[0].replace("-", "_")],) = quoted(line)
    wanted = {
        (case, peer): [f"{value:.2f}" for value in (one["mean"], *one["95%"])]
        for case, found in measured.items()
        for peer, one in found["over peer, CPU time"].items()
    }
    assert shown_of == wanted
    assert {
        one["n"] for found in measured.values() for one in found["over peer, CPU time"].values()
    } == {5}


def test_the_table_of_warnings_is_that_of_its_file() -> None:
    found, kinds = tables.read("collapse")["runs"], (" tells ", "effective rank", "mean cosine")
    teachers, others = ["dino", "ibot"], ["mpp", "mae", "moco_v3", "ijepa"]
    still = [f"{name}, {why}" for name in teachers for why in ("not centred", "not centred, sharp")]
    wanted = {  # rows: names of their runs, and the warnings of each kind that the last cell tells
        (*teachers, *others): (0, 0, 0),
        tuple(f"{name}, longer" for name in teachers): (0, 0, 0),
        tuple(still): (19, 0, 0),
        ("mpp, rate too high", "moco_v3, rate too high"): (0, 10, 5),
        ("mae, rate too high", "ijepa, rate too high"): (0, 0, 5),
    }
    text = (ROOT / "docs" / "runs.md").read_text()
    (shown,) = (one for one in tables_of(text) if one.startswith("| run | steps | warned"))
    for line, (names, by) in zip(shown.splitlines()[2:], wanted.items(), strict=True):
        runs = [one for name in names for one in found[name]]
        warned, n = sum(bool(one["says"]) for one in runs), len(runs)
        low, high = stats.wilson_interval(warned / n, n)
        cells = [cell.strip() for cell in line.split("|")][3:5]
        assert cells == [f"{warned} of {n}", f"{low:.0%} to {high:.0%}"]
        assert by == tuple(
            sum(any(kind in says for says in one["says"]) for one in runs) for kind in kinds
        )
