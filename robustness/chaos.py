"""Kill a tiny run again and again, damage its checkpoints, fill its disk; then ask for the unbroken
run's weights, bit for bit.

    python robustness/chaos.py kills=100 out=FOLDER

Every start is a child forked from this process, so that no time goes into imports; it is killed by
SIGKILL at a random moment after a random step, in every second start while it saves. One JSON
object comes out. tests/robustness/test_chaos.py does a few kills of each.
"""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from safetensors.torch import load_file

from ssl_vit import resolve
from ssl_vit.callbacks import Callback
from ssl_vit.jobs import train as train_job
from ssl_vit.runs.folder import Run
from ssl_vit.training import checkpoint

OPTIONS = [
    *(
        "recipe=mpp",
        "data.size=16",
        "model.patch=4",
        "model.width=32",
        "model.depth=2",
        "model.heads=2",
        "model.mlp=64",
    ),
    *(
        "optim.batch=16",
        "optim.warmup=2",
        "checkpoint.every=2",
        "eval.every=50",
        "eval.images=24",
        "log.every=5",
    ),
    *(
        "compute.precision=float32",
        "compute.threads=1",
        "optim.dropout=0.1",
    ),
]
DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "torn": lambda data: data[: random.randrange(len(data))],
    "emptied": lambda data: b"",
    "removed": lambda data: None,
    "bit flipped": lambda data: _flipped(data, random.randrange(8 * len(data))),
}


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


class Hold(Callback):
    """Stays after a step until a file is there."""

    def __init__(self, step: int, until: Path) -> None:
        self.step = step
        self.until = until

    def on_step(self, step: int) -> None:
        while step == self.step and not self.until.exists():
            time.sleep(0.01)


def start(
    out: Path, name: str, steps: int, output: Path | None = None, hold: Hold | None = None
) -> int:
    """Fork a child process that trains the run, or resumes it, and writes to a file; its number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        sink = os.open(output or out / f"{name}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        run = Run(resolve([*OPTIONS, f"optim.steps={steps}", f"out={out}", f"name={name}"]))
        run.reconcile()
        if hold:
            callbacks = train_job._callbacks
            train_job._callbacks = lambda job: [*callbacks(job), hold]
        train_job.train(run)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(child: int) -> int | None:
    """The exit status of a child, negative after a signal; None while it runs."""
    number, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if number else None


def whole(out: Path, name: str, steps: int) -> dict[str, Any]:
    """The weights of a run that nobody disturbs; trained at the first call."""
    if not (out / name / "result.json").exists():
        child = start(out, name, steps)
        while (status := ended(child)) is None:
            time.sleep(0.01)
        assert status == 0, (out / f"{name}.txt").read_text()
    return weights(out / name)


def weights(folder: Path) -> dict[str, Any]:
    return {
        name: load_file(folder / "export" / f"{name}.safetensors") for name in ("model", "heads")
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether all tensors agree, bit for bit."""
    return all(
        one[file][name].equal(other[file][name]) for file in one for name in one[file] | other[file]
    )


def wait_and_kill(
    child: int, folder: Path, step: int, longest: float, in_save: bool
) -> tuple[int | None, bool]:
    """Let the child reach a step, wait for a random time, and until it saves if `in_save`; then
    kill it: its status if it ended before, and whether it was inside a save."""
    until = time.monotonic() + random.random() * longest
    while time.monotonic() < until + (2 if in_save else 0):
        if (status := ended(child)) is not None:
            return status, False
        if newest(folder) < step:
            until = time.monotonic() + random.random() * longest
        elif time.monotonic() > until and saving(folder):
            break
        time.sleep(0.0005)
    inside = saving(folder)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, inside


