"""The run folder: the names in it, the recipe's hash, the lock, metrics.jsonl, result.json.

runs/<name>/  recipe.yaml  environment.json  metrics.jsonl  log.txt  checkpoints/  export/  figures/
tensorboard/  result.json
              hub/ and hub.json where it is pushed
"""

import errno
import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from .. import hub_files
from ..config import init_source, parsing
from ..config.parsing import flatten
from ..config.resolve import read, resolve
from ..config.schema import IN_RESULT, Recipe, computed_values, counts, dump
from ..errors import UserError
from . import lock

# What a run writes in its folder, and removes
OWN = (
    *(
        "recipe.yaml",
        "environment.json",
        "metrics.jsonl",
        "metrics.damaged",
        "log.txt",
        "result.json",
        "predictions.npz",
    ),
    *(
        "not_finite.json",
        "checkpoints",
        "export",
        "figures",
        "tensorboard",
        "lock",
        "hub.json",
        "hub",
    ),
    *("hub/lock", "hub/log.txt"),
)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text whole, or leave it as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    with beside.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def append(path: Path, content: bytes) -> None:
    """Add to a file, or leave it as it was.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            file.truncate(before)
            raise


def recipe_hash(recipe: Recipe) -> str:
    """Names what is computed; equal hashes are the same run. Where a local `init` lies is not in
    it: environment.json knows the weights."""
    return _hash(computed_values(recipe))


def written_hash(written: dict[str, Any]) -> str:
    """The same of a recipe as a run's folder has it, {dotted key: value}, whether or not its keys
    are still those of today."""
    return _hash({key: value for key, value in written.items() if counts(key)})


def _hash(known: dict[str, Any]) -> str:
    known = known | ({"init": "local"} if init_source.is_local(str(known.get("init"))) else {})
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _hash_of_file(path: Path) -> str:
    """`recipe_hash` of a recipe.yaml, over the keys that it names: an older version's had fewer."""
    recipe, named = read(path), flatten(parsing.load_yaml(path))
    return _hash({key: value for key, value in computed_values(recipe).items() if key in named})


def _in_result(recipe: Recipe) -> dict[str, Any]:
    """{key: value} of what is not computed but changes what the result says."""
    flat = flatten(asdict(recipe))
    return {key: flat[key] for key in IN_RESULT}


def _read(path: Path, shape: dict[Any, Any]) -> dict[str, Any]:
    """A JSON object of the run folder, of that shape."""
    with suppress(OSError, ValueError):
        return cast(dict[str, Any], parsing.read_json(path, shape))
    raise UserError(f"{path} is damaged; remove it, or take another name=")


