"""Several processes: stopped on some and resumed on others, different words or images, processes
that fail or do not come."""

import json
import socket
from pathlib import Path

import pytest

from helpers.exactness import SERIES
from helpers.images import parquet
from helpers.launching import free_port, launch, launch_ranks, outcome
from helpers.options import TINY, altered
from helpers.runs import assert_alike, rows, run
from ssl_vit.training import checkpoint, preemption

LONG = altered(TINY, "optim.steps=8", "log.every=1", "eval.every=8")
FAILING = """
import json, os, sys
from ssl_vit.evaluation.held_out import HeldOutEvaluator
from ssl_vit.jobs.train import train
from ssl_vit.runs.folder import Run
from ssl_vit import resolve
measure = HeldOutEvaluator.__call__
def fails(self, step, row, objective):
    if (step, os.environ["RANK"]) == (2, "1"):  # process 0 goes on to the sum over both
        raise ValueError("a broken image")
    yield from measure(self, step, row, objective)
    if (step, os.environ["RANK"]) == (4, "0"):
        raise ValueError("a full disk")
HeldOutEvaluator.__call__ = fails
train(Run(resolve(json.loads(sys.argv[1]))))
"""
SIGNALLED = """
import json, os, signal, sys
from ssl_vit.jobs import cli
from ssl_vit.training import heartbeat, preemption
preemption.CONSENSUS_EVERY = 2  # a signal stops a run within 4 steps
note = heartbeat.Watchdog.on_step

def on_step(self, step):
    note(self, step)
    if os.environ["RANK"] == "1" and step == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGTERM)

heartbeat.Watchdog.on_step = on_step
cli.pretrain(json.loads(sys.argv[2]))
"""


def test_stopped_on_two_processes_and_resumed_on_four_and_one(tmp_path: Path) -> None:
    """A signal to the second process alone; every later step has the unbroken run's samples and
    masks, and so its losses."""
    long = altered(LONG, "optim.steps=24", "checkpoint.every=100", "eval.every=24")
    options, folder = [*long, f"out={tmp_path}"], tmp_path / "run"
    for count, signalled_at in ((2, 5), (4, 12)):
        own = json.dumps([*options, "name=run"])
        statuses, outputs = outcome(launch_ranks(count, "-c", SIGNALLED, str(signalled_at), own))
        assert statuses == [preemption.STOPPED] * count, outputs
        assert "by SIGTERM on process 1, saved" in outputs[0]
        step = checkpoint.step_of(checkpoint.list_checkpoints(folder / "checkpoints")[-1])
        assert signalled_at <= step <= signalled_at + 4
        assert [row["step"] for row in rows(folder)] == list(range(1, step + 1))
    result, whole = (run([*options, f"name={name}"]).result() for name in ("run", "whole"))
    # two and four processes for a part of it
    assert result["device_hours"] * 3600 > 1.01 * result["seconds"]
    assert whole["device_hours"] * 3600 == pytest.approx(whole["seconds"])
    assert_alike(rows(folder), rows(tmp_path / "whole"), rel=1e-5)


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
from ssl_vit import resolve
for mine in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) - 1)  # the store before may still be there
    try:
        with report_errors(everywhere=True):
            train(Run(resolve(mine[int(os.environ["RANK"])])))
    except SystemExit as left:
        assert left.code == 2
"""


def test_what_differs_between_processes_is_named(tmp_path: Path) -> None:
    """Other words, other images, a folder that one does not see: one line, from one process. So are
    weights without use."""
    for place, first in (("a", 0), ("b", 50)):
        parquet(tmp_path / place / "train.parquet", range(first, first + 30))
    (tmp_path / "idle.py").write_text(IDLE)
    words = altered(TINY, "optim.steps=4", "eval.every=4", f"out={tmp_path}", "name=words")
    words = altered(words, "data.validation=0.2")
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
    lines = [line for line in "".join(outputs).splitlines() if line.startswith("error")]
    on = f"on process 1 ({socket.gethostname()}), but "
    for line, starts, says in zip(
        lines,
        ("optim.lr=0.5 ", "images of train=", "out= has step-000000004=False ", "no gradient for"),
        (f"{on}optim.lr=0.001 ", "on process 1", f"{on}out= has step-000000004=True", "mask_token"),
        strict=True,
    ):
        assert line.startswith(f"error: {starts}") and says in line, outputs


def first_of_two(options: list[str], port: int, script: str = "") -> list[str]:
    """The first of two processes, without the other: the lines of its output, standard error
    last."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    script = f"{script}\nfrom ssl_vit.jobs import cli\ncli.pretrain({options!r})"
    process = launch("-c", script, stderr=True, RANK="0", LOCAL_RANK="0", **environment)
    output, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors and process.returncode == 2, output + errors
    return (output + errors).splitlines()


def test_a_port_that_is_taken_is_reported_in_a_line(tiny: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        lines = first_of_two(tiny, port)
    assert lines[-1].startswith(f"error: MASTER_ADDR:MASTER_PORT=127.0.0.1:{port}: "), lines
    assert "address already in use" in lines[-1], lines


SOON = """
from datetime import timedelta
from ssl_vit.training import distributed
distributed.RENDEZVOUS_TIMEOUT = timedelta(seconds=1)
"""


def test_a_process_that_does_not_come_is_waited_for_with_a_notice_and_a_limit(
    tiny: list[str],
) -> None:
    port = free_port()
    lines = first_of_two(tiny, port, SOON)
    place = f"MASTER_ADDR:MASTER_PORT=127.0.0.1:{port}"
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
    statuses, (_, output) = outcome(launch_ranks(2, "-c", LOST, json.dumps(tiny)))
    assert statuses == [0, 2] and "Traceback" not in output, output
    last = output.splitlines()[-1]
    assert last.startswith("error on process 1: MASTER_ADDR:MASTER_PORT="), output


def test_an_evaluator_that_fails_on_one_process_is_left_out_on_all(tmp_path: Path) -> None:
    """The others would have waited for it, or have added the gradients of the next step to their
    metrics. What is trained is the same."""
    words = [*altered(TINY, "log.every=1", "optim.steps=6", "eval.every=2"), f"out={tmp_path}"]
    pair = [[*words, "name=failing"], [*words, "name=whole"]]
    for script, given in ((FAILING, pair[0]), (SERIES, [pair[1]])):
        statuses, outputs = outcome(launch_ranks(2, "-c", script, json.dumps(given)))
        assert statuses == [0, 0], outputs
    log = (tmp_path / "failing" / "log.txt").read_text().splitlines()
    failed = [line.partition("failed at ")[2] for line in log if "failed at" in line]
    assert failed == [
        "step 2: ValueError('a broken image') on process 1",
        "step 4: ValueError('a full disk') on process 0",
    ]
    found, whole = rows(tmp_path / "failing"), rows(tmp_path / "whole")
    assert [row["loss"] for row in found] == [row["loss"] for row in whole]
    assert found[-1]["validation/loss"] == whole[-1]["validation/loss"]
    assert "validation/loss" not in found[1]
