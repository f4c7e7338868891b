"""Several processes: the samples, masks and losses of one, however the batch is spread; stopped on
some, resumed on others."""

import json
import socket
from pathlib import Path

import pytest

from helpers.images import parquet
from helpers.launching import launch, launch_ranks, outcome
from helpers.options import TINY, altered
from helpers.runs import assert_alike, rows, run
from ssl_vit.jobs.train import train
from ssl_vit.recipe.load import resolve
from ssl_vit.runs.folder import Run
from ssl_vit.training import checkpoint, preemption

STEPS, LEARNS = 8, 20
LONG = altered(TINY, "optim.steps=20", "optim.warmup=2", "log.every=1")
SERIES = """
import json, os, sys
from ssl_vit.jobs.train import train
from ssl_vit.runs.folder import Run
from ssl_vit.recipe.load import resolve
for options in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) - 1)  # the store before may still be there
    train(Run(resolve(options)))
"""


@pytest.fixture(scope="module")
def batch_layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """The rows of one recipe on one process and on two, in several ways of cutting the batch of
    16."""
    out = tmp_path_factory.mktemp("batch_layout")
    sizes = {"alone": "compute.batch=16", "two": "compute.batch=8"}
    learns = [f"optim.steps={LEARNS}"]
    ways = {
        "one": ["optim.dropout=0.1", "compute.batch=4"],
        "two": ["optim.dropout=0.1", "compute.batch=4"],
        "plain": ["compute.batch=16"],
        "plain_two": ["compute.batch=8"],
        "plain_two_passes": ["compute.batch=2"],
        **{
            f"mpp_{name}": ["recipe=joint", "joint.supervised=0", size, *learns]
            for name, size in sizes.items()
        },
        **{f"mae_{name}": ["recipe=mae", size] for name, size in sizes.items()},
        **{f"moco_{name}": ["recipe=moco_v3", size] for name, size in sizes.items()},
        **{
            f"labels_{name}": ["recipe=joint", "joint.mpp=0", size, *learns]
            for name, size in sizes.items()
        },
    }
    words = {
        name: [*altered(LONG, f"optim.steps={STEPS}", *own), f"out={out}", f"name={name}"]
        for name, own in ways.items()
    }
    for name in (name for name in ways if "two" not in name):
        train(Run(resolve(words[name])))
    pair = launch_ranks(
        2, "-c", SERIES, json.dumps([words[name] for name in words if "two" in name])
    )
    statuses, outputs = outcome(pair)
    assert statuses == [0, 0], outputs
    return {name: rows(out / name) for name in ways}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("one", "two"),
        ("plain", "plain_two"),
        ("plain", "plain_two_passes"),
        ("mae_alone", "mae_two"),
        ("moco_alone", "moco_two"),
    ],
)
def test_losses_are_the_same_however_the_batch_is_spread(
    batch_layout: dict[str, list[dict]], one: str, other: str
) -> None:
    """With dropout where the device batch is equal, so that every chunk draws its own; without it
    for any."""
    assert_alike(batch_layout[one], batch_layout[other])
    last, same = batch_layout[one][-1], batch_layout[other][-1]
    # what a batch norm follows has a bias without effect in training, whose gradient is rounding;
    # in evaluation the norm's running mean lags behind it
    rel = 1e-3 if one.startswith("moco") else 1e-5
    assert last["validation/loss"] == pytest.approx(same["validation/loss"], rel=rel)


@pytest.mark.parametrize(("part", "other"), [("mpp", "supervised"), ("labels", "mpp")])
def test_a_joint_part_of_weight_0_is_not_trained(
    batch_layout: dict[str, list[dict]], part: str, other: str
) -> None:
    """On two processes, where DDP waits for every gradient, as on one; its weights stay as
    drawn."""
    one, two = batch_layout[f"{part}_alone"], batch_layout[f"{part}_two"]
    steps = list(range(1, LEARNS + 1))
    assert [row["step"] for row in one] == [row["step"] for row in two] == steps
    losses = [[row["loss"] for row in rows] for rows in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6) and losses[0][-1] < losses[0][0]
    assert not [name for name in one[-1] if other in name]


SIGNALLED = """
import json, os, signal, sys
from ssl_vit.jobs import cli
from ssl_vit.jobs import train as train_job
note = train_job._StepReporter.on_step

def on_step(self, step):
    note(self, step)
    if os.environ["RANK"] == "1" and step == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGTERM)

train_job._StepReporter.on_step = on_step
cli.pretrain(json.loads(sys.argv[2]))
"""


def test_stopped_on_two_processes_and_resumed_on_four_and_one(tmp_path: Path) -> None:
    """A signal to the second process alone; every later step has the unbroken run's samples and
    masks, and so its losses."""
    long = altered(
        LONG, "optim.steps=60", "optim.warmup=6", "checkpoint.every=100", "eval.every=60"
    )
    options = [*long, f"out={tmp_path}"]
    folder = tmp_path / "run"
    for count, signalled_at in ((2, 12), (4, 30)):
        own = json.dumps([*options, "name=run"])
        statuses, outputs = outcome(launch_ranks(count, "-c", SIGNALLED, str(signalled_at), own))
        assert statuses == [preemption.STOPPED] * count, outputs
        assert "by SIGTERM on process 1, saved" in outputs[0]
        step = checkpoint.step_of(checkpoint.list_checkpoints(folder / "checkpoints")[-1])
        assert signalled_at <= step <= signalled_at + 2 * preemption.CONSENSUS_EVERY
        assert [row["step"] for row in rows(folder)] == list(range(1, step + 1))
    result = train(Run(resolve([*options, "name=run"])))
    assert result["device_hours"] * 3600 > 1.01 * result["seconds"], (
        "two and four processes for a part of it"
    )
    whole = train(Run(resolve([*options, "name=whole"])))
    assert whole["device_hours"] * 3600 == pytest.approx(whole["seconds"])
    assert_alike(rows(folder)[:40], rows(tmp_path / "whole")[:40], rel=1e-5)
    assert_alike(rows(folder), rows(tmp_path / "whole"), rel=1e-2)


