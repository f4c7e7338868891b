"""A push: whole commits of all that belongs there, over nothing but this run, without waiting for
ever; one part keeps back no other."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from helpers.exports import forget_digests
from helpers.hub_runs import REPO, histories, milestone, pushed, refused
from helpers.hub_server import READER, STRANGER, WRITER, Fault, Hub
from ssl_vit import hub_files
from ssl_vit.errors import UserError
from ssl_vit.hub import manifest, payload, pull, push
from ssl_vit.runs.folder import TRAINED_ON, Run

EXPORT = {
    *(".gitattributes", "README.md", "recipe.yaml", "run.json", "config.json"),
    *("model.safetensors", "heads.safetensors"),
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No sleep in the client or here, and a short patience; the seconds asked for."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(hub_files, "SILENCE", 0.2)
    return slept


def rejected(run: Run) -> str:
    """The line with which a push is refused."""
    line = refused(push.push, run)
    assert line.startswith(f"hub.repo={run.recipe.hub.repo}: ")
    return line


def test_a_push_makes_one_private_commit_of_all_that_belongs_there(
    server: Hub, run: Run, capsys: pytest.CaptureFixture
) -> None:
    """And no other of an unchanged folder, though that does not know what was pushed."""
    run.recipe.hub.state = True
    push.push(run)
    files = pushed(server)
    assert files.keys() == EXPORT | {"result.json", "figures/predictions.png"}
    for path in (*run.export.iterdir(), run.folder / "result.json"):
        assert files[path.name] == path.read_bytes()
    state = pushed(server, "state").keys()
    assert state == {".gitattributes", "run.json", *payload.STATE, TRAINED_ON}
    assert server.repositories[REPO].private and manifest.pending(run) == []
    assert manifest.status_lines(run) == [("hub", f"{REPO}: pushed main, state")]
    branches = dict(server.repositories[REPO].branches)
    run.ledger.unlink()
    push.push(run)
    assert server.repositories[REPO].branches == branches and manifest.pending(run) == []
    (run.figures / "predictions.png").write_bytes(b"another")
    push.push(run)
    assert histories(server)["main"] == 3


def test_milestones_go_to_branches_of_their_own_once(server: Hub, run: Run) -> None:
    """Without what the end has measured, also where they come after it."""
    for step in (4, 8):
        milestone(run, step)
    push.push(run)
    branches = dict(server.repositories[REPO].branches)
    assert set(branches) == {"main", "step-000000004", "step-000000008"}
    assert pushed(server, "step-000000004").keys() == EXPORT
    assert "step 4 of 12" in pushed(server, "step-000000004")["README.md"].decode()
    assert not list(run.outbox.glob("step-*"))
    milestone(run, 8)  # as a run that resumed would
    push.push(run)
    assert server.repositories[REPO].branches == branches


def test_of_the_states_only_the_last_stays(server: Hub, run: Run) -> None:
    """Where the Hub does not squash them the commit is there, and the next push makes up for it."""
    run.recipe.hub.state = True
    push.push(run)
    server.faults = [Fault("super-squash", 403, 1), Fault("super-squash", "cut", 1)]
    repository = server.repositories[REPO]
    for number, (step, commits) in enumerate(((16, 2), (20, 3), (24, 1))):
        shutil.copytree(run.checkpoints / "step-000000012", run.checkpoints / f"step-{step:09d}")
        run.metrics.write_text(f"{step}")
        push.push(run)
        assert manifest.pending(run) == [] and repository.history("state") == commits, number
        assert pushed(server, "state")["metrics.jsonl"] == b"%d" % step
        assert manifest.read(run).branches["state"].commit == repository.branches["state"]


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    server: Hub, run: Run, tmp_path: Path
) -> None:
    newest = max(run.checkpoints.glob("step-*")) / "state.pt"
    newest.write_bytes(newest.read_bytes()[:-50])
    (run.checkpoints / "step-tmp").mkdir()
    run.recipe.hub.state = True
    push.push(run)
    assert not manifest.pending(run) and set(histories(server)) == {"main", "state"}
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
    assert "config.json" in refused(push.push, run)
    assert manifest.pending(run) == ["step-000000004", "state"]
    for branch in ("main", "step-000000008"):
        assert "model.safetensors" in pushed(server, branch)


WHO: dict[str, tuple[str | None, str]] = {
    "a wrong token": ("hf_nobodyNOBODY0123456789", "does not know this token"),
    "a token that is none": (WRITER + "\u20ac", "the token is invalid"),
    "nobody": (None, "nobody is logged in"),
    "a token to read": (READER, "may not write"),
    "somebody else's": (STRANGER, "may not write"),
}


@pytest.mark.parametrize(("token", "says"), WHO.values(), ids=WHO)
def test_who_may_not_push_is_told_at_once(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch, token: str | None, says: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN")
    assert says in rejected(run) and len(server.requests) < 5
    assert manifest.pending(run) == ["main"]


def test_why_the_hub_refuses_is_told(server: Hub, run: Run) -> None:
    limits = {"X-Error-Code": "", "X-Error-Message": "storage limit reached"}
    server.faults = [Fault("lfs/objects/batch", 403, headers=limits)]
    assert "(storage limit reached" in rejected(run)


def test_a_push_without_the_network_says_so_at_once(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch, quick: list[float]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in rejected(run)
    assert not quick and not server.requests


SOON = {"Retry-After": "0"}
PASSING = {
    "busy": [
        Fault("repos/create", 429, 2, SOON),
        Fault("preupload", 429, 1, SOON),
        Fault("/commit/main", 503, 2),
    ],
    "cut in the middle of the weights": [Fault("PUT /lfs", "cut", 1)],
    "cut while committing": [Fault("/commit/main", "cut", 1)],
}


@pytest.mark.parametrize("faults", PASSING.values(), ids=PASSING)
def test_what_passes_is_waited_for(server: Hub, run: Run, faults: list[Fault]) -> None:
    server.faults = [Fault(one.match, one.does, one.times, one.headers) for one in faults]
    push.push(run)
    assert not any(one.times for one in server.faults) and manifest.pending(run) == []
    assert pushed(server)["model.safetensors"] == (run.export / "model.safetensors").read_bytes()


REQUESTS = ["POST /api/repos/create", "PUT /lfs/", "POST .*/commit/", "(GET|HEAD) .*/resolve/"]


@pytest.mark.parametrize("match", REQUESTS)
def test_a_hang_at_any_request_is_given_up(
    server: Hub, run: Run, quick: list[float], match: str
) -> None:
    run.recipe.hub.state = True
    if "resolve" in match:  # whose run there is, is looked at
        push.push(run)
        run.ledger.unlink()
    server.faults = [Fault(match, "hang")]
    assert f"the Hub cannot be reached at {server.url}" in rejected(run)


NOT_A_RUN: dict[str, dict[str, bytes]] = {
    "no run (config.json, model.safetensors)": {
        "README.md": b"my llama",
        "config.json": b"{}",
        "model.safetensors": b"precious",
    },
    "no run (recipe.yaml)": {"recipe.yaml": b"seed: 0\n"},
    "recipe.yaml or run.json of this repository": {"recipe.yaml": b"- bread\n", "run.json": b"{}"},
    "another recipe (bread, ": {"recipe.yaml": b"bread: butter\n", "run.json": b"{}"},
}


@pytest.mark.parametrize(("says", "files"), NOT_A_RUN.items(), ids=NOT_A_RUN)
def test_what_is_no_run_is_not_written_over(
    server: Hub, run: Run, says: str, files: dict[str, bytes]
) -> None:
    server.put(REPO, files, private=True)
    before = dict(server.repositories[REPO].branches)
    milestone(run, 4)
    run.recipe.hub.state = True
    assert says in rejected(run) and server.repositories[REPO].branches == before


def test_another_run_is_not_written_over(server: Hub, run: Run) -> None:
    """Of another recipe, or of other data; facts that the pushed one did not know are not
    compared."""
    push.push(run)
    before = dict(server.repositories[REPO].branches)
    run.ledger.unlink()
    lr, run.recipe.optim.lr = run.recipe.optim.lr, 0.5
    assert "another recipe (optim.lr" in rejected(run)
    run.recipe.optim.lr = lr
    path = run.folder / "environment.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"data": {"train": "another"}}))
    assert "hashes of data differ" in rejected(run)
    assert server.repositories[REPO].branches == before
    path.write_text(json.dumps(known | {"init": {"weights": "another"}}))
    push.push(run)
    assert not manifest.pending(run)


def test_what_the_hubs_own_form_makes_is_taken(server: Hub, run: Run) -> None:
    form = {".gitattributes": b"", "README.md": b"---\nlicense: mit\n---\n", "LICENSE": b"MIT"}
    server.put(REPO, form, private=True)
    push.push(run)
    assert "model.safetensors" in pushed(server) and pushed(server)["LICENSE"] == b"MIT"


def test_nothing_private_goes_where_everybody_reads(server: Hub, run: Run) -> None:
    server.put(REPO, {".gitattributes": b""}, private=False)
    assert "hub.private=false" in rejected(run) and histories(server) == {"main": 1}
    run.recipe.hub.private = False
    push.push(run)
    assert "model.safetensors" in pushed(server)


def test_what_was_deleted_on_the_hub_is_made_anew(server: Hub, run: Run) -> None:
    push.push(run)
    del server.repositories[REPO]
    milestone(run, 4)
    push.push(run)
    assert not manifest.pending(run) and set(histories(server)) == {"main", "step-000000004"}
    assert "model.safetensors" in pushed(server) and server.repositories[REPO].private


def before_the_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen between the look at the branch main and the commit to it."""
    look, looks = push._find_parent_commit, iter(range(100))

    def parent(run: Run, branch: str) -> str:
        found = look(run, branch)
        if next(looks) == 1:  # the first is of the repository as a whole
            act()
        return found

    monkeypatch.setattr(push, "_find_parent_commit", parent)


