"""What of a run goes to the Hugging Face Hub, what is still owed, and the pushing of it. No torch here, but for the state.

Training lays milestones into the outbox, hub/step-.../; everything else is taken from the run's folder. hub.json is the ledger:
what lies where, by commit, so that nothing is pushed twice; and what went wrong last. A push is a process of its own
(tools/push.py), so that nothing that a network does reaches training.
"""

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from omegaconf import OmegaConf

from ..recipe import NOT_COMPUTED, Recipe, UserError, dump, flatten, nearest
from ..runs import Run, write_atomically
from ..words import load, parse
from . import card, remote

WAITS = (2.0, 8.0)  # seconds before a push is tried again
PATIENCE = 120.0  # seconds of a Retry-After that are waited for, at most
SILENCE = 60.0  # seconds without a byte after which a server is given up
STATE = ("recipe.yaml", "environment.json", "metrics.jsonl", "state.json", "state.safetensors")
T = TypeVar("T")


class Parcel(NamedTuple):
    """What goes to a branch in one commit; `stamp` tells in the ledger whether this very content was pushed."""

    branch: str
    stamp: str
    message: str
    files: Callable[[], dict[str, bytes | Path]]


def opened(folder: Path) -> Run:
    """The run in a folder, as far as pushing needs it: its pictures need not be here.

    Raises:
        UserError: there is no run, or no repository is said.
    """
    if not (folder / "recipe.yaml").exists():
        raise UserError(f"{folder} is no run: it holds no recipe.yaml")
    try:
        config = OmegaConf.merge(OmegaConf.structured(Recipe), load(folder / "recipe.yaml"))
        recipe = cast(Recipe, OmegaConf.to_object(config))
    except Exception as error:  # a recipe of another version, or no recipe at all
        raise UserError(f"{folder}/recipe.yaml cannot be read: {' '.join(str(error).split())[:200]}") from None
    recipe.out, recipe.name = str(folder.resolve().parent), folder.resolve().name
    return Run(recipe)


def step_branch(step: int) -> str:
    return f"step-{step:09d}"


def parcels(run: Run) -> Iterator[Parcel]:
    """All that there is to push: milestones by step, the newest training state, last the finished run."""
    name = run.recipe.name
    for folder in sorted(run.outbox.glob("step-*")):
        step = int(folder.name.removeprefix("step-"))
        message = f"{name} after {step:,} of {run.recipe.optim.steps:,} steps"
        yield Parcel(folder.name, "", message, partial(_export, run, folder, step))
    if run.recipe.hub.state and (newest := max(run.checkpoints.glob("step-*"), default=None)):
        yield Parcel("state", newest.name, f"{name}, the training state at {newest.name}", partial(_state, run, newest))
    if result := run.result():
        yield Parcel("main", result["finished"], f"{name}, finished", partial(_finished, run))


def _export(run: Run, folder: Path, step: int | None = None) -> dict[str, bytes | Path]:
    """An export, its card and the recipe."""
    said = {"README.md": card.write(run, folder, step), "recipe.yaml": dump(card.public(run.recipe))}
    return {path.name: path for path in folder.iterdir()} | {name: text.encode() for name, text in said.items()}


def _finished(run: Run) -> dict[str, bytes | Path]:
    figures = {f"figures/{path.name}": path for path in run.figures.glob("*.png")}
    curves = {"figures/curves.png": drawn} if (drawn := card.curves(run)) else {}
    return {**_export(run, run.export), "result.json": run.folder / "result.json", **figures, **curves}


def _state(run: Run, checkpoint: Path) -> dict[str, bytes | Path]:
    from .plain import pack_checkpoint  # torch

    structure, tensors = pack_checkpoint(checkpoint)
    known = {name: run.folder / name for name in ("environment.json", "metrics.jsonl")}
    recipe = dump(card.public(run.recipe)).encode()
    return {**known, "recipe.yaml": recipe, "state.json": structure, "state.safetensors": tensors}


def owed(run: Run) -> list[str]:
    """The branches that are not pushed yet."""
    pushed = _ledger(run)["pushed"].get(run.recipe.hub.repo, {})
    return [p.branch for p in parcels(run) if pushed.get(p.branch, {}).get("stamp") != p.stamp]


def pushed(run: Run, branch: str) -> bool:
    return branch in _ledger(run)["pushed"].get(run.recipe.hub.repo, {})


def told(run: Run, command: str) -> list[tuple[str, str]]:
    """Name and text for people: where it is, what is owed, why, and what to type."""
    repository, left = run.recipe.hub.repo, owed(run)
    done = sorted(set(_ledger(run)["pushed"].get(repository, {})) - set(left))
    where = [("hub", f"{repository}: pushed {', '.join(done)}")] if done else []
    if not left:
        return where
    why = _ledger(run)["trouble"] or "there was no time"
    return [*where, ("not pushed", f"{', '.join(left)}: {why}"), ("then type", f"{command} {run.folder}")]


def push(run: Run, again: bool = False, say: Callable[[str], None] = lambda text: None) -> None:
    """Push what is owed, each branch in a commit; with `again` the finished run too, where only what changed makes a commit.

    Raises:
        UserError: nobody is logged in, the Hub refuses or cannot be reached, or somebody else is pushing this run.
    """
    with _alone(run):
        trouble: str | None = "it was interrupted"
        try:
            _push(run, again, say)
            trouble = None
        except UserError as error:
            trouble = str(error)
            raise
        except Exception as error:
            trouble = remote.why(error)
            raise UserError(f"hub.repo={run.recipe.hub.repo}: {trouble}") from None
        finally:
            _write(run, trouble=trouble)


