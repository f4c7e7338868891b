"""A wheel of the package: what is in it, and that it works where the checkout is not; and the commands
of README for a fresh machine."""

import shutil
import zipfile
from pathlib import Path

import pytest

import ssl_vit
from helpers.commands import commands
from helpers.launching import python
from helpers.options import ROOT
from ssl_vit.recipe.schema import dump


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the content of a wheel, built from a copy of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("ssl_vit", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    done = python("-c", build, cwd=source)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


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


def test_the_readme_has_the_two_commands_of_a_fresh_machine() -> None:
    """Which .ci/run types."""
    every = commands((ROOT / "README.md").read_text())
    first, second = (one for one in every if one.startswith("python3 -m venv"))
    assert first.endswith("accelerate launch tools/pretrain.py recipe=mpp")
    assert "-m pytest" in second
