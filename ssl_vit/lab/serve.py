"""Serves the pages of a folder as its files are at each question, so that a page follows what is
running. No torch here.

Nothing but pages is served: no file is sent as it is.
"""

import hashlib
import os
import threading
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from ..errors import UserError
from ..pages import run_page
from ..pages.run_page import INDEX, PAGE
from ..pages.run_record import FILES, RunRecord, is_run, read_run
from ..runs import lock
from . import reports
from .lab_tools import LOOPBACK, PORT
from .run_table import index_page, run_search

# Hosts that a browser on this machine, or behind a tunnel to it, names. Another one is a page of
# somewhere else whose name was pointed here to read what loopback protects (DNS rebinding).
LOCAL = ("127.0.0.1", "localhost", "[::1]")


def server(folder: Path, host: str = LOOPBACK, port: int = PORT) -> ThreadingHTTPServer:
    """A server of a folder's pages that listens, and answers once `serve_forever` runs.

    Args:
        folder: of a run, a study, or runs.
        host: the address to listen at.
        port: 0 for any that is free.

    Raises:
        UserError: it cannot listen there.
    """

    class Handler(PageHandler):
        root = folder
        pages = Pages()
        guarded = host in (LOOPBACK, "localhost", "::1")

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"--port={port}: {host} cannot be listened at: {reason}") from None


def serve(folder: Path, host: str, port: int) -> None:
    """Serve until Ctrl-C. Raises as `server`."""
    with server(folder, host, port) as found:
        print(f"serving     http://{host}:{found.server_port}/ (Ctrl-C ends it)", flush=True)
        try:
            found.serve_forever()
        except KeyboardInterrupt:
            print()


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET with the page of a folder below `root`."""

    root: Path
    pages: "Pages"
    guarded = True
    server_version = "ssl_vit"
    sys_version = ""

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").rpartition(":")
        if self.guarded and (host[0] or host[2]) not in LOCAL:
            self.send_error(403, "this server answers its own machine only")
            return
        content = self._content()
        if content is None:
            self.send_error(404, "no page here")
            return
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == tag:
            self._head(304, tag, 0)
            return
        self._head(200, tag, len(content))
        self.wfile.write(content)

    def _head(self, status: int, tag: str, length: int) -> None:
        self.send_response(status)
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-store")
        if status == 200:
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(length))
            self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def _content(self) -> bytes | None:
        """The page of the path; None where there is none. A folder's page is its run's or study's,
        or the index of its runs; index.html is always the index."""
        places = urlsplit(self.path).path.split("/")[1:]
        *parts, last = [os.fsdecode(unquote_to_bytes(place)) for place in places]
        if last not in ("", PAGE, INDEX) or any("/" in part or "\0" in part for part in parts):
            return None
        if not {"", ".", ".."}.isdisjoint(parts):
            return None
        folder = self.root.joinpath(*parts)
        try:
            if not folder.is_dir():
                return None
        except OSError:  # a path that is too long
            return None
        return self.pages.page(folder, last == INDEX, f"../{INDEX}" if parts else "")

    def log_message(self, format: str, *values: object) -> None:
        """Nothing: a page asks every few seconds."""


class Pages:
    """The pages of folders; each is written again only if a file that it is made of has changed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # one page at a time: the machine trains beside
        self.records: dict[Path, tuple[Any, RunRecord]] = {}
        self.written: dict[tuple[Path, bool], tuple[Any, bytes]] = {}

    def page(self, folder: Path, index: bool, above: str) -> bytes | None:
        """The live page of a folder: of its run or study, or of its runs; None where it has
        none."""
        with self.lock:
            if is_run(folder) and not index:
                signature: Any = (_signature(folder), above)
                write = partial(self._run, folder, above)
            elif (folder / "study.json").exists() and not index:
                signature = _stats(folder / "study.json", *sorted(folder.glob("*/result.json")))
                write = partial(reports.render, folder, INDEX, live=True)
            else:
                try:
                    found = run_search.find(folder)
                except UserError:  # no runs
                    return None
                signature = ([(path, _signature(path)) for path in found.runs], found.studies)
                write = partial(self._index, folder, found)
            known = self.written.get((folder, index))
            if known is None or known[0] != signature:
                known = signature, write().encode(errors="replace")
                self.written[folder, index] = known
            return known[1]

    def _run(self, folder: Path, above: str) -> str:
        return run_page.render(self._record(folder), above, live=True)

    def _index(self, folder: Path, found: run_search.Found) -> str:
        records = [self._record(path) for path in found.runs]
        return index_page.render(folder, records, found.studies, live=True)

    def _record(self, folder: Path) -> RunRecord:
        signature = _signature(folder)
        known = self.records.get(folder)
        if known is None or known[0] != signature:
            known = signature, read_run(folder)
            self.records[folder] = known
        return known[1]


def _signature(folder: Path) -> Any:
    """Equal as long as a run's page is."""
    names = (*FILES, "log.txt", "not_finite.json", "export/config.json", "checkpoints")
    figures = sorted((folder / "figures").glob("*.png"))
    return _stats(*(folder / name for name in names), *figures), lock.is_held(folder)


def _stats(*paths: Path) -> list[tuple[Path, int, int]]:
    found = []
    for path in paths:
        with suppress(OSError):
            stat = path.stat()
            found.append((path, stat.st_mtime_ns, stat.st_size))
    return found
