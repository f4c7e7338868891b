"""The uses of a Hugging Face Hub that hub_service.py tries, one function each, listed in PATHS. A
function returns nothing or a remark, and raises Skipped, Failed, or the error that it met."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ssl_vit
from ssl_vit import hub_files
from ssl_vit.errors import UserError
from ssl_vit.hub import manifest, pull, push
from ssl_vit.runs.folder import Run

MIB = 2**20
LARGE = "large.safetensors"  # a name that every repository keeps by LFS
UNKNOWN = "hf_" + "unknown0" * 4  # a token that nobody has


class Skipped(Exception):
    """Why a path was not tried."""


class Failed(Exception):
    """What was not as expected."""


@dataclass
class Service:
    """A repository on a Hub, the run that is pushed there, and what some paths need."""

    repo: str
    folder: Path
    run: Run
    gated: str = ""
    large: int = 32 * MIB
    requests: int = 0
    known: dict[str, bytes] = field(default_factory=dict)  # for later paths

    @property
    def api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi()

    def head(self, revision: str = "main") -> str:
        return str(self.api.repo_info(self.repo, revision=revision).sha)


def expect(condition: bool, text: str) -> None:
    if not condition:
        raise Failed(text)


def expect_refusal(do: Callable[[], Any], text: str) -> None:
    """That `do` ends in a UserError with this text."""
    try:
        do()
    except UserError as error:
        expect(text in str(error), f'expected "{text}", got: {error}')
        return
    raise Failed(f'it was allowed; expected "{text}"')


def as_user(token: str) -> Any:
    """A context in which huggingface_hub sends this token."""
    return patch.dict(os.environ, {"HF_TOKEN": token, "HUGGING_FACE_HUB_TOKEN": token})


def background(service: Service) -> None:
    from ssl_vit.jobs import train  # after use_endpoint: it imports huggingface_hub

    run = service.run
    run.reconcile()
    train.train(run)
    there = manifest.pushed_branches(run)
    problem = manifest.read(run)["last_error"]
    expect(not manifest.owed(run), f"not pushed: {', '.join(manifest.owed(run))}: {problem}")
    expect(there.keys() == {"main", "state", "step-000000008"}, f"pushed: {', '.join(there)}")
    expect(service.api.repo_info(service.repo).private is True, "the repository is not private")


def unchanged(service: Service) -> None:
    before = service.head()
    push.push(service.run, again=True)
    expect(service.head() == before, "a push of what the Hub has made a commit")


def commit(service: Service, branch: str, name: str, content: bytes, parent: str) -> None:
    from huggingface_hub import CommitOperationAdd

    operations = [CommitOperationAdd(name, content)]
    service.api.create_commit(
        service.repo, operations, commit_message=name, revision=branch, parent_commit=parent
    )


def concurrent(service: Service) -> None:
    service.api.create_branch(service.repo, branch="concurrent")
    parent = service.head("concurrent")
    commit(service, "concurrent", "notes.txt", b"first", parent)
    try:
        commit(service, "concurrent", "notes.txt", b"second", parent)
    except Exception as error:
        expect(hub_files.passing(error), f"not seen as passing: {hub_files.why(error)}")
        return
    raise Failed("a commit on an old parent was accepted")


def card(service: Service) -> None:
    from huggingface_hub import ModelCard

    data = ModelCard.load(service.repo).data.to_dict()
    there = service.api.model_info(service.repo).card_data
    expect(there is not None, "the Hub sees no metadata in the model card")
    differ = [key for key, value in data.items() if there.to_dict().get(key) != value]
    expect(bool(data) and not differ, f"the Hub reads it otherwise: {', '.join(differ)}")


def same_weights(service: Service, revision: str = "") -> bool:
    there = ssl_vit.load_encoder(f"hf-hub:{service.repo}{revision}").state_dict()
    here = ssl_vit.load_encoder(service.run.folder).state_dict()
    return there.keys() == here.keys() and all(here[key].equal(there[key]) for key in here)


def init(service: Service) -> None:
    expect(same_weights(service), "other weights than those of the run")


def revisions(service: Service) -> None:
    head = service.head()
    service.api.create_tag(service.repo, tag="v1.0", revision=head)
    expect(same_weights(service, "@v1.0"), "other weights at a tag")
    expect(same_weights(service, f"@{head}"), "other weights at a commit")
    expect(not same_weights(service, "@step-000000008"), "a milestone has the last weights")
    missing = partial(hub_files.fetch, f"{service.repo}@none", "init", ["config.json"])
    expect_refusal(missing, "the repository has no such revision")


def state(service: Service) -> None:
    pulled = pull.pull(f"hf-hub:{service.repo}", str(service.folder / "pulled"))
    expect(pulled.recipe.optim.steps == service.run.recipe.optim.steps, "another recipe")
    names = {path.name for path in pulled.checkpoints.iterdir()}
    expect("step-000000012" in names, f"checkpoints: {', '.join(sorted(names))}")


def timm_weights(service: Service) -> None:
    import timm
    from safetensors.torch import load_file

    there = timm.create_model(f"hf-hub:{service.repo}", pretrained=True).state_dict()
    here = load_file(service.run.export / "model.safetensors")
    expect(there.keys() == here.keys(), "other parameters than those of the run")
    expect(all(here[key].equal(there[key]) for key in here), "other weights than those of the run")


def large_file(service: Service, branch: str) -> bytes:
    """Upload a file of random bytes to a branch, download it, and compare; its content."""
    content = secrets.token_bytes(service.large)
    service.api.create_branch(service.repo, branch=branch)
    commit(service, branch, LARGE, content, service.head(branch))
    there = hub_files.fetch(f"{service.repo}@{branch}", branch, [LARGE]) / LARGE
    expect(there.read_bytes() == content, "another content came back")
    return content


def large_xet(service: Service) -> None:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    if constants.HF_HUB_DISABLE_XET or find_spec("hf_xet") is None:
        raise Skipped("hf_xet is not installed, or HF_HUB_DISABLE_XET is set")
    large_file(service, "xet")
    place = hf_hub_url(service.repo, LARGE, revision="xet")
    expect(get_hf_file_metadata(place).xet_file_data is not None, "the file is not kept by Xet")


def large_lfs(service: Service) -> None:
    from huggingface_hub import constants

    with patch.object(constants, "HF_HUB_DISABLE_XET", True):
        service.known["lfs"] = large_file(service, "lfs")


def continued(service: Service) -> None:
    """The half that is here is of other bytes: they stay if only the rest is downloaded."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    if "lfs" not in service.known:
        raise Skipped("the large file is not there")
    content = service.known["lfs"]
    half = len(content) // 2
    url = hf_hub_url(service.repo, LARGE, revision="lfs")
    with (service.folder / "continued").open("w+b") as file:
        file.write(bytes(half))
        headers = build_hf_headers()
        http_get(url, file, resume_size=half, headers=headers, expected_size=len(content))
        file.seek(0)
        found = file.read()
    expect(found != content, "the whole file was downloaded again")
    expect(found == bytes(half) + content[half:], "another content came back")


