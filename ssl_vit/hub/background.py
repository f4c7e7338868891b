"""Uploads during training: an evaluator that exports milestones, and a callback that keeps a
process uploading them.

Training waits for neither. Failed uploads are reported and retried at the next milestone and at the
end; the push tool completes them at any time.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..callbacks import Callback, Row
from ..formatting import process_command, process_environment
from ..objectives.base import Objective
from ..runs.checkpoint_files import STEP
from ..runs.files import sweep
from ..runs.folder import Run
from . import manifest
from .payload import step_branch, steps

POLL_SECONDS = 0.1
MAX_PENDING = 4  # milestones kept in the outbox while the Hub is not reached


class Pusher(Callback):
    """Uploads pending files in a child process, at most one at a time; its output goes to
    hub/log.txt."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start an upload in the background, unless one is running."""
        if self.process is None or self.process.poll() is not None:
            self.run.outbox.mkdir(exist_ok=True)
            with (self.run.outbox / "log.txt").open("a") as log:
                command = process_command("push", str(self.run.folder), "--quiet")
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=process_environment(),
                    start_new_session=True,  # Ctrl-C in the terminal stops the training only
                )

    def on_step(self, step: int) -> None:
        """Report a failed upload once."""
        if self.process and self.process.poll():
            self.process = None
            for name, text in manifest.status_lines(self.run):
                if name == "not pushed":
                    print(f"warning: the Hub has not got {text}; training goes on", flush=True)

    def finish(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Upload the rest, for hub.wait seconds at most and until `should_stop`; what is not
        uploaded by then stays pending. Failures do not affect the run."""
        try:
            self._finish(should_stop)
        except Exception as error:
            text = f"warning: the Hub was not reached: {error!r}"
            self.run.write_log(text)
            print(text, flush=True)

    def _finish(self, should_stop: Callable[[], bool]) -> None:
        until = time.monotonic() + self.run.recipe.hub.wait
        for _ in range(2):  # a running upload may have started before the run was finished
            self.start()
            assert self.process is not None
            while self.process.poll() is None:
                if should_stop() or time.monotonic() > until:
                    self.process.kill()
                    self.process.wait()
                    return
                time.sleep(POLL_SECONDS)
            if not manifest.owed(self.run):
                break


class Milestones:
    """Evaluator that exports the current encoder to the outbox and starts an upload, except after
    the last step, whose export is uploaded at the end. `pusher` is None on ranks other than 0,
    where it does nothing."""

    def __init__(self, pusher: Pusher | None, export: Callable[[Path, Objective], Any]) -> None:
        self.pusher = pusher
        self.export = export

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterable[tuple[str, float]]:
        if self.pusher is None:
            return ()
        run = self.pusher.run
        if step < run.recipe.optim.steps and step_branch(step) not in manifest.pushed_branches(run):
            run.outbox.mkdir(exist_ok=True)
            if self._make_room(run, sum(value.nbytes for value in objective.state_dict().values())):
                self.export(run.outbox / step_branch(step), objective)
            else:
                _warn(
                    run,
                    f"the milestone of step {step} is left out: the disk has no room for it "
                    f"beside the checkpoints",
                )
            self.pusher.start()
        return ()

    def _make_room(self, run: Run, size: int) -> bool:
        """Drop pending milestones, oldest first, while there are MAX_PENDING or the disk has no
        room for one of `size` bytes beside the checkpoints; whether it has room then."""
        sweep(run.outbox, STEP)
        pending = [
            path for _, path in steps(run.outbox) if path.name not in manifest.pushed_branches(run)
        ]
        needed = size + _checkpoints_to_come(run, size)
        while pending and (
            len(pending) >= MAX_PENDING or shutil.disk_usage(run.outbox).free < needed
        ):
            oldest = pending.pop(0)
            shutil.rmtree(oldest, ignore_errors=True)
            _warn(
                run,
                f"{oldest.name} was not pushed yet and is dropped, for those after it: the "
                f"Hub has not been reached",
            )
        return shutil.disk_usage(run.outbox).free >= needed


def _checkpoints_to_come(run: Run, weights: int) -> int:
    """Bytes of the checkpoints that are still to be written, and of one temporary copy."""
    known = steps(run.checkpoints)
    files = known[-1][1].iterdir() if known else ()
    # weights, two moments, perhaps an average
    size = sum(path.stat().st_size for path in files) or 4 * weights
    kept = run.recipe.checkpoint.keep
    if run.recipe.checkpoint.best:
        kept *= 2  # each one's best
    return size * (1 + max(0, kept - len(known)))


def _warn(run: Run, text: str) -> None:
    print(f"warning: {text}", flush=True)
    run.write_log(f"warning: {text}")
