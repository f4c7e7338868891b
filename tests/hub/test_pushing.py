"""What a push must not do: write over what is not this run, wait for ever, let one part keep back
the rest, stop training."""

import errno
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from helpers.hub_runs import REPO, milestone, pushed
from helpers.hub_server import Fault, Hub
from helpers.launching import launch
from helpers.options import ROOT, TINY, altered
from ssl_vit import hub_files
from ssl_vit.errors import UserError
from ssl_vit.hub import background, manifest, payload, pull, push
from ssl_vit.jobs import cli
from ssl_vit.lab.study.request import requested
from ssl_vit.models import encoder, weights
from ssl_vit.recipe.init_source import InitSource
from ssl_vit.runs.folder import TRAINED_ON, Run

pytestmark = pytest.mark.filterwarnings(
    "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"
)
LIMITS = {"X-Error-Code": "", "X-Error-Message": "Private repository storage limit reached"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No sleep in the client or here; the seconds asked for."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def refused(run: Run) -> str:
    """The line with which a push is refused."""
    with pytest.raises(UserError, match=f"^hub.repo={run.recipe.hub.repo}: ") as caught:
        push.push(run)
    assert "\n" not in str(caught.value)
    return str(caught.value)


NOT_A_RUN: dict[str, tuple[dict[str, bytes], str]] = {
    "a model": (
        {"README.md": b"my llama", "config.json": b"{}", "model.safetensors": b"precious"},
        "what is no run (config.json",
    ),
    "an unknown file": ({"notes.txt": b"mine"}, "what is no run (notes.txt)"),
    "a recipe alone": ({"recipe.yaml": b"seed: 0\n"}, "what is no run (recipe.yaml)"),
    "a recipe that is none": (
        {"recipe.yaml": b"- bread\n- butter\n", "run.json": b"{}"},
        "what is no run (its recipe.yaml or run.json cannot be read)",
    ),
    "a recipe of something else": (
        {"recipe.yaml": b"bread: butter\n", "run.json": b"{}"},
        "the run of another recipe (bread, ",
    ),
}


@pytest.mark.parametrize(("files", "says"), NOT_A_RUN.values(), ids=NOT_A_RUN)
def test_what_is_no_run_is_not_written_over(
    server: Hub, run: Run, files: dict[str, bytes], says: str
) -> None:
    server.put(REPO, files, private=True)
    before = dict(server.repositories[REPO].branches)
    milestone(run, 4)
    run.recipe.hub.state = True
    assert says in refused(run) and server.repositories[REPO].branches == before


def test_what_the_hubs_own_form_makes_is_taken(server: Hub, run: Run) -> None:
    server.put(
        REPO,
        {".gitattributes": b"", "README.md": b"---\nlicense: mit\n---\n", "LICENSE": b"MIT"},
        private=True,
    )
    push.push(run)
    assert "model.safetensors" in pushed(server) and pushed(server)["LICENSE"] == b"MIT"


def test_nothing_private_goes_where_everybody_reads(server: Hub, run: Run) -> None:
    server.put(REPO, {".gitattributes": b""}, private=False)
    assert (
        "it is public; expected hub.private=false" in refused(run)
        and server.repositories[REPO].history("main") == 1
    )
    run.recipe.hub.private = False
    push.push(run)
    assert "model.safetensors" in pushed(server)


def test_other_data_under_the_same_recipe_is_another_run(server: Hub, run: Run) -> None:
    push.push(run)
    before = dict(server.repositories[REPO].branches)
    run.ledger.unlink()
    path = run.folder / "environment.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"data": {"train": "another"}}))
    assert (
        "a run of this recipe with another data" in refused(run)
        and server.repositories[REPO].branches == before
    )
    path.write_text(json.dumps(known | {"init": {"weights": "another"}}))
    push.push(run)  # what the pushed one did not know is not compared
    assert not manifest.pending(run)


def test_two_recipes_at_once_do_not_both_write(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's commit comes between the look and the commit."""
    theirs = {"recipe.yaml": b"seed: 7\n", "run.json": b"{}", "README.md": b"theirs"}
    look, looks = push._parent, iter(range(100))

    def parent(run: Run, branch: str) -> str:
        found = look(run, branch)
        if next(looks) == 1:  # the first is of the repository as a whole
            server.put(REPO, theirs)
        return found

    monkeypatch.setattr(push, "_parent", parent)
    assert "the run of another recipe" in refused(run) and pushed(server) == theirs


def test_a_commit_of_ones_own_in_between_is_taken_up(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looks = push._parent, iter(range(100))

    def parent(run: Run, branch: str) -> str:
        found = look(run, branch)
        if next(looks) == 1:
            server.put(REPO, pushed(server) | {"LICENSE": b"a word"})
        return found

    monkeypatch.setattr(push, "_parent", parent)
    push.push(run)
    assert pushed(server)["LICENSE"] == b"a word" and "model.safetensors" in pushed(server)


def test_a_milestone_that_comes_late_holds_nothing_of_the_end(server: Hub, run: Run) -> None:
    push.push(run)
    milestone(run, 4)
    run.recipe.hub.state = True
    push.push(run)
    assert not {"result.json", "figures/predictions.png"} & pushed(server, "step-000000004").keys()
    assert pushed(server, "state").keys() == {
        ".gitattributes",
        "run.json",
        *payload.STATE,
        TRAINED_ON,
    }


def test_a_milestone_that_another_push_has_uploaded_meanwhile_is_no_error(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    milestone(run, 4)
    write = payload.card.write

    def slow(run: Run, folder: Path, step: int | None = None) -> str:
        if step and folder.exists():
            with monkeypatch.context() as patch:
                patch.setattr(payload.card, "write", write)
                push.push(run)  # the other one
        return write(run, folder, step)

    monkeypatch.setattr(payload.card, "write", slow)
    push.push(run)
    repository = server.repositories[REPO]
    assert {branch: repository.history(branch) for branch in repository.branches} == {
        "main": 2,
        "step-000000004": 2,
    }
    assert not manifest.pending(run)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    server: Hub, run: Run, tmp_path: Path
) -> None:
    newest = max(run.checkpoints.glob("step-*")) / "state.pt"
    newest.write_bytes(newest.read_bytes()[:-50])
    (run.checkpoints / "step-tmp").mkdir()
    run.recipe.hub.state = True
    push.push(run)
    assert not manifest.pending(run) and set(server.repositories[REPO].branches) == {
        "main",
        "state",
    }
    pulled = pull.pull(f"hf-hub:{REPO}", f"{tmp_path}/pulled")
    assert [path.name for path in pulled.checkpoints.iterdir()] == ["step-000000008"]
    record = (run.folder / TRAINED_ON).read_bytes()
    assert (pulled.folder / TRAINED_ON).read_bytes() == record


def test_one_part_that_cannot_be_pushed_keeps_no_other_back(server: Hub, run: Run) -> None:
    for path in run.checkpoints.glob("step-*/state.pt"):
        path.write_bytes(b"")
    for step in (4, 8):
        milestone(run, step)
    (run.outbox / "step-000000004" / "config.json").unlink()
    run.recipe.hub.state = True
    with pytest.raises(UserError, match=r"config\.json"):
        push.push(run)
    assert manifest.pending(run) == ["step-000000004", "state"]
    assert "model.safetensors" in pushed(server) and "model.safetensors" in pushed(
        server, "step-000000008"
    )


def test_of_the_states_only_the_last_stays(server: Hub, run: Run) -> None:
    run.recipe.hub.state = True
    push.push(run)
    shutil.copytree(run.checkpoints / "step-000000012", run.checkpoints / "step-000000016")
    (run.metrics).write_text("")
    push.push(run)
    repository = server.repositories[REPO]
    assert repository.history("state") == 1 and pushed(server, "state")["metrics.jsonl"] == b""
    assert manifest.read(run).branches["state"].commit == repository.branches["state"]
    server.faults = [Fault("super-squash", 403, 1), Fault("super-squash", "cut", 1)]
    for step in (20, 24):
        shutil.copytree(run.checkpoints / "step-000000012", run.checkpoints / f"step-{step:09d}")
        run.metrics.write_text(f"{step}")
        push.push(run)
        assert not manifest.pending(run)
    assert repository.history("state") == 3
    run.metrics.write_text("")
    push.push(run)
    assert repository.history("state") == 1 and not server.faults[1].times


REQUESTS = [
    "GET /api/models/someone/vit/revision/main",
    "POST /api/repos/create",
    "GET /api/models/someone/vit/commits/main",
    "POST .*/branch/",
    "POST .*/preupload/",
    "POST .*/lfs/objects/batch",
    "PUT /lfs/",
    "POST .*/commit/",
    "GET .*/tree/",
    "(GET|HEAD) .*/resolve/",
]


@pytest.mark.parametrize("match", REQUESTS)
def test_a_hang_at_any_request_is_given_up(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch, quick: list[float], match: str
) -> None:
    monkeypatch.setattr(hub_files, "SILENCE", 0.2)
    run.recipe.hub.state = True
    if "tree" in match or "resolve" in match:
        push.push(run)
        run.ledger.unlink()
    server.faults = [Fault(match, "hang")]
    assert "the Hub cannot be reached" in refused(run)


@pytest.mark.parametrize("match", ["GET .*/revision/main", "GET .*/tree/"])
def test_a_hang_is_given_up_while_weights_are_fetched(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch, quick: list[float], match: str
) -> None:
    monkeypatch.setattr(hub_files, "SILENCE", 0.2)
    push.push(run)
    server.faults = [Fault(match, "hang")]
    with pytest.raises(UserError, match=f"init=hf-hub:{REPO}: "):
        InitSource(f"hf-hub:{REPO}").fetch_export("config.json")
    from huggingface_hub import close_session, get_session

    close_session()  # as the client does after it could not connect
    assert hub_files._limit in get_session().event_hooks["request"]


def test_a_finished_run_that_is_given_a_repository_says_what_pushes_it(
    server: Hub, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "my runs" / "mpp"
    shutil.copytree(finished, folder)
    cli.pretrain(
        altered(
            [*TINY, "name=mpp", f"out={folder.parent}"], f"hub.repo={REPO}", "hub.private=false"
        )
    )
    lines = dict(
        line.split(maxsplit=2)[0::2]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("not", "then"))
    )
    assert lines["not"] == "main: it has not been tried yet"
    assert shlex.split(lines["then"])[2:] == [
        *(str(folder), f"hub.repo={REPO}", "hub.private=false", "hub.state=false")
    ]
    done = subprocess.run(
        lines["then"], shell=True, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert (
        done.returncode == 0
        and "model.safetensors" in pushed(server)
        and not server.repositories[REPO].private
    )


STRAY: dict[str, Callable[[Path], object]] = {
    "a folder in the outbox": lambda folder: (folder / "hub" / "step-tmp").mkdir(parents=True),
    "no JSON in hub.json": lambda folder: (folder / "hub.json").write_text("{"),
    "a list in hub.json": lambda folder: (folder / "hub.json").write_text('{"branches": []}'),
    "another repository's": lambda folder: (folder / "hub.json").write_text(
        '{"repo": "someone/else", "branches": {"old": {"stamp": "", "commit": "1"}}}'
    ),
}


@pytest.mark.parametrize("lay", STRAY.values(), ids=STRAY)
def test_what_is_stray_is_passed_over(server: Hub, run: Run, lay: Callable[[Path], object]) -> None:
    lay(run.folder)
    push.push(run)
    assert manifest.status_lines(run) == [("hub", f"{REPO}: pushed main")]


def test_training_ends_though_the_outbox_is_a_file(
    server: Hub, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "runs" / "mpp"
    folder.mkdir(parents=True)
    (folder / "hub").write_text("")
    cli.pretrain(
        altered([*TINY, "name=mpp", f"out={folder.parent}"], f"hub.repo={REPO}", "hub.every=5")
    )
    out = capsys.readouterr().out
    assert (
        (folder / "result.json").exists()
        and "warning: the Hub was not reached" in out
        and "not pushed  main" in out
    )
    push.push(payload.open_run(folder))
    assert "model.safetensors" in pushed(server)


def test_a_signal_ends_the_wait_for_uploads_of_a_finished_run(server: Hub, run: Run) -> None:
    run.outbox.mkdir()
    save(run)
    pusher = background.Pusher(run)
    server.faults = [Fault("/", "hang")]
    pusher.finish(should_stop=lambda: True)
    assert manifest.pending(run) == ["main"]
    assert pusher.process is not None and pusher.process.returncode == -signal.SIGKILL
    assert dict(manifest.status_lines(run))["not pushed"] == (
        "main: an upload began and has not ended"
    )


@pytest.mark.parametrize("match", ["POST .*/preupload/", "PUT /lfs/", "POST .*/commit/main"])
def test_an_upload_that_is_killed_leaves_the_whole_or_the_former(
    server: Hub, run: Run, match: str
) -> None:
    """A former push of the same run is there; the next one completes it."""
    push.push(run)
    former = pushed(server)
    for path in run.export.glob("*.safetensors"):
        path.write_bytes(path.read_bytes() + b" " * 8)  # other files of other sums
    (run.folder / "hub.json").unlink()
    save(run)
    server.faults = [Fault(match, "hang")]
    server.requests.clear()
    pusher = background.Pusher(run)
    pusher.finish(lambda: any(re.search(match, request) for request in server.requests))
    assert pusher.process is not None and pusher.process.returncode == -signal.SIGKILL
    assert pushed(server) == former and manifest.pending(run) == ["main"]
    server.faults = []
    push.push(run)
    whole = {path.name: path.read_bytes() for path in run.export.iterdir()}
    assert pushed(server) == former | whole and not manifest.pending(run)


def test_a_push_without_the_network_says_so_at_once(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch, quick: list[float]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set, so nothing can be uploaded"):
        push.push(run)
    assert not quick and not server.requests


def save(run: Run) -> None:
    """Let the folder's recipe name the repository, as training with hub.repo= does."""
    path = run.folder / "recipe.yaml"
    path.write_text(path.read_text().replace("  repo: null", f"  repo: {run.recipe.hub.repo}"))


def test_terms_to_be_accepted_are_named(server: Hub) -> None:
    server.faults = [
        Fault(
            "meta/dino", 403, headers={"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"}
        )
    ]
    with pytest.raises(UserError) as caught:
        hub_files.fetch("hf-hub:meta/dino", "init=hf-hub:meta/dino", ["config.json"])
    assert (
        str(caught.value)
        == f"init=hf-hub:meta/dino: its terms must be accepted first, at {server.url}/meta/dino"
    )


def test_why_the_hub_refuses_is_told(server: Hub, run: Run) -> None:
    server.faults = [Fault("lfs/objects/batch", 403, headers=LIMITS)]
    assert "this token may not write there (Private repository storage limit reached" in refused(
        run
    )


def test_what_was_deleted_on_the_hub_is_made_anew(server: Hub, run: Run) -> None:
    push.push(run)
    del server.repositories[REPO]
    milestone(run, 4)
    push.push(run)
    assert not manifest.pending(run) and set(server.repositories[REPO].branches) == {
        "main",
        "step-000000004",
    }
    assert "model.safetensors" in pushed(server) and server.repositories[REPO].private


@pytest.mark.parametrize(
    "name", ["someone/a--b", "someone/a..b", "someone/-a", "someone/a.", "someone/a.git"]
)
def test_names_that_the_hub_refuses_are_refused_at_the_start(run: Run, name: str) -> None:
    with pytest.raises(UserError, match=f"^hub.repo={name}: expected USER/NAME"):
        push.main([str(run.folder), f"hub.repo={name}"])
    with pytest.raises(UserError, match=f"^hub.repo={name}: expected USER/NAME"):
        cli.resolve([*TINY, f"hub.repo={name}"])


def test_an_evaluation_is_no_run_to_push(server: Hub, run: Run) -> None:
    path = run.folder / "recipe.yaml"
    path.write_text(path.read_text().replace("objective: mpp", "objective: probe"))
    with pytest.raises(UserError, match="holds an evaluation"):
        push.main([str(run.folder), f"hub.repo={REPO}"])
    assert not server.requests


def test_of_many_branches_some_are_named(run: Run) -> None:
    for step in range(1, 30):
        milestone(run, step)
    assert dict(manifest.status_lines(run))["not pushed"].startswith(
        "step-000000001, step-000000002, step-000000003, step-000000004 and 26 more: "
    )


def test_each_task_of_a_study_has_a_repository_of_its_own(tmp_path: Path) -> None:
    long = "x" * 80
    for repository in (REPO, f"someone/{long}"):
        words = [
            *TINY,
            f"out={tmp_path}",
            "seeds=2",
            f"hub.repo={repository}",
            "sweep",
            "corruption.rate=0.25,0.5",
        ]
        plan = requested(words).tasks
        made = {task.options["hub.repo"] for task in plan.values() if task.tool == "pretrain"}
        assert len(made) == 4 and all(
            name.startswith(repository[:80]) and hub_files.NAME.fullmatch(name) for name in made
        )
        assert not [
            task for task in plan.values() if task.tool == "evaluate" and "hub.repo" in task.options
        ]
    assert "someone/vit-pretrain-0.25-0" in {
        task.options.get("hub.repo")
        for task in requested(altered(words, f"hub.repo={REPO}")).tasks.values()
    }
    with pytest.raises(UserError, match=r"hub\.repo=vit: expected USER/NAME"):
        requested(altered(words, "hub.repo=vit"))


HELD = """
import time
from ssl_vit.jobs import cli
from ssl_vit.hub import background
lay = background.Milestones.__call__
def laid(self, *values):
    lay(self, *values)
    while True:  # until it is killed
        time.sleep(0.1)
background.Milestones.__call__ = laid
cli.pretrain({words!r})
"""


def test_training_that_is_killed_while_it_pushes_goes_on_and_commits_nothing_twice(
    server: Hub, tmp_path: Path
) -> None:
    """Killed between its milestone and its next step, where it is held, once the push has begun,
    which goes on beside the run that resumes."""
    server.faults = [Fault("PUT /lfs/", "slow", 2, seconds=3.0)]
    words = altered(
        [*TINY, "name=mpp", f"out={tmp_path}/runs"],
        f"hub.repo={REPO}",
        "hub.every=8",
        "hub.state=true",
    )
    held = [sys.executable, "-c", HELD.replace("{words!r}", repr(words))]
    with subprocess.Popen(
        held, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
    ) as first:
        until = time.monotonic() + 300
        while not any(request.startswith("PUT /lfs/") for request in server.requests):
            assert first.poll() is None and time.monotonic() < until
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
    again = launch("tools/pretrain.py", *words)
    output, _ = again.communicate(timeout=600)
    assert again.returncode == 0 and "not pushed" not in output, output
    repository = server.repositories[REPO]
    histories = {branch: repository.history(branch) for branch in repository.branches}
    assert histories == {"main": 2, "step-000000008": 2, "state": 1}


def test_what_a_pull_says_to_type_can_be_typed(
    server: Hub, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run.recipe.hub.state = True
    push.push(run)
    pull.main([f"hf-hub:{REPO}", f"out={tmp_path}/my runs"])
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert (
        f"out={tmp_path}/my runs" in words and f"recipe={tmp_path}/my runs/mpp/recipe.yaml" in words
    )


def test_milestones_that_cannot_be_pushed_stay_few(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pusher = background.Pusher(run)
    monkeypatch.setattr(pusher, "start", lambda: None)  # the Hub is out of reach
    milestones = background.Milestones(pusher, lambda folder, trained: folder.mkdir())
    (run.outbox / ".step-000000001.77").mkdir(parents=True)
    for step in range(1, 8):
        assert milestones(step, {}, nn.Linear(2, 2)) == ()
    assert sorted(path.name for path in run.outbox.iterdir()) == [
        f"step-{step:09d}" for step in range(1, 5)
    ]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"warning: the milestone of step {step} is left out: 4 wait for the Hub"
        for step in range(5, 8)
    ]


def test_an_export_that_finds_no_room_leaves_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*values: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    net = encoder.build_backbone(run.recipe.model, run.recipe.data)
    monkeypatch.setattr(weights, "_packed", full)
    with pytest.raises(OSError, match="No space"):
        weights.export(
            tmp_path / "out" / "export", net, {}, run.recipe.model, run.recipe.data, "avg"
        )
    assert not list((tmp_path / "out").iterdir())