def saving(folder: Path) -> bool:
    return any(folder.glob("checkpoints/.step-*"))


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, damaged or not."""
    known = checkpoint.list_checkpoints(folder / "checkpoints")
    return checkpoint.step_of(known[-1]) if known else 0


def last_step(folder: Path) -> int:
    """The step of the newest checkpoint that is not damaged."""
    for path in reversed(checkpoint.list_checkpoints(folder / "checkpoints")):
        if checkpoint.is_intact(path):
            return checkpoint.step_of(path)
    return 0


def damage(folder: Path) -> str:
    """Harm the newest checkpoint, if another one is behind it; what was done."""
    known = checkpoint.list_checkpoints(folder / "checkpoints")
    if len(known) < 2 or not checkpoint.is_intact(known[-2]):
        return ""
    how, file = random.choice(list(DAMAGE)), random.choice(["state.pt", checkpoint.MANIFEST])
    path = known[-1] / file
    if not path.exists() or not (data := path.read_bytes()):  # done before
        return ""
    left = DAMAGE[how](data)
    path.unlink() if left is None else path.write_bytes(left)
    return f"{file} {how}"


def storm(out: Path, kills: int, steps: int, longest: float, harm: bool = False) -> dict[str, Any]:
    """Kill a run `kills` times, then let it end. Lost are those rows of the unbroken run's metrics
    that the killed run has not, with the same loss to the last bit.

    A run that is to be killed stays at its last step, so that the number of kills does not depend
    on the machine's speed.

    Args:
        longest: seconds from the step at which it is to be killed to the latest kill.
        harm: damage its newest checkpoint after each kill.
    """
    wanted = whole(out, "whole", steps)
    name = "harmed" if harm else "killed"
    folder = out / name
    report: dict[str, Any] = {
        "kills": 0,
        "inside a save": 0,
        "resumptions": 0,
        "steps repeated": 0,
        "damaged": {},
    }
    for kill in range(kills):
        before = last_step(folder)
        child = start(out, name, steps, hold=Hold(steps, out / "never"))
        step = before + random.randrange(max(1, steps // kills))
        status, inside = wait_and_kill(child, folder, step, longest, in_save=kill % 2 == 0)
        assert status is None, (out / f"{name}.txt").read_text()[-2000:]
        report["kills"] += 1
        report["inside a save"] += inside
        report["resumptions"] += before > 0
        report["steps repeated"] += reached(folder) - last_step(folder)
        if harm and (how := damage(folder)):
            report["damaged"][how] = report["damaged"].get(how, 0) + 1
    report["resumptions"] += last_step(folder) > 0
    whole(out, name, steps)
    assert last_step(folder) == steps
    losses = {(row["step"], row["loss"]) for row in rows(folder)}
    report["lost"] = sum((row["step"], row["loss"]) not in losses for row in rows(out / "whole"))
    return report | {"rows": len(losses), "bit-equal": same(wanted, weights(folder))}


def reached(folder: Path) -> int:
    """The last step that metrics.jsonl knows of, or the checkpoint's where that is later."""
    return max([row["step"] for row in rows(folder)] + [last_step(folder)])


def rows(folder: Path) -> list[dict[str, Any]]:
    return Run(resolve([*OPTIONS, f"out={folder.parent}", f"name={folder.name}"])).rows()


def full(out: Path, steps: int) -> dict[str, Any]:
    """A run on a file system of 3 MiB, which somebody else fills to the last byte for a while,
    again and again. It stays at half its steps until that has happened."""
    wanted = whole(out, "roomy", steps)
    small = out / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], check=True)
    try:
        output = out / "small.txt"
        hold = Hold(steps // 2, out / "filled")
        times = 0
        starts = 1
        before = 0  # characters of the output when the child started
        child = start(small, "run", steps, output, hold)
        while (status := ended(child)) != 0:
            if status is not None:  # no room for its first files, last step, export or result
                lines = output.read_text()[before:]
                no_room = "could not be saved" in lines or os.strerror(errno.ENOSPC) in lines
                assert last_step(small / "run") == steps or no_room, (status, lines)
                before += len(lines)
                child = start(small, "run", steps, output, hold)
                starts += 1
            time.sleep(0.3 + random.random())
            if last_step(small / "run"):
                fill(small / "filler")
                hold.until.touch()
                times += 1
                wait_for_failure(output, 0.2 if times > 1 else 60)
                (small / "filler").unlink()
        report = {"filled": times, "saves that failed": failures(output), "starts": starts}
        return report | {"bit-equal": same(wanted, weights(small / "run"))}
    finally:
        subprocess.run(["umount", str(small)], check=True)


def failures(output: Path) -> int:
    return output.read_text().count("could not be saved")


def wait_for_failure(output: Path, longest: float) -> None:
    """Wait for the next save that fails, `longest` seconds at most."""
    before = failures(output)
    end = time.monotonic() + longest
    while failures(output) == before and time.monotonic() < end:
        time.sleep(0.01)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


def main() -> None:
    words = dict(word.split("=", 1) for word in sys.argv[1:])
    kills, out = int(words.get("kills", 100)), Path(words.get("out", "runs/chaos"))
    out.mkdir(parents=True)
    random.seed(int(words.get("seed", 0)))
    report = {}
    for name, harm in (("killed", False), ("killed and damaged", True)):
        folder = out / name.replace(" ", "_")
        folder.mkdir()
        begun = time.monotonic()
        report[name] = storm(folder, kills, steps=60 * kills, longest=1.2, harm=harm) | {
            "seconds": round(time.monotonic() - begun)
        }
    (out / "full").mkdir()
    report["a disk that fills up"] = full(out / "full", steps=50 * kills)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
