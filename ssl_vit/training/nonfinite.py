"""What becomes of a run whose loss or gradient is not finite; the engine has left those updates out
already."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .. import rng
from ..data import loaders
from ..data.base import Source
from ..data.loaders import StreamReader
from ..errors import UserError
from ..runs.folder import Run, write_atomically
from .state import State

MAX_ROLLBACKS = 3  # times that a run goes back before it gives up
MAY_HELP = "a lower optim.lr= or a longer optim.warmup= may help"


class Rollback(Exception):
    """To the newest checkpoint before `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def stream_seed(seed: int, rollbacks: int) -> int:
    """The seed of the samples' stream: the recipe's or, after going back, another."""
    return seed if rollbacks == 0 else int(rng.stream(rng.key(seed), f"detour {rollbacks}")[0])


class NonFinitePolicy:
    """Told of the steps whose updates were left out, on every process: dumps their samples, then
    does as optim.nonfinite says.

    not_finite.json: {"steps": {step: the indices of its samples in the training split}}, as in
    Batch.

    Raises:
        UserError: "stop". GoBack: "back".
    """

    def __init__(
        self,
        run: Run,
        images: Source | StreamReader,
        seed: int,
        warn: Callable[[str], None],
        main: bool,
    ) -> None:
        self.run, self.images, self.seed, self.warn, self.main = run, images, seed, warn, main

    def __call__(self, steps: list[int]) -> None:
        optim, path = self.run.recipe.optim, self.run.folder / "not_finite.json"
        if self.main:
            self._dump(path, steps)
        many = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
        text = f"{many}: loss or gradient not finite in {len(steps)}, not learned from; the samples are in {path}"
        if optim.nonfinite == "stop":
            raise UserError(f"optim.nonfinite=stop: {text}; {MAY_HELP}")
        if self.main:
            self.warn(text)
        if optim.nonfinite == "back":
            raise Rollback(steps[0])

    def _dump(self, path: Path, steps: list[int]) -> None:
        """Add the steps' samples to the file, or begin it where it is damaged; where the disk is
        full, training goes on."""
        told = {str(step): self._indices(step) for step in steps}
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            told = {**json.loads(path.read_text())["steps"], **told}
        try:
            write_atomically(path, json.dumps({"steps": told}) + "\n")
        except OSError as error:
            self.warn(f"{path} could not be written: {error.strerror}")

    def _indices(self, step: int) -> list[int]:
        recipe = self.run.recipe
        return loaders.step_indices(
            step, self.images, recipe.data, recipe.optim.batch, self.seed
        ).tolist()


def roll_back(state: State, back: Rollback, resume: Callable[[int], None]) -> None:
    """To the checkpoint before `back.step`, from where on other samples are taken.

    Raises:
        UserError: there is none, or the run has gone back too often.
    """
    rollbacks, was = state.rollbacks + 1, state.step
    if rollbacks > MAX_ROLLBACKS:
        raise UserError(
            f"optim.nonfinite=back: {MAX_ROLLBACKS} ways on from a checkpoint all met numbers not finite; {MAY_HELP}"
        )
    resume(back.step)
    if state.step == was:
        raise UserError(f"optim.nonfinite=back: no checkpoint before step {back.step}; {MAY_HELP}")
    state.rollbacks = rollbacks
