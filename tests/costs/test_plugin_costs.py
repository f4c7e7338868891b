"""The work of a plugin's objective or target: counted where the plugin declares it, else said not
to be."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ssl_vit
from helpers.options import TINY, altered
from ssl_vit import costs
from ssl_vit.config import declaration
from ssl_vit.errors import UserError
from ssl_vit.lab import plan as plan_tool
from ssl_vit.lab.runs import tool as runs_tool
from ssl_vit.lab.study.request import requested

PLUGIN = """
from ssl_vit import costs
from ssl_vit.config.declaration import ObjectiveDeclaration, TargetDeclaration, declare, target

class Twice(ObjectiveDeclaration):
    name = "twice"
    shared = ("corruption", "target")
    def build(self, settings, encoder, classes):
        from ssl_vit.objectives.mpp.network import MaskedPatchPrediction
        return MaskedPatchPrediction.build(settings, encoder, classes)

class Brighter(TargetDeclaration):
    name = "brighter"
    def build(self, patch, mean, std):
        return target("mean_color").build(patch, mean, std)
"""
DECLARED = """
Twice.multiply_adds = lambda self, recipe: 2 * costs.encoder_multiply_adds(recipe)
Brighter.outputs = lambda self, patch: 512
"""
DECLARE = """
declare(Twice())
declare(Brighter())
"""
UNDECLARED = {"objective": "twice", "target": "brighter"}


@pytest.fixture(params=[False, True], ids=["undeclared", "declared"])
def plugin(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    """plugin=FILE, and whether it declares its work."""
    file = tmp_path / f"own_{tmp_path.name}.py"
    file.write_text(PLUGIN + (DECLARED if request.param else "") + DECLARE)
    yield f"plugin={file}", request.param
    declaration.withdraw("twice")
    declaration.withdraw("brighter")


def expected(words: list[str], key: str) -> float:
    """Of 192 images, forward and backward, by hand; a target of as many outputs costs as much."""
    recipe = ssl_vit.resolve([word for word in words if "plugin" not in word and key not in word])
    adds = 2 * costs.encoder_multiply_adds(recipe)
    if key == "target":
        known = costs.multiply_adds(recipe)
        assert known is not None
        adds = known
    return 3 * 2 * adds * 192 / 1e18


@pytest.mark.parametrize("key", UNDECLARED)
def test_a_run_and_its_pages_count_what_a_plugin_declares_and_nothing_else(
    plugin: tuple[str, bool], tmp_path: Path, capsys: pytest.CaptureFixture, key: str
) -> None:
    named, declared = plugin
    words = altered(TINY, named, f"{key}={UNDECLARED[key]}", f"out={tmp_path}/runs", "name=run")
    result = ssl_vit.pretrain(words)
    printed = capsys.readouterr().out
    page = (tmp_path / "runs" / "run" / "report.html").read_text()
    for name in ("exaflop", "total_exaflop"):
        assert result[name] == (pytest.approx(expected(words, key)) if declared else None)
    assert ("exaFLOP not counted" in printed) == ("multiply-adds not counted" in printed)
    assert ("exaFLOP not counted" in printed) == ("not counted" in page) == (not declared)
    # what starts from it adds what is not known to what is
    own = [f"init={tmp_path}/runs/run", f"out={tmp_path}/runs", "name=look", "probe.shots=[1]"]
    data = ["data.size=16", "compute.threads=1", "probe.measures=[few_shot]"]
    probed = ssl_vit.evaluate(["recipe=evaluate", *own, *data])
    assert probed["exaflop"] > 0
    assert (probed["total_exaflop"] is None) == (not declared)
    capsys.readouterr()
    runs_tool.main([f"{tmp_path}/runs", "sort=exaflop"])
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]]
    assert declared or names == ["look", "run"], "what is not counted comes last"


@pytest.mark.parametrize("key", UNDECLARED)
def test_a_plan_counts_what_a_plugin_declares_and_nothing_else(
    plugin: tuple[str, bool], capsys: pytest.CaptureFixture, key: str
) -> None:
    named, declared = plugin
    words = altered(TINY, named, f"{key}={UNDECLARED[key]}")
    plan_tool.main([*words, "device=h100", "--json"])
    text = capsys.readouterr().out
    record = json.loads(text.splitlines()[-1])
    assert record["exaflop"] == (pytest.approx(expected(words, key)) if declared else None)
    assert (record["device_hours"] is None) == (not declared)
    assert ("exaFLOP not counted" in text) == (not declared)
    sweep = ["sweep", "optim.lr=1e-3,1e-4", "seeds=1"]
    kept = [word for word in words if "optim.lr" not in word]
    plan_tool.main([*kept, *sweep])
    text = capsys.readouterr().out
    assert ("the exaFLOP of 2 tasks, which are not counted" in text) == (not declared)


def test_a_decoder_is_counted_where_the_target_declares_its_outputs(
    plugin: tuple[str, bool],
) -> None:
    named, declared = plugin
    recipe = ssl_vit.resolve(["recipe=mae", named, "target=brighter"])
    known = ssl_vit.resolve(["recipe=mae", "target=mean_color"])  # with as many outputs
    assert costs.multiply_adds(recipe) == (costs.multiply_adds(known) if declared else None)


@pytest.mark.parametrize("key", UNDECLARED)
def test_arms_are_matched_by_exaflop_where_their_work_is_counted(
    plugin: tuple[str, bool], key: str
) -> None:
    named, declared = plugin
    words = [*altered(TINY, "optim.steps=200"), named, f"{key}={UNDECLARED[key]}"]
    words = [word for word in words if "model.depth" not in word]
    words += ["match=exaflop", "seeds=1", "sweep", "model.depth=2,4"]
    if not declared:
        with pytest.raises(UserError) as caught:
            requested(words)
        reason = f"{key}={UNDECLARED[key]}: its work is not counted"
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    tasks = [task for task in requested(words).tasks.values() if task.run == "pretrain"]
    two, four = (int(task.options["optim.steps"]) for task in tasks)
    assert 1.5 * four < two < 2 * four
