"""tools/evaluate.py: probes of a frozen encoder, and the head that a run has trained."""

import json
from pathlib import Path

import pytest
import torch

import ssl_vit
from helpers.encoders import net, pixels
from helpers.options import LOADED, PROBE, SHORT, TINY, altered
from helpers.runs import result, run
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli
from ssl_vit.pages import metric_tables


def measured(init: Path, out: Path, *more: str) -> list[str]:
    place = [f"init={init}", f"out={out}", "data.size=16", *LOADED]
    return ["recipe=evaluate", "name=look", *place, *more]


def test_a_frozen_encoder_is_measured_and_the_result_kept(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    few = ["probe.steps=20", "probe.shots=[1,5]", "data.share=0.01", "data.test=0.01", "--json"]
    words = measured(pretrained, tmp_path, *few)
    capsys.readouterr()
    cli.evaluate(words)
    text = capsys.readouterr().out
    metrics = json.loads(text.splitlines()[-1])["metrics"]
    assert "frozen: mean of the patches" in text  # MPP's class token got no loss
    own = {name for name in metrics if not metric_tables.is_of_probe(name)}
    assert own == {"few_shot_1", "few_shot_5", "linear", "knn"}
    assert all((one["n"], one["split"]) == (500, "test") for one in metrics.values())
    cli.evaluate(words)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"] == metrics


def test_features_of_a_layer_are_that_blocks() -> None:
    made = net()
    inside = made.backbone.forward_intermediates(
        pixels() / 127.5 - 1, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )
    close = {"atol": 1e-5, "rtol": 0}
    for layer, (patches, prefix) in enumerate(inside, 1):
        for pool, wanted in (("avg", patches.mean(1)), ("token", prefix[:, 0])):
            with torch.no_grad():
                torch.testing.assert_close(made.feature(pixels(), pool, layer), wanted, **close)


@pytest.mark.parametrize("recipe", ["", "supervised", "joint"])
def test_a_runs_own_head_is_measured_as_when_it_was_trained(
    recipe: str, tuned: Path, tiny: list[str], tmp_path: Path
) -> None:
    """A linear one, one with a hidden layer, and one beside another objective."""
    folder = tuned
    if recipe:
        few = ["optim.steps=4", "eval.test=true", "data.test=0.01", "name=run"]
        folder = run(altered(tiny, f"recipe={recipe}", *few)).folder
    now = ssl_vit.evaluate(measured(folder, tmp_path, "probe.measures=[top1]")).metrics
    was = result(folder)["metrics"]
    assert {name: one.value for name, one in now.items()} == {
        name: was[name]["value"] for name in ("top1", "top5")
    }


@pytest.mark.parametrize("labels", [False, True], ids=["no labels", "labels without weight"])
def test_a_run_that_learned_no_labels_has_no_head(
    labels: bool, pretrained: Path, tiny: list[str], tmp_path: Path
) -> None:
    """Of a part without weight the head stands where it began."""
    folder = pretrained
    if labels:
        short = ["recipe=joint", "joint.supervised=0", "optim.steps=2", "optim.warmup=1"]
        folder = run(altered(tiny, *short, "name=run")).folder
    with pytest.raises(
        UserError, match=r"probe\.measures=top1: init=.* no run that learned labels"
    ):
        ssl_vit.evaluate(measured(folder, tmp_path, "probe.measures=[top1]", "data.share=0.01"))


def test_images_of_the_head_are_counted_beside_those_of_probes(tmp_path: Path) -> None:
    """Beside k-NN the head's pass over the test images was left out of images and exaFLOP."""
    words = altered(TINY, *SHORT, "recipe=supervised", "eval.test=false", f"out={tmp_path}")
    ssl_vit.pretrain([*words, "name=run"])
    images = {}
    for measures in ("[knn]", "[knn,top1]"):
        options = altered(PROBE, f"init={tmp_path}/run", f"probe.measures={measures}")
        options += ["data.share=0.01", "data.test=0.01"]
        found = ssl_vit.evaluate([*options, f"out={tmp_path}", f"name={len(measures)}"])
        images[measures] = found.images
        tested = found.metrics["knn"].n
    assert images["[knn,top1]"] - images["[knn]"] == tested
