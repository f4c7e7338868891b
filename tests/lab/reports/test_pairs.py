"""Arms that are asked for in pairs, of made-up studies whose answer is known."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from helpers import arm_studies, key_studies
from helpers.reports import altered, do_not_draw, table
from ssl_vit import stats
from ssl_vit.errors import UserError
from ssl_vit.lab import report_tool, reports
from ssl_vit.lab.arms import arm_pairs
from ssl_vit.lab.studies import read_study

DIFFERENCES = "A minus B"


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    do_not_draw(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arm_studies.study(tmp_path_factory.mktemp("made") / "gap")


def test_two_pairs_have_intervals_for_both_together(made: Path) -> None:
    """mpp minus scratch: 5, 4.5, 5.5 points, mean 5, sd 0.5; t with 2 degrees of freedom is 4.3027
    at 97.5% and 6.2053 at 98.75%."""
    found = reports.write(made, ["mpp:scratch", "supervised:scratch"])
    pair, other = found.numbers.pairs[:2]
    assert (pair.arm, pair.other, other.arm, other.other) == (
        *("mpp", "scratch"),
        *("supervised", "scratch"),
    )
    assert pair.difference is not None and pair.difference.interval is not None
    assert pair.difference.interval == pytest.approx((0.05 - 0.012421, 0.05 + 0.012421), abs=1e-6)
    assert pair.corrected == pytest.approx((0.05 - 0.017913, 0.05 + 0.017913), abs=1e-6)
    head, row, *_ = table((made / "report.md").read_text(), DIFFERENCES)
    assert head[-1] == "95% for all 2" and row[0] == "mpp minus scratch"
    assert row[-1] == "+3.21 to +6.79"
    assert "+3.21 to +6.79 where all pairs asked for hold, which excludes zero" in found.answer
    text = (made / "report.md").read_text()
    assert "Not asked for, and not corrected: mpp minus supervised." in text
    each = [(pair.arm, pair.other) for pair in found.numbers.pairs]
    assert len(set(each)) == len(each), "the baseline's pair is not there twice"


def test_later_reports_keep_the_pairs(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "gap"))
    report_tool.main([str(folder), "pairs=mpp:scratch,supervised:scratch"])
    first = (folder / "report.md").read_text()
    assert "pairs  " not in capsys.readouterr().out
    report_tool.main([str(folder), "format=latex"])
    assert (folder / "report.md").read_text() == first
    assert "mpp:scratch,supervised:scratch" in capsys.readouterr().out
    assert "95% for all 2" in reports.render(folder)
    report_tool.main([str(folder), "pairs="])
    report_tool.main([str(folder)])
    assert "95% for all 2" not in (folder / "report.md").read_text()
    assert "pairs  " not in capsys.readouterr().out


def test_pairs_that_are_refused_are_not_kept(tmp_path: Path) -> None:
    folder = arm_studies.study(tmp_path / "gap")
    with pytest.raises(UserError, match="no arm scrach"):
        report_tool.main([str(folder), "pairs=mpp:scrach"])
    report_tool.main([str(folder)])


def test_differences_that_are_not_corrected_say_so(made: Path) -> None:
    reports.write(made)
    text = " ".join((made / "report.md").read_text().split())
    assert "None of the intervals of these 3 differences is corrected" in text


def test_one_pair_needs_no_correction(made: Path) -> None:
    found = reports.write(made, ["supervised:mpp"])
    assert found.numbers.pair("supervised", "mpp").corrected is None
    assert "supervised minus mpp is +20.5" in found.answer
    head, *_ = table((made / "report.md").read_text(), DIFFERENCES)
    assert "95% for all" not in head[-1]


def test_arms_without_roles_are_compared_where_the_study_asks_for_it(tmp_path: Path) -> None:
    """Such a study's arms are each by themselves."""
    folder = arm_studies.study(tmp_path / "gap", report={"final": "final"})
    assert not reports.write(folder).numbers.pairs
    altered(folder / "study.json", report={"final": "final", "pairs": ["mpp:scratch"]})
    found = reports.write(folder)
    assert [(pair.arm, pair.other) for pair in found.numbers.pairs] == [("mpp", "scratch")]
    assert "mpp minus scratch is +5.00 points" in found.answer


