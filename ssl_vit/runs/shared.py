"""Measurements that the tasks of a study share. The first task that needs one writes it. No torch.

STUDY/shared/HASH   the SHA-256 of the rest, then a safetensors file

HASH is of all that a measurement depends on: the caller's facts, this package's code, the versions
of its libraries and the processor. So a file is never out of date, and every task that writes it
writes the same bytes. The folder can be deleted at any time.
"""

import functools
import hashlib
import json
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from .environment import PACKAGES, cpu_model
from .files import write_atomically

STUDY = "study.json"  # the file that makes a folder that of a study
FOLDER = "shared"  # in the folder of a study
OWN = re.compile("[0-9a-f]{64}")  # names of its files
DIGEST = hashlib.sha256().digest_size
LIBRARIES = (*PACKAGES, "pillow", "safetensors")


def is_task(run: Path) -> bool:
    """Return whether a run's folder lies in the folder of a study."""
    return (run.parent / STUDY).exists()


@dataclass(frozen=True)
class SharedFile:
    """A measurement in the shared folder of a study; without a path nothing is shared."""

    path: Path | None

    def read(self) -> dict[str, np.ndarray] | None:
        """Return the measurement, or None if no task has written it or its file is damaged."""
        if self.path is not None:
            with suppress(OSError, SafetensorError):
                content = self.path.read_bytes()
                if hashlib.sha256(content[DIGEST:]).digest() == content[:DIGEST]:
                    return dict(load(content[DIGEST:]))
        return None

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the measurement. The run goes on without if it cannot be written."""
        if self.path is not None:
            packed = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
            with suppress(OSError):
                self.path.parent.mkdir(exist_ok=True)
                write_atomically(self.path, hashlib.sha256(packed).digest() + packed)


def shared_file(run: Path, facts: Mapping[str, Any]) -> SharedFile:
    """Return where the tasks of a run's study share a measurement.

    Args:
        run: The folder of the run; outside of a study nothing is shared.
        facts: All that the measurement depends on, as JSON has it, apart from code and machine.
    """
    if not is_task(run):
        return SharedFile(None)
    whole = json.dumps([facts, _software()], sort_keys=True)
    return SharedFile(run.parent / FOLDER / hashlib.sha256(whole.encode()).hexdigest())


@functools.cache
def _software() -> list[Any]:
    """Return what identifies this package's code, its libraries and the processor."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)} ".encode() + path.read_bytes())
    libraries = {name: version(name) for name in LIBRARIES}
    return [digest.hexdigest(), libraries, platform.python_version(), cpu_model()]
