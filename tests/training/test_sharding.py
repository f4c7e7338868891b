"""DeepSpeed's ZeRO 1, 2 and 3 on two CPU processes beside DDP and one process: losses, checkpoints,
numbers not finite.

One start of two processes trains all runs, one after the other; the tests read what they left.
"""

import json
import os
import subprocess
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from safetensors.torch import load_file

from helpers.launching import free_port, interpreter, launch_ranks, outcome
from helpers.options import ROOT, TINY, altered
from helpers.runs import assert_alike, rows
from helpers.slurm import HOLDS, stand_ins
from helpers.strategies import LAUNCH, LONG, SERIES, STEPS, launched
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.batching import samples_at
from ssl_vit.errors import ReportedError, UserError
from ssl_vit.jobs.train import train
from ssl_vit.pages import run_wording
from ssl_vit.recipe.load import resolve
from ssl_vit.recipe.records import check
from ssl_vit.recipe.records.run import Environment
from ssl_vit.runs.folder import Run
from ssl_vit.training import checkpoint, distributed, sharding

ZERO = ("zero1", "zero2", "zero3")
OBJECTIVES, FEW = ("_mae", "_moco", "_dino", "_ibot", "_ijepa"), 4  # and their steps
RELAY = altered(LONG, "optim.steps=60", "optim.warmup=6", "optim.name=adamw")
BEST = ("ddp", "zero2", "zero3", "fsdp2")
LEGS = ("ddp", "zero2", "fsdp2", "zero3", "zero3", "zero1")  # the last to the end
DINO = ("recipe=dino", "views.local_size=8", "dino.prototypes=32", "eval.collapse=null")
# stopped after 10 steps, 20 and 30: while prototypes are frozen and when they are not
FREED = altered(LONG, *DINO, "dino.freeze=0.35", "optim.steps=34", "compute.batch=8")
FREED_LEGS = ("zero2", "zero3", "fsdp2", "zero2")
# the first image of the second process at step 5
SPOILT = int(samples_at(5 * 16, 16, 50_000, 0).index[8])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The folder with all runs, and the facts that SERIES recorded of each."""
    out = tmp_path_factory.mktemp("zero")
    series: list[tuple] = []

    def run(name: str, way: str, *own: str, common=LONG, stop=False, spoil=None) -> None:
        options = [*altered(common, *own), f"out={out}", f"name={name}"]
        series.append((name, launched(way), options, stop, spoil, free_port()))

    for way in ("ddp", *ZERO, "fsdp2"):
        run(way, way, "compute.batch=8", "optim.clip=null")
        if way != "zero1":  # whose steps DeepSpeed makes as those of ZeRO 2
            run(f"{way}_passes", way, "compute.batch=2")
    for way in ("ddp", "zero2", "zero3", "fsdp2"):
        average = "optim.average=0.5" if way in ("ddp", "zero2") else "optim.average=null"
        run(
            f"{way}_spoilt",
            way,
            "compute.batch=4",
            "optim.nonfinite=skip",
            "optim.name=sgd",
            average,
            spoil=SPOILT,
        )
        run(f"{way}_bfloat16", way, "compute.precision=bfloat16", "compute.batch=8")
    for i, way in enumerate(LEGS):
        run("relay", way, "compute.batch=8", common=RELAY, stop=i < len(LEGS) - 1)
    run("alone", "zero3", "compute.batch=8", common=RELAY, stop=True)
    for way in BEST:
        best = ("checkpoint.every=4", "checkpoint.best=loss", "eval.every=4")
        run(f"{way}_best", way, "compute.batch=8", *best)
    for way in ("ddp", "zero2", "zero3", "fsdp2"):
        run(
            f"{way}_compiled",
            way,
            "compute.batch=8",
            "compute.compile=true",
            "optim.steps=1",
            "optim.warmup=0",
        )
    for way in ("ddp", "zero2", "zero3", "fsdp2"):
        part = ("recipe=joint", "joint.supervised=0", "optim.weight_decay=0.5", "optim.lr=0.01")
        run(f"{way}_part", way, "compute.batch=8", *part)
    few = f"optim.steps={FEW}", "compute.batch=8"
    for way in ("ddp", "zero2"):
        run(f"{way}_mae", way, "recipe=mae", *few)
    for way in ("ddp", "zero2", "zero3", "fsdp2"):
        run(f"{way}_moco", way, "recipe=moco_v3", *few)
        run(f"{way}_dino", way, *DINO, "dino.freeze=0.4", "dino.koleo=0.1", *few)
        ibot = ("recipe=ibot", "views.local_size=8", "ibot.prototypes=32", "ibot.shared=false")
        run(f"{way}_ibot", way, *ibot, "ibot.own_head=true", "eval.collapse=null", *few)
        run(f"{way}_ijepa", way, "recipe=ijepa", "eval.collapse=null", *few)
    run("freed", "ddp", common=FREED)
    for i, way in enumerate(FREED_LEGS):
        run("freed_relay", way, common=FREED, stop=i < len(FREED_LEGS) - 1)
    run("averaged", "zero3", "optim.average=0.5")
    run("stops", "zero3", "compute.batch=8", spoil=SPOILT)
    pair = launch_ranks(2, "-c", SERIES, json.dumps(series), str(out / "facts.json"))
    statuses, outputs = outcome(pair, 600)
    assert statuses == [0, 0], outputs
    assert "is deprecated" not in "".join(outputs)  # a line in every pass
    return out, json.loads((out / "facts.json").read_text())


def export(folder: Path, part: str = "model") -> Path:
    return folder / "export" / f"{part}.safetensors"


@pytest.mark.parametrize(
    ("way", "passes"),
    [
        *((way, "") for way in (*ZERO, "fsdp2")),
        *((w, "_passes") for w in ("zero2", "zero3", "fsdp2")),
        ("zero2", "_mae"),
        *((w, "_moco") for w in ("zero2", "zero3", "fsdp2")),
        *((w, "_dino") for w in ("zero2", "zero3", "fsdp2")),
        *((w, "_ibot") for w in ("zero2", "fsdp2")),
        *((w, "_ijepa") for w in ("zero2", "zero3", "fsdp2")),
    ],
)
def test_losses_are_those_of_ddp(trained, way: str, passes: str) -> None:
    """With and without several passes a step; what is looked at, and the weights at the end too."""
    out = trained[0]
    one, other = rows(out / f"ddp{passes}"), rows(out / f"{way}{passes}")
    assert len(one) == len(other) == (FEW if passes in OBJECTIVES else STEPS)
    assert_alike(one, other, rel=1e-6)
    assert other[-1]["validation/loss"] == pytest.approx(one[-1]["validation/loss"], rel=1e-5)
    assert [row["grad_norm"] for row in other] == pytest.approx(
        [row["grad_norm"] for row in one], rel=1e-5
    )
    ours, theirs = (load_file(export(out / f"{name}{passes}")) for name in (way, "ddp"))
    for name, weight in theirs.items():
        assert ours[name].shape == weight.shape
        assert (ours[name] - weight).abs().max() < 2e-5, name


def test_losses_are_those_of_one_process(trained, tmp_path: Path) -> None:
    train(
        Run(
            resolve(
                [
                    *altered(LONG, "compute.batch=16", "optim.clip=null"),
                    f"out={tmp_path}",
                    "name=one",
                ]
            )
        )
    )
    for way in ZERO:
        assert_alike(rows(tmp_path / "one"), rows(trained[0] / way), rel=1e-5)


def test_deepspeed_has_what_the_recipe_says(trained) -> None:
    """Read back from its engine: no clipping where there is none, and nothing in less than
    float32."""
    facts = trained[1]
    for stage, way in enumerate(ZERO, 1):
        plain = facts[way]
        assert plain["stage"] == stage
        assert (plain["micro_batch"], plain["accumulation"], plain["clip"]) == (8, 1, 0.0)
    for stage, way in ((2, "zero2"), (3, "zero3")):
        passes = facts[f"{way}_passes"]
        assert passes["stage"] == stage
        assert (passes["micro_batch"], passes["accumulation"], passes["clip"]) == (2, 4, 1.0)
    for way in ("zero1", "zero2", "zero3", "zero2_bfloat16", "zero3_bfloat16"):
        assert facts[way]["types"] == ["torch.float32"] * 3, way
        assert facts[way]["held"] == facts[way]["reduced_in"] == ["torch.float32"], way
    sizes = [facts[way]["shares"] for way in ZERO]
    assert (
        max(sizes)
        < 0.6
        * sum(
            w.numel()
            for w in load_file(trained[0] / "ddp" / "export" / "model.safetensors").values()
        )
        * 2
    )


@pytest.mark.parametrize("way", ["zero2", "zero3", "fsdp2"])
def test_weight_decay_leaves_a_part_that_is_not_trained_as_drawn(trained, way: str) -> None:
    out = trained[0]
    assert [row["loss"] for row in rows(out / f"{way}_part")] == pytest.approx(
        [row["loss"] for row in rows(out / "ddp_part")], rel=1e-6
    )
    ours, theirs = (load_file(export(out / f"{name}_part", "heads")) for name in (way, "ddp"))
    idle = [name for name in theirs if name.startswith("parts.supervised.")]
    assert len(idle) == 4 and all(torch.equal(ours[name], theirs[name]) for name in idle)
    assert theirs["parts.supervised.hidden.0.weight"].std() > 0


@pytest.mark.parametrize("way", ["zero2", "zero3", "fsdp2"])
def test_bfloat16_is_cast_as_everywhere(trained, way: str) -> None:
    out = trained[0]
    exact, one, other = (rows(out / name) for name in ("ddp", "ddp_bfloat16", f"{way}_bfloat16"))
    assert_alike(one, other, rel=1e-5)
    assert any(abs(a["loss"] / b["loss"] - 1) > 1e-6 for a, b in zip(exact, other, strict=True))


@pytest.mark.parametrize("way", ["zero2", "zero3", "fsdp2"])
def test_an_update_that_is_not_finite_is_left_out_as_under_ddp(trained, way: str) -> None:
    """One process's loss alone, in the second of two passes; momentum and what comes after are as
    if that step had not been."""
    out = trained[0]
    one, other = rows(out / "ddp_spoilt"), rows(out / f"{way}_spoilt")
    assert (
        [row.get("left_out") for row in other]
        == [row.get("left_out") for row in one]
        == [None] * 5 + [1] + [None] * (STEPS - 6)
    )
    kept = [(a, b) for a, b in zip(one, other, strict=True) if "loss" in b]
    assert_alike(*map(list, zip(*kept, strict=True)), rel=1e-6)
    if way == "zero2":  # the averaged weights
        assert other[-1]["validation/loss"] == pytest.approx(one[-1]["validation/loss"], rel=1e-6)


@pytest.mark.parametrize("way", BEST)
def test_the_best_checkpoint_is_exported(trained, way: str) -> None:
    folder = trained[0] / f"{way}_best"
    result = json.loads((folder / "result.json").read_text())
    losses = {row["step"]: row.get("validation/loss") for row in rows(folder)}
    assert losses[4] > losses[STEPS] and result["best"]["step"] == 4 and result["steps"] == STEPS
    assert result["metrics"]["loss"]["value"] == pytest.approx(losses[4], rel=1e-6)
    saved = checkpoint.load(checkpoint.folder(folder / "checkpoints", 4))["objective"]
    name = "patch_embed.proj.weight"
    there = next(value for key, value in saved.items() if key.endswith(name))
    torch.testing.assert_close(load_file(export(folder))[name], there, rtol=0, atol=0)


@pytest.fixture(scope="module")
def unbroken(trained) -> list[dict]:
    train(Run(resolve([*altered(RELAY, "compute.batch=16"), f"out={trained[0]}", "name=unbroken"])))
    return rows(trained[0] / "unbroken")


def test_a_run_stopped_under_zero_3_goes_on_alone(trained, unbroken) -> None:
    """On one process, without DeepSpeed, with the batch that two had."""
    out = trained[0]
    before = len(rows(out / "alone"))
    assert 0 < before < 60
    train(Run(resolve([*altered(RELAY, "compute.batch=8"), f"out={out}", "name=alone"])))
    assert_alike(unbroken, rows(out / "alone"))


def test_a_run_goes_on_under_another_way_of_sharing(trained, unbroken) -> None:
    """Stopped by a signal under DDP, ZeRO 2, FSDP2 and ZeRO 3 twice, and ended under 1: the rows of
    an unbroken run."""
    out, one = trained[0], unbroken
    other = rows(out / "relay")
    assert len(other) == 60 and "stopped" not in (out / "relay" / "metrics.jsonl").read_text()
    assert (out / "relay" / "log.txt").read_text().count("started at step") == len(LEGS)
    assert_alike(one, other, rel=1e-6)


def saved_moments(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return checkpoint.load(checkpoint.list_checkpoints(folder / "checkpoints")[-1])["moments"]


@pytest.mark.parametrize("way", ["ddp", "zero2", "zero3", "fsdp2"])
def test_the_steps_of_a_frozen_weight_are_not_counted(trained, way: str) -> None:
    """Of 4 steps the first two, whose share of the run is below 0.4; its moments are DDP's."""
    found = saved_moments(trained[0] / f"{way}_dino")
    wanted = saved_moments(trained[0] / "ddp_dino")
    steps = {name: values["step"].item() for name, values in found.items()}
    assert steps.pop("head.prototypes.weight") == 2 and set(steps.values()) == {4}
    for key, value in found["head.prototypes.weight"].items():
        right = wanted["head.prototypes.weight"][key]
        assert right.any() and (value - right).norm() < 1e-4 * right.norm(), key


