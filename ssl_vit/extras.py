"""Import packages that are optional: each belongs to an extra of pyproject.toml.

Training on one machine needs no extra. Before a command uses an optional package, it calls
`require`, so that a missing package is one line with the command that installs it.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

from .errors import UserError

# {module: extra that installs it}
EXTRAS = {
    "matplotlib": "figures",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "pillow_heif": "heic",
    "pydicom": "dicom",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "tifffile": "tiff",
}


def is_installed(module: str) -> bool:
    """Return whether a module can be imported.

    A folder of the same name in the working directory does not count. Python finds such a folder
    as a module, but without an origin.
    """
    if module in sys.modules:
        return sys.modules[module] is not None
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None


def describe_missing(module: str) -> str:
    """Return a sentence that says what to type to install the package of a module."""
    package = f"'ssl_vit[{EXTRAS[module]}]'" if module in EXTRAS else module
    return f"{module} is not installed. Type pip install {package}."


def require(module: str, option: str = "") -> ModuleType:
    """Import an optional package.

    Args:
        module: Name of the module, either a key of EXTRAS or also the name of its package.
        option: What needs the package, such as "format=onnx", for the beginning of the error.

    Raises:
        UserError: The package is not installed.
    """
    if not is_installed(module):
        raise UserError(
            f"{option}: {describe_missing(module)}" if option else describe_missing(module)
        )
    return importlib.import_module(module)
