"""The run folder: names of its files, metrics.jsonl, log.txt, result.json and the lock. No torch.

runs/NAME/
    recipe.yaml  environment.json  metrics.jsonl  log.txt  result.json
    checkpoints/  export/  figures/  tensorboard/  trackers/ (log.trackers)
    predictions.npz (of the test split)  not_finite.json (skipped updates)  report.html
    trained_on.safetensors (hashes of the images that it has trained on)
    compared.safetensors (of which held-out images probes of fresh weights are right)
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
from ..recipe.identity import FACTS
from ..recipe.records.run import Environment, Result
from ..recipe.schema import Recipe, dump
from . import identity, lock
from .files import append, remove, sweep, write_atomically
from .identity import recipe_hash

TRAINED_ON = "trained_on.safetensors"
COMPARED = "compared.safetensors"
# what a run may leave before it has begun (identity.is_begun): the next one would be taken for it
LEFT = (COMPARED, TRAINED_ON, "log.txt", "not_finite.json", "tensorboard", "trackers")
# Of files of these forms, what killed processes have left is removed by the next that takes the
# lock; not of the page, which a report may be writing without it
SWEPT = re.compile(r"\w+\.(yaml|json|jsonl|npz|safetensors)")
EXACT = 2**53  # above which floats do not count by ones


def open_run(folder: Path) -> "Run":
    """The run in a folder; its images need not be here.

    Raises:
        UserError: there is none, or its recipe.yaml cannot be read.
    """
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder} is no run: it holds no recipe.yaml")
    recipe, place = recipe_files.read(folder / "recipe.yaml"), folder.resolve()
    recipe.out, recipe.name = str(place.parent), place.name
    return Run(recipe)


def parse_row(line: str) -> Row | None:
    """A row of metrics.jsonl; None for anything else. Files have millions: a record would be
    checked at half the speed."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return None
    numbers = (
        type(value) is float or (type(value) is int and abs(value) < EXACT)
        for value in row.values()
    )
    return row if all(numbers) else None