def _row(line: str) -> dict[str, Any] | None:
    """A row of metrics.jsonl; None for anything else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return (
        row
        if parsing.fits(row, {"step": int}) and parsing.fits(row, {str: parsing.NUMBER})
        else None
    )


class Run:
    """A run's folder and what is written in it. Making one creates nothing."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.held: lock.HeldFolder | None = None  # while this process holds the lock
        self.moved = ""  # what became of the folder meanwhile, in words
        self._lie_in(Path(recipe.out) / recipe.name)

    def _lie_in(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints, self.export = self.folder / "checkpoints", self.folder / "export"
        self.figures, self.tensorboard = self.folder / "figures", self.folder / "tensorboard"
        self.predictions = self.folder / "predictions.npz"
        self.outbox, self.ledger = self.folder / "hub", self.folder / "hub.json"
        self.metrics, self.log = self.folder / "metrics.jsonl", self.folder / "log.txt"

    def reconcile(self) -> Recipe:
        """The recipe to go on with: the folder's own `precision` where this one's is auto, and its
        commit of the Hub where this one names no commit.

        Raises:
            UserError: the folder holds a run of another recipe; the differing keys are named.
        """
        path = self.folder / "recipe.yaml"
        if not path.exists():
            self._check_new(path)
            self._pin(None)
            return self.recipe
        if not self.recipe.resume:
            raise UserError(
                f"resume=false: {self.folder} holds a run already; take another name= or remove it"
            )
        self.check_unedited(path)
        plugin = [f"plugin={self.recipe.plugin}"] if self.recipe.plugin else []
        here = resolve([f"recipe={path}", f"out={self.recipe.out}", *plugin], here=False)
        if self.recipe.compute.precision == "auto":
            self.recipe.compute.precision = here.compute.precision
        self._pin(here.init)
        self._find_again(here)
        was, now = computed_values(here), computed_values(self.recipe)
        differ = [f"{k} ({was.get(k)} there, {now[k]} here)" for k in now if now[k] != was.get(k)]
        if differ:
            text = f"{self.folder} holds another recipe: {', '.join(differ)}"
            raise UserError(f"name={self.recipe.name}: {text}; take another name=")
        return self.recipe

    def _check_new(self, path: Path) -> None:
        """That the folder holds no run whose recipe was taken away."""
        if left := [
            name for name in ("result.json", "environment.json") if (self.folder / name).exists()
        ]:
            text = (
                f"{path} is missing, so what {left[0]} belongs to is not known; take another name="
            )
            raise UserError(f"name={self.recipe.name}: {text}")

    def check_unedited(self, path: Path) -> None:
        """That recipe.yaml is the one that the run was made with, as far as its other files tell.

        Raises:
            UserError: it was edited since, or a file is another run's.
        """
        found = [
            file
            for name in ("result.json", "environment.json")
            if (file := self.folder / name).exists()
        ]
        known = {file: _read(file, {}).get("recipe") for file in found}
        for file, recorded in known.items():
            if recorded is not None and recorded != _hash_of_file(path):
                text = f"{path} is not the recipe that {file.name} was made with; restore it, or take another name="
                raise UserError(f"name={self.recipe.name}: {text}")

    def _pin(self, before: str | None) -> None:
        """Give first weights from the Hub their commit: the folder's own, or what the revision
        means now."""
        place = self.recipe.init
        if place.startswith(hub_files.SCHEME) and not hub_files.pinned(place):
            same = before is not None and hub_files.split(before)[0] == hub_files.split(place)[0]
            self.recipe.init = before if before and same else hub_files.pin(place, f"init={place}")

    def _find_again(self, here: Recipe) -> None:
        """Let a local `init` lie elsewhere than it did if the weights there are those that the run
        began with."""
        if here.init != self.recipe.init and (file := init_source.weights_hash(self.recipe.init)):
            here.init = (
                self.recipe.init
                if file == self.initial_weights().get("init", {}).get("file")
                else here.init
            )

    def environment(self) -> dict[str, Any]:
        """What environment.json says.

        Raises:
            UserError: it is damaged, or not there.
        """
        return _read(self.folder / "environment.json", parsing.ENVIRONMENT)

    def initial_weights(self) -> dict[str, Any]:
        """What environment.json says of the first weights: which they are (`init`), and what they
        took (`before`)."""
        path = self.folder / "environment.json"
        known = _read(path, parsing.ENVIRONMENT) if path.exists() else {}
        return {key: known[key] for key in ("init", "before") if isinstance(known.get(key), dict)}

    def open(self, environment: dict[str, Any]) -> None:
        """Create the folder, or check that its data are these; write recipe.yaml and
        environment.json.

        Raises:
            UserError: the folder cannot be written, or was made with other data.
        """
        try:
            for folder in (self.figures, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / "environment.json"
            environment = (
                environment
                | self.file_hashes()
                | {"recipe": recipe_hash(self.recipe), "options": _in_result(self.recipe)}
            )
            if path.exists():
                for key in ("data", "init", "plugin"):
                    self.compare(key, environment.get(key) or {})
            write_atomically(self.folder / "recipe.yaml", dump(self.recipe))
            write_atomically(path, json.dumps(environment, indent=2) + "\n")
        except OSError as error:
            raise UserError(
                f"out={self.recipe.out}: {self.folder} cannot be written: {error.strerror}"
            ) from None

    def result(self) -> dict[str, Any] | None:
        """The finished run's result, or None."""
        path = self.folder / "result.json"
        return _read(path, parsing.RESULT) if path.exists() else None

    def file_hashes(self) -> dict[str, Any]:
        """What environment.json says of the files that this recipe names: which they are."""
        named = {"plugin": ("text", self.recipe.plugin), "real": ("file", self.recipe.eval.real)}
        return {
            key: {kind: init_source.file_stamp(Path(place))}
            for key, (kind, place) in named.items()
            if place
        }

    def recorded(self, key: str) -> dict[str, Any]:
        """What environment.json says of the images, the first weights and the files that the run
        was made with."""
        path = self.folder / "environment.json"
        known = _read(path, parsing.ENVIRONMENT | {"data": {str: object}}).get(key) or {}
        if not isinstance(known, dict):
            raise UserError(f"{path} is damaged; remove it, or take another name=")
        return known

    def compare(self, key: str, now: dict[str, Any]) -> None:
        """That the images (`data`), first weights (`init`) or a file (`plugin`, `real`) are those
        that the run was made with, as far as both are known.

        Raises:
            UserError: they are others, or a plugin was added or left out.
        """
        was, recipe = self.recorded(key), self.recipe
        differ = [name for name in was.keys() & now.keys() if was[name] != now[name]]
        if not differ and (key != "plugin" or was.keys() == now.keys()):
            return
        images = f"data.path={recipe.data.path}" if recipe.data.path else f"data={recipe.data.name}"
        subject = {
            "data": f"{images}: the images of {', '.join(sorted(differ))}",
            "init": f"init={recipe.init}: the weights",
            "plugin": f"plugin={recipe.plugin}: its text",
            "real": f"eval.real={recipe.eval.real}: the labels",
        }
        raise UserError(
            f"{subject[key]} differ from what {self.folder} was made with; take another name="
        )

    def check_options(self) -> None:
        """That the finished run's result says what this recipe asks to be told.

        Raises:
            UserError: it was made with other values of IN_RESULT.
        """
        was, now = self.recorded("options"), _in_result(self.recipe)
        was = was or _in_result(read(self.folder / "recipe.yaml"))
        # the file is compared
        was["eval.real"], now["eval.real"] = bool(was.get("eval.real")), bool(now["eval.real"])
        differ = [
            f"{key} ({was.get(key)} there, {now[key]} here)"
            for key in IN_RESULT
            if was.get(key) != now[key]
        ]
        if differ:
            measure = f", or tools/evaluate.py recipe=evaluate init={self.folder} probe.measures=[top1] for the test split"
            text = f"{self.folder} has finished with other values: {', '.join(differ)}; take another name="
            raise UserError(
                f"name={self.recipe.name}: {text}{measure if self.recipe.eval.test else ''}"
            )

    def finish(self, result: dict[str, Any]) -> None:
        """Write result.json.

        Raises:
            UserError: as `check_not_moved`.
        """
        self.check_not_moved()
        write_atomically(self.folder / "result.json", json.dumps(result, indent=2) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; what is none, as a last line that a kill cut short, is left
        out."""
        lines = (
            self.metrics.read_text(errors="replace").splitlines() if self.metrics.exists() else []
        )
        return [row for line in lines if (row := _row(line)) is not None]

    def truncate_metrics(self, step: int) -> list[dict[str, Any]]:
        """Drop the rows after `step`, so that a resumed run writes them again; the rows that stay.
        A file damaged before its last line is kept beside."""
        lines = (
            self.metrics.read_text(errors="replace").splitlines() if self.metrics.exists() else []
        )
        if None in map(_row, lines[:-1]):
            shutil.copyfile(self.metrics, self.metrics.with_suffix(".damaged"))
            self.write_log(
                f"warning: {self.metrics.name} was damaged, and is kept as {self.metrics.stem}.damaged"
            )
        kept = [row for row in self.rows() if row["step"] <= step]
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in kept))
        return kept

    def append(self, row: dict[str, Any]) -> None:
        """A line for metrics.jsonl.

        Raises:
            OSError: it cannot be written, and is not there in part.
        """
        self._check_there()
        append(self.metrics, f"{json.dumps(row)}\n".encode())

    def write_log(self, text: str) -> None:
        """A line for log.txt, in the same way."""
        self._check_there()
        append(self.log, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n".encode(errors="replace"))

    @contextmanager
    def lock(self, gone: Callable[[str], None] = lambda why: None) -> Iterator[None]:
        """Keep a second writer out while the body runs; `gone` is told if the folder is moved or
        removed meanwhile.

        The operating system drops the lock with the process, however it ends, so a killed run can
        be started again at once; the host and the heartbeat written inside keep out a machine whose
        locks do not reach this one. Whether that is alive is seen by waiting, not told from clocks,
        which differ.

        Raises:
            UserError: another process that is alive holds the folder; or what the run writes there
            is not its own.
        """
        self.check_own()
        with lock.hold(
            self.folder, self.recipe.out, lambda: gone(f"the loss of its folder {self.folder}")
        ) as self.held:
            try:
                yield
            finally:
                self.held = None

    def check_own(self) -> None:
        """That what is written in the folder is the run's own.

        Raises:
            UserError: something there is a link, or another run; or the folder lies in another
            run's.
        """
        lock.check_own(f"name={self.recipe.name}", self.folder, OWN)

    def follow_move(self) -> None:
        """Go on where the folder was moved to, as far as that is known; `check_not_moved` then tells of
        it."""
        if self.held is None or self.held.is_in_place():
            return
        before, now = self.folder, self.held.current_path()
        self.moved = f"{before} was removed while the run wrote it"
        if now is not None:
            self.moved = f"{before} was moved to {now} while the run wrote it; name={now.name} out={now.parent} goes on there"
            self.held.folder = now
            self._lie_in(now)

    def check_not_moved(self) -> None:
        """That the folder is where it was.

        Raises:
            UserError: it was moved or removed.
        """
        self.follow_move()
        if self.moved:
            raise UserError(f"name={self.recipe.name}: {self.moved}")

    def _check_there(self) -> None:
        """For one line.

        Raises:
            OSError: the folder is not where it was; another one may be.
        """
        if self.held is not None and not self.held.is_in_place():
            raise FileNotFoundError(
                errno.ENOENT, "moved or removed while the run wrote it", str(self.folder)
            )


def environment(extra: dict[str, Any]) -> dict[str, Any]:
    """Versions, git revision and hardware, and what the caller adds (threads, precision, device,
    data)."""
    packages = ("torch", "torchvision", "timm", "accelerate", "datasets", "transformers", "numpy")
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "revision": _revision(),
        "host": {"system": platform.platform(), "cpu": _cpu(), "cores": os.cpu_count()},
        **extra,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor()


def _revision() -> str | None:
    """The git revision of this code, with + if it was changed since; None outside git."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None