def test_of_two_recipes_at_once_one_writes(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"recipe.yaml": b"seed: 7\n", "run.json": b"{}", "README.md": b"theirs"}
    before_the_commit(monkeypatch, lambda: server.put(REPO, theirs))
    assert "another recipe" in rejected(run) and pushed(server) == theirs


def test_a_commit_of_ones_own_in_between_is_taken_up(
    server: Hub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"LICENSE": b"a word"}
    before_the_commit(monkeypatch, lambda: server.put(REPO, pushed(server) | more))
    push.push(run)
    assert pushed(server)["LICENSE"] == b"a word" and "model.safetensors" in pushed(server)


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


WORDS: dict[str, list[str]] = {
    "expected a single FOLDER": [],
    "nowhere: no run here": ["nowhere"],
    "hub.repo= is missing": ["RUN"],
    "did you mean hub.repo?": ["RUN", "hub.rep=a/b"],
    "true or false": ["RUN", "hub.private=no"],
    **{
        f"hub.repo={name}: expected USER/NAME": ["RUN", f"hub.repo={name}"]
        for name in ("vit", "a/../b", "a/b--c", "a/-b", "a/b.", "a/b.git")
    },
}


@pytest.mark.parametrize(("says", "words"), WORDS.items(), ids=WORDS)
def test_wrong_words_of_the_tool_are_one_line(run: Run, words: list[str], says: str) -> None:
    assert says in refused(push.main, [word.replace("RUN", str(run.folder)) for word in words])