def test_frozen_and_freed_weights_go_on_under_another_way_of_sharing(trained) -> None:
    """Stopped under ZeRO 2 in the freeze, under ZeRO 3 and FSDP2 after it: DDP's rows and steps."""
    out = trained[0]
    log = (out / "freed_relay" / "log.txt").read_text()
    assert [f"started at step {step} " in log for step in (0, 10, 20, 30)] == [True] * 4
    assert_alike(rows(out / "freed"), rows(out / "freed_relay"), rel=1e-6)
    found, wanted = (saved_moments(out / name) for name in ("freed_relay", "freed"))
    steps = {name: values["step"].item() for name, values in found.items()}
    assert steps == {name: values["step"].item() for name, values in wanted.items()}
    assert steps["head.prototypes.weight"] == 34 - 12


@pytest.mark.parametrize(
    ("way", "strategy"),
    [("ddp", "DDP"), *((way, f"ZeRO-{way[4]}") for way in ZERO), ("fsdp2", "FSDP2")],
)
def test_a_run_tells_how_it_was_sharded(trained, way: str, strategy: str) -> None:
    """environment.json, log.txt and the report's sentence."""
    folder = trained[0] / way
    environment = json.loads((folder / "environment.json").read_text())
    facts = environment["sharding"]
    assert (facts["strategy"], facts["machines"]) == (strategy, 1)
    zero = way in ZERO
    assert facts.get("deepspeed") == (version("deepspeed") if zero else None)
    text = f"{strategy} (DeepSpeed {version('deepspeed')})" if zero else strategy
    assert f"started at step 0 on 2 processes, {text}, process " in (folder / "log.txt").read_text()
    assert f"), {text}, 1 threads" in run_wording.machine(check(environment, Environment))


