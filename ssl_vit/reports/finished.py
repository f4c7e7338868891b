"""What a study's folder holds: its tasks, which of them are finished, and who was right on which
test image. No torch here.

Legend: M labelled test images.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from ..config import parsing
from ..config.fields import is_name
from ..config.schema import Recipe
from ..errors import UserError
from ..runs.folder import Run
from . import belonging

UNREAD = (
    OSError,
    ValueError,
    LookupError,
    EOFError,
    TypeError,
    RuntimeError,
    MemoryError,
    OverflowError,
)  # of numpy and zipfile
REPORT = ("final", "baseline", "candidate")
TASK = ("name", "part", "tool", "arm", "seed", "values", "needs")


class Finished(NamedTuple):
    """A finished task: who it is, and what it left."""

    name: str
    part: str
    arm: str
    seed: int
    values: dict[str, Any]
    needs: list[str]
    run: Run
    result: dict[str, Any]
    environment: dict[str, Any]

    def metric(self, name: str) -> float:
        """A figure of result.json.

        Raises:
            UserError: it is not there.
        """
        if name not in self.result["metrics"]:
            raise UserError(
                f"{self.run.folder}/result.json tells no {name}, which the report asks of part {self.part}"
            )
        return float(self.result["metrics"][name]["value"])

    def on(self, split: str) -> list[str]:
        """Names of what was measured on a split."""
        return [name for name, entry in self.result["metrics"].items() if entry["split"] == split]


class Study(NamedTuple):
    """`about` is study.json; `right` {task: booleans (M,)} of the final part and the extra ones."""

    folder: Path
    about: dict[str, Any]
    done: dict[str, Finished]
    missing: list[str]
    right: dict[str, np.ndarray]
    foreign: Mapping[str, str] = MappingProxyType(
        {}
    )  # task -> why the run in its folder is not the planned one, and is left out

    @property
    def report(self) -> dict[str, Any]:
        return self.about["report"]

    @property
    def extra(self) -> list[str]:
        return self.report.get("extra") or []

    @property
    def probes(self) -> list[str]:
        return self.report.get("probes") or []

    @property
    def vary(self) -> dict[str, dict[str, Any]]:
        """{arm: {key: value}} of the arms that differ in values of keys."""
        return self.about.get("vary") or {}

    @property
    def trained(self) -> list[str]:
        """The parts that pre-train."""
        return list(
            dict.fromkeys(
                task["part"] for task in self.about["tasks"] if task["tool"] == "pretrain"
            )
        )

    @property
    def reported(self) -> list[str]:
        """The parts that the report is about."""
        final = self.report.get("final")
        return [*self.extra, *([final] if final else []), *self.probes]

    def runs(self, part: str, arm: str) -> dict[int, Finished]:
        """{seed: finished run} of a part without a grid."""
        return {run.seed: run for run in self.done.values() if (run.part, run.arm) == (part, arm)}

    def before(self, run: Finished) -> dict[str, Finished]:
        """The runs that this one's weights came through, sweeps left out."""
        found = {
            name: self.done[name]
            for name in run.needs
            if name in self.done and not self.done[name].values
        }
        for one in list(found.values()):
            found |= self.before(one)
        return found


def read(folder: Path) -> Study:
    """A study as far as it is finished.

    Raises:
        UserError: as `report.write`.
    """
    if not (folder / "study.json").exists():
        raise UserError(f"{folder} is no study: it holds no study.json; tools/study.py makes one")
    about = _object(folder / "study.json", parsing.STUDY)
    if not _in_order(about["tasks"]):
        raise _damaged(folder / "study.json")
    if lacking := [key for key in REPORT if key not in about["report"] and not about.get("vary")]:
        raise UserError(
            f"{folder}: its study asks for no report: under report: it says no {' and no '.join(lacking)}"
        )
    found = [_finished(folder, task) for task in about["tasks"]]
    done = {run.name: run for run in found if run}
    tasks = {task["name"]: task for task in about["tasks"]}
    strange = {
        name: belonging.foreign(run.run.folder, tasks[name], about["tasks"], run.result)
        for name, run in done.items()
    }
    strange = {name: why for name, why in strange.items() if why}
    done = {name: run for name, run in done.items() if name not in strange}
    missing = [name for name in tasks if name not in done and name not in strange]
    study = Study(folder, about, done, missing, {}, strange)
    (_check_varied if study.vary else _check_arms)(study)
    _check_fingerprints(study)
    return study if study.vary else study._replace(right=_right(_tested(study)))


