"""What stands in for what in files of recipes/: bases of recipes, and what studies extend. The studies
beside results/*.json can be planned."""

from pathlib import Path

import pytest

from helpers.options import ROOT
from ssl_vit.config.resolve import resolve
from ssl_vit.config.tool_options import help_text
from ssl_vit.config.tools import PretrainOptions
from ssl_vit.errors import UserError
from ssl_vit.lab.studies import expand, read_study
from ssl_vit.lab.studies.request import parse_request, with_places

OF_RESULTS = sorted((ROOT / "results").glob("*.yaml"))


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
    text = help_text(PretrainOptions, ["recipe=paper/supervised_l16_imagenet21k"])
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


@pytest.mark.parametrize("path", OF_RESULTS, ids=lambda path: path.stem)
def test_the_studies_beside_results_can_be_planned(path: Path) -> None:
    assert parse_request(with_places([f"recipe={path}"])).plan


def test_the_studies_beside_results_are_found() -> None:
    assert {path.stem for path in OF_RESULTS} >= {
        "gap_why",
        "labels_cifar10",
        "methods_grid",
        "worth",
    }


STUDY = """title: base
seeds: [0]
arms: {mpp: one}
options: {data: shapes, data.size: 32}
parts:
  pretrain: {tool: pretrain, options: {recipe: mpp, optim.steps: 4, optim.warmup: 0}}
  again: {extends: pretrain, options: {optim.steps: 5}}
  probe: {tool: evaluate, options: {recipe: evaluate, init: "{pretrain}"}}
"""


def test_options_hold_for_all_parts_and_files_and_parts_extend_others(tmp_path: Path) -> None:
    base = recipe(tmp_path, "base.yaml", STUDY)
    first = expand.tasks(read_study.read(Path(base)), {}, {})
    assert all(task.options["data.size"] == "32" for task in first.values())
    assert first["again-mpp-0"].options == first["pretrain-mpp-0"].options | {"optim.steps": "5"}
    text = f"title: more\nextends: {base}\nseeds: [1]\noptions: {{data.size: 16}}\n"
    text += "parts:\n  pretrain: {options: {optim.lr: 0.5}}\n  again: null\n"
    study = read_study.read(Path(recipe(tmp_path, "more.yaml", text)))
    tasks = expand.tasks(study, {}, {})
    assert study.title == "more" and set(tasks) == {"pretrain-mpp-1", "probe-mpp-1"}
    changed = {"data.size": "16", "optim.lr": "0.5"}
    assert tasks["pretrain-mpp-1"].options == first["pretrain-mpp-0"].options | changed


def test_a_key_of_null_leaves_out_what_the_extended_study_has(tmp_path: Path) -> None:
    varied = STUDY + "vary: {optim.lr: [0.1, 0.2]}\nreport: {final: probe}\n"
    recipe(tmp_path, "base.yaml", varied.replace("arms: {mpp: one}\n", ""))
    text = "title: more\nextends: base.yaml\nvary: null\nreport: null\narms: {one: alone}\n"
    study = read_study.read(Path(recipe(tmp_path, "more.yaml", text)))
    tasks = expand.tasks(study, {}, {})
    assert {task.arm for task in tasks.values()} == {"one"} and not study.report


def test_null_leaves_out_nothing_that_is_not_there(tmp_path: Path) -> None:
    recipe(tmp_path, "base.yaml", STUDY)
    for mistake, says in (
        ("vray: null", "unknown key vray"),
        ("parts: {prob: null}", "part prob: null leaves out a part of base.yaml; .*probe"),
        ("parts: null", "parts: is missing"),
    ):
        text = f"title: more\nextends: base.yaml\n{mistake}\n"
        with pytest.raises(UserError, match=says):
            read_study.read(Path(recipe(tmp_path, "more.yaml", text)))
    text = "title: more\nextends: base.yaml\noptions: null\n"
    study = read_study.read(Path(recipe(tmp_path, "more.yaml", text)))
    assert all("data" not in task.options for task in expand.tasks(study, {}, {}).values())


def test_options_of_a_study_go_over_those_of_the_parts_that_it_extends(tmp_path: Path) -> None:
    recipe(tmp_path, "base.yaml", STUDY)
    text = "title: more\nextends: base.yaml\noptions: {optim.steps: 9}\n"
    tasks = expand.tasks(read_study.read(Path(recipe(tmp_path, "more.yaml", text))), {}, {})
    steps = {task.part: task.options.get("optim.steps") for task in tasks.values()}
    assert steps["pretrain"] == steps["again"] == "9"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("extends: pretrain", "extends: [pretrain]"), "part again: extends="),
        (("title: base", "extends: 3"), "extends=3: expected"),
        (("extends: pretrain", "extends: pretran"), "part again: extends=pretran: .*pretrain"),
        (
            ("extends: pretrain", "extends: again"),
            "extends=again: is the part itself.*: pretrain, probe$",
        ),
        (("title: base", "extends: {path}"), "extends={path}: files extend one another"),
    ],
    ids=["a list", "a number", "an unknown part", "a part itself", "a file itself"],
)
def test_what_cannot_be_extended_is_named(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    path = tmp_path / "study.yaml"
    old, new = (text.format(path=path) for text in change)
    path.write_text(STUDY.replace(old, new))
    with pytest.raises(UserError, match=says.format(path=path)):
        read_study.read(path)
