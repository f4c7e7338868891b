"""The package gives the numbers that it gave when they were frozen: README.md of this folder."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from freeze import make
from freeze.folders import FOLDERS

RECIPES, COSTS, STUDIES, IMAGES = map(make.read, ("recipes", "costs", "studies", "images"))


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        yield


def kept(frozen: Any, found: Any) -> Any:
    """What was found under the keys that are frozen: others may be there. A key that is gone is a
    KeyError."""
    if not isinstance(frozen, dict):
        return found
    return {key: kept(value, found[key]) for key, value in frozen.items()}


def test_so_much_is_frozen() -> None:
    assert len(RECIPES) == len(COSTS["recipes"]) == 60
    assert sum(len(group) for groups in RECIPES.values() for group in groups.values()) > 4000
    assert sum(len(study["tasks"]) for study in STUDIES.values()) == 603
    assert len(STUDIES) == 11 and len(IMAGES["folders"]) == len(FOLDERS) > 50


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_its_values(name: str) -> None:
    assert kept(RECIPES[name], make.recipe_values(name)) == RECIPES[name]


def test_recipes_cost_what_they_did() -> None:
    """Of the paper's, many of which differ in images and length alone, one of each network."""
    images = re.compile(r"_(imagenet|jft|cifar|flowers|pets)\w*$")
    for name in {images.sub("", name): name for name in COSTS["recipes"]}.values():
        assert kept(COSTS["recipes"][name], make.recipe_cost(name)) == COSTS["recipes"][name], name


@pytest.mark.parametrize("study", make.MATCHED)
def test_arms_at_equal_compute_cost_what_they_did(study: str) -> None:
    tasks = whole_tasks(STUDIES[study])
    assert len(COSTS["matched"][study]) > 4
    for number, cost in COSTS["matched"][study].items():
        found = make.run_exaflop(tasks[int(number)]["options"])
        assert found == pytest.approx(cost, rel=1e-9), tasks[int(number)]


def whole_tasks(study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Frozen tasks with the options that they share."""
    return [
        task | {"options": study["shared"][task["tool"]] | task["options"]}
        for task in study["tasks"]
    ]


def by_content(tasks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """{a hash of a task and all that it needs: the task}, whatever tasks are called and in which
    order they are; of several equal ones the hash with their number."""
    hashes: dict[int, str] = {}

    def known(number: int) -> str:
        if number not in hashes:
            task = tasks[number]
            options = {key: filled(value) for key, value in task["options"].items()}
            best = task.get("best") or {}
            best = best | {"of": sorted(map(known, best["of"]))} if best else {}
            parts = [task["tool"], task["seed"], options, sorted(map(known, task["needs"])), best]
            text = json.dumps(parts, sort_keys=True)
            hashes[number] = hashlib.sha256(text.encode()).hexdigest()
        return hashes[number]

    def filled(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("{"):
            name, _, rest = value[1:].partition("}")
            return f"{known(int(name))}{rest}"
        # 1 and 1.0 are one number
        return float(value) if type(value) in (int, float) else value

    count: Counter[str] = Counter()
    found = {}
    for number, task in enumerate(tasks):
        count[known(number)] += 1
        found[f"{known(number)} {count[known(number)]}"] = task
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_its_tasks(name: str) -> None:
    """Tools, options, seeds, what each needs and what is chosen among tries. The first task that
    differs says why; those that need it differ too."""
    frozen, found = by_content(whole_tasks(STUDIES[name])), by_content(make.study_tasks(name))
    missing = [task for key, task in frozen.items() if key not in found]
    extra = [task for key, task in found.items() if key not in frozen]
    assert (missing[:1], extra[:1]) == ([], []), f"{len(missing)} missing, {len(extra)} more"


@pytest.mark.parametrize("name", IMAGES["drawn"])
def test_the_embedded_set_is_drawn_as_it_was(name: str) -> None:
    options = {"data.size": int(name.split()[1])}
    assert kept(IMAGES["drawn"][name], make.described(options)) == IMAGES["drawn"][name]


@pytest.mark.parametrize("options", IMAGES["rows"])
def test_a_run_takes_the_images_that_it_took(options: str) -> None:
    found = make.draws({"data.size": 32} | json.loads(options))
    assert kept(IMAGES["rows"][options], found) == IMAGES["rows"][options]


@pytest.mark.parametrize("name", IMAGES["folders"])
def test_an_odd_folder_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    """Exactly: a split more is a difference too."""
    assert make.odd_folder(name, tmp_path) == IMAGES["folders"][name]


def test_groups_are_divided_as_they_were(tmp_path: Path) -> None:
    assert make.groups(tmp_path) == IMAGES["groups"]


def test_real_images_are_read_as_they_were(real_images: Path) -> None:
    frozen, found = make.read("real"), make.of_real()
    for split, known in frozen["tinyimagenet"].items():
        means = found["tinyimagenet"][split].pop("means")
        np.testing.assert_allclose(means, known.pop("means"), atol=0.3)
    assert json.loads(json.dumps(found)) == frozen
