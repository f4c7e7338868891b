"""DeepSpeed's ZeRO 1, 2 and 3 and FSDP2 on two CPU processes beside DDP and one process: losses,
weights, checkpoints, numbers not finite; how a launch becomes one of them.

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

from helpers.exports import of_timm
from helpers.hub_runs import refused
from helpers.launching import free_port, interpreter, launch_ranks, outcome
from helpers.measurements import by_name
from helpers.options import ROOT, TINY, altered
from helpers.resolving import resolve
from helpers.runs import assert_alike, rows, run
from helpers.slurm import HOLDS, stand_ins
from helpers.strategies import LAUNCH, LONG, SERIES, STEPS, launched
from ssl_vit.data.batch_layout import BatchLayout
from ssl_vit.data.batching import samples_at
from ssl_vit.errors import ReportedError, UserError
from ssl_vit.training import checkpoint, distributed, sharding

ZERO = ("zero1", "zero2", "zero3")
SHARDED = ("zero2", "zero3", "fsdp2")  # the steps of ZeRO 1 DeepSpeed makes as those of ZeRO 2
OTHERS = ("_spoilt", "_moco", "_dino", "_lejepa", "_teacher", "_eva", "_blocks", "_low_rank")
FEW = "optim.steps=4"
# the first image of the second process at step 5
SPOILT = int(samples_at(5 * 16, 16, 50_000, 0).index[8])
DINO = ("recipe=dino", "views.local_size=8", "dino.prototypes=32", "eval.collapse=null")
# Stopped after every 4 steps, the last to the end; prototypes are frozen for 9 of 24
LEGS = ("ddp", "zero2", "fsdp2", "zero3", "zero3", "zero1")
BROUGHT = [word for word in LONG if not word.startswith("model.")]  # the encoder's shape
RELAY = altered(LONG, *DINO, "dino.freeze=0.35", "optim.steps=24")
ALONE = altered(LONG, "optim.steps=12", "optim.name=adamw")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The folder with all runs, and the facts that SERIES recorded of each."""
    out = tmp_path_factory.mktemp("sharded")
    series: list[tuple] = []
    teacher = of_timm(out / "teacher", embed_dim=48, num_heads=3)
    start = of_timm(out / "start")
    eva = of_timm(out / "eva", "eva02_tiny_patch14_224")

    def add(name: str, way: str, *own: str, common=LONG, stop=False, spoil=None) -> None:
        options = [*altered(common, *own), f"out={out}", f"name={name}"]
        series.append((name, launched(way), options, stop, spoil, free_port()))

    best = ("checkpoint.every=4", "checkpoint.best=loss", "eval.every=4")
    for way in ("ddp", *ZERO, "fsdp2"):
        add(way, way, *best, "compute.compile=true", "optim.clip=null")
    for way in ("ddp", *SHARDED):
        # two passes a step, one of which is not finite at step 5; clipped
        average = "optim.average=0.5" if way in ("ddp", "zero2") else "optim.average=null"
        skip = ("compute.batch=4", "optim.nonfinite=skip", average)
        add(f"{way}_spoilt", way, *skip, spoil=SPOILT)
        idle = ("recipe=joint", "joint.supervised=0", "optim.weight_decay=0.5", "optim.lr=0.01")
        add(f"{way}_bfloat16", way, *idle, "compute.precision=bfloat16")
        add(f"{way}_moco", way, "recipe=moco_v3", "optim.name=sgd", FEW)
        add(f"{way}_lejepa", way, "recipe=lejepa", "views.local_size=8", "optim.name=sgd", FEW)
        add(f"{way}_teacher", way, "target=teacher", "optim.name=sgd", FEW)
        add(f"{way}_eva", way, f"init={eva}", "optim.name=sgd", FEW, common=BROUGHT)
        part = (f"init={start}", "optim.name=sgd", "optim.lr=0.1", FEW)
        add(f"{way}_blocks", way, "model.train=blocks:1", "recipe=mae", *part, common=BROUGHT)
        add(f"{way}_low_rank", way, "model.train=lora:4", *part, common=BROUGHT)
        add(f"{way}_followed", way, "model.train=lora:4", "target=teacher", *part, common=BROUGHT)
        if way in ("ddp", "zero3"):  # which gathers the teacher's weights too
            own = ("recipe=distill", f"distill.teacher={teacher}", "optim.name=sgd", FEW)
            add(f"{way}_distill", way, *own)
        add(f"{way}_dino", way, *DINO, "dino.freeze=0.4", "dino.koleo=0.1", FEW)
    add("ddp_float32", "ddp", "recipe=joint", "joint.supervised=0", "optim.lr=0.01")
    add("unbroken", "ddp", common=RELAY)
    for i, way in enumerate(LEGS):
        add("relay", way, common=RELAY, stop=i < len(LEGS) - 1)
    add("alone", "zero3", common=ALONE, stop=True)
    add("averaged", "zero3", "optim.average=0.5")
    add("stops", "zero3", spoil=SPOILT)
    pair = launch_ranks(2, "-c", SERIES, json.dumps(series), str(out / "facts.json"))
    statuses, outputs = outcome(pair, 600)
    assert statuses == [0, 0], outputs
    assert "is deprecated" not in "".join(outputs)  # a line in every pass
    return out, json.loads((out / "facts.json").read_text())


