"""What every test has: no network, calm threads, a run small enough to repeat, and the folder of
real images."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from hypothesis import settings

from helpers.launching import interpreter, shorten, start_server
from helpers.options import TINY, altered
from ssl_vit import costs, formatting
from ssl_vit.jobs import cli

# No test depends on how fast the machine is, or on the examples that chance picks this time;
# robustness/fuzz.py looks further.
settings.register_profile("plain", deadline=None, derandomize=True)
settings.load_profile("plain")

# Files of this folder in the order of the time that they take; all others come after them. With
# `--dist loadfile` a worker takes the next file when it has done one: begun last, one of these would
# run alone at the end.
SLOWEST_FIRST = [
    "training/test_sharding.py",
    "lab/test_plan.py",
    "training/test_heartbeat.py",
    "lab/test_study.py",
    "lab/test_slurm.py",
    "lab/test_local.py",
    "runs/test_identity.py",
    "jobs/test_setup.py",
    "training/test_compiled.py",
    "training/test_preemption.py",
    "training/test_distributed.py",
    "hub/test_background.py",
    "hub/test_hub_files.py",
    "test_errors.py",
    "training/test_nonfinite.py",
    "evaluation/test_online.py",
    "training/test_stalls.py",
]


@pytest.fixture(autouse=True, scope="session")
def _shortened() -> None:
    """Real processes keep what this shortens."""
    shorten()


@pytest.fixture(autouse=True, scope="session")
def _tools_start_tools_by_fork() -> None:
    """As real processes they would import for seconds."""
    formatting.PROGRAM[0] = interpreter()


@pytest.fixture(autouse=True)
def _no_failed_counts_for_other_tests() -> Iterator[None]:
    """A test that alters a network may leave operations that could not be counted, which later runs
    of the same network in this process would read."""
    yield
    for key in [key for key, counted in costs._COSTS.items() if counted.uncounted]:
        del costs._COSTS[key]


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # xdist: the files with the most tests first
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        start_server()  # one for all workers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    place = {folder / path: number for number, path in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    """The options of a run of seconds, in a folder of its own."""
    return [*TINY, f"out={tmp_path}/runs"]


@pytest.fixture
def error_line(tiny: list[str], capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """The line that pretrain.py answers to these words, which name the run `run`."""

    def say(*words: str, tool: Callable[[list[str]], None] = cli.pretrain) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            tool(altered([*tiny, "eval.images=2", "name=run"], *words))
        (line,) = capsys.readouterr().err.splitlines()
        assert left.value.code == 2 and line.startswith("error: ")
        return line

    return say


@pytest.fixture(scope="session")
def real_images() -> Path:
    """The folder with cifar10/ and tinyimagenet/."""
    folder = os.environ.get("SSL_VIT_DATA")
    if not folder:
        pytest.skip("SSL_VIT_DATA does not name a folder of real images")
    return Path(folder)
