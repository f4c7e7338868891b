"""What a Hugging Face Hub does with this project's uploads and downloads, path by path.

    HF_TOKEN=... python robustness/hub_service.py repo=USER/NAME
    HF_TOKEN=... HF_TOKEN_READ=... python robustness/hub_service.py repo=USER/NAME \\
        gated=OWNER/NAME requests=3000

Trains a run of seconds, makes the private repository `repo`, which must not exist yet, goes through
the paths (hub_paths.py), and deletes the repository, also after failures and Ctrl-C (not with
keep=true). Prints a line for each path (pass, fail: why, skipped: why) and a JSON object; the exit
status is 1 if a path failed. endpoint=: another Hub than huggingface.co. large=: MiB of each of the two large files (32).
gated=: a gated model whose terms this account has not accepted. HF_TOKEN_READ: a token of the same
account without write access. requests=: send up to that many requests, until the Hub limits their
rate; the wait takes up to five minutes more. No token is printed.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hub_paths import MIB, PATHS, Failed, Service, Skipped

from ssl_vit import hub_files
from ssl_vit.config.resolve import resolve
from ssl_vit.config.values import parse
from ssl_vit.errors import UserError, guard_streams, report_errors, suggest
from ssl_vit.hub import push
from ssl_vit.runs.folder import Run

OPTIONS = {"repo": "", "endpoint": "", "gated": "", "large": "32", "requests": "0", "keep": "false"}
PACKAGES = ("huggingface_hub", "hf_xet", "timm")
MODEL = "data.size=16 model.patch=4 model.width=32 model.depth=2 model.heads=2 model.mlp=64"
RUN = (
    "recipe=mpp optim.steps=12 optim.batch=16 optim.warmup=2 checkpoint.every=4 eval.every=4 "
    "eval.images=24 log.every=2 log.tensorboard=false compute.precision=float32 "
    "compute.compile=false hub.every=8 hub.state=true name=service"
)


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