def test_a_run_of_one_process_is_not_sharded(tmp_path: Path) -> None:
    run = Run(resolve([*altered(TINY, "optim.steps=4"), f"out={tmp_path}", "name=one"]))
    train(run)
    facts = json.loads((run.folder / "environment.json").read_text())["sharding"]
    assert facts == {"machines": 1, "strategy": "none"}
    assert "on 1 processes, not sharded, process" in run.log.read_text()


def test_what_is_compiled(trained) -> None:
    """The objective as one graph under DDP; block by block where the rest is gathered on the way;
    nothing under ZeRO 3."""
    compiled = {
        way: trained[1][f"{way}_compiled"]["compiled"] for way in ("ddp", "zero2", "zero3", "fsdp2")
    }
    assert compiled["ddp"] == [["MaskedPatchPrediction", {"fullgraph": True, "dynamic": False}]]
    blocks = [["Block", {"dynamic": False}]] * 2
    assert compiled["zero2"] == compiled["fsdp2"] == blocks
    assert compiled["zero3"] == [] and trained[1]["ddp"]["compiled"] == []


def test_what_zero_3_saved_is_read_without_deepspeed(trained) -> None:
    """Its last checkpoint on one process, and its export in timm: the very features of each
    other."""
    out = trained[0] / "zero3"
    images = torch.rand(4, 3, 16, 16)
    net = timm.create_model(f"local-dir:{out / 'export'}", pretrained=True).eval()
    saved = checkpoint.load(checkpoint.list_checkpoints(out / "checkpoints")[-1])["objective"]
    again = timm.create_model(f"local-dir:{out / 'export'}").eval()
    prefix = "encoder.backbone."
    again.load_state_dict(
        {name.removeprefix(prefix): w for name, w in saved.items() if name.startswith(prefix)}
    )
    with torch.no_grad():
        assert torch.equal(net.forward_features(images), again.forward_features(images))