def _push(run: Run, again: bool, say: Callable[[str], None]) -> None:
    repository = run.recipe.hub.repo
    remote.calm()
    if remote.token() is None:
        raise UserError(f"hub.repo={repository}: nobody is logged in; {remote.LOGIN}")
    if not _ledger(run)["pushed"].get(repository):
        patiently(run, lambda: _api().create_repo(repository, private=run.recipe.hub.private, exist_ok=True))
    for parcel in parcels(run):
        if parcel.branch in owed(run) or (again and parcel.branch == "main"):
            commit = patiently(run, partial(_send, run, parcel))
            say(f"{parcel.branch} is at commit {commit[:12]}")
            known = _ledger(run)["pushed"].get(repository, {}) | {parcel.branch: {"stamp": parcel.stamp, "commit": commit}}
            _write(run, pushed=_ledger(run)["pushed"] | {repository: known})
        if parcel.branch.startswith("step-"):
            shutil.rmtree(run.outbox / parcel.branch)


def _send(run: Run, parcel: Parcel) -> str:
    """One commit, or none where the branch has just this; its id."""
    from huggingface_hub import CommitOperationAdd

    repository, api = run.recipe.hub.repo, _api()
    if parcel.branch != "main":
        api.create_branch(repository, branch=parcel.branch, exist_ok=True)
    _check_whose(run, parcel.branch)
    operations = [CommitOperationAdd(name, content) for name, content in sorted(parcel.files().items())]
    return api.create_commit(repository, operations, commit_message=parcel.message, revision=parcel.branch).oid


def _check_whose(run: Run, branch: str) -> None:
    """That the branch holds nothing, or this very run.

    Raises:
        UserError: it holds the run of another recipe.
    """
    repository, api = run.recipe.hub.repo, _api()
    if not api.file_exists(repository, "recipe.yaml", revision=branch):
        return
    commit = api.repo_info(repository, revision=branch).sha
    said = f"hub.repo={repository}"
    there = flatten(load(remote.fetch(f"{repository}@{commit}", said, ["recipe.yaml"]) / "recipe.yaml"))
    here = flatten(OmegaConf.to_container(OmegaConf.structured(card.public(run.recipe))))
    differ = [key for key in here if not key.startswith(NOT_COMPUTED) and there.get(key) != here[key]]
    if differ:
        raise UserError(f"{said}: it holds the run of another recipe ({', '.join(differ[:5])}); say another hub.repo=")


def _api() -> Any:
    """The Hub's client, which gives up a server that says nothing."""
    from huggingface_hub import HfApi, get_session

    get_session().timeout = SILENCE
    return HfApi()


def patiently(run: Run, do: Callable[[], T]) -> T:
    """Do it, again where the Hub is busy or out of reach, after as long as it asks for; the ledger tells meanwhile why."""
    for wait in WAITS:
        try:
            return do()
        except Exception as error:
            if not remote.passing(error):
                raise
            _write(run, trouble=remote.why(error))
            time.sleep(min(PATIENCE, max(wait, remote.retry_after(error))))
    return do()


def _ledger(run: Run) -> dict[str, Any]:
    try:
        value = json.loads(run.ledger.read_text())
    except (OSError, ValueError):  # none yet, or damaged: the Hub itself knows what it has
        value = {}
    return {"pushed": {}, "trouble": None} | (value if isinstance(value, dict) else {})


def _write(run: Run, **what: Any) -> None:
    write_atomically(run.ledger, json.dumps(_ledger(run) | what, indent=2) + "\n")


@contextmanager
def _alone(run: Run) -> Iterator[None]:
    """One push of a run at a time; the system frees the lock with the process."""
    run.outbox.mkdir(exist_ok=True)
    with (run.outbox / "lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{run.folder} is being pushed by another process; wait for it") from None
        yield


def main(words: list[str]) -> None:
    """Do what the words of tools/push.py say.

    Raises:
        UserError: as `asked`, `opened` and `push`.
    """
    quiet, words = "--quiet" in words, [word for word in words if word != "--quiet"]
    folder, said = asked(words)
    run = opened(folder)
    for key, value in said.items():
        setattr(run.recipe.hub, key.removeprefix("hub."), value)
    if not run.recipe.hub.repo or not remote.NAME.fullmatch(run.recipe.hub.repo):
        raise UserError(f"hub.repo={run.recipe.hub.repo}: USER/NAME on the Hugging Face Hub is asked for")
    push(run, again=not quiet, say=lambda text: print(f"pushed      {run.recipe.hub.repo}: {text}", flush=True))


def asked(words: list[str]) -> tuple[Path, dict[str, Any]]:
    """A run's folder, and what of hub.repo=, hub.private= and hub.state= is said anew.

    Raises:
        UserError: a word is not understood.
    """
    folders, given = [word for word in words if "=" not in word], parse(word for word in words if "=" in word)
    if len(folders) != 1:
        text = "say one run's folder: tools/push.py runs/mpp hub.repo=USER/NAME"
        raise UserError(f"{' '.join(words) or 'nothing'} is said; {text}")
    choices: dict[str, Callable[[str], Any]] = {"hub.repo": str, "hub.private": _truth, "hub.state": _truth}
    for key in given:
        if key not in choices:
            raise UserError(f"unknown key {key}; {nearest(key, choices)}")
    return Path(folders[0]), {key: choices[key](text) for key, text in given.items()}


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise UserError(f"hub.private= or hub.state={text}: true or false is asked for")
    return text == "true"