def anonymous(service: Service) -> None:
    from huggingface_hub import constants

    fetch = partial(hub_files.fetch, service.repo, "init", ["config.json"])
    cache = patch.object(constants, "HF_HUB_CACHE", str(service.folder / "anonymous"))
    # another cache: the client falls back to what it has
    with cache, patch.object(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True):
        expect_refusal(fetch, "there is no such repository, or it is private")


def wrong_token(service: Service) -> None:
    with as_user(UNKNOWN):
        expect_refusal(partial(push.push, service.run, again=True), "does not know this token")


def read_only_token(service: Service) -> None:
    token = os.environ.get("HF_TOKEN_READ")
    if not token:
        raise Skipped("HF_TOKEN_READ is not set")
    (service.run.figures / "new.png").write_bytes(b"something to commit")
    with as_user(token):
        expect_refusal(partial(push.push, service.run, again=True), "this token may not write")


def gated(service: Service) -> None:
    if not service.gated:
        raise Skipped("no gated=OWNER/NAME")
    fetch = partial(hub_files.fetch, service.gated, "init", ["config.json"])
    expect_refusal(fetch, "its terms must be accepted first")


def rate_limit(service: Service) -> str:
    if not service.requests:
        raise Skipped("requests=0")
    for sent in range(service.requests):
        try:
            service.head()
        except Exception as error:
            expect(hub_files.passing(error), hub_files.why(error))
            wait = hub_files.retry_after(error)
            expect(wait > 0, f"limited after {sent} requests, without a time to wait")
            push.with_retries(service.run, service.head)
            return f"after {sent} requests; the Hub requested {wait:.0f} s"
    raise Skipped(f"{service.requests} requests were not limited; set more")


PATHS: dict[str, Callable[[Service], str | None]] = {
    "private repository made, milestone and state pushed in the background": background,
    "unchanged push makes no commit": unchanged,
    "concurrent commit refused": concurrent,
    "metadata of the model card": card,
    "init=hf-hub:": init,
    "tag, commit, branch, missing revision": revisions,
    "pull of the training state": state,
    "timm.create_model": timm_weights,
    "large file by Xet": large_xet,
    "large file by LFS": large_lfs,
    "download continued in the middle": continued,
    "private repository without a token": anonymous,
    "wrong token": wrong_token,
    "read-only token": read_only_token,
    "gated repository": gated,
    "rate limit": rate_limit,
}