def test_what_cannot_be_is_refused_in_one_line(trained) -> None:
    assert "optim.average=0.5" in trained[1]["averaged"] and "ZeRO 1 or 2" in trained[1]["averaged"]
    assert trained[1]["stops"].startswith("optim.nonfinite=stop: step 5:")


SPREAD = BatchLayout(64, 8, 0, 2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimization": {"stage": 0}}, "zero_stage=0: nothing is shared"),
        (
            {"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}},
            "optimizer: the DeepSpeed configuration",
        ),
        (
            {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
            "bf16: the DeepSpeed configuration",
        ),
    ],
)
def test_a_deepspeed_file_says_nothing_that_the_recipe_says(config: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        sharding.check_deepspeed(config)


def test_no_clipping_is_said_as_such() -> None:
    """Left out, it would be 1."""
    assert sharding.deepspeed_values(None, False, SPREAD)["gradient_clipping"] == 0.0
    assert (
        sharding.deepspeed_values(0.5, True, SPREAD)["torch_autocast"][
            "lower_precision_safe_modules"
        ]
        == []
    )


def test_every_configuration_is_what_it_says() -> None:
    """As Accelerate's own classes read it, with no word that they do not know."""
    found = {path.stem: load_config_from_file(str(path)) for path in sorted(LAUNCH.glob("*.yaml"))}
    default = load_config_from_file(str(ROOT / "accelerate_config.yaml"))
    assert set(found) == {"zero2", "zero3", "fsdp2", "two_machines"}
    for name, config in (*found.items(), ("default", default)):
        assert config.mixed_precision == "no" and config.main_training_function == "main", name
        sharded = "DEEPSPEED" if "zero" in name else "FSDP" if "fsdp" in name else "MULTI_GPU"
        assert config.distributed_type.value == sharded, name
    for name in ("zero2", "zero3"):
        assert found[name].deepspeed_config["zero_stage"] == int(name[4])
    assert found["two_machines"].num_machines == 2 and found["two_machines"].num_processes == 16
    assert found["fsdp2"].fsdp_config["fsdp_version"] == 2
    hyperparameters = {"gradient_accumulation_steps", "gradient_clipping", "deepspeed_config_file"}
    for path in (*LAUNCH.glob("*.yaml"), ROOT / "accelerate_config.yaml"):
        message = yaml.safe_load(path.read_text())
        assert not hyperparameters & {*message, *message.get("deepspeed_config", {})}, path


def test_what_a_configuration_asks_for_reaches_accelerate() -> None:
    assert [launched(name)["ACCELERATE_DEEPSPEED_ZERO_STAGE"] for name in ZERO] == ["1", "2", "3"]


ALONE = {
    "MASTER_ADDR": "127.0.0.1",
    "ACCELERATE_MIXED_PRECISION": "no",
}  # what the launcher sets where it starts one for several


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (ALONE, "num_processes: `accelerate launch` was asked for several and has started one"),
        ({"ACCELERATE_USE_FSDP": "true"}, "distributed_type=FSDP: NO on cpu came of it"),
        (
            {"ACCELERATE_USE_DEEPSPEED": "true"},
            "distributed_type=DEEPSPEED: no launcher has started",
        ),
    ],
)
def test_a_launch_that_became_something_else_is_refused(
    environment, message, tiny, monkeypatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(UserError, match=message),
        distributed.accelerator_session(resolve([*tiny, "name=run"]).compute),
    ):
        pass


