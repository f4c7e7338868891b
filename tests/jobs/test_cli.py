"""What a user reads after each mistake: one line on the error stream, status 2, nothing written
over. Relations between keys are in tests/recipe/test_check.py."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.launching import launch_ranks, outcome, python
from helpers.options import altered
from helpers.runs import rows
from helpers.tables import TRAIN, broken, image, table
from ssl_vit.jobs import cli

SCRATCH = ["recipe=evaluate", "init=scratch"]
MISTAKES = {
    "a misspelled key": ("pretrain", ["corruption.rat=0.5"], "did you mean corruption.rate?"),
    "an unknown recipe": ("pretrain", ["recipe=mp"], "did you mean mpp?"),
    "an unknown model": ("pretrain", ["model=vit_s9"], "vit_s8"),
    "an unknown data set": ("pretrain", ["data=cifar11"], "did you mean cifar10?"),
    "a rate above 1": ("pretrain", ["corruption.rate=1.5"], "corruption.rate=1.5"),
    "a size that is no multiple of the patch": ("pretrain", ["data.size=60"], "data.size=60"),
    "no such path": ("pretrain", ["data.path=/no/such/folder"], "/no/such/folder"),
    "no such recipe file": ("pretrain", ["recipe=/no/such.yaml"], "/no/such.yaml"),
    "a word without a value": ("pretrain", ["help"], "key=value"),
    "a study": ("pretrain", ["recipe=study/gap"], "ssl-vit study"),
    "no init": ("finetune", ["recipe=finetune"], "init= is missing"),
    "no init for pre-training": ("pretrain", ["recipe=finetune"], "init= is missing"),
    "no init for evaluation": ("evaluate", ["recipe=evaluate"], "init= is missing"),
    "an objective without labels": ("finetune", ["init=scratch"], "objective=supervised"),
    "an evaluation that trains": ("evaluate", ["init=scratch"], "objective=probe"),
    "training an evaluation": ("pretrain", ["recipe=evaluate"], "objective=probe: "),
    "training's words": ("evaluate", [*SCRATCH, "optim.lr=1"], "optim.lr=1: "),
    "no such measure": ("evaluate", [*SCRATCH, "probe.measures=[knnn]"], "did you mean knn"),
}
# Calls the tools one after the other; prints [status, output, errors] of each.
ANSWERS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from ssl_vit.jobs import cli
answers = []
for tool, options in json.loads(sys.argv[1]):
    status, out, err = None, io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            getattr(cli, tool)(options)
        except SystemExit as left:
            status = left.code
    answers.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that cannot import torch."""
    package = tmp_path / "fake" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('torch is imported')\n")
    return {"PYTHONPATH": str(package.parent)}


def test_a_mistake_is_answered_in_one_line_without_torch(
    tmp_path: Path, without_torch: dict[str, str]
) -> None:
    out = f"out={tmp_path}/runs"
    calls = [(tool, altered(["recipe=mpp", out], *words)) for tool, words, _ in MISTAKES.values()]
    done = python("-c", ANSWERS, json.dumps(calls), **without_torch)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    for answer, (name, (_, _, says)) in zip(answers, MISTAKES.items(), strict=True):
        status, printed, errors = answer
        assert (status, printed) == (2, ""), name
        (line,) = errors.splitlines()
        assert line.startswith("error: ") and says in line, name
    assert not (tmp_path / "runs").exists()


def test_a_right_word_does_need_torch_and_only_the_first_process_answers(
    tmp_path: Path, without_torch: dict[str, str]
) -> None:
    """The first is what shows that the test above would notice."""
    tool = ("tools/pretrain.py", "recipe=mpp", f"out={tmp_path}/runs")
    assert "torch is imported" in python(*tool, "seed=1", **without_torch).stderr
    second = python(*tool, "corruption.rate=1.5", **without_torch, RANK="1")
    assert (second.returncode, second.stdout, second.stderr) == (2, "", "")


def test_accelerate_passes_the_answer_on(tmp_path: Path) -> None:
    launcher = ("-m", "accelerate.commands.launch", "-q", "tools/pretrain.py", "recipe=mpp")
    # no configuration of the user's own
    done = python(*launcher, f"out={tmp_path}/runs", "model=vit_s9", HF_HOME=str(tmp_path))
    assert done.returncode != 0
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "model=vit_s9" in line and "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize("fault", ["optim.batch=15", "out"])
def test_an_error_of_two_processes_is_said_once_and_ends_both(
    fault: str, tiny: list[str], tmp_path: Path
) -> None:
    """Whether both meet it or the first alone, which writes."""
    says = "error: optim.batch=15: "
    if fault == "out":
        (tmp_path / "runs").write_text("a file where the folder should be")
        fault, says = "seed=1", f"error: out={tmp_path}/runs: "
    statuses, outputs = outcome(launch_ranks(2, "tools/pretrain.py", *altered(tiny, fault)))
    lines = [line for line in "".join(outputs).splitlines() if line.startswith("error: ")]
    assert all(statuses) and len(lines) == 1 and lines[0].startswith(says), outputs
    assert "Traceback" not in "".join(outputs)


ErrorLine = Callable[..., str]


