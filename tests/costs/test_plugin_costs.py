"""The work of a plugin's objective or target: counted like any other, and said not to be where the
network needs values, which are not there while it is counted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ssl_vit
from helpers.options import TINY, altered
from helpers.resolving import parse_request
from ssl_vit import costs
from ssl_vit.errors import UserError
from ssl_vit.lab import plan as plan_tool
from ssl_vit.recipe import declaration

PLUGIN = """
from ssl_vit.recipe.declaration import ObjectiveDeclaration, TargetDeclaration, declare, target

class Twice(ObjectiveDeclaration):
    name = "twice_TAG"
    shared = ("corruption", "target")
    def build(self, settings, encoder, classes):
        from ssl_vit.objectives.mpp.network import MaskedPatchPrediction
        from ssl_vit.recipe.shared_groups import CorruptionOptions
        class Network(MaskedPatchPrediction):
            def forward(self, batch):
                SEE
                first, second = super().forward(batch), super().forward(batch)
                return first._replace(loss=first.loss + second.loss)
        own = settings.group(CorruptionOptions).model_dump(exclude={"keep"})
        return Network(encoder, settings.build_target(encoder), **own)

class Brighter(TargetDeclaration):
    name = "brighter_TAG"
    def build(self, settings, encoder):
        return target("mean_color").build(settings, encoder)

declare(Twice())
declare(Brighter())
"""


@pytest.fixture(params=[False, True], ids=["needs values", "counted"])
def plugin(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[list[str], bool]]:
    """plugin=FILE objective=NAME of twice the work of mpp, and whether it can be counted."""
    tag = "counted" if request.param else "values"
    file = tmp_path / f"own_{tag}.py"
    see = "pass" if request.param else "assert float(batch.image.float().mean()) >= 0"
    file.write_text(PLUGIN.replace("TAG", tag).replace("SEE", see))
    yield [f"plugin={file}", f"objective=twice_{tag}"], request.param
    declaration.withdraw(f"twice_{tag}")
    declaration.withdraw(f"brighter_{tag}")


def expected(words: list[str]) -> float:
    """Of 192 images, twice what MPP takes."""
    plain = [word for word in words if not word.startswith(("plugin=", "objective="))]
    found = costs.exaflop(ssl_vit.resolve(plain), 192)
    assert found is not None
    return 2 * found


def test_a_run_and_its_pages_count_a_plugin(
    plugin: tuple[list[str], bool], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    named, counted = plugin
    words = altered(TINY, *named, f"out={tmp_path}/runs", "name=run")
    result = ssl_vit.pretrain(words)
    printed = capsys.readouterr().out
    page = (tmp_path / "runs" / "run" / "report.html").read_text()
    for name in ("exaflop", "total_exaflop"):
        assert result[name] == (pytest.approx(expected(words)) if counted else None)
    assert ("exaFLOP not counted" in printed) == ("multiply-adds not counted" in printed)
    assert ("exaFLOP not counted" in printed) == ("not counted" in page) == (not counted)
    assert ("meta tensors" in printed) == (not counted)  # torch's reason
    # what starts from it adds what is not known to what is
    own = [f"init={tmp_path}/runs/run", f"out={tmp_path}/runs", "name=look", "probe.shots=[1]"]
    data = ["data.size=16", "compute.threads=1", "probe.measures=[few_shot]"]
    probed = ssl_vit.evaluate(["recipe=evaluate", *own, *data])
    assert probed["exaflop"] > 0
    assert (probed["total_exaflop"] is None) == (not counted)


def test_a_plan_counts_a_plugin(
    plugin: tuple[list[str], bool], capsys: pytest.CaptureFixture
) -> None:
    named, counted = plugin
    words = altered(TINY, *named)
    plan_tool.main([*words, "device=h100", "--json"])
    text = capsys.readouterr().out
    record = json.loads(text.splitlines()[-1])
    assert record["exaflop"] == (pytest.approx(expected(words)) if counted else None)
    assert (record["device_hours"] is None) == (not counted)
    assert ("exaFLOP not counted" in text) == (not counted)


def test_a_plugins_target_is_counted_with_its_head(plugin: tuple[list[str], bool]) -> None:
    named, _ = plugin
    words = ["recipe=mae", named[0]]
    own = ssl_vit.resolve([*words, f"target=brighter_{named[1].rpartition('_')[2]}"])
    known = ssl_vit.resolve(["recipe=mae", "target=mean_color"])  # with as many outputs
    assert costs.compute_network_cost(own) == costs.compute_network_cost(known)


def test_arms_are_matched_by_exaflop_where_their_work_is_counted(
    plugin: tuple[list[str], bool],
) -> None:
    named, counted = plugin
    words = [*altered(TINY, "optim.steps=200"), *named]
    words = [word for word in words if "model.depth" not in word]
    words += ["match=exaflop", "seeds=1", "sweep", "model.depth=2,4"]
    if not counted:
        with pytest.raises(UserError) as caught:
            parse_request(words)
        assert f"{named[1]}: " in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    tasks = [task for task in parse_request(words).tasks.values() if task.run == "pretrain"]
    two, four = (int(task.options["optim.steps"]) for task in tasks)
    assert 1.5 * four < two < 2 * four