def _in_order(tasks: list[dict[str, Any]]) -> bool:
    """Whether each task has a name of its own, which is a folder's, and comes after those that it
    needs."""
    known: set[str] = set()
    for task in tasks:
        if (
            task["name"] in known
            or not is_name(task["name"])
            or not known.issuperset(task["needs"])
        ):
            return False
        known.add(task["name"])
    return True


def _object(path: Path, shape: dict[str, Any]) -> dict[str, Any]:
    """A JSON object of that shape."""
    with suppress(OSError, ValueError):
        return cast(dict[str, Any], parsing.read_json(path, shape))
    raise _damaged(path)


def _damaged(path: Path) -> UserError:
    what = "it" if path.name == "study.json" else "its folder"
    return UserError(
        f"{path} is missing or damaged; remove {what} and give the study's command again"
    )


def _sound(result: dict[str, Any]) -> bool:
    """Whether a result tells what the report reads of every run."""
    return {"images", "exaflop", "device_hours"} <= result.keys()


def _finished(folder: Path, task: dict[str, Any]) -> Finished | None:
    run = Run(Recipe(out=str(folder), name=task["name"]))
    result = run.result()
    if result is None:
        return None
    if not _sound(result):
        raise _damaged(run.folder / "result.json")
    environment = _object(
        run.folder / "environment.json", parsing.ENVIRONMENT | {"data": {str: object}}
    )
    told = {key: task[key] for key in TASK if key != "tool"}
    return Finished(**told, run=run, result=result, environment=environment)


def _check_arms(study: Study) -> None:
    """Raises UserError where nothing of the final part is finished, or nothing of an arm that the
    report names."""
    final, unfinished = study.report["final"], len(study.missing)
    state = f"{unfinished} of {len(study.about['tasks'])} tasks are not finished" + (
        ", see tools/study.py" if unfinished else ""
    )
    state += left_out(study)
    if not any(study.runs(final, arm) for arm in study.about["arms"]):
        raise UserError(f"{study.folder}: no arm has a finished run of part {final}; {state}")
    for role in ("baseline", "candidate", "reference"):
        arm = study.report.get(role)
        if arm is not None and not study.runs(final, arm):
            raise UserError(
                f"{study.folder}: arm {arm}, the {role}, has no finished run of part {final}; {state}"
            )


def _check_varied(study: Study) -> None:
    """Raises UserError where nothing of the settings is finished."""
    parts = study.reported or study.trained
    having = {run.arm for run in study.done.values() if run.part in parts}
    state = f"{len(study.missing)} of {len(study.about['tasks'])} tasks are not finished, see tools/study.py"
    state += left_out(study)
    if not having & study.vary.keys():
        raise UserError(
            f"{study.folder}: no setting has a finished run of part {' or '.join(parts)}; {state}"
        )


def left_out(study: Study) -> str:
    """The runs that are in the study's folder and not of its plan."""
    told = ", ".join(f"{name} ({why})" for name, why in study.foreign.items())
    return f"; not the runs that were planned, and left out: {told}" if told else ""


def _tested(study: Study) -> list[Finished]:
    """The finished runs of the final part and the extra ones."""
    return [run for run in study.done.values() if run.part in (study.report["final"], *study.extra)]


def _check_fingerprints(study: Study) -> None:
    tested = [
        (run, run.environment["data"].get("test"))
        for run in study.done.values()
        if run.part in study.reported
    ]
    known = [(run, test) for run, test in tested if test is not None]
    for run, test in known:
        if test != known[0][1]:
            raise _different(known[0][0], run)


def _different(first: Finished, second: Finished) -> UserError:
    return UserError(
        f"{first.run.folder} and {second.run.folder} were tested on different images; they cannot share a table"
    )


def _right(runs: Iterable[Finished]) -> dict[str, np.ndarray]:
    """{task: booleans (M,)} whether its first class is the label.

    Raises:
        UserError: a predictions.npz is missing or damaged, or two are of different images or
        labels.
    """
    found: dict[str, np.ndarray] = {}
    first: tuple[Finished, np.ndarray, np.ndarray] | None = None
    for run in runs:
        index, label, correct = _predictions(run.run.predictions)
        first = first or (run, index, label)
        if not np.array_equal(index, first[1]) or not np.array_equal(label, first[2]):
            raise _different(first[0], run)
        found[run.name] = correct[label >= 0]
    return found


def _predictions(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """index, label, and whether the first class told is the label; of every test image."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            index, label, top5 = arrays["index"], arrays["label"], arrays["top5"]
        whole = all(np.issubdtype(array.dtype, np.integer) for array in (index, label, top5))
        if whole and index.shape == label.shape == top5[:, 0].shape:
            return index, label, top5[:, 0] == label
    except (*UNREAD, zipfile.BadZipFile, zlib.error, struct.error):
        pass
    raise _damaged(path)