def test_a_varied_arm_is_named_by_its_value(tmp_path: Path) -> None:
    folder = key_studies.study(tmp_path / "made")
    found = reports.write(folder, ["0.5:0.15"]).numbers
    named = found.pairs[0]
    assert found.settings[named.arm] == {"corruption.rate": 0.5}
    assert found.settings[named.other] == {"corruption.rate": 0.15}


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("mpp", "pairs=mpp: expected two arms, A:B; choices: scratch, mpp, supervised"),
        ("mpp:", "pairs=mpp:: expected two arms, A:B; choices: "),
        ("mpp:scrach", "pairs=mpp:scrach: no arm scrach; did you mean scratch?"),
        ("mpp:mpp", "pairs=mpp:mpp: expected two different arms"),
    ],
)
def test_a_pair_that_is_none_is_one_line(made: Path, pair: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        report_tool.main([str(made), f"pairs=mpp:scratch,{pair}"])
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)
    body = {"title": "x", "arms": {"mpp": "", "scratch": "", "supervised": ""}}
    parts = {"final": {"tool": "finetune", "options": {"init": "scratch"}}}
    report = {"final": "final", "pairs": [pair]}
    with pytest.raises(UserError, match=r"file: report: pairs="):
        read_study.build(body | {"parts": parts, "report": report}, "file")


def test_pairs_are_for_studies(tmp_path: Path, made: Path) -> None:
    with pytest.raises(UserError, match=r"^pairs=a:b: is for a study; .* has no study\.json"):
        report_tool.main([str(tmp_path), "pairs=a:b"])


def test_the_command_prints_them(made: Path, capsys: pytest.CaptureFixture) -> None:
    report_tool.main([str(made), "pairs=supervised:mpp", "--json"])
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "supervised minus mpp" in first
    pairs = json.loads(last)["numbers"]["pairs"]
    assert (pairs[0]["arm"], pairs[0]["other"]) == ("supervised", "mpp")


@given(st.integers(2, 30), st.integers(1, 20))
def test_the_corrected_interval_is_scipy_s_at_its_level(n: int, family: int) -> None:
    values = [0.1 * i * i for i in range(n)]
    found = stats.simultaneous(stats.summarize(values), family)
    level = 1 - 0.05 / family
    error = scipy_stats.sem(values)
    wanted = scipy_stats.t.interval(level, n - 1, loc=sum(values) / n, scale=error)
    assert found == pytest.approx(tuple(map(float, wanted)))


def test_one_seed_has_no_corrected_interval() -> None:
    assert stats.simultaneous(stats.summarize([0.5]), 3) is None


def test_several_pairs_may_be_a_list(made: Path, capsys: pytest.CaptureFixture) -> None:
    report_tool.main([str(made), "pairs=[mpp:scratch, supervised:scratch]", "--json"])
    pairs = json.loads(capsys.readouterr().out.splitlines()[-1])["numbers"]["pairs"]
    assert [one["arm"] for one in pairs[:2]] == ["mpp", "supervised"]
    assert all(one["corrected"] for one in pairs[:2])


def test_names_with_commas_are_told_from_several_pairs() -> None:
    """Of two varied keys no value belongs to one arm."""
    arms = [f"lr={lr},rate={rate}" for lr in (0.1, 0.2) for rate in (0.5, 0.9)]
    settings = {arm: dict(part.split("=") for part in arm.split(",")) for arm in arms}
    one = f"{arms[0]}:{arms[1]}"
    assert arm_pairs([one], arms, settings) == [(arms[0], arms[1])]
    two = arm_pairs([f"{one},{arms[2]}:{arms[0]}"], arms, settings)
    assert two == [(arms[0], arms[1]), (arms[2], arms[0])]


def test_a_pair_the_other_way_round_is_no_other_one(made: Path) -> None:
    """It would widen the corrected intervals of all."""
    with pytest.raises(UserError, match=r"^pairs=scratch:mpp: is there the other way round"):
        reports.write(made, ["mpp:scratch,scratch:mpp"])


def test_a_value_that_several_arms_have_names_none() -> None:
    settings = {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    assert arm_pairs(["2:3"], settings, settings) == [("a", "b")]
    with pytest.raises(UserError, match="no arm 1"):
        arm_pairs(["1:a"], settings, settings)