def bad_held_out_images(own: Path) -> Path:
    table(own / "train.parquet", [0, 1] * (TRAIN // 2))
    bad = [broken(number) if number else image(number) for number in range(20)]
    table(own / "validation.parquet", [0, 1] * 10, bad)
    return own


IMAGES = {
    "no labels": (lambda own: table(own / "t.parquet", None), [], "train split of data.path="),
    "unreadable held-out images": (
        bad_held_out_images,
        ["data.validation=validation", "eval.images=20", "data.unreadable=0.01"],
        "data.unreadable=0.01: 19 of 20 images cannot be read",
    ),
}


@pytest.mark.parametrize(("make", "words", "says"), IMAGES.values(), ids=IMAGES)
def test_images_that_do_not_suit_leave_no_folder(
    make: Callable, words: list[str], says: str, error_line: ErrorLine, tmp_path: Path
) -> None:
    """So that the mended command is not held up by this one's. Which do not suit: tests/data."""
    own = tmp_path / "own"
    own.mkdir()
    given = ["recipe=supervised", f"data.path={make(own)}", "data.validation=0.2", *words]
    assert says in error_line(*altered([], *given))
    assert not (tmp_path / "runs" / "run" / "recipe.yaml").exists()


def test_compared_images_in_several_passes(error_line: ErrorLine) -> None:
    line = error_line("recipe=moco_v3", "compute.batch=8")
    assert (
        line.startswith("error: compute.batch=8: objective=moco_v3") and "compute.batch=16" in line
    )


@pytest.mark.parametrize(
    "place", ["runs", "runs/run", "runs/run/metrics.jsonl/x", "runs/run/checkpoints"]
)
def test_a_folder_that_cannot_be_written(error_line: ErrorLine, tmp_path: Path, place: str) -> None:
    """A file where a folder should be, or a folder where a file should: refused to root as to
    everybody."""
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("somebody's")
    assert error_line().startswith(f"error: out={tmp_path}/runs: ")
    assert (tmp_path / place).read_text() == "somebody's"


def test_a_cut_off_jpeg_is_named_and_replaced(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Each once, in whatever epochs it was met; and one that is held out."""
    (tmp_path / "own").mkdir()
    images = [broken(n) if n in (5, 9) else image(n, "JPEG") for n in range(TRAIN)]
    table(tmp_path / "own" / "train.parquet", None, images)
    table(tmp_path / "own" / "validation.parquet", None, [broken(30), *images[10:]])
    words = [f"data.path={tmp_path}/own", "data.validation=validation", "optim.steps=6"]
    cli.pretrain(altered([*tiny, "name=run"], *words))
    out, folder = capsys.readouterr().out, tmp_path / "runs" / "run"
    assert "replaced by the next image: row 5: " in out and ".cpp" not in out
    for text in (out, (folder / "log.txt").read_text()):
        assert text.count("replaced by the next image: row ") == 2
        assert text.count("a held-out image is left out") == 1
        assert text.count("warning: 2 images of the training split could not be read") == 1
    # reads, not files: each of the two once an epoch
    counts = [row["unreadable"] for row in rows(folder) if "unreadable" in row]
    assert counts == sorted(counts) and counts[-1] == 2 * 6 * 16 / TRAIN


def test_too_many_unreadable_images(error_line: ErrorLine, tiny: list[str], tmp_path: Path) -> None:
    """Of one that is met again and again it is said that it is one; what the line asks for helps."""
    images = [broken(number) if number in (7, 8) else image(number) for number in range(TRAIN)]
    path = table(tmp_path / "own.parquet", None, images)
    words = [f"data.path={path}", "data.validation=0.2", "eval.images=2", "optim.steps=6"]
    line = error_line(*words, "data.unreadable=0")
    assert "data.unreadable=0.0: 1 of " in line and "row " in line
    again = error_line(*words, "data.unreadable=0.002")
    assert re.search(r": 3 of .* [12] images?", again)
    cli.pretrain(altered([*tiny, "name=run"], *words, "data.unreadable=0.5"))


@pytest.mark.parametrize(
    ("text", "says"), [("def", "SyntaxError"), ("raise SystemExit(3)", "SystemExit(3)")]
)
def test_a_plugin_that_does_not_run(
    error_line: ErrorLine, tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "own.py"
    path.write_text(text)
    line = error_line(f"plugin={path}")
    assert f"plugin={path}: " in line and says in line


@pytest.mark.parametrize("recipe", ["supervised", "joint"])
def test_steps_without_a_label_are_no_mistake(tiny: list[str], tmp_path: Path, recipe: str) -> None:
    """Of joint training; supervised training draws labelled images alone."""
    path = table(tmp_path / "own.parquet", [0, 1, *[None] * (TRAIN - 2)])
    words = [f"recipe={recipe}", f"data.path={path}", "data.validation=0.2", "optim.batch=4"]
    cli.pretrain(altered(tiny, *words, "log.every=1", "name=run"))
    found = rows(tmp_path / "runs" / "run")
    name = "loss" if recipe == "supervised" else "supervised/loss"
    labelled = sum(name in row for row in found)
    assert len(found) == 12
    assert labelled == 12 if recipe == "supervised" else 0 < labelled < 12
