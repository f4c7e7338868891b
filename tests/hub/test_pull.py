"""A pull: a state that goes on as the run would have; nothing that a stranger puts on the Hub is
obeyed, run, unpickled or believed, and it is told in one line."""

import json
import math
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.disk import full_disk
from helpers.exports import forget_digests
from helpers.hub_runs import REPO, pushed, refused
from helpers.hub_server import Hub
from helpers.options import TINY
from helpers.resolving import resolve
from ssl_vit.hub import payload, pull, push, state_io
from ssl_vit.jobs import cli
from ssl_vit.jobs import train as train_job
from ssl_vit.recipe.operation import Hub as Pushing
from ssl_vit.recipe.parsing import load_yaml
from ssl_vit.runs.folder import Run

PLACE = f"hf-hub:{REPO}"


def put_state(server: Hub, run: Run, *changes: tuple[str, str], step: int = 4) -> None:
    """A pushed state without tensors, whose recipe somebody edited."""
    text = (run.folder / "recipe.yaml").read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    structure, tensors = state_io.pack({"step": step})
    files = {"recipe.yaml": text.encode(), "state.json": structure, "state.safetensors": tensors}
    server.put(REPO, {**dict.fromkeys(payload.STATE, b""), **files}, "state")


def trained(folder: Path, *words: str) -> Run:
    """A run of these words alone, trained or gone on with, in folder/runs/mpp."""
    made = Run(resolve([*words, "name=mpp", f"out={folder}/runs"]))
    made.reconcile()
    train_job.train(made)
    return made


def weights(folder: Path) -> list[bytes]:
    return [(folder / "export" / f"{part}.safetensors").read_bytes() for part in ("model", "heads")]


def test_a_pulled_state_goes_on_as_the_run_would_have(
    server: Hub,
    run: Run,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    run.recipe.hub.state = True
    (run.folder / "result.json").unlink()
    shutil.rmtree(run.checkpoints / "step-000000012")
    push.push(run)
    commit = server.repositories[REPO].branches["state"]
    assert not [name for name in pushed(server, "state") if name.endswith((".pt", ".pkl", ".bin"))]
    words = [PLACE, f"out={tmp_path}/my runs", "name=again"]
    pull.main(words)
    folder = tmp_path / "my runs" / "again"
    printed = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("resume"))
    assert "already exists" in refused(pull.main, words)
    assert json.loads((folder / "hub.json").read_text()) == {"pulled": f"{PLACE}@{commit}"}
    assert printed[:3] == ["accelerate", "launch", "tools/pretrain.py"]
    cli.pretrain(printed[3:])
    assert "started at step 8" in (folder / "log.txt").read_text()
    assert weights(folder) == weights(finished)


FINETUNE = [
    *(word for word in TINY if not word.startswith(("model.", "recipe="))),
    *("recipe=finetune", "eval.test=false"),
]


def test_a_pulled_fine_tuning_goes_on_as_the_run_would_have(
    server: Hub,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """By the line that is printed, where the weights that it began with are not; and with them,
    wherever they are."""
    shutil.copytree(finished, tmp_path / "first")
    made = trained(tmp_path, *FINETUNE, f"init={tmp_path}/first")
    made.recipe.hub.repo, made.recipe.hub.state = REPO, True
    wanted = json.loads((made.folder / "result.json").read_text())
    (made.folder / "result.json").unlink()
    shutil.rmtree(made.checkpoints / "step-000000012")
    push.push(made)
    (tmp_path / "first").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    for name, more in (("one", []), ("two", [f"init={tmp_path}/moved"])):
        pull.main([PLACE, f"out={tmp_path}/pulled", f"name={name}"])
        line = capsys.readouterr().out.splitlines()[-1]
        cli.finetune([*line.partition("tools/finetune.py ")[2].split(), *more])
        folder = tmp_path / "pulled" / name
        assert "started at step 8" in (folder / "log.txt").read_text()
        assert weights(folder) == weights(made.folder)
        found = json.loads((folder / "result.json").read_text())
        assert found["measurements"] == wanted["measurements"]
        assert found["total_exaflop"] == wanted["total_exaflop"] > found["exaflop"]


def test_a_run_does_not_go_on_from_other_initial_weights(finished: Path, tmp_path: Path) -> None:
    for name in ("first", "other"):
        shutil.copytree(finished, tmp_path / name)
    begun = trained(tmp_path, *FINETUNE, f"init={tmp_path}/first")
    (begun.folder / "result.json").unlink()
    path = tmp_path / "other" / "export" / "model.safetensors"
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)
    forget_digests(path.parent)
    line = refused(trained, tmp_path, *FINETUNE, f"init={tmp_path}/other")
    assert "another recipe: init" in line


