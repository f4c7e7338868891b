"""Share measurements between the tasks of a study. No torch.

The first task that needs a measurement writes it, and later tasks read it.

STUDY/shared/HASH   the SHA-256 of the rest of the file, then a safetensors file

HASH covers everything that a measurement depends on: values from the caller, the code of this
package, the versions of libraries and the processor. A file is therefore never out of date, and
every task would write the same bytes. The user may delete the folder at any time.
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

STUDY = "study.json"  # only the folder of a study has this file
FOLDER = "shared"  # name of the shared folder in the folder of a study
OWN = re.compile("[0-9a-f]{64}")  # names of files in the shared folder
DIGEST = hashlib.sha256().digest_size
LIBRARIES = (*PACKAGES, "pillow", "safetensors")


def is_task(run: Path) -> bool:
    """Return whether a run's folder lies in the folder of a study."""
    return (run.parent / STUDY).exists()


@dataclass(frozen=True)
class SharedFile:
    """Measurement in the shared folder of a study. Without a path, nothing is read or written."""

    path: Path | None

    def read(self) -> dict[str, np.ndarray] | None:
        """Return {name: array}, or None if the file does not exist or is damaged."""
        if self.path is not None:
            with suppress(OSError, SafetensorError):
                content = self.path.read_bytes()
                # the SHA-256 at the start of the file reveals damage
                digest, packed = content[:DIGEST], content[DIGEST:]
                if hashlib.sha256(packed).digest() == digest:
                    return dict(load(packed))
        return None

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write {name: array}. If this fails, the run continues without the file."""
        if self.path is not None:
            packed = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
            with suppress(OSError):
                self.path.parent.mkdir(exist_ok=True)
                write_atomically(self.path, hashlib.sha256(packed).digest() + packed)


def shared_file(run: Path, facts: Mapping[str, Any]) -> SharedFile:
    """Return the file through which the runs of a study share a measurement.

    For a run outside of a study, the file has no path, so nothing is read or written.

    Args:
        run: Folder of the run that needs the measurement.
        facts: JSON values that the measurement depends on. The code, the libraries and the CPU are
            added here.
    """
    if not is_task(run):
        return SharedFile(None)
    identity = json.dumps([facts, _software()], sort_keys=True)
    return SharedFile(run.parent / FOLDER / hashlib.sha256(identity.encode()).hexdigest())


@functools.cache
def _software() -> list[Any]:
    """Return a hash of this package's code, the versions of Python and libraries, and the CPU."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)} ".encode() + path.read_bytes())
    libraries = {name: version(name) for name in LIBRARIES}
    return [digest.hexdigest(), libraries, platform.python_version(), cpu_model()]
