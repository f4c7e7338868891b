"""What becomes of a run whose loss or gradient is not finite; the engine has left those updates out already."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from . import counted
from .data import loaders
from .data.loaders import Reading
from .data.parts import Source
from .recipe import UserError
from .runs import Run, write_atomically
from .state import State

DETOURS = 3  # times that a run goes back before it gives up
MAY_HELP = "a lower optim.lr= or a longer optim.warmup= may help"


class GoBack(Exception):
    """To the newest checkpoint before `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def stream_seed(seed: int, detour: int) -> int:
    """The seed of the samples' stream: the recipe's or, after going back, another."""
    return seed if detour == 0 else int(counted.stream(counted.key(seed), f"detour {detour}")[0])


class Policy:
    """Told of the steps whose updates were left out, on every process: dumps their samples, then does as optim.nonfinite says.

    not_finite.json: {"steps": {step: the indices of its samples in the training split}}, as in Batch.

    Raises:
        UserError: "stop". GoBack: "back".
    """

    def __init__(self, run: Run, pictures: Source | Reading, seed: int, warn: Callable[[str], None], main: bool) -> None:
        self.run, self.pictures, self.seed, self.warn, self.main = run, pictures, seed, warn, main

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
            raise GoBack(steps[0])

    def _dump(self, path: Path, steps: list[int]) -> None:
        """Add the steps' samples to the file, or begin it where it is damaged; where the disk is full, training goes on."""
        told = {str(step): self._indices(step) for step in steps}
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            told = {**json.loads(path.read_text())["steps"], **told}
        try:
            write_atomically(path, json.dumps({"steps": told}) + "\n")
        except OSError as error:
            self.warn(f"{path} could not be written: {error.strerror}")

    def _indices(self, step: int) -> list[int]:
        recipe = self.run.recipe
        return loaders.of_step(step, self.pictures, recipe.data, recipe.optim.batch, self.seed).tolist()


def go_back(state: State, back: GoBack, resume: Callable[[int], None]) -> None:
    """To the checkpoint before `back.step`, from where on other samples are taken.

    Raises:
        UserError: there is none, or the run has gone back too often.
    """
    detour, was = state.detour + 1, state.step
    if detour > DETOURS:
        raise UserError(f"optim.nonfinite=back: {DETOURS} ways on from a checkpoint all met numbers not finite; {MAY_HELP}")
    resume(back.step)
    if state.step == was:
        raise UserError(f"optim.nonfinite=back: no checkpoint before step {back.step}; {MAY_HELP}")
    state.detour = detour
