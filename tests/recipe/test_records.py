"""Records of files that others may have edited."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from ssl_vit.errors import UserError
from ssl_vit.lab.study.record import StudyRecord
from ssl_vit.recipe import export_files, parsing, records
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.records import Number, Record, Whole
from ssl_vit.recipe.records.run import Environment, Measured, Result, RunEnvironment
from ssl_vit.runs.identity import read_record

RESULT = {
    "steps": 3,
    "seconds": 1.5,
    "metrics": {"loss": {"value": 0.5, "split": "validation"}},
    "finished": "then",
}


class One(Record):
    a: Whole
    b: str | None = None


def fits(value: Any, kind: Any) -> bool:
    """Whether `records.check` accepts a value."""
    try:
        records.check(value, kind)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        ({"a": 1}, One, True),
        ({"a": 1, "b": None, "more": []}, One, True),
        ({"a": 1, "b": 2}, One, False),
        ({}, One, False),
        ({"a": True}, One, False),
        ({"a": 1.0}, One, False),
        ([1, 2.5], list[Number], True),
        ([1, [2]], list[Number], False),
        ([True], list[Number], False),
        ({"x": [1]}, dict[str, list[Whole]], True),
        ({"x": None}, dict[str, list[Whole]], False),
        ("3", Whole, False),
        (10**18, Whole, True),
        (10**400, Whole, False),
        (10**400, Number, False),
        (None, str, False),
    ],
)
def test_by_hand(value: Any, kind: Any, wanted: bool) -> None:
    assert fits(value, kind) is wanted


def test_what_is_read_is_written_as_it_was(tmp_path: Path) -> None:
    """Keys of later versions too; a whole number stays one."""
    later = RESULT | {"images": 64, "more": {"x": [1, None]}}
    path = tmp_path / "result.json"
    path.write_text(json.dumps(later))
    found = records.read(path, Result)
    assert json.dumps(found.content(), sort_keys=True) == json.dumps(later, sort_keys=True)
    assert found.has("images") and not found.has("images", "exaflop")
    assert found["more"] == {"x": [1, None]} and found["metrics"]["loss"]["value"] == 0.5
    with pytest.raises(KeyError, match="less"):
        found["less"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": None}, "steps: expected a valid integer"),
        ({"metrics": {"loss": {"value": "0.5", "split": "x"}}}, "metrics.loss.value"),
        ({"seconds": 10**400}, "seconds"),
        ({"seconds": math.nan}, "seconds: expected a finite number"),
        ({"exaflop": math.inf}, "exaflop: expected a finite number"),
        ({"images": None}, "images: expected a value, or no such key"),
        ({"recipe": None}, "recipe: expected a value, or no such key"),
        ({"best": None}, "best: expected a value, or no such key"),
        ({"measured_on": None}, "measured_on: expected a value, or no such key"),
        ({"best": {"metric": "loss", "step": 3, "value": math.nan}}, "best.value: expected a fini"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT | change))
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        records.read(path, Result)
    assert "\n" not in str(caught.value)


def test_a_result_is_read_as_a_mapping() -> None:
    result = records.check(RESULT | {"own": 1}, Result)
    assert "metrics" in result and "own" in result and "best" not in result
    assert result["images"] is None, "0 images would be a number"
    assert result["metrics"]["loss"]["value"] == 0.5 and result["own"] == 1


def test_an_export_without_its_preprocessing_is_one_line(tmp_path: Path) -> None:
    config = {"model_type": "vit", "pretrained_cfg": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="pretrained_cfg"):
        export_files.read(tmp_path)


def test_what_was_measured_may_be_no_number_and_what_was_not_counted_null() -> None:
    """A loss that diverged is a result; so is a plugin's without its work."""
    lost = {"loss": {"value": math.nan, "split": "validation", "n": None}}
    result = records.check(RESULT | {"metrics": lost, "exaflop": None}, Result)
    assert math.isnan(result.metrics["loss"].value) and result.exaflop is None
    environment = records.check({"revision": None}, Environment)  # outside of git
    assert environment.revision is None and not fits({"packages": None}, Environment)


@pytest.mark.parametrize("text", ['{"steps": 1, "steps": 2}', '[{"a": {"steps": 1, "steps": 1}}]'])
def test_a_key_that_is_there_twice_is_damage(text: str, tmp_path: Path) -> None:
    """The last one won in silence."""
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^'steps' is given twice$"):
        records.read(path, Result)
    with pytest.raises(
        UserError, match=r"^[^\n]*result\.json is damaged \('steps' is given twice\)"
    ):
        read_record(path, Result)


def test_a_record_that_cannot_be_read_is_one_line_with_what_to_do(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(parsing.LARGEST + 1)  # takes no disk
    for place, state in (
        (tmp_path / "none.json", "is missing"),
        (large / "task.json", "cannot be read: Not a directory"),
        (tmp_path, "is damaged (not a regular file)"),
        (large, f"is damaged (larger than {2**26} bytes)"),
    ):
        with pytest.raises(UserError) as caught:
            records.require(place, StudyRecord, "make it again")
        assert str(caught.value) == f"{place} {state}; make it again"


def test_a_cost_that_a_result_lacks_is_not_none(tmp_path: Path) -> None:
    (tmp_path / "run" / "export").mkdir(parents=True)
    (tmp_path / "run" / "export" / "config.json").write_text("{}")
    (tmp_path / "run" / "recipe.yaml").write_text("objective: mpp\n")
    (tmp_path / "run" / "result.json").write_text(json.dumps(RESULT))
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        InitSource(str(tmp_path / "run")).upstream_cost()


def test_defaults_are_not_shared() -> None:
    first, second = (Result.model_validate(RESULT) for _ in range(2))
    first.metrics["top1"] = Measured(value=1, split="test")
    assert "top1" not in second.metrics


def test_a_choice_without_its_value_is_damaged() -> None:
    """It was a traceback where it was shown."""
    best = {"metric": "loss", "step": 3, "value": None}
    with pytest.raises(ValueError, match="best: expected step and value"):
        records.check(RESULT | {"best": best}, Result)
    assert fits(RESULT | {"best": best | {"step": None}}, Result)


@pytest.mark.parametrize("data", [{}, {"train": 5}, ["train"]])
def test_a_run_without_fingerprints_of_its_images_is_damaged(data: Any) -> None:
    """Other images would be taken for its own."""
    assert fits({"data": {"train": "0123"}}, RunEnvironment)
    assert not fits({"data": data}, RunEnvironment)


def test_only_fields_and_other_keys_are_looked_up() -> None:
    """A method was a value too."""
    found = records.check({"a": 1, "more": [2]}, One)
    assert (found["a"], found["b"], found["more"]) == (1, None, [2])
    for name in ("model_dump", "content", "less"):
        with pytest.raises(KeyError):
            found[name]
