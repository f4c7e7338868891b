"""Share measurements between the tasks of a study. No torch.

The first task that needs a measurement writes it, and later tasks read it.

STUDY/shared/HASH   the SHA-256 of the rest of the file, then a safetensors file

HASH covers everything that a measurement depends on: the caller's facts, the code of this package,
the versions of its libraries and the processor. A file is therefore never out of date, and every
task that writes it writes the same bytes. The user may delete the folder at any time.
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
    """Measurement in the shared folder of a study. Without a path nothing is read or written."""

    path: Path | None

    def read(self) -> dict[str, np.ndarray] | None:
        """Return {name: array}, or None if the file does not exist or is damaged.

        The file begins with the SHA-256 of the rest, by which damage is noticed.
        """
        if self.path is not None:
            with suppress(OSError, SafetensorError):
                content = self.path.read_bytes()
                digest, packed = content[:DIGEST], content[DIGEST:]
                if hashlib.sha256(packed).digest() == digest:
                    return dict(load(packed))
        return None

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write arrays by name. If the file cannot be written, the run continues without it."""
        if self.path is not None:
            packed = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
            with suppress(OSError):
                self.path.parent.mkdir(exist_ok=True)
                write_atomically(self.path, hashlib.sha256(packed).digest() + packed)


def shared_file(run: Path, facts: Mapping[str, Any]) -> SharedFile:
    """Return the file in which a study's runs share a measurement, so that it is made only once.

    Outside of a study, the returned file has no path: nothing is read or written.

    Args:
        run: Folder of the run that needs the measurement.
        facts: JSON values that the measurement depends on, apart from code and machine.
    """
    if not is_task(run):
        return SharedFile(None)
    identity = json.dumps([facts, _software()], sort_keys=True)
    return SharedFile(run.parent / FOLDER / hashlib.sha256(identity.encode()).hexdigest())


@functools.cache
def _software() -> list[Any]:
    """Return the hash of this package's code, the versions of Python and libraries, and the CPU."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)} ".encode() + path.read_bytes())
    libraries = {name: version(name) for name in LIBRARIES}
    return [digest.hexdigest(), libraries, platform.python_version(), cpu_model()]