class Run:
    """A run's recipe and its folder. Constructing one creates nothing on the disk.

    Attributes:
        recipe: completed by `reconcile`.
        folder: and the paths in it: `checkpoints`, `export`, `figures`, `metrics`, ...
        recipe_file: what environment.json records of the recipe file (load.recipe_file); None
            where the recipe came from none.
        printed: warnings of before the folder was there, which `open` logs.
        signal: the name of a signal that came while it trained, or too late to stop it.
        held: the locked folder, while this process holds the lock.
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
        """Complete the recipe from the folder (precision, commits) and check that both agree.

        Raises:
            UserError: as `identity.reconcile`.
        """
        return identity.reconcile(self.recipe, self.folder)

    def environment(self) -> Environment:
        """The content of environment.json.

        Raises:
            UserError: it is damaged or missing.
        """
        return identity.read_record(self.folder / "environment.json", Environment)

    def open(self, environment: dict[str, Any]) -> None:
        """Create the folder, or check its images, initial weights and plugin; write recipe.yaml and
        environment.json. Of a run that had not begun nothing is left (`LEFT`).

        Raises:
            UserError: the folder cannot be written, or was made with others.
        """
        path = self.folder / "environment.json"
        environment = environment | identity.file_hashes(self.recipe)
        environment["recipe"] = recipe_hash(self.recipe)
        if self.recipe.plugin:
            environment["free"] = identity.free_keys(self.recipe)
            target = getattr(self.recipe, "target", None)
            environment["declared"] = declaration.to_record(self.recipe.objective, target)
        environment["options"] = identity.result_options(self.recipe)
        known = self.environment() if path.exists() and identity.is_begun(self.folder) else None
        origin = self.recipe_file
        if known:  # of the first start, also where the run is resumed from its recipe.yaml
            origin = known.recipe_file.content() if known.recipe_file else None
        if origin:
            environment["recipe_file"] = origin
        try:
            for folder in (self.figures, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
            if known:
                now = {kind: environment.get(kind) or {} for kind in FACTS}
                identity.check_facts(self.recipe, self.folder, now)
            for name in LEFT if path.exists() and not known else ():
                remove(self.folder / name)
            write_atomically(self.folder / "recipe.yaml", dump(self.recipe))
            write_atomically(path, json.dumps(environment, indent=2) + "\n")
            for line in self.printed:
                self.write_log(line)
        except OSError as error:
            text = f"{self.folder} cannot be written: {error.strerror}"
            raise UserError(f"out={self.recipe.out}: {text}") from None

    def result(self) -> Result | None:
        """The content of result.json; None if the run has not finished.

        Raises:
            UserError: it is damaged.
        """
        path = self.folder / "result.json"
        return identity.read_record(path, Result) if path.exists() else None

    def finish(self, result: Result) -> None:
        """Write result.json.

        Raises:
            UserError: as `check_not_moved`.
        """
        self.check_not_moved()
        write_atomically(self.folder / "result.json", json.dumps(result.content(), indent=2) + "\n")

    def rows(self) -> list[Row]:
        """The rows of metrics.jsonl, without lines that are none, such as a last line cut short by
        a kill."""
        if not self.metrics.is_file():
            return []
        rows = map(parse_row, self.metrics.read_text(errors="replace").splitlines())
        return [row for row in rows if row is not None]

    def truncate_metrics(self, step: int) -> list[Row]:
        """Drop the rows after `step`, which a resumed run writes again; the remaining rows."""
        rows = [row for row in self.rows() if row["step"] <= step]
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def append(self, row: Row) -> None:
        """Append a row to metrics.jsonl, or leave the file as it was.

        Raises:
            OSError: it cannot be written.
        """
        self._check_in_place()
        append(self.metrics, f"{json.dumps(row)}\n".encode())

    def write_log(self, text: str) -> None:
        """Append a dated line to log.txt; as `append`."""
        self._check_in_place()
        append(self.log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode(errors="replace"))

    def warn(self, text: str) -> None:
        """Print a warning and write it to log.txt, where its page finds it; as `append`."""
        print(f"warning: {text}", flush=True)
        self.write_log(f"warning: {text}")

    @contextmanager
    def lock(self, on_lost: Callable[[str], None] = lambda why: None) -> Iterator[None]:
        """Keep other writers out while the body runs (lock.hold).

        Args:
            on_lost: called with the reason if the folder is moved or removed meanwhile, which the
                next line or row that is to be written in it notices.

        Raises:
            UserError: another process or thread holds the folder, or it lies in another
                run's.
        """
        lock.check_outside(self.recipe.name, self.folder)
        existed = self.folder.exists()
        with lock.hold(self.folder, self.recipe.out) as self.held:
            self.on_lost = on_lost
            sweep(self.folder, SWEPT, delete=Path.unlink)  # a folder of such a name is none of ours
            try:
                yield
            except UserError:
                # refused before it did anything: no run is listed that there never was
                if not existed and not self.metrics.exists() and not self.log.exists():
                    shutil.rmtree(self.folder, ignore_errors=True)
                raise
            finally:
                self.held = None

    def check_not_moved(self) -> None:
        """Check that the folder is where it was.

        Raises:
            UserError: it was moved or removed.
        """
        if self.is_moved:
            text = f"{self.folder} was moved or removed while the run wrote it"
            hint = "with name= and out= of its new place it resumes from its last checkpoint"
            raise UserError(f"name={self.recipe.name}: {text}; {hint}")

    @property
    def is_moved(self) -> bool:
        """Whether the folder that this process writes is not where it was."""
        return self.held is not None and not self.held.is_in_place()

    def _check_in_place(self) -> None:
        """As `check_not_moved`, before a line is written.

        Raises:
            OSError: the folder is not where it was; another one may be there.
        """
        if self.is_moved:
            self.on_lost(f"the loss of its folder {self.folder}")
            text = "moved or removed while the run wrote it"
            raise FileNotFoundError(errno.ENOENT, text, str(self.folder))