def export(folder: Path, part: str = "model") -> dict[str, torch.Tensor]:
    return load_file(folder / "export" / f"{part}.safetensors")


def saved(folder: Path, step: int | None = None) -> dict:
    """A checkpoint, by default the last one."""
    root = folder / "checkpoints"
    return checkpoint.load(checkpoint.folder(root, step) if step else max(root.iterdir()))


@pytest.mark.parametrize(
    ("way", "what"),
    [
        *((way, "") for way in (*ZERO, "fsdp2")),
        *((way, what) for way in SHARDED for what in OTHERS),
        ("zero3", "_distill"),
        *((way, "_followed") for way in ("zero2", "fsdp2")),
    ],
)
def test_losses_and_weights_are_those_of_ddp(trained, way: str, what: str) -> None:
    """In one pass and in two, clipped and not; averages of weights, frozen and idle ones."""
    ours, theirs = (trained[0] / f"{name}{what}" for name in (way, "ddp"))
    one, other = ([row for row in rows(folder) if "loss" in row] for folder in (theirs, ours))
    assert len(one) == {"": STEPS, "_spoilt": STEPS - 1}.get(what, 4)
    assert_alike(one, other, rel=1e-6)
    norms = [row["grad_norm"] for row in one]
    assert [row["grad_norm"] for row in other] == pytest.approx(norms, rel=1e-5)
    if what != "_spoilt" or way == "zero2":  # the others do not average their weights
        assert other[-1]["validation/loss"] == pytest.approx(one[-1]["validation/loss"], rel=1e-5)
        wanted = export(theirs)
        for name, weight in export(ours).items():
            assert (weight - wanted.pop(name)).abs().max() < 2e-5, name
        assert not wanted


@pytest.mark.parametrize("way", SHARDED)
def test_an_update_that_is_not_finite_is_left_out_as_under_ddp(trained, way: str) -> None:
    """One process's loss alone, in the second of two passes; what comes after is as if that step
    had not been."""
    one, other = (rows(trained[0] / f"{name}_spoilt") for name in ("ddp", way))
    for found in (one, other):
        left_out = [row.get("left_out") for row in found]
        assert left_out == [None] * 5 + [1] + [None] * (STEPS - 6)
    steps = {
        values["step"].item() for values in saved(trained[0] / f"{way}_spoilt")["moments"].values()
    }
    assert steps == {STEPS - 1}


@pytest.mark.parametrize("way", SHARDED)
def test_bfloat16_is_cast_as_everywhere(trained, way: str) -> None:
    out = trained[0]
    exact, one, other = (
        rows(out / f"{name}") for name in ("ddp_float32", "ddp_bfloat16", f"{way}_bfloat16")
    )
    assert_alike(one, other, rel=1e-5)
    assert any(abs(a["loss"] / b["loss"] - 1) > 1e-6 for a, b in zip(exact, other, strict=True))


@pytest.mark.parametrize("way", SHARDED)
def test_weight_decay_leaves_a_part_that_is_not_trained_as_drawn(trained, way: str) -> None:
    ours, theirs = (export(trained[0] / f"{name}_bfloat16", "heads") for name in (way, "ddp"))
    idle = [name for name in theirs if name.startswith("parts.supervised.")]
    assert len(idle) == 4 and all(torch.equal(ours[name], theirs[name]) for name in idle)
    assert theirs["parts.supervised.hidden.0.weight"].std() > 0


