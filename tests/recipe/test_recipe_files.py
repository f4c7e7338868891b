"""Recipes by their names, and what stands in for what in their files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.hub_runs import refused
from helpers.resolving import resolve
from ssl_vit.errors import UserError
from ssl_vit.recipe import recipe_files

PARTS = st.sampled_from(
    [
        *("mpp", "study", "tables", "methods", "models", "paper", "mpp_b16_jft"),
        *("..", ".", "", "é", "\0"),
    ]
)


@given(
    st.one_of(
        st.lists(PARTS, max_size=4).map("/".join),
        st.builds(str.__mul__, st.sampled_from(["x", "é", "x/"]), st.integers(100, 5000)),
        st.integers(250, 256).map("x".__mul__),  # about the longest name of a file
        st.text(max_size=8),
    )
)
def test_a_name_is_a_recipe_where_it_is_listed_and_else_refused(name: str) -> None:
    if name in recipe_files.recipe_names():
        file = recipe_files.RECIPES / f"{name}.yaml"
        row = recipe_files.PAPER / name.removeprefix("paper/")
        assert recipe_files.find_recipe(name) == (row if name.startswith("paper/") else file)
    else:
        with pytest.raises(UserError):
            recipe_files.find_recipe(name)


def recipe(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_a_base_stands_in_for_what_a_recipe_leaves_out(tmp_path: Path) -> None:
    base = recipe(tmp_path, "base.yaml", "base: mpp\nname: one\ndata.size: 32\noptim.lr: 0.5\n")
    own = f"base: {base}\nmodel: vit_n4\noptim: {{steps: 7, warmup: 0}}\n"
    path = recipe(tmp_path, "mine.yaml", own)
    found, mpp = resolve([f"recipe={path}"]), resolve(["recipe=mpp"])
    assert (found.name, found.model.name, found.model.patch) == ("mine", "vit_n4", 4)
    assert (found.optim.steps, found.optim.lr, found.data.size) == (7, 0.5, 32)
    assert found.corruption == mpp.corruption and found.optim.weight_decay == mpp.optim.weight_decay


def test_a_base_is_looked_up_beside_its_file(tmp_path: Path, monkeypatch) -> None:
    """Not in the working directory, which may hold another file of that name."""
    recipe(tmp_path, "base.yaml", "base: mpp\noptim.lr: 0.5\n")
    recipe(tmp_path / "sub", "base.yaml", "base: mpp\noptim.lr: 0.25\n")
    path = recipe(tmp_path / "sub", "mine.yaml", "base: base.yaml\n")
    above = recipe(tmp_path / "sub", "above.yaml", "base: ../base.yaml\n")
    monkeypatch.chdir(tmp_path)
    assert resolve([f"recipe={path}"]).optim.lr == 0.25
    assert resolve([f"recipe={above}"]).optim.lr == 0.5


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("3", "base=3: "),
        ("[mpp]", "base=['mpp']: "),
        ("gone.yaml", "base=gone.yaml: no such file"),
        ("mppp", "did you mean mpp?"),
        ("mine.yaml", "base=mine.yaml: "),
    ],
)
def test_a_base_that_is_none_is_named_with_its_file(base: str, says: str, tmp_path: Path) -> None:
    path = recipe(tmp_path, "mine.yaml", f"base: {base}\n")
    line = refused(resolve, [f"recipe={path}"])
    assert line.startswith(f"{path}: ") and says in line
