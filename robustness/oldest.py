"""The oldest versions that pyproject.toml allows, installed into a fresh environment, and the tests
that depend on them most.

    python robustness/oldest.py FOLDER [PYTHON] [TESTS]     (about 6 GB; PYTHON: python3.12 where
    there is one)

Exits as pytest does. Its last lines are the versions and pytest's count. To be run after every
change of a floor.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/training/test_golden.py",
    "tests/objectives/test_objectives.py",
    "tests/objectives/test_mpp.py",
    "tests/objectives/test_corruption.py",
    "tests/test_rng.py",
    "tests/training/test_precision.py",
    "tests/models/test_interop.py",
    "tests/training/test_checkpoint.py",
    "tests/jobs/test_cli.py",
    "tests/hub/test_safety.py",
)
SHOWN = (
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "transformers",
    "huggingface_hub",
    "datasets",
    "deepspeed",
    "numpy",
)


def floors() -> list[str]:
    """name==version for every floor of the package and of the extras that its tests use, with the
    extras that these name.

    Raises:
        SystemExit: a requirement has no floor.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    left = [*project["dependencies"], *extras["onnx"], *extras["test"]]
    found = []
    while left:
        requirement = left.pop(0)
        if own := re.fullmatch(rf"{project['name']}\[(.*)\]", requirement):
            left += [one for name in own[1].split(",") for one in extras[name.strip()]]
            continue
        floor = re.match(r"([\w.-]+)>=([\w.]+)", requirement)
        if not floor:
            raise SystemExit(f"{requirement}: no floor; NAME>=VERSION is expected")
        found.append(f"{floor[1]}=={floor[2]}")
    return found


def interpreter() -> str:
    """python3.12 where it starts (a shim of pyenv's may not), else this one."""
    path = shutil.which("python3.12")
    if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
        return path
    return sys.executable


def installed(folder: Path, python: str) -> Path:
    """The environment's Python."""
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    inside = folder / "bin" / "python"
    pip = [inside, "-m", "pip", "install", "-q"]
    # DeepSpeed is built from source and looks for torch while it is: first everything else, then it.
    # Its build fails with setuptools 77.0.3, which therefore comes after it
    late = [pin for pin in floors() if pin.startswith(("deepspeed", "setuptools"))]
    early = [pin for pin in floors() if pin not in late]
    subprocess.run([*pip, *early, "setuptools>77.0.3", "ninja"], check=True)
    for pin in late:  # deepspeed, a dependency, stands before setuptools, of an extra
        subprocess.run([*pip, "--no-build-isolation", pin], check=True)
    subprocess.run([*pip, "--no-build-isolation", "-e", ROOT], check=True)  # checks the floors
    subprocess.run([inside, "-m", "pip", "check"], check=True)
    return inside


def main(words: list[str]) -> int:
    if not words:
        raise SystemExit(__doc__)
    folder = Path(words[0]).resolve()
    inside = installed(folder, words[1] if len(words) > 1 else interpreter())
    tests = words[2:] or TESTS
    done = subprocess.run(
        [inside, "-m", "pytest", *tests], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    show = (
        "import platform, importlib.metadata as m, sys;"
        "print('python', platform.python_version(), *(n + ' ' + m.version(n) for n in "
        "sys.argv[1:]), sep=', ')"
    )
    subprocess.run([inside, "-c", show, *SHOWN], check=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