def test_deepspeed_has_what_the_recipe_says(trained) -> None:
    """Read back from its engine: no clipping where there is none, and nothing in less than
    float32."""
    out, facts = trained
    for stage, way in enumerate(ZERO, 1):
        assert facts[way]["stage"] == stage
        plain = facts[way]["micro_batch"], facts[way]["accumulation"], facts[way]["clip"]
        assert plain == (8, 1, 0.0)
    for way in ("zero2", "zero3"):
        passes = facts[f"{way}_spoilt"]
        assert (passes["micro_batch"], passes["accumulation"], passes["clip"]) == (4, 2, 1.0)
    for way in (*ZERO, "zero2_bfloat16", "zero3_bfloat16"):
        assert facts[way]["types"] == ["torch.float32"] * 3, way
        assert facts[way]["held"] == facts[way]["reduced_in"] == ["torch.float32"], way
    whole = sum(weight.numel() for weight in export(out / "ddp").values())
    assert max(facts[way]["shares"] for way in ZERO) < 0.6 * 2 * whole


@pytest.mark.parametrize("way", ["ddp", *SHARDED])
def test_the_best_checkpoint_is_exported(trained, way: str) -> None:
    folder = trained[0] / way
    result = json.loads((folder / "result.json").read_text())
    losses = {row["step"]: row.get("validation/loss") for row in rows(folder)}
    assert losses[4] > losses[STEPS] and result["best"]["step"] == 4 and result["steps"] == STEPS
    assert by_name(result)["loss"]["value"] == pytest.approx(losses[4], rel=1e-6)
    name = "patch_embed.proj.weight"
    (there,) = (w for key, w in saved(folder, 4)["objective"].items() if key.endswith(name))
    assert torch.equal(export(folder)[name], there)


def test_what_zero_3_saved_is_read_without_deepspeed(trained) -> None:
    """A checkpoint on one process, and its export in timm: the very features of each other."""
    out, prefix = trained[0] / "zero3", "encoder.backbone."
    images = torch.rand(4, 3, 16, 16)
    net = timm.create_model(f"local-dir:{out / 'export'}", pretrained=True).eval()
    again = timm.create_model(f"local-dir:{out / 'export'}").eval()
    weights = saved(out, 4)["objective"]
    own = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
    again.load_state_dict(own)
    with torch.no_grad():
        assert torch.equal(net.forward_features(images), again.forward_features(images))


def test_a_run_stopped_under_zero_3_goes_on_alone(trained, tmp_path: Path) -> None:
    """On one process, without DeepSpeed, with the batch that two had: an unbroken run's rows."""
    out = trained[0]
    assert 0 < len(rows(out / "alone")) < 12
    run([*ALONE, f"out={out}", "name=alone"])
    run([*altered(ALONE, "compute.batch=16"), f"out={tmp_path}", "name=one"])
    assert_alike(rows(tmp_path / "one"), rows(out / "alone"))


def test_a_run_goes_on_under_another_way_of_sharing(trained) -> None:
    """Stopped by a signal under DDP, ZeRO 2, FSDP2 and ZeRO 3 twice, and ended under 1, with
    prototypes that are frozen until its third leg: the rows and the optimiser's steps of an
    unbroken run."""
    folder, whole = trained[0] / "relay", trained[0] / "unbroken"
    assert "stopped" not in (folder / "metrics.jsonl").read_text()
    log = (folder / "log.txt").read_text()
    assert all(f"started at step {step} " in log for step in range(0, 24, 4))
    assert_alike(rows(whole), rows(folder), rel=1e-6)
    steps, wanted = (
        {name: values["step"].item() for name, values in saved(of)["moments"].items()}
        for of in (folder, whole)
    )
    assert steps == wanted and steps["head.prototypes.weight"] == 24 - 9


