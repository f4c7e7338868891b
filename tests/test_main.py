"""The list of tools and recipes that the command prints."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ssl_vit
from helpers.resolving import resolve
from ssl_vit import formatting
from ssl_vit.__main__ import main
from ssl_vit.recipe import recipe_files


def printed(*arguments: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "ssl_vit", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout


def listed(text: str, title: str) -> dict[str, str]:
    """{name: line} of a list."""
    block = next(part for part in text.split("\n\n") if part.startswith(title))
    return {line.split()[0]: line for line in block.splitlines()[1:]}


def test_without_a_tool_the_recipes_that_run_as_they_are_are_listed():
    first = listed(printed(status=2), "Recipes")
    assert {"mpp", "mae", "supervised", "finetune", "evaluate"} <= first.keys()
    assert "mae_b16" not in first and not any("/" in name for name in first)
    assert "Masked autoencoder (He et al., 2022)" in first["mae"]
    for name in first:
        assert resolve([f"recipe={name}"]).data.name == "shapes"  # whose images are here


def test_all_recipes_and_studies_are_listed_on_a_line_each():
    text = printed("--all")
    recipes, studies = listed(text, "Recipes"), listed(text, "Studies")
    assert list(recipes) == recipe_files.recipe_names() and "paper/mpp_b16_jft" in recipes
    assert list(studies) == ["study/worth", *recipe_files.study_names()] and "study/gap" in studies
    assert "What is masked patch prediction worth?" in studies["study/gap"]
    for line in text.splitlines():
        assert len(line) <= 150, line
    assert all(len(line.split(maxsplit=1)[1]) > 15 for line in recipes.values())


def test_the_folder_of_the_clone_is_not_taken_for_the_package(tmp_path: Path) -> None:
    """In a notebook beside the clone, `import ssl_vit` gave an empty module."""
    (tmp_path / "ssl_vit").mkdir()
    code = "import ssl_vit; print(ssl_vit.__file__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(Path(ssl_vit.__file__))


def test_outputs_that_are_closed_from_the_start_are_no_trouble() -> None:
    """As of a job without a log: its status is its own, and no traceback of a stream."""
    command = shlex.join([sys.executable, "-m", "ssl_vit", "--all"])
    done = subprocess.run(f"{command} >&- 2>&-", shell=True, check=False)
    assert done.returncode == 0


MISPLACED = """
pretrain recipe=mpp sweep optim.lr=1,2 -> sweep: -> recipe=mpp sweep optim.lr=1,2
evaluate recipe=evaluate sweep seed=1,2 -> sweep: -> sweep seed=1,2
pretrain recipe=mpp hours=0.4 -> hours=0.4: -> --help
finetune recipe=finetune launcher=slurm -> launcher=slurm: -> --help
evaluate init=runs/mpp --check -> --check: -> --help
pretrain recipe=mpp study -> study: -> --help
"""


@pytest.mark.parametrize("line", MISPLACED.split("\n")[1:-1])
def test_words_of_another_tool_lead_to_it(line: str, capsys: pytest.CaptureFixture) -> None:
    words, start, command = line.split(" -> ")
    with pytest.raises(SystemExit) as left:
        main(words.split())
    (error,) = capsys.readouterr().err.splitlines()
    assert left.value.code == 2 and error.startswith(f"error: {start} ")
    assert formatting.typed_command("study") in error and error.endswith(command)


def test_a_sweep_in_python_leads_to_study() -> None:
    with pytest.raises(ssl_vit.UserError, match=r"^sweep: .*ssl_vit\.study"):
        ssl_vit.pretrain(recipe="mpp", sweep={"optim.lr": [0.1, 0.2]})
