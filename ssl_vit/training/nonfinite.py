"""Stop or continue the run after a loss or gradient that is not finite.

The training loop has already skipped the update.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..runs.files import write_atomically


@dataclass(eq=False, repr=False)
class NonFinitePolicy:
    """Policy for a loss or gradient that is not finite: list the images, then stop or warn.

    Call the object on every process with the steps whose updates were skipped.

    Args:
        action: "stop" or "skip" (optim.nonfinite).
        path: File not_finite.json in the run folder. The file holds {"steps": {step: indices of the
            images in the training split}}.
        samples_of: Takes a step, and returns the indices of the step's images in the training
            split.
        warn: Reports a warning.
        is_main: Whether this process writes and warns.
        loss_name: Name of the loss in messages, with the file and class of a plugin.

    Raises:
        UserError: When the object is called, if `action` is "stop".
    """

    action: str
    path: Path
    samples_of: Callable[[int], list[int]]
    warn: Callable[[str], None]
    is_main: bool
    loss_name: str = "the loss"

    def __call__(self, steps: list[int]) -> None:
        if self.is_main:
            self._dump(steps)
        where = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        warning = (
            f"{where}: the loss or gradient is not finite (skipped updates: {len(steps)}). "
            f"{self.path} lists the images"
        )
        if self.action == "stop":
            if steps[0] == 0:
                raise UserError(
                    f"optim.nonfinite=stop: {warning}. This happened in the first step, before any "
                    f"training: check the images, the initial weights and {self.loss_name}."
                )
            raise UserError(
                f"optim.nonfinite=stop: {warning}. Try a lower optim.lr= or a longer optim.warmup=."
            )
        if self.is_main:
            self.warn(warning)

    def _dump(self, steps: list[int]) -> None:
        """Add the images of the steps to not_finite.json.

        A damaged file is replaced. If the file cannot be written, this method only warns. An error
        would hide the message about the loss, which comes next.
        """
        images_of_step = {str(step): self.samples_of(step) for step in steps}
        # On an error, the file is missing or damaged, and the earlier steps are left out
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            images_of_step = {**json.loads(self.path.read_text())["steps"], **images_of_step}
        try:
            write_atomically(self.path, json.dumps({"steps": images_of_step}) + "\n")
        except OSError as error:
            self.warn(f"{self.path} could not be written: {error.strerror}")
