"""A small Hugging Face Hub for tests: real HTTP on this machine, repositories in memory, and faults
that can be switched on.

It speaks what huggingface_hub says when it creates, uploads (LFS, not Xet), commits, branches,
lists and downloads.
"""

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

WRITER, READER, STRANGER = (
    "hf_writerWRITER0123456789",
    "hf_readerREADER0123456789",
    "hf_strangeSTRANGE0123456789",
)
# token -> name, may write
USERS = {WRITER: ("someone", True), READER: ("someone", False), STRANGER: ("another", True)}
DATE = "2026-01-01T00:00:00.000Z"
LARGE = (".safetensors", ".npz", ".png")  # kept by LFS


@dataclass
class Fault:
    """What happens, `times` times, to requests whose method and path match: a status, "cut",
    "hang", "slow" or "garbage"."""

    match: str  # a regular expression for "METHOD /path"
    does: int | str
    times: int = 1_000_000
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0  # of "slow", which then goes on


@dataclass
class Commit:
    oid: str
    files: dict[str, bytes]
    parent: str | None


@dataclass
class Repository:
    name: str
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> Commit:
        return self.add(branch, files, self.branches.get(branch))

    def add(self, branch: str, files: dict[str, bytes], parent: str | None) -> Commit:
        oid = hashlib.sha1(f"{self.name}{parent}{branch}{len(self.commits)}".encode()).hexdigest()
        self.commits[oid] = Commit(oid, files, parent)
        self.branches[branch] = oid
        return self.commits[oid]

    def at(self, revision: str) -> Commit | None:
        return self.commits.get(self.branches.get(revision, revision))

    def log(self, branch: str) -> list[Commit]:
        """The commits of a branch, newest first."""
        found, commit = [], self.at(branch)
        while commit:
            found.append(commit)
            commit = self.commits.get(commit.parent or "")
        return found

    def history(self, branch: str) -> int:
        """Commits on a branch."""
        return len(self.log(branch))


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def oid(path: str, content: bytes) -> str:
    """What the Hub calls a file's content: git's hash, or of a large file LFS's."""
    return hashlib.sha256(content).hexdigest() if path.endswith(LARGE) else git_oid(content)


