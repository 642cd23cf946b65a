"""A local file server with every bad habit, small models to pull from it, and a false npm."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import shlex
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import TracebackType

import pytest

from triton_sam.catalog import DEFAULT_MODEL, ModelFile, ModelSpec, Role, Source, get_spec
from triton_sam.weights import WeightStore

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@dataclasses.dataclass
class Served:
    """One file and how it is served.

    Attributes:
        status: an error to answer instead of the file.
        send: how many bytes of the body leave the server before the connection is closed; None for all.
        hold: the rest of the body waits for this event.
    """

    content: bytes = b""
    status: int = 200
    ranges: bool = True
    send: int | None = None
    hold: threading.Event | None = None
    hold_after: int = 0


class FileServer:
    """Files on a loopback port of its own; ``requests`` lists (path, Range header or None) as they came."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.requests: list[tuple[str, str | None]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = False  # server_close waits for the handlers, so no socket outlives a test

            def handle_error(self, *_: object) -> None:
                """A client that went away is part of these tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for served in self.files.values():
            if served.hold is not None:
                served.hold.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(self, path: str, served: Served | bytes) -> str:
        """Serves a file and gives its address."""
        self.files[path] = Served(served) if isinstance(served, bytes) else served
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.requests.append((request.path, wanted))
        served = self.files.get(request.path, Served(status=404))
        if served.status != 200:
            request.send_error(served.status)
            return
        start = 0
        if wanted is not None and served.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(served.content):
                request.send_error(416)
                return
            request.send_response(206)
            size = len(served.content)
            request.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        else:
            request.send_response(200)
        body = served.content[start:]
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if served.hold is not None:
            request.wfile.write(body[: served.hold_after])
            request.wfile.flush()
            served.hold.wait()
            body = body[served.hold_after :]
        request.wfile.write(body[: served.send])


def model_file(content: bytes, *sources: Source, name: str = "encoder.onnx", role: Role = Role.ENCODER) -> ModelFile:
    return ModelFile(role, name, len(content), hashlib.sha256(content).hexdigest(), sources)


def model_spec(*files: ModelFile) -> ModelSpec:
    return dataclasses.replace(get_spec(DEFAULT_MODEL), id="test:small", files=files)


def package(members: dict[str, bytes]) -> bytes:
    """An npm tarball."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class FalseNpm:
    """An ``npm`` that stands first on PATH and notes the words it was called with."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder / "npm-bin"
        self._folder.mkdir()
        self._log = self._folder / "calls.txt"
        monkeypatch.setenv("PATH", str(self._folder), prepend=":")

    def behave(self, *, view: str, pack: str = "exit 1") -> None:
        """Shell lines for ``npm view`` and ``npm pack``."""
        script = self._folder / "npm"
        script.write_text(
            f'#!/bin/sh\necho "$@" >> {shlex.quote(str(self._log))}\n'
            f'case "$1" in\nview) {view} ;;\npack) {pack} ;;\n*) exit 2 ;;\nesac\n'
        )
        script.chmod(0o755)

    def serve_tarball(self, url: str) -> None:
        self.behave(view=f"echo '\"{url}\"'")

    @property
    def calls(self) -> list[list[str]]:
        return [line.split() for line in self._log.read_text().splitlines()] if self._log.exists() else []


def hide_npm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No npm on PATH and none beside the running Python."""
    empty = folder / "empty-bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setattr(sys, "executable", str(empty / "python"))


def pull_when_all_are_ready(home: Path, spec: ModelSpec, barrier: Barrier) -> None:
    """For a child process: pulls at the same moment as the others."""
    barrier.wait(30)
    WeightStore(home).pull(spec)


def pull_and_tell(home: Path, spec: ModelSpec, told: Connection) -> None:
    """For a child process: sends the bytes written so far after each chunk."""
    WeightStore(home).pull(spec, lambda _file, _step: lambda done, _total: told.send(done))
