"""What a Hugging Face Hub does with this project's uploads and downloads, path by path.

    HF_TOKEN=... python benchmarks/hub_service.py repo=USER/NAME
    HF_TOKEN=... HF_TOKEN_READ=... python benchmarks/hub_service.py repo=USER/NAME gated=OWNER/NAME \\
        requests=3000

Trains a run of seconds, makes the private repository `repo`, which must not exist yet, goes through
the paths, and deletes the repository, also after failures and Ctrl-C (not with keep=true). Prints a
line for each path (pass, fail: why, skipped: why) and a JSON object; the exit status is 1 if a path
failed. endpoint=: another Hub than huggingface.co. large=: MiB of each of the two large files (32).
gated=: a gated model whose terms this account has not accepted. HF_TOKEN_READ: a token of the same
account without write access. requests=: send up to that many requests, until the Hub limits their
rate; the wait takes up to five minutes more. No token is printed.
"""

import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ssl_vit
from ssl_vit import hub_files
from ssl_vit.config.resolve import resolve
from ssl_vit.config.values import parse
from ssl_vit.errors import UserError, guard_streams, report_errors, suggest
from ssl_vit.hub import manifest, pull, push
from ssl_vit.runs.folder import Run

OPTIONS = {"repo": "", "endpoint": "", "gated": "", "large": "32", "requests": "0", "keep": "false"}
MIB = 2**20
PACKAGES = ("huggingface_hub", "hf_xet", "timm")
LARGE = "large.safetensors"  # a name that every repository keeps by LFS
UNKNOWN = "hf_" + "unknown0" * 4  # a token that nobody has
MODEL = "data.size=16 model.patch=4 model.width=32 model.depth=2 model.heads=2 model.mlp=64"
RUN = (
    "recipe=mpp optim.steps=12 optim.batch=16 optim.warmup=2 checkpoint.every=4 eval.every=4 "
    "eval.images=24 log.every=2 log.tensorboard=false compute.precision=float32 "
    "compute.compile=false hub.every=8 hub.state=true name=service"
)


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
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    if "lfs" not in service.known:
        raise Skipped("the large file is not there")
    url = hf_hub_url(service.repo, LARGE, revision="lfs")
    headers = build_hf_headers()
    ranged = headers | {"Range": "bytes=0-0"}
    status = get_session().get(url, headers=ranged, follow_redirects=True).status_code
    expect(status == 206, f"a request for a part of a file was answered with HTTP {status}")
    content = service.known["lfs"]
    half = service.large // 2
    with (service.folder / "continued").open("w+b") as file:
        file.write(content[:half])
        http_get(url, file, resume_size=half, headers=headers, expected_size=service.large)
        file.seek(0)
        expect(file.read() == content, "another content than the whole file's")


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


def tried(name: str, path: Callable[[Service], str | None], service: Service) -> dict[str, Any]:
    """Go one path; of its output only the line of its result is printed."""
    begun = time.monotonic()
    status = "pass"
    try:
        with Path(os.devnull).open("w") as null, redirect_stdout(null), redirect_stderr(null):
            why = path(service) or ""
    except Skipped as error:
        status = "skipped"
        why = str(error)
    except Failed as error:
        status = "fail"
        why = str(error)
    except Exception as error:
        status = "fail"
        why = hub_files.why(error)
    why = without_tokens(why)
    print(f"{name}: {status}{': ' if why else ''}{why}", flush=True)
    seconds = round(time.monotonic() - begun, 1)
    return {"path": name, "status": status, "why": why, "seconds": seconds}


def without_tokens(text: str) -> str:
    reader = (os.environ.get("HF_TOKEN_READ") or "").strip()
    return hub_files.clean(text.replace(reader, "***") if reader else text)


def claim(api: Any, repo: str) -> None:
    """Make sure that the repository is new: make it, which fails where there is one, and delete
    it, so that the first push makes it."""
    try:
        api.create_repo(repo, private=True, exist_ok=False)
    except Exception as error:
        response = getattr(error, "response", None)
        exists = getattr(response, "status_code", None) == 409
        why = "it exists; expected the name of a new repository, which is deleted at the end"
        raise UserError(f"repo={repo}: {why if exists else hub_files.why(error)}") from None
    api.delete_repo(repo)


def delete(service: Service) -> None:
    service.run.folder.mkdir(parents=True, exist_ok=True)  # hub.json is written while it waits
    remove = partial(service.api.delete_repo, service.repo, missing_ok=True)
    push.with_retries(service.run, remove)


def check(service: Service, keep: bool) -> list[dict[str, Any]]:
    """Go all paths; the repository is deleted whatever happens."""
    rows = []
    try:
        for name, path in PATHS.items():
            rows.append(tried(name, path, service))
    finally:
        if not keep:
            rows.append(tried(f"deletion of {service.repo}", delete, service))
    return rows


def options_of(words: list[str]) -> dict[str, str]:
    given = parse(words)
    for key, value in given.items():
        if key not in OPTIONS:
            raise UserError(f"{key}={value}: unknown; {suggest(key, OPTIONS)}")
    options = OPTIONS | given
    for key in ("repo", "gated"):
        value = options[key]
        if not hub_files.NAME.fullmatch(value) and (value or key == "repo"):
            raise UserError(f"{key}={value}: expected USER/NAME")
    for key, least in (("large", 1), ("requests", 0)):
        if not options[key].isdigit() or int(options[key]) < least:
            raise UserError(f"{key}={options[key]}: expected a whole number from {least}")
    if options["keep"] not in ("true", "false"):
        raise UserError(f"keep={options['keep']}: expected true or false")
    return options


def use_endpoint(endpoint: str) -> None:
    """Let huggingface_hub, not imported before, talk to another Hub."""
    if endpoint:
        os.environ["HF_ENDPOINT"] = endpoint
    from huggingface_hub import constants

    if endpoint and endpoint.rstrip("/") != constants.ENDPOINT:
        raise UserError(f"endpoint={endpoint}: the client uses {constants.ENDPOINT}")


def main(words: list[str]) -> int:
    options = options_of(words)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["HF_HUB_CACHE"] = str(folder / "cache")  # nothing of it stays
        os.environ["HF_XET_CACHE"] = str(folder / "xet")
        use_endpoint(options["endpoint"])
        repo = options["repo"]
        if hub_files.token() is None:
            raise UserError(f"repo={repo}: nobody is logged in; {hub_files.LOGIN}")
        hub_files.calm()
        run = Run(resolve([*RUN.split(), *MODEL.split(), f"hub.repo={repo}", f"out={folder}/runs"]))
        service = Service(repo, folder, run, options["gated"])
        service.large = int(options["large"]) * MIB
        service.requests = int(options["requests"])
        claim(service.api, repo)
        rows = check(service, options["keep"] == "true")
    print(json.dumps(summary(rows), indent=1))
    return int(any(row["status"] == "fail" for row in rows))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    from huggingface_hub import constants

    installed = {package: find_spec(package) is not None for package in PACKAGES}
    versions = {package: version(package) for package in PACKAGES if installed[package]}
    found = [row["status"] for row in rows]
    counts = {status: found.count(status) for status in ("pass", "fail", "skipped")}
    return {"endpoint": constants.ENDPOINT, "versions": versions, **counts, "paths": rows}


if __name__ == "__main__":
    guard_streams(lasting=True)
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # paths provoke the client's warnings
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the repository is deleted
    with report_errors():
        status = main(sys.argv[1:])
    sys.exit(status)