class Hub:
    """The server's state; `url` is its HF_ENDPOINT."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.listed: list[dict[str, Any]] = []  # further entries of every tree, to lie with
        self.stopped = threading.Event()
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self})
        )
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def fault(self, request: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.match, request):
                fault.times -= 1
                return fault
        return None

    def put(
        self, name: str, files: dict[str, bytes], branch: str = "main", private: bool = False
    ) -> str:
        """A repository made by hand; its commit."""
        return (
            self.repositories.setdefault(name, Repository(name, private)).commit(branch, files).oid
        )


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.stopped.set()
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: Any) -> None:
        return

    def handle_any(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        fault = self.hub.fault(f"{self.command} {path}")
        if fault and fault.does == "slow":
            time.sleep(fault.seconds)
        elif fault and not isinstance(fault.does, int) and fault.does != "garbage":
            self._fail(fault.does)
            return
        body = self._body()
        if fault and isinstance(fault.does, int):
            self._answer(fault.does, {"error": "a fault"}, fault.headers)
            return
        self._route(path, body, garbage=fault is not None and fault.does == "garbage")

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def _fail(self, how: str) -> None:
        """Break the connection in the middle of the body, or say nothing until the server stops."""
        if how == "hang":
            self.hub.stopped.wait()
        else:
            self.rfile.read(min(100, int(self.headers.get("Content-Length") or 0)))
        self.close_connection = True
        self.connection.close()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = b""
        while size := int(self.rfile.readline(), 16):
            parts += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return parts

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._answer(status, {"error": message}, {"X-Error-Code": code, "X-Error-Message": message})

    def _user(self) -> tuple[str, bool] | None:
        """Who asks and whether they may write; None for a token that nobody has, ("", False) for no
        token."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return USERS.get(token) if token else ("", False)

    def _route(self, path: str, body: bytes, garbage: bool) -> None:
        user = self._user()
        if path == "/api/validate-yaml":
            return self._answer(200, {"warnings": [], "errors": []})
        if path.startswith("/lfs/"):
            if hashlib.sha256(body).hexdigest() != path.removeprefix("/lfs/"):
                return self._answer(400, {"error": "the content has another sum"})
            self.hub.large[path.removeprefix("/lfs/")] = body
            return self._answer(200, {})
        if user is None:
            return self._refuse(401, "", "Invalid credentials in Authorization header")
        if path == "/api/repos/create":
            return self._create(json.loads(body), *user)
        found = re.match(
            r"^/(?:api/models/)?([^/]+/[^/]+?)(?:\.git/info/lfs/objects/batch|/([\w-]+)(?:/(.*))?)?$",
            path,
        )
        assert found, path
        name, verb, rest = found[1], found[2] or "", found[3] or ""
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and user[0] != name.split("/")[0]):
            return self._refuse(404 if user[0] else 401, "RepoNotFound", "Repository not found")
        if self.command in ("POST", "PUT") and not (user[1] and user[0] == name.split("/")[0]):
            return self._refuse(403, "", "You don't have the rights to write here")
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        return self._talk(repository, name, verb, rest, body, garbage)

    def _create(self, request: dict[str, Any], user: str, writes: bool) -> None:
        name = f"{request['organization']}/{request['name']}"
        if not user:
            return self._refuse(401, "", "Invalid username or password.")
        if not writes or user != request["organization"]:
            return self._refuse(
                403,
                "",
                f"You don't have the rights to create a model under {request['organization']}",
            )
        if name in self.hub.repositories:
            return self._answer(
                409,
                {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"},
            )
        self.hub.put(
            name,
            {".gitattributes": b"*.safetensors filter=lfs\n"},
            private=request.get("visibility") == "private",
        )
        return self._answer(200, {"url": f"{self.hub.url}/{name}", "name": name})

    def _batch(self, request: dict[str, Any]) -> None:
        objects = []
        for entry in request["objects"]:
            known = entry["oid"] in self.hub.large
            upload = {"actions": {"upload": {"href": f"{self.hub.url}/lfs/{entry['oid']}"}}}
            objects.append({"oid": entry["oid"], "size": entry["size"]} | ({} if known else upload))
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _talk(
        self, repository: Repository, name: str, verb: str, rest: str, body: bytes, garbage: bool
    ) -> None:
        if verb == "branch":
            return self._branch(
                repository, rest, json.loads(body or b"{}").get("startingPoint", "main")
            )
        revision = {"": "main", "revision": rest}.get(verb, rest)
        if verb == "resolve":
            revision, _, rest = rest.partition("/")
        commit = repository.at(revision)
        if commit is None:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if verb in ("", "revision"):
            siblings = [{"rfilename": path} for path in commit.files]
            answer = {
                "id": name,
                "sha": commit.oid,
                "private": repository.private,
                "siblings": siblings,
            }
            return self._answer(200, answer)
        if verb == "tree":
            return self._answer(
                200,
                [_entry(path, content) for path, content in commit.files.items()] + self.hub.listed,
            )
        if verb == "commits":
            answer = [
                {"id": one.oid, "authors": [], "date": DATE, "title": "", "message": ""}
                for one in repository.log(revision)
            ]
            return self._answer(200, answer)
        if verb == "super-squash":
            repository.add(revision, commit.files, None)
            return self._answer(200, {})
        if verb == "preupload":
            return self._preupload(commit, json.loads(body))
        if verb == "commit":
            return self._commit(repository, name, revision, body)
        assert verb == "resolve", (verb, rest)
        return self._resolve(commit, rest, garbage)

    def _branch(self, repository: Repository, branch: str, start: str) -> None:
        if branch in repository.branches:
            return self._answer(409, {"error": "Reference already exists"})
        repository.branches[branch] = repository.branches.get(start, start)
        return self._answer(200, {})

    def _preupload(self, commit: Commit, request: dict[str, Any]) -> None:
        files = []
        for entry in request["files"]:
            path = entry["path"]
            known = {"oid": oid(path, commit.files[path])} if path in commit.files else {}
            mode = "lfs" if path.endswith(LARGE) else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False} | known)
        self._answer(200, {"files": files})

    def _commit(self, repository: Repository, name: str, branch: str, body: bytes) -> None:
        files = dict(repository.commits[repository.branches[branch]].files)
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header" and value.get("parentCommit") not in (
                None,
                repository.branches[branch],
            ):
                self._answer(
                    412, {"error": "A commit has happened since. Please refresh and try again."}
                )
                return
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        made = repository.commit(branch, files)
        self._answer(
            200, {"commitUrl": f"{self.hub.url}/{name}/commit/{made.oid}", "commitOid": made.oid}
        )

    def _resolve(self, commit: Commit, path: str, garbage: bool) -> None:
        if path not in commit.files:
            return self._refuse(404, "EntryNotFound", f"{path} does not exist")
        content = commit.files[path]
        headers = {
            "X-Repo-Commit": commit.oid,
            "ETag": f'"{oid(path, content)}"',
            "X-Linked-Size": str(len(content)),
        }
        return self._answer(200, content[::-1] if garbage else content, headers)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    """A file of a tree's listing."""
    large = (
        {"lfs": {"oid": oid(path, content), "size": len(content), "pointerSize": 130}}
        if path.endswith(LARGE)
        else {}
    )
    return {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)} | large