@pytest.mark.parametrize("way", ["ddp", *SHARDED])
def test_the_steps_of_a_frozen_weight_are_not_counted(trained, way: str) -> None:
    """Of 4 steps the first two, whose share of the run is below 0.4; its moments are DDP's."""
    found, wanted = (saved(trained[0] / f"{name}_dino")["moments"] for name in (way, "ddp"))
    steps = {name: values["step"].item() for name, values in found.items()}
    assert steps.pop("head.prototypes.weight") == 2 and set(steps.values()) == {4}
    for key, value in found["head.prototypes.weight"].items():
        right = wanted["head.prototypes.weight"][key]
        assert right.any() and (value - right).norm() < 1e-4 * right.norm(), key


def test_a_run_tells_how_it_was_sharded(trained, tmp_path: Path) -> None:
    """In environment.json and log.txt."""
    one = run([*altered(TINY, "optim.steps=4"), f"out={tmp_path}", "name=one"])
    strategies = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP2")
    folders = {name: trained[0] / name.lower().replace("-", "") for name in strategies}
    for strategy, folder in (folders | {"none": one.folder}).items():
        facts = json.loads((folder / "environment.json").read_text())["sharding"]
        zero = {"deepspeed": version("deepspeed")} if "ZeRO" in strategy else {}
        assert facts == {"strategy": strategy, "machines": 1, **zero}
        log = (folder / "log.txt").read_text()
        assert f"2 processes, {strategy}" in log or "1 processes, not sharded" in log


def test_what_is_compiled(trained) -> None:
    """The objective as one graph under DDP; block by block where the rest is gathered on the way;
    nothing under ZeRO 3."""
    compiled = {way: trained[1][way]["compiled"] for way in ("ddp", *SHARDED)}
    assert compiled["ddp"] == [["MaskedPatchPrediction", {"fullgraph": True, "dynamic": False}]]
    blocks = [["Block", {"dynamic": False}]] * 2
    assert compiled["zero2"] == compiled["fsdp2"] == blocks
    assert compiled["zero3"] == [] and trained[1]["ddp_dino"]["compiled"] == []


def test_what_cannot_be_is_refused_in_one_line(trained) -> None:
    assert "optim.average=0.5" in trained[1]["averaged"]
    assert trained[1]["zero3_followed"].startswith("model.train=lora:4: ZeRO 3 ")
    assert trained[1]["stops"].startswith("optim.nonfinite=stop: step 5:")


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("zero_stage=0", {"zero_optimization": {"stage": 0}}),
        ("optimizer", {"zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW"}}),
        ("bf16", {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}),
    ],
)
def test_a_deepspeed_file_says_nothing_that_the_recipe_says(key: str, config: dict) -> None:
    assert refused(sharding.check_deepspeed, config).startswith(f"{key}: ")


def test_deepspeeds_defaults_are_the_recipes() -> None:
    """Left out, clipping would be 1, and autocast's modules would be cast."""
    layout = BatchLayout(64, 8, 0, 2)
    assert sharding.deepspeed_values(None, False, layout)["gradient_clipping"] == 0.0
    autocast = sharding.deepspeed_values(0.5, True, layout)["torch_autocast"]
    assert autocast["lower_precision_safe_modules"] == []


def test_every_configuration_is_what_it_says() -> None:
    """As Accelerate's own classes read it, with no word that they do not know."""
    kinds = {
        "zero2": "DEEPSPEED",
        "zero3": "DEEPSPEED",
        "fsdp2": "FSDP",
        "two_machines": "MULTI_GPU",
        "accelerate_config": "MULTI_GPU",
    }
    paths = {path.stem: path for path in (*LAUNCH.glob("*.yaml"), ROOT / "accelerate_config.yaml")}
    assert paths.keys() == kinds.keys()
    found = {name: load_config_from_file(str(path)) for name, path in paths.items()}
    of_recipe = {"gradient_accumulation_steps", "gradient_clipping", "deepspeed_config_file"}
    for name, config in found.items():
        assert config.mixed_precision == "no" and config.main_training_function == "main", name
        assert config.distributed_type.value == kinds[name], name
        content = yaml.safe_load(paths[name].read_text())
        assert not of_recipe & {*content, *content.get("deepspeed_config", {})}, name
    assert [found[f"zero{n}"].deepspeed_config["zero_stage"] for n in (2, 3)] == [2, 3]
    assert found["two_machines"].num_machines == 2 and found["two_machines"].num_processes == 16
    assert found["fsdp2"].fsdp_config["fsdp_version"] == 2
    assert [launched(name)["ACCELERATE_DEEPSPEED_ZERO_STAGE"] for name in ZERO] == ["1", "2", "3"]