def test_plain_ddp_in_place_of_zero_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    became = SimpleNamespace(distributed_type=DistributedType.MULTI_CPU, device=torch.device("cpu"))
    with pytest.raises(
        UserError,
        match=r"distributed_type=DEEPSPEED: MULTI_CPU on cpu came of it; choices: launch/zero2\.yaml",
    ):
        distributed._check_sharding(became)


def test_processes_that_each_believe_they_are_alone_are_refused(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="WORLD_SIZE=2: only 1 of the launched processes"):
        distributed._check_processes(1)


@pytest.mark.parametrize(("local_rank", "kind"), [("0", UserError), ("1", ReportedError)])
def test_processes_that_would_share_a_gpu_are_refused(local_rank, kind, monkeypatch, tiny) -> None:
    """One line for a machine, before the processes look for one another."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    with pytest.raises(
        UserError, match=r"LOCAL_WORLD_SIZE=2: .* this machine has 1; choices: --num_processes 1"
    ) as caught:
        distributed._start(resolve([*tiny, "name=run"]).compute)
    assert type(caught.value) is kind
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    distributed._check_gpus()


def test_a_slurm_job_is_signalled_requeued_and_ends(tmp_path: Path) -> None:
    """With stand-ins for srun, scontrol and the interpreter; the script alone decides that status
    75 goes back into the queue. The run is held at a step until it is signalled, and goes on with
    ZeRO."""
    (tmp_path / "holds.py").write_text(HOLDS)
    options = [
        *altered(LONG, "optim.steps=20", "eval.every=20"),
        f"plugin={tmp_path}/holds.py",
        f"out={tmp_path}/runs",
        "name=run",
    ]
    slurm = {
        "JOB_ID": str(os.getpid()),
        "JOB_NODELIST": "here",
        "NTASKS": "2",
        "NTASKS_PER_NODE": "2",
    }
    found = {f"SLURM_{name}": value for name, value in slurm.items()} | stand_ins(tmp_path)
    signalled = {"SIGNAL_AT": f"{tmp_path}/runs/run/metrics.jsonl"}
    environment = os.environ | found | signalled | {"PYTHON": interpreter()}
    how = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 300}
    done = [
        subprocess.run([LAUNCH / "slurm.sh", *options], env=environment | zero, **how)
        for zero in ({}, {"ZERO": "2"})
    ]
    assert [one.returncode for one in done] == [0, 0], [one.stderr + one.stdout for one in done]
    assert "by SIGUSR1 on process" in done[0].stdout and "finished" in done[1].stdout
    assert (tmp_path / "requeued.txt").read_text() == f"requeue Incomplete {os.getpid()}\n"
    assert [row["step"] for row in rows(tmp_path / "runs" / "run")] == list(range(1, 21))
    assert "--signal=USR1@120" in (LAUNCH / "slurm.sh").read_text()
