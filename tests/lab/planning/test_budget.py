"""What a run will need: images against those that a run finds, bytes against those that torch
holds, rates."""

import pytest

from helpers.options import ROOT
from ssl_vit import costs
from ssl_vit.config.resolve import resolve
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.lab.planning import budget

H100 = budget.devices()["h100"]
SMALL = (
    "data=shapes",
    "data.size=32",
    "model=vit_p8",
    "optim.warmup=0",
    "compute.precision=float32",
)


def test_the_papers_core_days_are_a_plausible_share_of_the_peak():
    """Table 2: 2.5k and 0.68k TPUv3-core-days for the 4262 and 1567 exaFLOP of H/14's and L/16's
    14 epochs (Table 6): L/16's ImageNet figure of Table 2 is that of Table 5's 14-epoch row."""
    core = budget.devices()["tpuv3_core"]
    assert budget.hours(4262, core, "bfloat16", 0.32) / 24 == pytest.approx(2500, rel=0.02)
    assert budget.hours(1567, core, "bfloat16", 0.434) / 24 == pytest.approx(680, rel=0.02)
    text = (ROOT / "ssl_vit" / "lab" / "planning" / "hardware.yaml").read_text()
    assert "4262 exaFLOP at 32%" in text and "14 epochs 1567 at 43%" in text


def test_every_device_can_be_planned_for():
    for on in budget.devices().values():
        recipe = resolve(["recipe=mpp"])
        budget.settle_precision(recipe, on)
        assert on.rate(recipe.compute.precision) > 0 and on.memory > 0


def test_a_step_of_compared_images_that_does_not_fit_is_warned_of():
    recipe = resolve(["recipe=moco_v3_b16", "compute.precision=bfloat16"], here=False)
    for processes, count in ((8, 1), (16, 0)):
        need = costs.memory_bytes(recipe, processes, 2, 4096 // processes, fused=True)
        found = list(budget.warnings_for(recipe, processes, H100, need))
        assert len([text for text in found if "takes a step in one pass" in text]) == count


@pytest.mark.parametrize(
    ("batch", "wanted", "processes"),
    [(4096, None, 8), (4096, 32, 4), (96, None, 1), (4092, None, 3)],
)
def test_the_device_batch_is_that_of_a_run(batch, wanted, processes):
    words = ["recipe=paper/mpp_b16_imagenet", "compute.precision=bfloat16", f"optim.batch={batch}"]
    recipe = resolve([*words, *([f"compute.batch={wanted}"] if wanted else [])])
    # the rule of jobs/resources.py, on this device
    limit = int(78 * 2**30 / 2 / costs.activation_bytes(recipe, fused=True))
    assert budget.batch_layout(recipe, processes, H100) == BatchLayout.divide(
        batch, wanted, limit, 0, processes
    )
