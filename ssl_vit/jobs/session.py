"""Open a session of a run, or of a folder of features, on all processes.

A session holds the accelerator, signals, the time-out and the lock, and finds out whether another
process has finished the run in the meantime.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import check_pixels, run_splits
from ..data.workers import report_lost_workers
from ..errors import UserError, describe_shortage
from ..evaluation import split_images
from ..measurements import use_plugin_rows
from ..recipe.records.run import Result
from ..recipe.schema import Recipe
from ..runs import identity
from ..runs.folder import Run
from ..training import distributed
from ..training.heartbeat import Watchdog
from ..training.preemption import SignalHandler
from . import resources
from .image_facts import fingerprint


@dataclass(frozen=True)
class Session:
    """Resources that a job has while it runs.

    Attributes:
        run: The run.
        accelerator: The processes of the run.
        watchdog: The time-out of the processes.
        stack: Contexts that close when the session ends.
    """

    run: Run
    accelerator: distributed.WatchedAccelerator
    watchdog: Watchdog
    stack: ExitStack

    def load_splits(self, test: bool) -> run_splits.Splits:
        """Load the splits of the recipe's images.

        If the recipe does not set data.mean and data.std, they are measured on the training images.
        Images that do not suit the recipe's values cause a warning or an error.

        Args:
            test: Whether to load the test images.

        Raises:
            UserError: There are no images, or a split or column does not exist. If test images are
                missing, the message says how to run without test images.
        """
        recipe = self.run.recipe

        def load() -> run_splits.Splits:
            splits = split_images.load(recipe, test)
            check_pixels.set_mean_and_std(recipe.data, splits.train)
            return splits

        # Rank 0 loads first, so that the other processes find the prepared files, and all processes
        # get an error of rank 0. on_main returns None on the other processes, which load afterwards
        splits = distributed.on_main(self.accelerator, load) or load()
        # Check other splits only if they were not cut from the training images
        checked = {"train": splits.train}
        for name, source in {"validation": splits.validation, "test": splits.test}.items():
            if source is not None and source.store is not splits.train.store:
                checked[name] = source
        # With a frozen encoder, warnings must not recommend data.range=, which the encoder decides
        why_no_range = "" if recipe.trains else check_pixels.RANGE_OF_ENCODER
        warnings = distributed.broadcast_from_main(
            self.accelerator, lambda: check_pixels.check(checked, recipe.data, why_no_range)
        )
        return splits._replace(guesses=(*splits.guesses, *warnings))

    def hold(self, lock: AbstractContextManager[Any]) -> None:
        """Take a lock on rank 0 until the session ends.

        Raises:
            UserError: Another process holds the lock.
        """
        distributed.on_main(self.accelerator, lambda: self.stack.enter_context(lock))

    def hold_run(self, signals: SignalHandler | None = None) -> Result | None:
        """Take the run's lock, and return the result if another process has finished the run.

        The recipe and the images of a finished run must be the same as here.

        Args:
            signals: Signal handler whose `request_stop` is called if the folder is moved or removed
                later, so that the run stops as after a signal.

        Raises:
            UserError: Another process holds the lock, or has made a different run in the folder.
        """
        lock = self.run.lock(signals.request_stop) if signals else self.run.lock()
        self.hold(lock)
        return distributed.broadcast_from_main(
            self.accelerator, lambda: identity.read_finished(self.run, fingerprint)
        )


@contextmanager
def session(run: Run) -> Iterator[Session]:
    """Hold the processes and resources of a run during the body.

    compute.precision=auto is replaced by the precision of the machine. If a process lags behind the
    others for more than compute.patience seconds, all processes are ended. Data loaders should be
    wrapped in the accelerator's `watch_loader`, so that waiting for data is noticed, too.

    Args:
        run: The run, or the recipe and folder for which `embed` writes features.

    Raises:
        UserError: The processes do not suit the recipe, a file cannot be read or written, or memory
            or open files are used up.
    """
    try:
        with ExitStack() as stack:
            stack.enter_context(use_plugin_rows(run.recipe.plugin_rows))
            compute = run.recipe.compute
            accelerator = stack.enter_context(distributed.accelerator_session(compute))
            rank, processes = accelerator.process_index, accelerator.num_processes
            watchdog = stack.enter_context(Watchdog(rank, processes, compute.patience))
            accelerator.watch_loader = watchdog.watch_loader
            stack.enter_context(report_lost_workers())
            yield Session(run, accelerator, watchdog, stack)
    except (OSError, RuntimeError, MemoryError) as error:
        shortage = describe_shortage(error, resources.largest_sizes(run.recipe))
        if shortage:
            raise UserError(shortage) from None
        if not isinstance(error, OSError):
            raise
        raise _file_error(error, run.recipe, run.folder) from None


def _file_error(error: OSError, recipe: Recipe, folder: Path) -> UserError:
    """Return a one-line error for a file that cannot be read or written.

    Args:
        error: Error of the operating system.
        recipe: Recipe of the run.
        folder: Folder of the run. The message names out= only for files in this folder.
    """
    file = error.filename or folder
    reason = error.strerror or str(error)
    is_in_folder = Path(os.fsdecode(file)).resolve().is_relative_to(folder.resolve())
    if is_in_folder:
        return UserError(f"out={recipe.out}: {file}: {reason}")
    return UserError(f"{file}: {reason}")
