"""A wheel of the package: what is in it, and that it works where the checkout is not; and the commands
of README for a fresh machine."""

import os
import re
import runpy
import shutil
import site
import subprocess
import sys
from collections.abc import Callable
from email import message_from_string
from pathlib import Path

import pytest

import ssl_vit
from helpers.commands import commands
from helpers.launching import python
from helpers.options import ROOT
from ssl_vit import extras
from ssl_vit.recipe.schema import dump

SMALL = ["name=run", "data.size=16", "data.share=0.01", "optim.batch=16", "optim.steps=2"]
SMALL += ["optim.warmup=1", "model=vit_n8", "model.patch=4", "model.width=32", "model.depth=2"]
SMALL += ["model.heads=2", "model.mlp=64"]
EXTRAS = sorted({*extras.EXTRAS})  # modules that training does not need


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of a copy of the checkout, and with the wheel of that sdist."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    source.mkdir()
    for name in ("ssl_vit", "recipes", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, source)
    _build("sdist", source, folder)
    (archive,) = folder.glob("*.tar.gz")
    (folder / "unpacked").mkdir()
    # not by Python, whose first versions of 3.11 have no filter
    subprocess.run(["tar", "-xf", archive, "-C", folder / "unpacked"], check=True, timeout=60)
    _build("wheel", next((folder / "unpacked").iterdir()), folder)
    return folder


def _build(kind: str, source: Path, folder: Path) -> None:
    build = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    done = python("-c", build, cwd=source)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """A folder with the installed wheel."""
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", built / "site", wheel], check=True, timeout=300)
    return built / "site"


@pytest.fixture(scope="module")
def without_extras(built: Path) -> Path:
    """A folder of links to all installed packages but this one and those of extras."""
    folder = built / "packages"
    folder.mkdir()
    (packages,) = {Path(path) for path in site.getsitepackages()}
    left_out = ("ssl_vit", "__editable__", *EXTRAS)
    for path in packages.iterdir():
        if not path.name.lower().startswith(left_out):
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def command(installed: Path, without_extras: Path, tmp_path: Path) -> Callable[..., str]:
    """Run the wheel's command in an empty folder, without the checkout and the extras."""

    def run(*words: str) -> str:
        # -S: the environment's own packages are not found, nor the editable installation
        done = subprocess.run(
            [sys.executable, "-S", installed / "bin" / "ssl-vit", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{without_extras}"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_the_package_and_the_recipes(installed: Path) -> None:
    def files(folder: Path) -> set[str]:
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        return {name for name in found if "__pycache__" not in name}

    recipes = {f"recipes/{name}" for name in files(ROOT / "recipes")}
    assert files(installed / "ssl_vit") == files(ROOT / "ssl_vit") | recipes
    (entry_points,) = installed.glob("*.dist-info/entry_points.txt")
    assert "ssl-vit = ssl_vit.__main__:main" in entry_points.read_text()


def test_the_wheel_resolves_recipes_and_starts_its_own_tools(
    installed: Path, tmp_path: Path
) -> None:
    code = (
        "from ssl_vit import formatting, resolve; from ssl_vit.recipe.schema import dump;"
        "print(formatting.__file__, *formatting.tool_command('report'));"
        "print(dump(resolve('recipe=paper/mpp_b16_imagenet')))"
    )
    done = python("-c", code, cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    first, _, recipe = done.stdout.partition("\n")
    assert first == f"{installed}/ssl_vit/formatting.py -m ssl_vit report"
    assert recipe == dump(ssl_vit.resolve("recipe=paper/mpp_b16_imagenet")) + "\n"
    tool = python("-m", "ssl_vit", "plan", "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    assert tool.returncode == 0, tool.stderr


def test_training_needs_no_extra(command: Callable[..., str], tmp_path: Path) -> None:
    """A run writes everything but its figure, and says once how to get it."""
    printed = command("pretrain", "recipe=mpp", *SMALL)
    assert printed.count("ssl_vit[figures]") == 1
    assert (tmp_path / "runs/run/report.html").exists()
    assert not [*(tmp_path / "runs/run/figures").glob("*.png")]


def test_a_study_and_a_plugin_work_from_an_empty_folder(
    command: Callable[..., str], tmp_path: Path
) -> None:
    assert "39 tasks" in command("study", "recipe=study/gap", "--check")
    shutil.copy(ROOT / "docs/examples/brightness.py", tmp_path)
    plugin = ["plugin=brightness.py", "target=brightness"]
    assert "brightness" in command("pretrain", "recipe=mpp", *plugin, *SMALL)
    assert {path.name for path in tmp_path.iterdir()} == {"brightness.py", "runs"}


def test_an_index_shows_the_readme_without_broken_links(built: Path, installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    message = message_from_string(metadata.read_text())
    assert message["Version"] == ssl_vit.__version__
    assert f"version: {ssl_vit.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {ssl_vit.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    readme = message.get_payload()
    assert "recipe=mae" in readme
    assert not re.search(r"\]\((?!https://)", readme)
    setup = runpy.run_path(str(ROOT / "setup.py"), run_name="not setup")
    linked = setup["readme_for_an_index"]("![a](docs/a.png) [b](docs/b.md#c)", "https://x.org/y")
    assert (
        linked
        == "![a](https://x.org/y/raw/main/docs/a.png) [b](https://x.org/y/blob/main/docs/b.md#c)"
    )


def test_the_readme_has_the_two_commands_of_a_fresh_machine() -> None:
    """Which .ci/run types."""
    every = commands((ROOT / "README.md").read_text())
    first, second = (one for one in every if one.startswith("python3 -m venv"))
    assert first.endswith("accelerate launch tools/pretrain.py recipe=mpp")
    assert "-m pytest" in second