def session(options: list[str]) -> None:
    with distributed.accelerator_session(resolve([*options, "name=run"]).compute):
        pass


@pytest.mark.parametrize(
    ("key", "environment"),
    [
        # what the launcher sets where it starts one for several
        ("num_processes", {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_MIXED_PRECISION": "no"}),
        ("distributed_type=FSDP", {"ACCELERATE_USE_FSDP": "true"}),
        ("distributed_type=DEEPSPEED", {"ACCELERATE_USE_DEEPSPEED": "true"}),
        # a job of hours on a node whose driver is broken; a precision that is not the run's
        ("CUDA_VISIBLE_DEVICES=0,1", {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ("mixed_precision=fp16", {"ACCELERATE_MIXED_PRECISION": "fp16"}),
        # a traceback of the library
        ("MASTER_ADDR:MASTER_PORT=?:?", {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}),
    ],
)
def test_a_launch_that_became_something_else_is_refused(
    key: str, environment: dict[str, str], tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert refused(session, tiny).startswith(f"{key}: ")


def test_plain_ddp_in_place_of_zero_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    became = SimpleNamespace(distributed_type=DistributedType.MULTI_CPU, device=torch.device("cpu"))
    line = refused(distributed._check_sharding, became)
    assert (
        line.startswith("distributed_type=DEEPSPEED: ")
        and "MULTI_CPU" in line
        and "zero2.yaml" in line
    )


def test_processes_that_each_believe_they_are_alone_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refused(distributed._check_processes, 1).startswith("WORLD_SIZE=2: only 1 ")


@pytest.mark.parametrize(("local_rank", "kind"), [("0", UserError), ("1", ReportedError)])
def test_processes_that_would_share_a_gpu_are_refused(
    local_rank: str, kind: type, monkeypatch: pytest.MonkeyPatch, tiny: list[str]
) -> None:
    """One line for a machine, before the processes look for one another."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    with pytest.raises(UserError, match=r"LOCAL_WORLD_SIZE=2: .* has 1\. ") as caught:
        distributed._start(resolve([*tiny, "name=run"]).compute)
    assert type(caught.value) is kind
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    distributed._check_gpus()


def test_a_slurm_job_is_signalled_requeued_and_ends(tmp_path: Path) -> None:
    """With stand-ins for srun, scontrol and the interpreter; the script alone decides that status
    75 goes back into the queue. The run is held at a step until it is signalled, and goes on with
    ZeRO. Another tool may stand in its place."""
    (tmp_path / "holds.py").write_text(HOLDS)
    runs = [f"plugin={tmp_path}/holds.py", f"out={tmp_path}/runs", "name=run"]
    options = [*altered(LONG, "optim.steps=20", "eval.every=20"), *runs]
    slurm = {
        "JOB_ID": str(os.getpid()),
        "JOB_NODELIST": "here",
        "NTASKS": "2",
        "NTASKS_PER_NODE": "2",
    }
    found = {f"SLURM_{name}": value for name, value in slurm.items()} | stand_ins(tmp_path)
    signalled = {"SIGNAL_AT": f"{tmp_path}/runs/run/metrics.jsonl", "PYTHON": interpreter()}
    done = [
        subprocess.run(
            [LAUNCH / "slurm.sh", *options],
            env=os.environ | found | signalled | own,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        for own in ({}, {"ZERO": "2"}, {"TOOL": "finetune", "PYTHON": "echo"})
    ]
    assert [one.returncode for one in done] == [0, 0, 0], [one.stderr + one.stdout for one in done]
    assert "by SIGUSR1 on process" in done[0].stdout and "finished" in done[1].stdout
    assert done[2].stdout.splitlines() == 2 * [" ".join(["tools/finetune.py", *options])]
    assert (tmp_path / "requeued.txt").read_text() == f"requeue Incomplete {os.getpid()}\n"
    assert [row["step"] for row in rows(tmp_path / "runs" / "run")] == list(range(1, 21))
    assert "--signal=USR1@120" in (LAUNCH / "slurm.sh").read_text()
