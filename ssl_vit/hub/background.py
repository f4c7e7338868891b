"""Pushing to the Hub while training: an observer that lays milestones out, and a listener that keeps a process on pushing them.

Training waits for neither. What fails stays owed: it is told, tried again at the next milestone and the end, and finished by
tools/push.py whenever.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..engine import Listener, Row
from ..objectives import Objective
from ..runs import Run
from . import ledger
from .parcels import step_branch


class Pusher(Listener):
    """At most one process at a time that pushes what the run owes; what it says goes to hub/log.txt."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Push in the background, unless that is being done."""
        if self.process is None or self.process.poll() is not None:
            self.run.outbox.mkdir(exist_ok=True)
            with (self.run.outbox / "log.txt").open("a") as log:
                command = [sys.executable, str(ledger.TOOL), str(self.run.folder), "--quiet"]
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    def on_step(self, step: int) -> None:
        """Tell once of a push that failed."""
        if self.process and self.process.poll():
            self.process = None
            for name, text in ledger.told(self.run):
                if name == "not pushed":
                    print(f"warning: the Hub has not got {text}; training goes on", flush=True)

    def finish(self) -> None:
        """Push the rest, and wait for it no longer than the recipe says; a push that takes longer is ended and stays owed. The
        run is finished whatever comes of it."""
        try:
            self._finish()
        except Exception as error:
            text = f"warning: the Hub was not reached: {error!r}"
            self.run.note(text)
            print(text, flush=True)

    def _finish(self) -> None:
        until = time.monotonic() + self.run.recipe.hub.wait
        for _ in range(2):  # one that runs may have begun before the run was finished
            self.start()
            assert self.process is not None
            try:
                self.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                break
            if not ledger.owed(self.run):
                break


class Milestones:
    """An observer that exports the encoder so far into the outbox, once for each step; the end is not one of them. Without a
    pusher, on processes other than the first, it does nothing."""

    def __init__(self, pusher: Pusher | None, export: Callable[[Path, Objective], Any]) -> None:
        self.pusher, self.export = pusher, export

    def __call__(self, step: int, row: Row, objective: Objective) -> Iterable[tuple[str, float]]:
        if self.pusher is None:
            return ()
        run = self.pusher.run
        if step < run.recipe.optim.steps and step_branch(step) not in ledger.known(run):
            run.outbox.mkdir(exist_ok=True)
            self.export(run.outbox / step_branch(step), objective)
            self.pusher.start()
        return ()
