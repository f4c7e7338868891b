"""Networks without patches through the same stages: fine-tuned, evaluated, exported, and refused
where patches are needed."""

import shutil
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file

from helpers.options import ROOT
from ssl_vit.errors import UserError
from ssl_vit.jobs import cli, resources, setup
from ssl_vit.jobs import train as train_job
from ssl_vit.models import encoder, resnet
from ssl_vit.models.weights import load_init
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.recipe.load import resolve
from ssl_vit.runs.folder import Run
from ssl_vit.training import checkpoint, loop

MODELS = yaml.safe_load((ROOT / "recipes/tables/models.yaml").read_text())
PAPER = {
    name.split("_")[2]
    for name in yaml.safe_load((ROOT / "recipes/tables/paper.yaml").read_text())
    if name.startswith("supervised_bit_")
}
NAMES = [  # test_paper.py has the paper's
    name
    for name, row in MODELS.items()
    if row.get("convolutional") and name.removeprefix("bit_") not in PAPER
]
FAST = [
    "data.size=32",
    "optim.steps=2",
    "optim.warmup=1",
    "optim.batch=4",
    "data.share=0.001",
]


PRE = ["recipe=supervised", "optim.dropout=0"]


@pytest.mark.parametrize("name", [*NAMES, "r8_vit_n8"])
def test_a_row_says_what_timm_builds(name: str) -> None:
    recipe = resolve(["recipe=finetune", "init=scratch", f"model={name}", "data.size=224"])
    with torch.device("meta"):
        net = encoder.build_backbone(recipe.model, recipe.data).eval()
        feature = net.feature(torch.empty(1, 3, 224, 224, dtype=torch.uint8), "token")
    assert feature.shape == (1, recipe.model.width)


@pytest.mark.parametrize(
    ("other", "options"),
    [
        ("resnetv2_50x1_bit", []),
        ("resnetv2_50x3_bit", ["model.width_factor=3", "model.width=6144"]),
        ("resnetv2_152x2_bit", ["model.stages=[3,8,36,3]", "model.width_factor=2"]),
    ],
)
def test_one_registered_here_is_timms(other: str, options: list[str]) -> None:
    """Names, shapes and layers: of the architecture that R200x3 and the small ones are made of."""
    wide = ["model.width=4096"] if "x2" in other else []
    recipe = resolve(["recipe=supervised", "model=bit_r50x1", "optim.dropout=0", *options, *wide])
    args = {"layers": recipe.model.stages, "width_factor": recipe.model.width_factor}
    with torch.device("meta"):
        own = timm.create_model(resnet.RESNET, num_classes=0, **args)
        theirs = timm.create_model(other, num_classes=0)
        chosen = encoder.build_backbone(recipe.model, recipe.data).backbone
    assert str(own) == str(theirs) == str(chosen)


def test_a_resnet_is_fine_tuned_and_evaluated_like_any_encoder(tmp_path: Path) -> None:
    out = [f"out={tmp_path}", "compute.threads=1", "compute.compile=false", "eval.images=4"]
    # any of timm's: what it costs is then not counted
    small = ["model.timm=resnet10t.c3_in1k", "model.width=512", "model.stages=null"]
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


def test_a_resnet_is_pre_trained_like_any_encoder(tmp_path: Path) -> None:
    """Resumed it is bit for bit the run that was not stopped; timm opens its export; another run
    starts from it."""
    small = ["model=bit_r14x05", "model.stages=[1]", "model.width=128"]
    pretrain = ["recipe=supervised", "supervised.hidden=false", "optim.dropout=0", *small, *FAST]
    sgd = ["optim.name=sgd", "optim.schedule=steps", "optim.drops=[0.5]", "checkpoint.every=1"]
    out = [f"out={tmp_path}", "compute.threads=1", "compute.compile=false", "eval.images=4"]
    whole = Run(resolve([*pretrain, *sgd, *out, "name=whole"]))
    train_job.train(whole)
    first, last = checkpoint.list_checkpoints(whole.checkpoints)
    left_out = shutil.ignore_patterns(last.name, "result.json")
    shutil.copytree(whole.folder, tmp_path / "again", ignore=left_out)
    again = Run(resolve([f"recipe={tmp_path}/again/recipe.yaml", f"out={tmp_path}", "name=again"]))
    train_job.train(again)
    there, here = (load_file(run.export / "model.safetensors") for run in (whole, again))
    start = checkpoint.load(first)["objective"]
    assert there.keys() == here.keys()
    assert all(torch.equal(here[name], value) for name, value in there.items())
    assert not torch.equal(start["encoder.backbone.stem.conv.weight"], there["stem.conv.weight"])
    net = timm.create_model(f"local-dir:{whole.export}", pretrained=True).eval()
    loaded = encoder.build_backbone(whole.recipe.model, whole.recipe.data).eval()
    load_init(loaded, InitSource(str(whole.folder)))
    pixels = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(loaded.feature(pixels, "token"), net(loaded.normalize(pixels)))


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
        (
            [*PRE, "model=bit_r50x1", "model.width_factor=2"],
            r"model.width=2048: expected 4096 beside model.stages=\[3,4,6,3\] model.width_factor=2",
        ),
        ([*PRE, "model=bit_r50x1", "model.width_factor=0.3"], "expected a multiple of 0.5"),
        ([*PRE, "model=bit_r50x1", "model.stages=[1,1,1,1,1]"], "expected 1 to 4 whole numbers"),
        ([*PRE, "model=bit_r50x1", "model.stages=[1,0]"], "expected 1 to 4 whole numbers"),
        ([*PRE, "model=vit_p8", "model.stages=[1]"], "model=vit_p8 has no ResNet; expected null"),
        ([*PRE, "model=vit_p8", "model.width_factor=2"], "model=vit_p8 has no model.stages"),
        ([*PRE, "model=r8_vit_n8", "model.patch=16"], "model.patch=16: expected 8 beside"),
    ],
)
def test_what_needs_patches_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        resolve(words)
