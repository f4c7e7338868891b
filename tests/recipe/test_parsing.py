"""YAML and JSON that people and programs wrote."""

import itertools
import math
from pathlib import Path

import yaml

from helpers.hub_runs import refused
from ssl_vit.recipe import parsing


def test_plain_scalars_of_a_file_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    """`yaml.safe_load` leaves 2e-4 a text, and makes 8 of 010, false of no and a date."""
    file = tmp_path / "own.yaml"
    file.write_text(
        "a: 2e-4\nb: 010\nc: no\nd: 2001-01-01\ne: [1_000, .5, ~, -.inf]\nf: {g: '1', h: 1:30}\n"
        "i: &own {j: 1, k: true}\nl: {<<: *own, j: TRUE}\nm:\n"
    )
    found = parsing.load_yaml(file)
    assert isinstance(found["b"], int)
    assert found == {
        "a": 2e-4,
        "b": 10,
        "c": "no",
        "d": "2001-01-01",
        "e": ["1_000", 0.5, None, -math.inf],
        "f": {"g": "1", "h": "1:30"},
        "i": {"j": 1, "k": True},
        "l": {"j": True, "k": True},
        "m": None,
    }


def test_what_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    """Texts that look like something else too; by other programs' YAML 1.1 as well."""
    texts = ["2e-4", "no", "010", "~", "", "1:30", "<<", "null", "a: b", "# x", "é", "2026-01-01"]
    content = {"texts": texts, "numbers": [1, 2e-05, 1e30, -math.inf], "others": [None, True, []]}
    file = tmp_path / "own.yaml"
    file.write_text(parsing.yaml_text(content))
    assert parsing.load_yaml(file) == content
    assert yaml.safe_load(file.read_text()) == content


def test_aliases_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    pairs = itertools.pairwise("abcdefghijklmnopqrstu")
    doubled = [f"{two}: &{two} [*{one}, *{one}, *{one}, *{one}]" for one, two in pairs]
    file.write_text("\n".join(["a: &a [1, 2]", *doubled]))
    assert "more than 100,000 values" in refused(parsing.load_yaml, file)
