"""Whether a run still helps: the probes' last change with its interval."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ssl_vit import stats
from ssl_vit.pages import run_page
from ssl_vit.pages.blocks import Table
from ssl_vit.pages.run_record import RunRecord, read_run
from ssl_vit.recipe.records.run import Environment


def record(rows: list[dict], folder: Path, images: int | None = 1000) -> RunRecord:
    """A run's folder that has these rows alone."""
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    measured = {} if images is None else {"validation": images}
    return replace(read_run(folder), environment=Environment(measured_on=measured))


def tables(found: RunRecord) -> list[list[list[str]]]:
    blocks = run_page.still_helping(found)
    return [block.rows for block in blocks if isinstance(block, Table)]


def test_the_interval_of_a_difference_is_newcombes() -> None:
    """His first example: 56 of 70 and 48 of 80."""
    assert stats.difference(48 / 80, 80, 56 / 70, 70) == pytest.approx((0.0524, 0.3339), abs=5e-5)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (0.30, 0.40, "yes"),
        (0.40, 0.30, "no, it gets worse"),
        (0.30, 0.31, "not told on so few images"),
    ],
)
def test_a_probes_last_change(before: float, after: float, verdict: str, tmp_path: Path) -> None:
    rows = [
        {"step": step, "probe/knn": value} for step, value in ((10, 0.9), (20, before), (30, after))
    ]
    (((name, *cells),),) = tables(record(rows, tmp_path))
    assert (name, cells[2]) == ("k-NN", verdict)
    assert cells[0] == f"{100 * (after - before):+.1f} points"
    assert cells[3:] == [f"{before:.1%} at step 20", f"{after:.1%} at step 30"]


def test_of_one_probe_or_unknown_images_nothing_is_said(tmp_path: Path) -> None:
    assert tables(record([{"step": 10, "probe/knn": 0.3}], tmp_path)) == []
    rows = [{"step": step, "probe/knn": 0.3} for step in (10, 20)]
    assert tables(record(rows, tmp_path, images=None)) == []


def test_what_is_no_share_has_no_interval(tmp_path: Path) -> None:
    rows = [
        {"step": step, "probe/knn": 0.3, "probe/feature_norm": norm}
        for step, norm in ((10, 0.9), (20, 1.1))
    ]
    (((name, *_),),) = tables(record(rows, tmp_path))
    assert name == "k-NN"
