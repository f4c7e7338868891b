"""A Hub on this machine, and runs to push there."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.hub_runs import REPO, trained
from helpers.hub_server import WRITER, Hub, running
from ssl_vit.hub import push
from ssl_vit.runs.folder import Run, open_run


def pytest_itemcollected(item: pytest.Item) -> None:
    """The client's own LFS warns."""
    text = "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"
    item.add_marker(pytest.mark.filterwarnings(text))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub, and this process and its children as those of somebody logged in there."""
    from huggingface_hub import constants

    with running() as made:
        home = tmp_path / "hf"
        monkeypatch.delenv("HF_HUB_OFFLINE")
        for name, value in (
            ("HF_ENDPOINT", made.url),
            ("HF_TOKEN", WRITER),
            ("HF_HUB_DISABLE_XET", "1"),
            ("HF_HOME", str(home)),
        ):
            monkeypatch.setenv(name, value)
        settled = {
            "ENDPOINT": made.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": made.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_TOKEN_PATH": str(home / "token"),
        }
        for name, value in settled.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(push, "WAITS", (0.0, 0.0))
        yield made


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that nobody pushed."""
    return trained(tmp_path_factory.mktemp("hub") / "runs").folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Run:
    """A copy of it, to be pushed to REPO."""
    shutil.copytree(finished, tmp_path / "runs" / "mpp")
    made = open_run(tmp_path / "runs" / "mpp")
    made.recipe.hub.repo = REPO
    return made
