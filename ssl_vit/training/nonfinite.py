"""Policy for non-finite losses and gradients: stop, skip or roll back. The loop has skipped those
updates already, on the device."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import rng
from ..errors import UserError
from ..runs.files import write_atomically
from .state import State

MAX_ROLLBACKS = 3  # per run
MAY_HELP = "a lower optim.lr= or a longer optim.warmup= may help"


class Rollback(Exception):
    """Raised to return to the newest checkpoint before `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def stream_seed(seed: int, rollbacks: int) -> int:
    """Seed of the order of samples: the recipe's, and another one after each rollback, because the
    same samples would lead to the same failure."""
    if rollbacks == 0:
        return seed
    return int(rng.stream(rng.key(seed), f"detour {rollbacks}")[0])  # a name that is hashed


@dataclass(eq=False, repr=False)
class NonFinitePolicy:
    """Called on every process with the steps whose updates were skipped: writes their samples to
    `path`, then acts.

    The file: {"steps": {step: the indices of its samples in the training split}}, as in Batch.

    Args:
        action: optim.nonfinite: stop, skip or back.
        path: the file, not_finite.json in the run folder.
        samples_of: step -> the indices of its samples.
        is_main: whether this process writes and warns.

    Raises:
        UserError: `action` is "stop".
        Rollback: `action` is "back".
    """

    action: str
    path: Path
    samples_of: Callable[[int], list[int]]
    warn: Callable[[str], None]
    is_main: bool

    def __call__(self, steps: list[int]) -> None:
        if self.is_main:
            self._dump(steps)
        where = f"step {steps[0]}"
        if len(steps) > 1:
            where = f"steps {steps[0]} to {steps[-1]}"
        text = (
            f"{where}: loss or gradient not finite in {len(steps)}, not learned from; the "
            f"samples are in {self.path}"
        )
        if self.action == "stop":
            raise UserError(f"optim.nonfinite=stop: {text}; {MAY_HELP}")
        if self.is_main:
            self.warn(text)
        if self.action == "back":
            raise Rollback(steps[0])

    def _dump(self, steps: list[int]) -> None:
        """Add the steps' samples to the file. A damaged file is replaced, and a full disk is a
        warning: neither may hide the failure that is being reported."""
        steps_found = {str(step): self.samples_of(step) for step in steps}
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            steps_found = {**json.loads(self.path.read_text())["steps"], **steps_found}
        try:
            write_atomically(self.path, json.dumps({"steps": steps_found}) + "\n")
        except OSError as error:
            self.warn(f"{self.path} could not be written: {error.strerror}")


def roll_back(state: State, back: Rollback, resume: Callable[[int], None]) -> None:
    """Resume from the checkpoint before `back.step`, with another sample stream from there on.

    Raises:
        UserError: there is none, or MAX_ROLLBACKS rollbacks were made already.
    """
    rollbacks = state.rollbacks + 1  # kept here: `resume` restores the checkpoint's count
    failed_at = state.step
    if rollbacks > MAX_ROLLBACKS:
        raise UserError(
            f"optim.nonfinite=back: loss or gradient not finite again after {MAX_ROLLBACKS} "
            f"rollbacks; {MAY_HELP}"
        )
    resume(back.step)
    if state.step == failed_at:
        raise UserError(f"optim.nonfinite=back: no checkpoint before step {back.step}; {MAY_HELP}")
    state.rollbacks = rollbacks
