"""The command line's answers to a user's mistakes: one line, status 2, no traceback, and before
torch is imported."""

import os
import subprocess
import sys

import pytest

from helpers.options import ROOT

MISTAKES = {
    "a misspelled key": ("corruption.rat=0.5", "did you mean corruption.rate?"),
    "an unknown recipe": ("recipe=mp", "did you mean mpp?"),
    "an unknown model": ("model=vit_s9", "vit_s8"),
    "an unknown data set": ("data=cifar11", "did you mean cifar10?"),
    "a rate above 1": ("corruption.rate=1.5", "corruption.rate=1.5"),
    "a size that is no multiple of the patch": ("data.size=60", "the nearest are 56 and 64"),
    "a path that does not exist": ("data.path=/no/such/folder", "/no/such/folder"),
    "a recipe file that does not exist": ("recipe=/no/such.yaml", "/no/such.yaml"),
    "a word without a value": ("help", "key=value"),
}


def answer(word, tmp_path, launcher=(), **environment):
    """What pretrain.py says to this word, with recipe=mpp unless the word is a recipe."""
    recipe = () if word.startswith("recipe=") else ("recipe=mpp",)
    command = [
        sys.executable,
        *launcher,
        "tools/pretrain.py",
        *recipe,
        f"out={tmp_path}/runs",
        word,
    ]
    env = {
        k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    } | environment
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def without_torch(tmp_path):
    """The environment of a process that cannot import torch."""
    package = tmp_path / "fake" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('torch is imported')\n")
    return {"PYTHONPATH": str(package.parent)}


@pytest.mark.parametrize(("word", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_in_one_line(word, says, tmp_path, without_torch):
    answered = answer(word, tmp_path, **without_torch)
    assert answered.returncode == 2
    assert answered.stdout == ""
    (line,) = answered.stderr.splitlines()
    assert line.startswith("error: ") and says in line
    assert not (tmp_path / "runs").exists()


def test_a_right_word_does_need_torch(tmp_path, without_torch):
    """What shows that the test above would notice."""
    answered = answer("seed=1", tmp_path, **without_torch)
    assert answered.returncode != 0 and "torch is imported" in answered.stderr


def test_only_the_first_process_answers(tmp_path, without_torch):
    answered = answer("corruption.rate=1.5", tmp_path, **without_torch, RANK="1")
    assert (answered.returncode, answered.stdout, answered.stderr) == (2, "", "")


def test_accelerate_passes_the_answer_on(tmp_path):
    launcher = ("-m", "accelerate.commands.launch", "-q")
    # no configuration of the user's own
    answered = answer("model=vit_s9", tmp_path, launcher, HF_HOME=str(tmp_path))
    assert answered.returncode != 0
    lines = [line for line in answered.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "model=vit_s9" in lines[0] and "vit_s8" in lines[0]
    assert "Traceback" not in answered.stderr + answered.stdout
