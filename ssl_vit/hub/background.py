"""Upload during training: export milestones, and start tools/push.py as a child process.

Training does not wait for an upload, and does not fail if an upload fails. The next upload uploads
what is still missing. An upload is a process because a run has to end after hub.wait seconds. In
the training process, the client would upload in thread pools (with `run_as_future`, too), and
Python waits at exit until their threads have ended, however long the network takes. `os._exit`
would not wait, but would cut off trackers and the process group, and end the session of a user who
trains in a notebook.
"""

import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..callbacks import Callback, Row
from ..formatting import process_command, process_environment
from ..objectives.base import Objective
from ..recipe import export_files
from ..runs.checkpoint_files import STEP, list_checkpoints, remove, step_of
from ..runs.files import sweep
from ..runs.folder import Run
from . import manifest

POLL_SECONDS = 0.1
# A milestone is an exported checkpoint to upload. At most this many, the newest, are kept in the
# outbox while the Hub cannot be reached
MAX_PENDING = 4


class Pusher(Callback):
    """Callback that uploads a run's files in a child process, one upload at a time.

    hub/log.txt has the output of the last upload.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.process: subprocess.Popen | None = None

    @property
    def is_running(self) -> bool:
        """Return whether an upload is running."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start an upload in the background, unless an upload is running."""
        if not self.is_running:
            self.run.outbox.mkdir(exist_ok=True)
            with (self.run.outbox / "log.txt").open("w") as log:
                self.process = subprocess.Popen(
                    process_command("push", str(self.run.folder)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=process_environment(),
                    start_new_session=True,  # Ctrl-C in the terminal stops the training only
                )

    def on_step(self, step: int) -> None:
        """Report a failed upload once."""
        # `poll` returns None while the upload runs, 0 after success and another number on an error
        if self.process and self.process.poll():
            self.process = None
            branches = ", ".join(manifest.pending(self.run))
            reason = manifest.problem(self.run)
            self.run.warn(f"not uploaded to the Hub yet: {branches} ({reason}). Training continues")

    def finish(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Upload the remaining files at the end of the run, for at most hub.wait seconds.

        Files that are not uploaded in this time stay in the run's folder, and the next `ssl-vit
        push` uploads them. Failures do not affect the run.

        Args:
            should_stop: Called repeatedly while waiting. True ends the upload at once.
        """
        deadline = time.monotonic() + self.run.recipe.hub.wait
        try:
            # A running upload may have started before the run finished, so upload once more
            # false if the upload was killed, because no time is left or the user stops the run
            has_ended = self._wait_for_upload(deadline, should_stop)
            if has_ended:
                self.start()
                self._wait_for_upload(deadline, should_stop)
        except OSError as error:
            self.run.warn(f"the upload to the Hub could not start: {error!r}")

    def _wait_for_upload(self, deadline: float, should_stop: Callable[[], bool]) -> bool:
        """Wait for a running upload, or kill the upload after the deadline or on `should_stop`.

        The Hub accepts a commit completely or not at all, so an upload may be killed at any time.

        Args:
            deadline: Time of `time.monotonic`, in seconds.
            should_stop: Called repeatedly while waiting. True ends the upload at once.

        Returns:
            True if no upload is running, false if the upload was killed.
        """
        while self.process and self.is_running:
            if should_stop() or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                return False
            time.sleep(POLL_SECONDS)
        return True


class Milestones:
    """Evaluator that exports the current encoder to the outbox and starts an upload.

    After the last step, no milestone is exported, because the final export is uploaded at the end
    of the run. On ranks other than 0, `pusher` is None and no milestone is exported.
    """

    def __init__(self, pusher: Pusher | None, export: Callable[[Path, Objective], Any]) -> None:
        self.pusher = pusher
        self.export = export

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterable[tuple[str, float]]:
        if self.pusher is None or step >= self.pusher.run.recipe.optim.steps:
            return ()
        run = self.pusher.run
        run.outbox.mkdir(exist_ok=True)
        sweep(run.outbox, STEP)  # remove unfinished exports of killed processes
        milestones = list_checkpoints(run.outbox)
        if len(milestones) >= MAX_PENDING:
            # Drop the oldest milestone, or the second if a running upload may be reading the oldest
            dropped = milestones[1 if self.pusher.is_running else 0]
            with suppress(OSError):  # an upload may have removed the milestone
                remove(dropped, export_files.WRITTEN)
                self.pusher.run.warn(
                    f"the milestone (exported encoder) of step {step_of(dropped):,} will not be"
                    f" uploaded, because {MAX_PENDING} milestones are waiting for an upload"
                )
        self.export(run.outbox / f"step-{step:09d}", objective)
        self.pusher.start()
        return ()
