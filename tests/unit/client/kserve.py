"""A server that speaks the KServe v2 protocol on a loopback port, for tests of the HTTP transport."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from triton_sam.client.wire import Address, Call, click_inputs, image_inputs

LENGTH_HEADER = "Inference-Header-Content-Length"
ANSWER = np.arange(6, dtype=np.float32).reshape(2, 3)
ENCODE = Call("sam2", image_inputs(b"\x00\x01\xff"), ("image_key",))
SESSION = {"session_id": "s1", "latest_wins": True}
CLICK = Call("sam2", click_inputs("the key", {"objects": []}), ("scores",), SESSION, headers={"x-image-key": "k1"})


@dataclass
class Seen:
    """One request as the server saw it."""

    path: str
    headers: dict[str, str]
    document: dict[str, Any]
    tensors: dict[str, bytes]
    client: tuple[str, int]


@dataclass
class Behaviour:
    """How the server answers; ``hold`` lets an answer wait."""

    status: int = 200
    body: bytes = b""
    hang_up: bool = False
    hold: threading.Event | None = None
    seen: list[Seen] = field(default_factory=list)


class KServe:
    """The KServe v2 protocol on a loopback port, as far as tritonclient needs it."""

    def __init__(self) -> None:
        self.behaviour = behaviour = Behaviour()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                behaviour.seen.append(Seen(self.path, dict(self.headers), {}, {}, self.client_address))
                self.reply(behaviour.status, behaviour.body)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                behaviour.seen.append(parse(self, body))
                if behaviour.hold is not None:
                    behaviour.hold.wait(20)
                if behaviour.hang_up:
                    self.close_connection = True
                    return
                if behaviour.status != 200:
                    self.reply(behaviour.status, behaviour.body)
                    return
                wanted = [entry["name"] for entry in behaviour.seen[-1].document["outputs"]]
                names = [name for name in wanted if name != "not_made"]
                outputs = [
                    {
                        "name": name,
                        "datatype": "FP32",
                        "shape": list(ANSWER.shape),
                        "parameters": {"binary_data_size": ANSWER.nbytes},
                    }
                    for name in names
                ]
                head = json.dumps({"model_name": "m", "model_version": "1", "outputs": outputs}).encode()
                self.reply(200, head + ANSWER.tobytes() * len(names), {LENGTH_HEADER: str(len(head))})

            def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """A client that went away is part of these tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.address = Address(f"127.0.0.1:{self._server.server_port}", grpc=False, tls=False)

    def __enter__(self) -> KServe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.behaviour.hold is not None:
            self.behaviour.hold.set()
        self._server.shutdown()
        self._thread.join()
        self._server.socket.close()


def parse(request: BaseHTTPRequestHandler, body: bytes) -> Seen:
    """The JSON head by its length, then the tensors by theirs: a wrong length in the header does not parse."""
    length = int(request.headers.get(LENGTH_HEADER, len(body)))
    document = json.loads(body[:length])
    tensors, rest = {}, body[length:]
    for entry in document["inputs"]:
        size = entry["parameters"]["binary_data_size"]
        tensors[entry["name"]], rest = rest[:size], rest[size:]
    assert rest == b""
    return Seen(request.path, dict(request.headers), document, tensors, request.client_address)
