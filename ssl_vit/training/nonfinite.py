"""Policy for non-finite losses and gradients: stop or skip. The loop has skipped those updates
already, on the device."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..runs.files import write_atomically

MAY_HELP = "a lower optim.lr= or a longer optim.warmup= may help"
UNTRAINED = "no update was made before, so look at the images, the initial weights and the loss"


@dataclass(eq=False, repr=False)
class NonFinitePolicy:
    """Called on every process with the steps whose updates were skipped: writes their samples to
    `path`, then acts.

    The file: {"steps": {step: the indices of its samples in the training split}}, as in Batch.

    Args:
        action: optim.nonfinite: stop or skip.
        path: the file, not_finite.json in the run folder.
        samples_of: step -> the indices of its samples.
        is_main: whether this process writes and warns.
        plugin: file and class of a plugin's loss; empty of the package's.

    Raises:
        UserError: `action` is "stop".
    """

    action: str
    path: Path
    samples_of: Callable[[int], list[int]]
    warn: Callable[[str], None]
    is_main: bool
    plugin: str = ""

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
            of_plugin = f" of {self.plugin}" if self.plugin else ""
            hint = MAY_HELP if steps[0] else f"{UNTRAINED}{of_plugin}"
            raise UserError(f"optim.nonfinite=stop: {text}; {hint}")
        if self.is_main:
            self.warn(text)

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
