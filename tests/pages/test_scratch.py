"""A fine-tuned run beside training from scratch, of folders made by hand."""

import json
import shlex
from pathlib import Path

import ssl_vit
from helpers.hub_runs import refused
from helpers.measurements import written
from helpers.options import TUNE, altered
from helpers.resolving import resolved
from ssl_vit import formatting
from ssl_vit.jobs import cli
from ssl_vit.jobs.run_result import run_result
from ssl_vit.pages import scratch
from ssl_vit.recipe.records.run import Result
from ssl_vit.recipe.schema import dump
from ssl_vit.runs.folder import Run


def run_at(folder: Path, name: str, *words: str, init: str = "scratch") -> Run:
    """A finished fine-tuning with a top-1 of 0.5."""
    words = ("init=scratch", *words)
    run = Run(ssl_vit.resolve([*altered(TUNE, *words), f"out={folder}", f"name={name}"]))
    run.recipe.init = init
    run.folder.mkdir(parents=True)
    run.folder.joinpath("recipe.yaml").write_text(dump(run.recipe))
    run.folder.joinpath("environment.json").write_text(json.dumps({"data": {"test": "one"}}))
    metrics = {"top1": {"value": 0.5, "split": "test", "n": 100}}
    result = {
        "finished": "2026-01-01T00:00:00+00:00",
        "measurements": written(metrics),
        "steps": 2,
        "images": 16,
        "total_exaflop": 0.1,
        "seconds": 1.0,
    }
    run.folder.joinpath("result.json").write_text(json.dumps(result))
    return run


def beside(run: Run) -> list[list[str]]:
    """Return the rows of the table with the run and a run from scratch."""
    found = Result.model_validate(json.loads((run.folder / "result.json").read_text()))
    table = scratch.scratch_table(run.folder, run.recipe, found)
    return [[*map(str, row)] for row in table.rows] if table else []


def printed(run: Run) -> str:
    """Return the lines that the command line prints at the end of the run."""
    return str(run_result(run, run.result()))


def test_a_neighbour_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    """Its truncated files ended a fine-tuning that had finished, with a traceback."""
    run = run_at(tmp_path, "tuned", init="runs/mpp")
    for name in ("environment", "result"):
        other = run_at(tmp_path, f"bad-{name}")
        (other.folder / f"{name}.json").write_text('{"data": ')
    run_at(tmp_path, "scratch")
    assert beside(run)[1][0] == "from scratch, scratch"


def test_tries_of_training_from_scratch_are_counted(tmp_path: Path) -> None:
    """It said "no tuning" beside "3 tries"."""
    run = run_at(tmp_path, "tuned", init="runs/mpp")
    run_at(tmp_path, "s0")
    for lr in (0.1, 0.2):
        run_at(tmp_path, f"lr{lr}", f"optim.lr={lr}")
    # a try on other images is none
    other = run_at(tmp_path, "other", "optim.lr=0.4")
    other.folder.joinpath("environment.json").write_text(json.dumps({"data": {"test": "two"}}))
    own, from_scratch = beside(run)
    assert own == ["this run", "50.0% (40.4 to 59.6)", "1", "0.1 exaFLOP"]
    assert from_scratch[0].startswith("from scratch, ") and from_scratch[2] == "3"
    assert "scratch     100 test images" in printed(run)


def test_of_weights_that_no_study_makes_the_run_from_scratch_is_named(tmp_path: Path) -> None:
    """As of a plugin's objective, whose fine-tuning ended without a command; it runs as printed."""
    run = run_at(tmp_path, "tuned", init="timm:vit_tiny_patch16_224")
    command = shlex.split(printed(run).partition("To train from scratch for comparison: ")[2])
    start = shlex.split(formatting.typed_command("finetune"))
    words = command[len(start) :]
    assert command[: len(start)] == start
    again = ssl_vit.resolve(words)
    assert again.init == "scratch" and again.name == "tuned-scratch"
    assert again.value("optim.lr") == run.recipe.value("optim.lr")
    run_at(tmp_path, "other")
    assert beside(run)[1][0] == "from scratch, other"


def test_a_run_from_scratch_of_another_pooling_is_named(tmp_path: Path) -> None:
    """By default it has the class token, and what starts from MAE the mean: it was passed over in
    silence."""
    run = run_at(tmp_path, "tuned", "supervised.pool=avg", init="runs/mae")
    run_at(tmp_path, "plain")
    assert beside(run) == []
    line = "run plain from scratch has supervised.pool=token. To compare, train from scratch with"
    assert f"scratch     {line} supervised.pool=avg" in printed(run)


def test_a_file_of_ones_own_names_no_weights(tmp_path: Path) -> None:
    """Any recipe file counted as naming init=, and fine-tuning began from scratch in silence."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: finetune\noptim:\n  steps: 2\n  warmup: 0\n")
    words = [f"recipe={mine}", f"out={tmp_path}/runs"]
    assert "init= is missing" in refused(ssl_vit.finetune, words)
    mine.write_text("base: finetune\ninit: scratch\n")
    cli.FINETUNE.check(resolved([f"recipe={mine}"]))
