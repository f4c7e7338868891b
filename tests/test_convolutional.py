"""Networks without patches through the same stages: fine-tuned, evaluated, exported, and refused
where patches are needed."""

from pathlib import Path

import pytest
import timm
import torch
import yaml
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

from ssl_vit import costs
from ssl_vit.config.resolve import resolve
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli, resources, setup
from ssl_vit.models import encoder
from ssl_vit.runs.folder import Run
from ssl_vit.training import loop

NAMES = [
    n
    for n, row in yaml.safe_load((ROOT / "recipes/models.yaml").read_text()).items()
    if row.get("convolutional")
]
FAST = [
    "data.size=32",
    "optim.steps=2",
    "optim.warmup=1",
    "optim.batch=4",
    "data.share=0.001",
    "log.tensorboard=false",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_says_what_timm_builds(name: str) -> None:
    recipe = resolve(["recipe=finetune", "init=scratch", f"model={name}", "data.size=224"])
    with torch.device("meta"):
        net = encoder.build_backbone(recipe.model, recipe.data).eval()
    assert sum(p.numel() for p in net.parameters()) == costs.encoder_parameters(recipe)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        assert net.feature(torch.empty(1, 3, 224, 224, dtype=torch.uint8), "token").shape == (
            1,
            recipe.model.width,
        )
    assert 2 * costs.multiply_adds(recipe) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_resnet_is_fine_tuned_and_evaluated_like_any_encoder(tmp_path: Path) -> None:
    out = [f"out={tmp_path}", "compute.threads=1", "compute.compile=false", "eval.images=4"]
    # for speed; a BiT is as deep as it is
    small = ["model.timm=resnet10t.c3_in1k", "model.width=512"]
    cli.finetune(
        [
            "recipe=finetune",
            "init=scratch",
            "model=bit_r50x1",
            *small,
            *FAST,
            *out,
            "name=tuned",
            "eval.test=false",
        ]
    )
    run = Run(resolve([f"recipe={tmp_path}/tuned/recipe.yaml", *out]))
    assert run.result() is not None
    features = timm.create_model(f"local-dir:{run.export}", pretrained=True).eval()(
        torch.rand(2, 3, 32, 32)
    )
    # the head, whose form differs between these networks, is in heads.safetensors
    assert features.shape == (2, 512)
    probe = [
        "recipe=evaluate",
        f"init={tmp_path}/tuned",
        "data.size=32",
        "data.share=0.01",
        "name=probed",
    ]
    cli.evaluate([*probe, *(w for w in out if not w.startswith("eval.")), "probe.measures=[knn]"])
    assert (tmp_path / "probed" / "result.json").exists()


def test_running_means_are_those_of_the_steps(tmp_path: Path) -> None:
    """What is measured before the first step, at each start anew, leaves none."""
    small = [
        "recipe=finetune",
        "init=scratch",
        "model=noisy_student_b0",
        *FAST,
        "eval.test=false",
        "eval.images=4",
    ]
    run = Run(
        resolve(
            [*small, "compute.threads=1", "compute.compile=false", f"out={tmp_path}", "name=run"]
        )
    )
    with resources.run_session(run) as accelerator:
        job = setup.set_up(
            run, accelerator, resources.load_splits(run.recipe, accelerator, test=False)
        )
        before = {name: value.clone() for name, value in job.objective.named_buffers()}
        assert any("running_mean" in name for name in before)
        one = job.held_out.batches[0]
        job.objective.train()
        loop.seconds_per_step(
            job.state, one, setup.loop_settings(run.recipe), job.batch_layout, accelerator
        )
        assert all(value.equal(before[name]) for name, value in job.objective.named_buffers())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["recipe=mpp", "model=bit_r50x1"],
            "objective=mpp needs patches; model=bit_r50x1 has none",
        ),
        (["recipe=joint", "model=bit_r50x1"], "objective=joint needs patches"),
        (
            ["recipe=finetune", "init=scratch", "model=bit_r50x1", "optim.layer_decay=0.7"],
            "optim.layer_decay=0.7",
        ),
        (["recipe=supervised", "model=bit_r50x1", "optim.dropout=0.1"], "optim.dropout=0.1"),
    ],
)
def test_what_needs_patches_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        resolve(words)