def test_a_state_trained_on_own_images_asks_for_them(
    server: Hub, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    put_state(server, run, ("  name: shapes\n", "  name: own\n"))
    pull.main([PLACE, f"out={tmp_path}"])
    assert capsys.readouterr().out.endswith(" data.path=IMAGES\n")


def test_a_state_is_packed_and_unpacked_as_it_was() -> None:
    state = {
        "a": torch.arange(3),
        "plain": [1, 2.5, math.inf, None, True, "x"],
        "deep": [{"b": torch.tensor(1.5, dtype=torch.bfloat16)}, []],
    }
    unpacked = state_io.unpack(*state_io.pack(state))
    assert torch.equal(unpacked["a"], state["a"]) and unpacked["plain"] == state["plain"]
    assert unpacked["deep"][0]["b"].dtype == torch.bfloat16 and unpacked["deep"][1] == []


STATES: dict[str, dict[str, Any]] = {
    "no training state": {"recipe.yaml": "ITS OWN"},
    ": recipe.yaml: ": dict.fromkeys(payload.STATE, b"\x80\x04N."),  # a pickle
    "no training state in": {
        **dict.fromkeys(payload.STATE, b""),
        "recipe.yaml": "ITS OWN",
        "state.json": b"[1, 2]",
    },
}


@pytest.mark.parametrize(("says", "files"), STATES.items(), ids=STATES)
def test_a_state_that_is_none_is_one_line_and_leaves_nothing(
    server: Hub, run: Run, tmp_path: Path, says: str, files: dict[str, Any]
) -> None:
    own = (run.folder / "recipe.yaml").read_bytes()
    files = {name: own if content == "ITS OWN" else content for name, content in files.items()}
    server.put(REPO, files, "state")
    line = refused(pull.pull, PLACE, f"{tmp_path}/pulled")
    assert line.startswith(f"{PLACE}: ") and says in line
    assert not [path for path in (tmp_path / "pulled").rglob("*") if path.is_file()]


@pytest.mark.parametrize("step", [-1, 13, 2**70])
def test_a_state_of_no_step_of_its_run_is_not_pulled(
    server: Hub, run: Run, tmp_path: Path, step: int
) -> None:
    put_state(server, run, step=step)
    line = refused(pull.pull, PLACE, f"{tmp_path}/pulled")
    assert f"step {step}" in line and "optim.steps=12" in line
    assert not list((tmp_path / "pulled").iterdir())


def test_a_pull_to_a_full_disk_is_one_line_and_leaves_nothing(
    server: Hub, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file after the state."""
    put_state(server, run)
    write = pull._write_run_folder

    def write_on_a_full_disk(*words: Any) -> None:
        with full_disk(1000):
            write(*words)

    monkeypatch.setattr(pull, "_write_run_folder", write_on_a_full_disk)
    line = refused(pull.pull, PLACE, f"{tmp_path}/pulled")
    assert line.startswith(f"out={tmp_path}/pulled: {tmp_path}/pulled/mpp cannot be written: ")
    assert not list((tmp_path / "pulled").iterdir())
    monkeypatch.undo()


def test_a_foreign_recipe_is_not_obeyed_about_this_machine(
    server: Hub, run: Run, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    changes = [
        ("plugin: null", f"plugin: {own}"),
        ("repo: null", "repo: someone/precious"),
        ("private: true", "private: false"),
        ("  path: null", "  path: /etc"),
        ("real: null", "real: /etc/passwd"),
        ("resume: true", "resume: false"),
        ("init: scratch", "init: /home/them/first"),
        ("\nout: ", "\nout: /etc #"),
    ]
    put_state(server, run, *changes)
    pull.pull(PLACE, f"{tmp_path}/pulled")
    path = tmp_path / "pulled" / "mpp" / "recipe.yaml"
    again = load_yaml(path)
    assert not (tmp_path / "ran").exists()
    assert (again["init"], again["out"]) == ("first", f"{tmp_path}/pulled")
    assert (again["plugin"], again["resume"]) == (None, True)
    assert (again["data"]["path"], again["eval"]["real"]) == (None, None)
    assert again["hub"] == Pushing().model_dump()
    assert not [word for _, word in changes if word in path.read_text()]


def test_the_name_of_a_foreign_run_leads_nowhere(server: Hub, run: Run, tmp_path: Path) -> None:
    put_state(server, run, ("name: mpp\nout", "name: ../../mpp\nout"))
    line = refused(pull.pull, PLACE, f"{tmp_path}/pulled/deep")
    assert "name=../../mpp: expected a folder's name" in line and not (tmp_path / "mpp").exists()