IDLE = """
from ssl_vit.recipe.declaration import declare
from ssl_vit.objectives.mpp import MppDeclaration
from ssl_vit.objectives.mpp.network import MaskedPatchPrediction
from ssl_vit.recipe.shared_groups import CorruptionOptions

class Idle(MaskedPatchPrediction):
    def patch_logits(self, batch, drawn):
        return self.head(self.encoder(self.encoder.patch(batch.image))[:, :drawn.corrupted_BK.shape[1]])

class IdleDeclaration(MppDeclaration):
    name = "idle"
    def build(self, settings, encoder, classes):
        own = settings.group(CorruptionOptions).model_dump(exclude={"keep"})
        return Idle(encoder, settings.build_target(encoder), **own)

declare(IdleDeclaration())
"""
DIFFERENT = """
import json, os, sys
from ssl_vit.jobs.train import train
from ssl_vit.errors import report_errors
from ssl_vit.runs.folder import Run
from ssl_vit.recipe.load import resolve
for mine in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) - 1)  # the store before may still be there
    try:
        with report_errors(everywhere=True):
            train(Run(resolve(mine[int(os.environ["RANK"])])))
    except SystemExit as left:
        assert left.code == 2
"""


def test_precisions_that_differ_are_named(tmp_path: Path) -> None:
    """Other words, other images, a folder that one does not see: one line, from one process. So are
    weights without use."""
    for place, first in (("a", 0), ("b", 50)):
        parquet(tmp_path / place / "train.parquet", range(first, first + 30))
    (tmp_path / "idle.py").write_text(IDLE)
    words = altered(TINY, "optim.steps=4", "eval.every=4", f"out={tmp_path}", "name=words")
    folder = run(altered(words, "name=folder")).folder
    (folder / "result.json").unlink()
    pairs = [
        (words, altered(words, "optim.lr=0.5")),
        [altered(words, "name=images", f"data.path={tmp_path / place}") for place in "ab"],
        (altered(words, "name=folder"), altered(words, "name=folder", f"out={tmp_path}/elsewhere")),
        [altered(words, "name=idle", f"plugin={tmp_path}/idle.py", "objective=idle")] * 2,
    ]
    statuses, outputs = outcome(launch_ranks(2, "-c", DIFFERENT, json.dumps(pairs)))
    assert statuses == [0, 0], outputs
    host = socket.gethostname()
    lines = [line for line in "".join(outputs).splitlines() if line.startswith("error")]
    assert (
        lines[0]
        == f"error: optim.lr=0.5 on process 1, on {host}; process 0 has 0.001; all need the same"
    )
    assert lines[1].startswith("error: images of train=") and "on process 1" in lines[1]
    assert lines[2].startswith(
        f"error: out= has step-000000004=False on process 1, on {host}; process 0 has True"
    )
    assert lines[3].startswith("error: no gradient for mask_token: ")
    assert len(lines) == 4, outputs


def first_of_two(options: list[str], port: int, script: str = "") -> tuple[int, list[str]]:
    """The first of two processes, without the other: its exit status and the lines of its output,
    standard error last."""
    environment = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "RANK": "0",
        "LOCAL_RANK": "0",
    }
    script = f"{script}\nfrom ssl_vit.jobs import cli\ncli.pretrain({options!r})"
    process = launch("-c", script, stderr=True, **environment)
    output, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors
    return process.returncode, (output + errors).splitlines()


def test_a_port_that_is_taken_is_reported_in_a_line(tiny: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, lines = first_of_two(tiny, port)
    assert status == 2, lines
    assert lines[-1].startswith(f"error: MASTER_ADDR:MASTER_PORT=127.0.0.1:{port}: "), lines
    assert "address already in use" in lines[-1], lines


def test_a_process_that_does_not_come_is_waited_for_with_a_notice_and_a_limit(
    tiny: list[str],
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = """
from datetime import timedelta
from ssl_vit.training import distributed
distributed.RENDEZVOUS_TIMEOUT = timedelta(seconds=3)
"""
    status, lines = first_of_two(tiny, port, script)
    place = f"MASTER_ADDR:MASTER_PORT=127.0.0.1:{port}"
    assert status == 2, lines
    assert any("2 processes" in line and place in line for line in lines[:-1]), lines
    assert lines[-1].startswith(f"error: {place}: ") and "1/2 clients joined" in lines[-1], lines


LOST = """
import json, os, sys, time
from torch import distributed
from ssl_vit.jobs import cli
if os.environ["RANK"] == "0":
    port = int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore("127.0.0.1", port, 2, is_master=True, wait_for_workers=False)
    keys = store.num_keys()
    while store.num_keys() < keys + 2:  # the other has said where it is, and waits for this one
        time.sleep(0.01)
    os._exit(0)
cli.pretrain(json.loads(sys.argv[1]))
"""


def test_a_process_lost_while_they_find_one_another_is_reported_in_a_line(tiny: list[str]) -> None:
    statuses, outputs = outcome(launch_ranks(2, "-c", LOST, json.dumps(tiny), OMP_NUM_THREADS="1"))
    assert statuses == [0, 2], outputs
    assert "Traceback" not in outputs[1], outputs
    assert outputs[1].splitlines()[-1].startswith("error on process 1: MASTER_ADDR:MASTER_PORT="), (
        outputs
    )
