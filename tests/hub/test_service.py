"""robustness/hub_service.py against the Hub on this machine: every path that it has, and a
repository that is deleted whatever fails."""

import json
import sys
from pathlib import Path

import pytest

from helpers.hub_runs import REPO
from helpers.hub_server import READER, WRITER, Fault, Hub
from helpers.launching import launch, outcome
from ssl_vit.errors import UserError
from ssl_vit.runs.folder import Run

sys.path.insert(0, "robustness")
import hub_paths
import hub_service

pytestmark = pytest.mark.filterwarnings(
    "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"
)
NEW = "someone/service"
GATED = Fault("another/gated", 403, headers={"X-Error-Code": "GatedRepo"})


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The server; what main sets is undone."""
    for name in ("HF_HUB_CACHE", "HF_XET_CACHE"):
        monkeypatch.setenv(name, "")
    return server


def report(text: str) -> dict[str, tuple[str, str]]:
    """Status and reason of each path, as the lines and as the JSON object have them."""
    assert WRITER not in text and READER not in text
    lines, brace, rest = text.partition("{\n")
    rows = json.loads(brace + rest)["paths"]
    printed = [f"{row['path']}: {row['status']}: {row['why']}".removesuffix(": ") for row in rows]
    assert lines.splitlines() == printed
    return {row["path"]: (row["status"], row["why"]) for row in rows}


def test_all_paths_pass_but_those_that_the_server_lacks(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN_READ", READER)
    hub.faults = [GATED]
    options = [f"repo={NEW}", "large=1", "gated=another/gated", f"endpoint={hub.url}"]
    status = hub_service.main(options)
    found = report(capsys.readouterr().out)
    assert found.keys() == {*hub_paths.PATHS, f"deletion of {NEW}"}
    missing = {name: row for name, row in found.items() if row != ("pass", "")}
    assert missing == {
        "large file by Xet": ("skipped", "hf_xet is not installed, or HF_HUB_DISABLE_XET is set"),
        "rate limit": ("skipped", "requests=0"),
    }
    assert status == 0 and not hub.repositories


def test_a_forked_process_talks_to_the_hub_of_its_environment() -> None:
    """The server that forks it has imported huggingface_hub, which reads HF_ENDPOINT then."""
    code = "from huggingface_hub import constants; print(constants.ENDPOINT)"
    places = ["http://127.0.0.1:8", "http://127.0.0.1:9"]
    _, printed = outcome([launch("-c", code, HF_ENDPOINT=place) for place in places])
    assert [text.strip() for text in printed] == places


FAILURES = {
    "a commit on any parent": ("concurrent", "a commit on an old parent was accepted"),
    "a public repository": ("anonymous", "it was allowed; expected"),
    "no parts of files": ("continued", "the whole file was downloaded again"),
    "a token that may write": ("read_only_token", "it was allowed; expected"),
    "a limit without a time": ("rate_limit", "limited after 0 requests, without a time to wait"),
    "an open model": ("gated", "expected"),
}


@pytest.mark.parametrize(("path", "says"), FAILURES.values(), ids=FAILURES)
def test_what_the_hub_does_wrong_is_reported_and_the_repository_deleted(
    hub: Hub,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    path: str,
    says: str,
) -> None:
    if path != "read_only_token":
        hub.put(REPO, {"config.json": b"{}"}, private=True)
    service = hub_paths.Service(REPO, tmp_path, run, REPO, large=1000, requests=1)
    if path == "concurrent":
        create = hub_paths.commit
        monkeypatch.setattr(hub_paths, "commit", lambda *words: create(*words[:4], None))
    elif path == "anonymous":
        hub.repositories[REPO].private = False
    elif path == "continued":
        service.known["lfs"] = b"x" * 1000
        hub.put(REPO, {hub_paths.LARGE: b"x" * 1000}, "lfs")
        hub.sends_parts = False
    elif path == "read_only_token":
        monkeypatch.setenv("HF_TOKEN_READ", WRITER)
    elif path == "rate_limit":
        hub.faults = [Fault("revision/main", 429, 1)]
    paths = {"tried": getattr(hub_paths, path), "after it": lambda service: None}
    monkeypatch.setattr(hub_service, "PATHS", paths)
    first, second, last = hub_service.check(service, keep=False)
    assert first["status"] == "fail" and says in first["why"]
    assert (second["status"], last["status"]) == ("pass", "pass")
    assert REPO not in hub.repositories
    assert f"tried: fail: {first['why']}\n" in capsys.readouterr().out


def test_a_limited_rate_is_waited_for(hub: Hub, run: Run, tmp_path: Path) -> None:
    hub.put(REPO, {}, private=True)
    service = hub_paths.Service(REPO, tmp_path, run, requests=3)
    hub.faults = [Fault("revision/main", 429, 1, {"Retry-After": "1"})]
    assert hub_paths.rate_limit(service) == "after 0 requests; the Hub requested 1 s"
    hub.faults = []
    with pytest.raises(hub_paths.Skipped, match="3 requests were not limited"):
        hub_paths.rate_limit(service)


def test_deletion_follows_an_interrupt_and_is_itself_reported(
    hub: Hub,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def interrupt(service: hub_paths.Service) -> None:
        raise KeyboardInterrupt

    service = hub_paths.Service(REPO, tmp_path, run)
    monkeypatch.setattr(hub_service, "PATHS", {"interrupted": interrupt})
    hub.put(REPO, {}, private=True)
    with pytest.raises(KeyboardInterrupt):
        hub_service.check(service, keep=True)
    assert REPO in hub.repositories
    hub.faults = [Fault("DELETE", 403, 1)]
    with pytest.raises(KeyboardInterrupt):
        hub_service.check(service, keep=False)
    assert f"deletion of {REPO}: fail: this token may not write" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):
        hub_service.check(service, keep=False)
    assert REPO not in hub.repositories


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "repo=: expected USER/NAME"),
        (["repo=vit"], "repo=vit: expected USER/NAME"),
        ([f"repo={NEW}", "gated=x"], "gated=x: expected USER/NAME"),
        ([f"repo={NEW}", "large=0"], "large=0: expected a whole number from 1"),
        ([f"repo={NEW}", "keep=yes"], "keep=yes: expected true or false"),
        ([f"repo={NEW}", "larg=1"], "larg=1: unknown; did you mean large?"),
        ([f"repo={NEW}", "endpoint=http://127.0.0.1:9"], "endpoint=http://127.0.0.1:9: the client"),
        ([f"repo={REPO}"], f"repo={REPO}: it exists; expected the name of a new repository"),
        (["repo=another/vit"], "repo=another/vit: this token may not write there"),
    ],
)
def test_options(hub: Hub, words: list[str], says: str) -> None:
    hub.put(REPO, {"model.bin": b"precious"}, private=True)
    with pytest.raises(UserError) as caught:
        hub_service.main(words)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert hub.repositories.keys() == {REPO}


def test_nobody_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match=f"^repo={NEW}: nobody is logged in; type hf auth login"):
        hub_service.main([f"repo={NEW}"])
    assert not hub.requests


def test_no_token_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "first-secret")
    monkeypatch.setenv("HF_TOKEN_READ", "second-secret")
    text = hub_service.without_tokens("a first-secret, a second-secret, hf_abcdefghijk")
    assert text == "a ***, a ***, ***"
