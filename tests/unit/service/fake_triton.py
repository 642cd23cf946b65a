"""A Triton of one segmenter as an HTTP server, for processes of the service that cannot share objects with a test."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.unit.service.helpers import TIMEOUT, mask_result


@dataclass
class FakeTriton:
    """Answers every request with a mask, or when the test says so; cancels drop nothing, but are noted."""

    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Parameters of the requests that have arrived, in that order."""
    cancels: list[dict[str, Any]] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, count: int) -> None:
        """Until so many requests have arrived."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= count, TIMEOUT), len(self.requests)

    def note(self, parameters: dict[str, Any]) -> None:
        with self.changed:
            (self.cancels if parameters.get("cancel") else self.requests).append(parameters)
            self.changed.notify_all()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is answered in this block; what came in it is forgotten then."""
        self.requests.clear()
        self.open.clear()
        try:
            yield
        finally:
            self.open.set()
            self.requests.clear()


@contextlib.contextmanager
def fake_triton() -> Iterator[FakeTriton]:
    triton = FakeTriton()
    triton.open.set()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(triton)) as server:
        server.daemon_threads = True
        triton.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield triton
        finally:
            triton.open.set()
            server.shutdown()
            thread.join()


def _handler(triton: FakeTriton) -> Callable[..., http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            head = json.loads(body[: int(self.headers.get("Inference-Header-Content-Length", len(body)))])
            parameters = head.get("parameters", {})
            triton.note(parameters)
            if not parameters.get("cancel"):
                triton.open.wait(TIMEOUT)
            result = json.dumps({"cancelled": 1} if parameters.get("cancel") else mask_result())
            output = {"name": "result_json", "datatype": "BYTES", "shape": [1], "data": [result]}
            answer = json.dumps({"model_name": "sam2", "model_version": "1", "outputs": [output]}).encode()
            with contextlib.suppress(OSError):  # its client has gone
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    return Handler