def test_the_tool_pushes_a_run_that_never_heard_of_the_hub(
    server: Hub, run: Run, capsys: pytest.CaptureFixture
) -> None:
    push.main([str(run.folder), f"hub.repo={REPO}", "hub.private=false"])
    assert not server.repositories[REPO].private
    assert server.repositories[REPO].branches["main"][:12] in capsys.readouterr().out


def test_what_a_push_would_upload_is_shown_without_the_hub(
    server: Hub, run: Run, capsys: pytest.CaptureFixture
) -> None:
    push.main([str(run.folder), f"hub.repo={REPO}", "dry=true"])
    lines, card = capsys.readouterr().out.splitlines(), run.folder / "hub" / "README.md"
    assert not server.requests and lines[-1].endswith(str(card))
    push.main([str(run.folder), f"hub.repo={REPO}"])
    sent = pushed(server)
    assert sent["README.md"].decode() == card.read_text()
    # the last is the Hub's own
    assert {
        line.split()[3].rstrip(",") for line in lines if line.startswith("would push")
    } == sent.keys() - {".gitattributes"}


def test_an_evaluation_is_no_run_to_push(server: Hub, run: Run) -> None:
    path = run.folder / "recipe.yaml"
    path.write_text(path.read_text().replace("objective: mpp", "objective: probe"))
    assert "is an evaluation" in refused(push.main, [str(run.folder), f"hub.repo={REPO}"])
    assert not server.requests


@pytest.mark.parametrize("file", ["model", "heads"])
def test_weights_that_are_not_finite_are_not_pushed(server: Hub, run: Run, file: str) -> None:
    path = run.export / f"{file}.safetensors"
    weights = load_file(path)
    next(one for one in weights.values() if one.is_floating_point()).flatten()[0] = float("inf")
    save_file(weights, path, {"format": "pt"})
    forget_digests(run.export)
    assert "not finite" in refused(push.push, run)
    with pytest.raises(UserError, match="not finite"):
        push.main([str(run.folder), f"hub.repo={REPO}", "dry=true"])
    assert not any("safetensors" in name for name in server.repositories[REPO].at("main").files)
