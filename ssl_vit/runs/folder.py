"""Read and write the run folder: metrics.jsonl, log.txt, result.json and the lock. No torch.

runs/NAME/
    recipe.yaml  environment.json  metrics.jsonl  log.txt  result.json
    checkpoints/  export/  figures/  tensorboard/  trackers/ (log.trackers)
    predictions.npz (for the test split)  not_finite.json (skipped updates)  report.html
    trained_on.safetensors (hashes of the images that the run has trained on)
    compared.safetensors (which held-out images the probes of untrained weights classify correctly)
    hub/  hub.json (uploads)
"""

import errno
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..callbacks import Row
from ..errors import UserError
from ..recipe import declaration, recipe_files
from ..recipe.records.run import Environment, Result
from ..recipe.schema import Recipe, dump
from . import identity, lock
from .files import append, remove, sweep, write_atomically
from .identity import FACTS, recipe_hash

TRAINED_ON = "trained_on.safetensors"
COMPARED = "compared.safetensors"
# Files of a run that failed before it had begun (identity.is_begun). The next run removes these
# files, because they would be mistaken for its own.
LEFT = (COMPARED, TRAINED_ON, "log.txt", "not_finite.json", "tensorboard", "trackers")
# Unfinished files with these names, left by killed processes, are removed by the next process that
# takes the lock. The page report.html is not swept: a report may be writing it without the lock.
SWEPT = re.compile(r"\w+\.(yaml|json|jsonl|npz|safetensors)")
EXACT = 2**53  # above this number, floats do not represent every integer


def open_run(folder: Path) -> "Run":
    """Open the run in a folder. The run's images need not exist on this machine.

    Raises:
        UserError: The folder holds no run, or recipe.yaml cannot be read.
    """
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder}: no run here, because recipe.yaml is missing. Check the path.")
    recipe = recipe_files.read(folder / "recipe.yaml")
    resolved = folder.resolve()
    recipe.out, recipe.name = str(resolved.parent), resolved.name
    return Run(recipe)


def parse_row(line: str) -> Row | None:
    """Parse a line of metrics.jsonl, or return None if the line is invalid.

    A valid row has an integer `step`, and every value is a number. Integers must be so small that a
    float can hold them exactly. An example is `{"step": 100, "loss": 0.5}`.
    """
    # Do not use `records.read`, which takes twice as long, because a file may have millions of rows
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    for value in row.values():
        is_exact = type(value) is int and abs(value) < EXACT  # False for a bool
        if type(value) is not float and not is_exact:
            return None
    return row


