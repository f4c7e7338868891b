"""What stands in for what in files of recipes/: bases of recipes. Every study can be run."""

from pathlib import Path

import pytest

from helpers.options import ROOT
from ssl_vit.errors import UserError
from ssl_vit.lab.study.request import requested
from ssl_vit.recipe.help import tool_help
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.tools import PretrainOptions

STUDIES = [
    *sorted((ROOT / "recipes" / "study").glob("*.yaml")),
    ROOT / "results" / "worth.yaml",
    ROOT / "docs" / "examples" / "three_arms.yaml",
]


def recipe(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return f"{folder}/{name}"


def test_a_base_stands_in_for_what_a_recipe_leaves_out(tmp_path: Path) -> None:
    base = recipe(tmp_path, "base.yaml", "base: mpp\nname: one\ndata.size: 32\noptim.lr: 0.5\n")
    path = recipe(
        tmp_path, "mine.yaml", f"base: {base}\nmodel: vit_n4\noptim: {{steps: 7, warmup: 0}}\n"
    )
    found, mpp = resolve([f"recipe={path}"]), resolve(["recipe=mpp"])
    assert (found.name, found.model.name, found.model.patch) == ("mine", "vit_n4", 4)
    assert (found.optim.steps, found.optim.lr, found.data.size) == (7, 0.5, 32)
    assert found.corruption == mpp.corruption and found.optim.weight_decay == mpp.optim.weight_decay


def test_help_names_the_bases() -> None:
    text = tool_help(PretrainOptions, ["recipe=paper/supervised_l16_imagenet21k"])
    bases = "paper/supervised_b16_imagenet21k, paper/supervised_b16_imagenet"
    assert f"recipe=paper/supervised_l16_imagenet21k (base: {bases})" in text


def test_bases_form_no_circle(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"base: {two}\n")
    two.write_text(f"base: {one}\n")
    with pytest.raises(UserError, match=f"base={one}: bases form a circle"):
        resolve([f"recipe={one}"])


def test_an_unknown_base_is_named(tmp_path: Path) -> None:
    path = recipe(tmp_path, "mine.yaml", "base: mppp\n")
    with pytest.raises(UserError, match="mppp: unknown; did you mean mpp"):
        resolve([f"recipe={path}"])


def test_a_base_is_looked_up_beside_its_file(tmp_path: Path, monkeypatch) -> None:
    """Not in the working directory, which may hold another file of that name."""
    (tmp_path / "sub").mkdir()
    recipe(tmp_path, "base.yaml", "base: mpp\noptim.lr: 0.5\n")
    recipe(tmp_path / "sub", "base.yaml", "base: mpp\noptim.lr: 0.25\n")
    path = recipe(tmp_path / "sub", "mine.yaml", "base: base.yaml\n")
    above = recipe(tmp_path / "sub", "above.yaml", "base: ../base.yaml\n")
    monkeypatch.chdir(tmp_path)
    assert resolve([f"recipe={path}"]).optim.lr == 0.25
    assert resolve([f"recipe={above}"]).optim.lr == 0.5


@pytest.mark.parametrize("base", ["3", "[mpp]", "gone.yaml"])
def test_a_base_that_is_none_is_named_with_its_file(base: str, tmp_path: Path) -> None:
    path = recipe(tmp_path, "mine.yaml", f"base: {base}\n")
    with pytest.raises(UserError) as caught:
        resolve([f"recipe={path}"])
    assert path in str(caught.value) and "base=" in str(caught.value)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_can_be_run(path: Path) -> None:
    """Without the images of its places, which are not here."""
    assert requested([f"recipe={path}"], stand_ins=True).tasks
