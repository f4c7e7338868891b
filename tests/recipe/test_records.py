"""Records of files that others may have edited."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ssl_vit.errors import UserError
from ssl_vit.lab.study.record import StudyRecord
from ssl_vit.recipe import export_files, parsing, records
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.records import Number, Record, Whole
from ssl_vit.recipe.records.run import Environment, Result, RunEnvironment

LOSS = {"metric": "loss", "value": 0.5, "split": "validation"}
RESULT = {
    "steps": 3,
    "seconds": 1.5,
    "measurements": [LOSS],
    "finished": "then",
}
BEST = {"metric": "loss", "step": 3, "value": 0.5}


class One(Record):
    a: Whole
    b: str | None = None


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ({"a": 1, "b": None, "more": []}, One, None),
        ({"a": 1, "b": 2}, One, "^b: "),
        ({}, One, "^a: "),
        ({"a": True}, One, "^a: "),
        ({"a": 1.0}, One, "^a: "),
        ([1, 2.5], list[Number], None),
        ([1, [2]], list[Number], "expected"),
        ([True], list[Number], "expected"),
        ([math.inf], list[Number], "expected"),
        ("3", Whole, "expected"),
        (10**18, Whole, None),
        (10**400, Whole, "expected"),
        (10**400, Number, "expected"),
        ({"revision": None}, Environment, None),  # outside of git
        ({"packages": None}, Environment, "^packages: "),
        # other images would be taken for the run's own
        ({"data": {"train": "0123"}}, RunEnvironment, None),
        ({"data": {}}, RunEnvironment, "^data"),
        ({"data": {"train": 5}}, RunEnvironment, "^data"),
        ({"data": ["train"]}, RunEnvironment, "^data"),
        (RESULT | {"best": BEST | {"step": None, "value": None}}, Result, None),
        # what diverged is a result, and what was not counted null
        (RESULT | {"measurements": [LOSS | {"value": math.nan}]}, Result, None),
        (RESULT | {"exaflop": None}, Result, None),
        (RESULT | {"steps": None}, Result, "steps: expected a valid integer"),
        (RESULT | {"measurements": [LOSS | {"value": "0.5"}]}, Result, "measurements.0.v"),
        (RESULT | {"seconds": 10**400}, Result, "seconds: "),
        (RESULT | {"seconds": math.nan}, Result, "seconds: expected a finite number"),
        (RESULT | {"exaflop": math.inf}, Result, "exaflop: expected a finite number"),
        (RESULT | {"images": None}, Result, "images: expected a value instead of null"),
        (RESULT | {"best": BEST | {"value": math.nan}}, Result, "best.value: expected a finite"),
        # was a traceback where it is shown
        (RESULT | {"best": BEST | {"value": None}}, Result, "best: expected a step"),
    ],
)
def test_what_fits_and_what_is_one_line_that_names_the_key(
    value: Any, kind: Any, says: str | None
) -> None:
    if says is None:
        records.check(value, kind)
        return
    with pytest.raises(ValueError, match=says) as caught:
        records.check(value, kind)
    assert "\n" not in str(caught.value)


def test_what_is_read_is_a_mapping_and_written_as_it_was(tmp_path: Path) -> None:
    """Keys of later versions too; a whole number stays one. A method is no value."""
    later = RESULT | {"images": 64, "more": {"x": [1, None]}}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(later))
    found = records.read(path, Result)
    assert json.dumps(found.content(), sort_keys=True) == json.dumps(later, sort_keys=True)
    assert found.has("images") and not found.has("images", "exaflop")
    assert "more" in found and "best" not in found and found["exaflop"] is None
    assert found["more"] == {"x": [1, None]} and found["measurements"][0]["value"] == 0.5
    for name in ("model_dump", "content", "less"):
        with pytest.raises(KeyError):
            found[name]


def test_a_record_that_cannot_be_read_is_one_line_with_what_to_do(tmp_path: Path) -> None:
    large, twice = tmp_path / "large.json", tmp_path / "twice.json"
    with large.open("wb") as file:
        file.truncate(parsing.LARGEST + 1)  # takes no disk
    twice.write_text('{"steps": 1, "steps": 2}')
    for place, state in (
        (tmp_path / "none.json", "is missing"),
        (large / "task.json", "cannot be read: Not a directory"),
        (tmp_path, "is damaged (not a regular file)"),
        (large, f"is damaged (larger than {2**26} bytes)"),
        (twice, "is damaged ('steps' is given twice)"),
    ):
        with pytest.raises(UserError) as caught:
            records.require(place, StudyRecord, "make it again")
        assert str(caught.value) == f"{place} {state}. Make it again"


def test_an_export_without_its_preprocessing_is_one_line(tmp_path: Path) -> None:
    config = {"model_type": "vit", "pretrained_cfg": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="pretrained_cfg"):
        export_files.read(tmp_path)


def test_a_cost_that_a_result_lacks_is_not_none(tmp_path: Path) -> None:
    (tmp_path / "run" / "export").mkdir(parents=True)
    (tmp_path / "run" / "export" / "config.json").write_text("{}")
    (tmp_path / "run" / "recipe.yaml").write_text("objective: mpp\n")
    (tmp_path / "run" / "result.json").write_text(json.dumps(RESULT))
    with pytest.raises(UserError, match=r"result\.json "):
        InitSource(str(tmp_path / "run")).upstream_cost()
