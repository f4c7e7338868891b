"""The run folder: one recipe and one set of images to a folder; its records come back as written,
damaged ones are named, and torn rows are none."""

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.hub_runs import refused
from ssl_vit.recipe.operation import Compute
from ssl_vit.recipe.schema import Recipe
from ssl_vit.runs.folder import LEFT, Run

FACTS = {"data": {"train": "aa", "validation": "bb"}, "device": "cpu"}


def recipe(out: Path, **groups: Any) -> Recipe:
    return Recipe(name="it", out=str(out), **groups)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(recipe(tmp_path))


@pytest.fixture
def begun(run: Run) -> Run:
    """A run whose folder is there, and empty."""
    run.folder.mkdir()
    return run


def test_a_run_that_is_not_there_yet_is_taken_as_said(tmp_path: Path) -> None:
    requested = recipe(tmp_path, resume=False)
    assert Run(requested).reconcile() is requested and requested.compute.precision == "auto"
    assert list(tmp_path.iterdir()) == []


def begin(run: Run) -> None:
    """Open it, and write what another run would lose."""
    run.open(FACTS)
    run.append({"step": 1})


@pytest.mark.parametrize(("settled", "other"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_an_automatic_precision_is_the_folders(tmp_path: Path, settled: str, other: str) -> None:
    begin(Run(recipe(tmp_path, compute=Compute(precision=settled))))
    assert Run(recipe(tmp_path)).reconcile().compute.precision == settled
    line = refused(Run(recipe(tmp_path, compute=Compute(precision=other))).reconcile)
    assert f"compute.precision ({settled} there, {other} here)" in line


def test_other_images_are_refused_and_the_same_ones_are_not(run: Run, tmp_path: Path) -> None:
    begin(run)
    before = {path: path.read_text() for path in run.folder.glob("*.*")}
    again = Run(recipe(tmp_path))
    line = refused(again.open, FACTS | {"data": {"train": "aa", "validation": "cc"}})
    assert line.startswith("data=shapes: ") and "validation" in line and "train" not in line
    assert {path: path.read_text() for path in run.folder.glob("*.*")} == before
    again.open(FACTS | {"device": "another"})
    assert again.environment()["device"] == "another"


@pytest.mark.parametrize("kept", ["metrics.jsonl", "checkpoints/step-000000004/a", "export/a"])
def test_a_folder_is_anothers_until_it_has_something_to_lose(tmp_path: Path, kept: str) -> None:
    """The first mistake in a plugin took the name of its run for good."""
    first, other = Run(recipe(tmp_path)), Run(recipe(tmp_path, seed=3))
    (first.folder / LEFT[-1]).mkdir(parents=True)  # what was no run's stays
    first.open(FACTS | {"plugin": {"file": "aa"}})
    assert (first.folder / LEFT[-1]).exists()
    other.reconcile()
    other.open(FACTS | {"plugin": {"file": "bb"}})
    assert other.environment().plugin == {"file": "bb"} and not (first.folder / LEFT[-1]).exists()
    (first.folder / kept).parent.mkdir(exist_ok=True)
    (first.folder / kept).write_text("{}")
    assert "seed (3 there, 0 here)" in refused(Run(recipe(tmp_path)).reconcile)
    refused(other.open, FACTS | {"plugin": {"file": "aa"}})


def hold(run: Run) -> None:
    with run.lock():
        pass


@pytest.mark.parametrize("act", [hold, lambda run: run.open(FACTS)], ids=["lock", "open"])
@pytest.mark.parametrize("place", ["", "it"])
def test_a_file_where_the_folder_should_be_is_said(
    tmp_path: Path, act: Callable[[Run], None], place: str
) -> None:
    out = tmp_path / "out"
    if place:
        out.mkdir()
    (out / place).write_text("a file")
    assert refused(act, Run(recipe(out))).startswith(f"out={out}: {out}/it cannot be written: ")


def test_rows_come_back_as_written_without_a_torn_last_one(begun: Run) -> None:
    assert begun.rows() == begun.truncate_metrics(0) == []
    rows = [{"step": step, "loss": 1 / step} for step in (10, 20, 30)]
    for row in rows:
        begun.append(row)
    whole = begun.metrics.read_bytes()
    assert begun.rows() == rows
    two = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for cut in range(two, len(whole) - 1):
        begun.metrics.write_bytes(whole[:cut])
        assert begun.rows() == rows[:2], whole[two:cut]
    assert begun.truncate_metrics(20) == begun.rows() == rows[:2]
    begun.append({"step": 21})
    assert begun.rows() == [*rows[:2], {"step": 21}]
    assert begun.truncate_metrics(0) == [] == begun.rows()


DEEP = b"[" * 200_000 + b"]" * 200_000
NO_ROWS = [b'{"a": 1}', b"3", b"\xff", b'{"step": "x"}', b'{"step": true}', DEEP, b"1" * 5000]


@pytest.mark.parametrize("line", [*NO_ROWS, b'{"step": 2, "loss": [1]}'], ids=range(8))
def test_a_line_that_is_no_row_is_passed_over(begun: Run, line: bytes) -> None:
    begun.metrics.write_bytes(b'{"step": 1}\n%b\n{"step": 2, "loss": NaN}\n' % line)
    assert [row["step"] for row in begun.rows()] == [1, 2]
    assert len(begun.truncate_metrics(2)) == len(begun.rows()) == 2


LOSS = {"metric": "loss", "value": 0.5, "split": "validation"}
RESULT = {"steps": 3, "seconds": 1.5, "measurements": [LOSS], "finished": "then"}
BEST = {"metric": "loss", "step": 3, "value": 0.5}


@pytest.mark.parametrize(
    "changes",
    [
        {"images": 64, "more": {"x": [1, None]}},  # keys of later versions too
        {"steps": 10**18},
        {"best": BEST | {"step": None, "value": None}},
        # what diverged is a result, and what was not counted null
        {"measurements": [LOSS | {"value": math.nan}]},
        {"exaflop": None},
    ],
)
def test_a_result_is_read_and_written_as_it_was(begun: Run, changes: dict[str, Any]) -> None:
    """A whole number stays one. A method is no value."""
    assert begun.result() is None
    content = RESULT | changes
    text = json.dumps(content, sort_keys=True)
    (begun.folder / "result.json").write_text(text)
    result = begun.result()
    assert json.dumps(result.content(), sort_keys=True) == text
    begun.finish(result)
    assert json.dumps(begun.result().content(), sort_keys=True) == text
    assert all(result.has(key) and key in result for key in content)
    assert not result.has("steps", "device_hours") and result["device_hours"] is None
    assert str(result["measurements"][0]["value"]) == str(result.metrics["loss"].value)
    for name in ("mertics", "model_dump", "content", "less"):
        with pytest.raises(KeyError):
            result[name]


NO_RECORDS = ({}, [{"metric": "a", "value": None, "split": "test"}])
DAMAGED: list[tuple[Any, str]] = [
    *((content, "") for content in (b"", b"{", b"\xff", DEEP, [], {}, {"steps": 5})),
    (b'{"steps": 1, "steps": 2}', "'steps' is given twice"),
    (b'[{"a": {"steps": 1, "steps": 1}}]', "'steps' is given twice"),
    *((RESULT | {"steps": steps}, "steps: ") for steps in ("3", True, None, 1.0, 10**400)),
    *((RESULT | {"seconds": number}, "seconds") for number in (math.nan, 10**400, [1], True)),
    *((RESULT | {"measurements": records}, "measurements") for records in NO_RECORDS),
    (RESULT | {"measurements": [LOSS | {"value": "0.5"}]}, "measurements.0.v"),
    (RESULT | {"recipe": 2}, "recipe: "),
    (RESULT | {"exaflop": math.inf}, "exaflop: "),
    (RESULT | {"images": None}, "images: .* instead of null"),
    (RESULT | {"best": BEST | {"value": math.nan}}, "best.value: "),
    # was a traceback where it is shown
    (RESULT | {"best": BEST | {"value": None}}, "best: "),
]


@pytest.mark.parametrize(("content", "named"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_result_is_named_with_its_key(begun: Run, content: Any, named: str) -> None:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (begun.folder / "result.json").write_bytes(raw)
    assert re.search(rf"result\.json is damaged \({named}", refused(begun.result))


def test_a_record_that_cannot_be_read_is_one_line_with_what_to_do(begun: Run) -> None:
    path = begun.folder / "environment.json"
    assert refused(begun.environment) == f"{path} is missing. Use another name=."
    path.symlink_to(path)
    assert "cannot be read: Too many levels" in refused(begun.environment)
    path.unlink()
    path.mkdir()
    assert "is damaged (not a regular file). Remove the file" in refused(begun.environment)
    path.rmdir()
    with path.open("wb") as file:
        file.truncate(2**26 + 1)  # takes no disk
    assert f"is damaged (larger than {2**26} bytes)" in refused(begun.environment)


def test_facts_without_hashes_of_the_images_are_damaged(run: Run) -> None:
    """Other images would be taken for the run's own."""
    begin(run)
    path = run.folder / "environment.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"revision": None}))  # outside of git
    assert run.environment()["revision"] is None
    path.write_text(json.dumps(facts | {"packages": None}))
    assert "is damaged (packages: " in refused(run.environment)
    for data in ({}, {"train": 5}, ["train"]):
        path.write_text(json.dumps(facts | {"data": data}))
        assert "is damaged (data" in refused(run.open, FACTS)


def test_notes_are_dated_lines_that_add_up(begun: Run) -> None:
    begun.write_log("one")
    begun.write_log("two")
    lines = begun.log.read_text().splitlines()
    assert [line[20:] for line in lines] == ["one", "two"]
    assert all(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S") for line in lines)