class Run:
    """Recipe and folder of a run. The constructor writes nothing to the disk.

    Attributes:
        recipe: Recipe, completed by `reconcile`.
        folder: Folder of the run. `checkpoints`, `export`, `metrics` and so on are paths in it.
        recipe_file: Description of the recipe file for environment.json (load.recipe_file). None if
            the recipe came from no file.
        printed: Warnings that were printed before the folder existed. `open` logs the warnings.
        signal: Name of a signal that came during training, or too late to stop training.
        held: The locked folder, while this process holds the lock.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.recipe_file: dict[str, Any] | None = None
        self.printed: list[str] = []
        self.signal = ""
        self.held: lock.HeldFolder | None = None
        self.on_lost: Callable[[str], None] = lambda why: None
        self.folder = folder = Path(recipe.out) / recipe.name
        self.checkpoints = folder / "checkpoints"
        self.export = folder / "export"
        self.figures = folder / "figures"
        self.tensorboard = folder / "tensorboard"
        self.predictions = folder / "predictions.npz"
        self.outbox = folder / "hub"
        self.ledger = folder / "hub.json"
        self.metrics = folder / "metrics.jsonl"
        self.log = folder / "log.txt"

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def reconcile(self) -> Recipe:
        """Complete the recipe from the folder, and check that the folder holds the same run.

        Raises:
            UserError: The folder, or RUN of resume=RUN@STEP, has another recipe. Or RUN has no
                checkpoint of STEP.
        """
        return identity.reconcile(self.recipe, self.folder)

    def environment(self) -> Environment:
        """Return the content of environment.json.

        Raises:
            UserError: The file is damaged or missing.
        """
        return identity.read_record(self.folder / "environment.json", Environment)

    def open(self, environment: dict[str, Any]) -> None:
        """Create the folder of the run, and write recipe.yaml and environment.json.

        If a run has begun in the folder, check that this run has the same images, weights and
        plugin. If an earlier run failed before it had begun, remove the files of the earlier run
        (`LEFT`).

        Args:
            environment: Content of environment.json. The method adds records about the recipe.

        Raises:
            UserError: The folder cannot be written, or was made with other images, weights or
                plugin.
        """
        path = self.folder / "environment.json"
        environment = environment | identity.file_hashes(self.recipe)
        environment["recipe"] = recipe_hash(self.recipe)
        if self.recipe.plugin:
            environment["free"] = identity.keys_without_effect(self.recipe)
            target = getattr(self.recipe, "target", None)
            environment["declared"] = declaration.to_record(self.recipe.objective, target)
        environment["options"] = identity.result_options(self.recipe)
        is_resumed = path.exists() and identity.is_begun(self.folder)
        before = self.environment() if is_resumed else None
        recipe_file = self.recipe_file
        if before:  # keep the recipe file of the first start, even if the run resumes from another
            recipe_file = before.recipe_file.content() if before.recipe_file else None
        if recipe_file:
            environment["recipe_file"] = recipe_file
        try:
            for folder in (self.figures, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
            if before:
                now = {kind: environment.get(kind) or {} for kind in FACTS}
                identity.check_facts(self.recipe, self.folder, now)
            if path.exists() and not before:
                for name in LEFT:
                    remove(self.folder / name)
            write_atomically(self.folder / "recipe.yaml", dump(self.recipe))
            write_atomically(path, json.dumps(environment, indent=2) + "\n")
            for line in self.printed:
                self.write_log(line)
        except OSError as error:
            raise UserError(
                f"out={self.recipe.out}: {self.folder} cannot be written: {error.strerror}"
            ) from None

    def result(self) -> Result | None:
        """Return the content of result.json, or None if the run has not finished.

        Raises:
            UserError: The file is damaged.
        """
        path = self.folder / "result.json"
        return identity.read_record(path, Result) if path.exists() else None

    def finish(self, result: Result) -> None:
        """Write result.json.

        Raises:
            UserError: The folder was moved or removed.
        """
        self.check_not_moved()
        write_atomically(self.folder / "result.json", json.dumps(result.content(), indent=2) + "\n")

    def rows(self) -> list[Row]:
        """Return the rows of metrics.jsonl without invalid lines.

        A killed process can leave an incomplete last line.
        """
        if not self.metrics.is_file():
            return []
        rows = map(parse_row, self.metrics.read_text(errors="replace").splitlines())
        return [row for row in rows if row is not None]

    def truncate_metrics(self, step: int) -> list[Row]:
        """Drop the rows after `step`, which a resumed run writes again. Return the other rows."""
        rows = [row for row in self.rows() if row["step"] <= step]
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def append(self, row: Row) -> None:
        """Append a row to metrics.jsonl, or leave the file unchanged.

        Raises:
            OSError: The file cannot be written.
        """
        self._check_in_place()
        append(self.metrics, f"{json.dumps(row)}\n".encode())

    def write_log(self, text: str) -> None:
        """Append a dated line to log.txt.

        Raises:
            OSError: The file cannot be written.
        """
        self._check_in_place()
        append(self.log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode(errors="replace"))

    def warn(self, text: str) -> None:
        """Print a warning and write it to log.txt. The run's page shows the warnings of log.txt.

        Raises:
            OSError: log.txt cannot be written.
        """
        print(f"warning: {text}", flush=True)
        self.write_log(f"warning: {text}")

    @contextmanager
    def lock(self, on_lost: Callable[[str], None] = lambda why: None) -> Iterator[None]:
        """Keep other writers out of the folder while the `with` block runs (lock.hold).

        First, unfinished files of killed processes are removed. If the block raises UserError, a
        folder that this method created is removed again, unless the run has metrics or a log.

        Args:
            on_lost: Function that is called if the folder was moved or removed, and a line or row
                can therefore not be written. The argument is the reason as text. The function may
                stop training.

        Raises:
            UserError: Another process or thread holds the folder, or the folder lies in the folder
                of another run.
        """
        lock.check_outside(self.recipe.name, self.folder)
        existed = self.folder.exists()
        with lock.hold(self.folder, self.recipe.out) as self.held:
            self.on_lost = on_lost
            # Remove only files (`Path.unlink`). A run never makes a folder with such a name, so the
            # folder is the user's.
            sweep(self.folder, SWEPT, delete=Path.unlink)
            try:
                yield
            except UserError:
                # a run that was refused before it began must not appear in lists of runs
                if not existed and not self.metrics.exists() and not self.log.exists():
                    shutil.rmtree(self.folder, ignore_errors=True)
                raise
            finally:
                self.held = None

    def check_not_moved(self) -> None:
        """Check that the folder was not moved or removed.

        Raises:
            UserError: The folder was moved or removed.
        """
        if self.is_moved:
            raise UserError(
                f"name={self.recipe.name}: {self.folder} was moved or removed during the run. "
                "To resume a moved run, use name= and out= of the new place."
            )

    @property
    def is_moved(self) -> bool:
        """Return whether the folder that this process writes was moved or removed."""
        return self.held is not None and not self.held.is_in_place()

    def _check_in_place(self) -> None:
        """Check that the folder was not moved or removed, before a line is written.

        If the folder was moved or removed, call the function `on_lost` that `lock` got, then raise
        an error.

        Raises:
            OSError: The folder was moved or removed. Another folder may now have the same path.
        """
        if self.is_moved:
            self.on_lost(f"the loss of the folder {self.folder}")
            raise FileNotFoundError(
                errno.ENOENT, "the folder was moved or removed during the run", str(self.folder)
            )
