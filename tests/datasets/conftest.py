"""Fixtures of the data set tests: empty folders, a local server, the real data."""

import http.server
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import datasets
from datasets import _fetch


class Folders(NamedTuple):
    """The three folders that are searched, in the order of the search."""

    named: Path
    shared: Path
    cached: Path


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """Restricts the search to empty folders."""
    result = Folders(*(tmp_path / name for name in Folders._fields))
    for folder in result:
        folder.mkdir()
    monkeypatch.setenv(_fetch.VARIABLE, str(result.named))
    monkeypatch.setattr(_fetch, "_shared_folder", lambda: result.shared)
    monkeypatch.setattr(_fetch, "_cache_folder", lambda: result.cached)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return result


@pytest.fixture(scope="module")
def load() -> Iterator[Callable]:
    """Calls a loader by name, once for equal arguments; skips the test without a local file."""

    def no_download(source: _fetch.Source) -> Path:
        pytest.skip(f"no local copy of {source.name}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fetch, "_download", no_download)
        yield cache(lambda name, **options: getattr(datasets, name)(**options))


class Server:
    """A local web server that sends `content` and can simulate failures."""

    def __init__(self) -> None:
        self.content = b""
        self.ranges = True
        self.cut_at: int | None = None
        self.status = 200
        self.extra_headers: dict[str, str] = {}
        self.asked: list[str | None] = []
        handler = type("Handler", (_Handler,), {"state": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def url(self, name: str = "file.data") -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    state: Server

    def do_GET(self) -> None:
        state = self.state
        asked = self.headers["Range"]
        state.asked.append(asked)
        start, status = 0, state.status
        if asked and state.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            status = 206 if start < len(state.content) else 416
        body = state.content[start:]
        self.send_response(status)
        if status == 206:
            total = len(state.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if status == 416:
            self.send_header("Content-Range", f"bytes */{len(state.content)}")
        self.send_header("Content-Length", str(len(body)))
        for name, value in state.extra_headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if state.cut_at is None else body[: state.cut_at])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()
