from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from triton_sam.client.transport import GrpcTransport, HttpTransport, Transport, connect
from triton_sam.client.wire import Address, Call, click_inputs, image_inputs
from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    ImageExpired,
    InternalError,
    InvalidInput,
    NotFound,
    QueueFull,
    ServerUnreachable,
    TooLarge,
    TritonSamError,
    Unavailable,
)
from triton_sam.server.host import free_port

LENGTH_HEADER = "Inference-Header-Content-Length"
ANSWER = np.arange(6, dtype=np.float32).reshape(2, 3)


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


@pytest.fixture
def server() -> Iterator[KServe]:
    with KServe() as running:
        yield running


@pytest.fixture
def http(server: KServe) -> Iterator[HttpTransport]:
    transport = HttpTransport(server.address, 20.0, {})
    yield transport
    transport.close()


ENCODE = Call("sam2", image_inputs(b"\x00\x01\xff"), ("image_key",))
SESSION = {"session_id": "s1", "latest_wins": True}
CLICK = Call("sam2", click_inputs("the key", {"objects": []}), ("scores",), SESSION, headers={"x-image-key": "k1"})


# the request and the answer


def test_a_call_becomes_a_request(server: KServe) -> None:
    http = HttpTransport(server.address, 20.0, {"authorization": "Bearer x"})
    answer = http.infer(CLICK)
    http.close()
    (seen,) = server.behaviour.seen
    assert seen.path == "/v2/models/sam2/infer"
    assert (seen.headers["authorization"], seen.headers["x-image-key"]) == ("Bearer x", "k1")
    assert seen.document["parameters"] == {"session_id": "s1", "latest_wins": True}
    assert [(entry["name"], entry["datatype"], entry["shape"]) for entry in seen.document["inputs"]] == [
        ("image_key", "BYTES", [1]),
        ("prompt_json", "BYTES", [1]),
    ]
    assert [entry["name"] for entry in seen.document["outputs"]] == ["scores"]
    assert seen.tensors["image_key"] == struct.pack("<I", 7) + b"the key"
    assert list(answer) == ["scores"]
    assert answer["scores"].dtype == np.float32
    assert np.array_equal(answer["scores"], ANSWER)


def test_an_image_travels_as_it_is(server: KServe, http: HttpTransport) -> None:
    http.infer(ENCODE)
    (entry,) = server.behaviour.seen[0].document["inputs"]
    assert (entry["datatype"], entry["shape"]) == ("UINT8", [3])
    assert server.behaviour.seen[0].tensors["image"] == b"\x00\x01\xff"


def test_an_output_that_the_server_did_not_make_is_left_out(http: HttpTransport) -> None:
    answer = http.infer(Call("sam2", CLICK.inputs, ("scores", "not_made")))
    assert list(answer) == ["scores"]


def test_a_prefix_in_the_address(server: KServe) -> None:
    http = HttpTransport(Address(f"{server.address.target}/a/b", grpc=False, tls=False), 20.0, {})
    http.infer(ENCODE)
    http.close()
    assert server.behaviour.seen[0].path == "/a/b/v2/models/sam2/infer"


def test_the_callers_headers_stay_as_they_were(server: KServe) -> None:
    mine = {"authorization": "Bearer x"}
    http = HttpTransport(server.address, 20.0, mine)
    http.infer(CLICK)
    assert http.is_ready("sam2")
    http.close()
    assert mine == {"authorization": "Bearer x"}
    assert LENGTH_HEADER not in server.behaviour.seen[1].headers


# errors


@pytest.mark.parametrize(
    ("status", "sentence", "kind", "told"),
    [
        (400, "point 0 lies outside", InvalidInput, "point 0 lies outside"),
        (404, "there is no such thing", NotFound, "there is no such thing"),
        (404, "the embedding is gone [image-expired]", ImageExpired, "the embedding is gone"),
        (503, "32 images are waiting", Unavailable, "32 images are waiting"),
        (429, "slow down", QueueFull, "slow down"),
        (500, "the encoder failed", InternalError, "the encoder failed"),
        (500, "superseded [cancelled]", Cancelled, "superseded"),
        (400, "Request for unknown model: 'sam2' has no available versions", Unavailable, "being loaded"),
        (418, "a teapot", InternalError, "a teapot"),
    ],
)
def test_an_error_of_the_server(
    status: int, sentence: str, kind: type[TritonSamError], told: str, server: KServe, http: HttpTransport
) -> None:
    server.behaviour.status = status
    server.behaviour.body = json.dumps({"error": sentence}).encode()
    with pytest.raises(kind, match=told) as caught:
        http.infer(CLICK)
    assert type(caught.value) is kind
    assert "[" not in str(caught.value)
    server.behaviour.status = 200
    assert np.array_equal(http.infer(CLICK)["scores"], ANSWER)


@pytest.mark.parametrize(
    ("status", "kind"), [(503, Unavailable), (502, Unavailable), (500, InternalError), (404, NotFound)]
)
@pytest.mark.parametrize("body", [b"", b"<html>a proxy was here</html>", b"\xff\xfe"])
def test_an_error_that_is_no_json(
    status: int, kind: type[TritonSamError], body: bytes, server: KServe, http: HttpTransport
) -> None:
    server.behaviour.status = status
    server.behaviour.body = body
    with pytest.raises(TritonSamError) as caught:
        http.infer(CLICK)
    assert type(caught.value) is kind


def test_a_connection_that_is_closed_without_an_answer(server: KServe, http: HttpTransport) -> None:
    server.behaviour.hang_up = True
    with pytest.raises(ServerUnreachable, match="triton-sam serve") as caught:
        http.infer(CLICK)
    assert server.address.target in str(caught.value)
    server.behaviour.hang_up = False
    assert np.array_equal(http.infer(CLICK)["scores"], ANSWER)


def test_nobody_listens() -> None:
    address = Address(f"127.0.0.1:{free_port()}", grpc=False, tls=False)
    http = HttpTransport(address, 20.0, {})
    with pytest.raises(ServerUnreachable, match=address.target):
        http.infer(CLICK)
    assert not http.is_ready("sam2")
    http.close()


def test_a_name_that_nobody_has() -> None:
    http = HttpTransport(Address("no-such-host.invalid:8000", grpc=False, tls=False), 20.0, {})
    with pytest.raises(ServerUnreachable, match=r"no-such-host\.invalid"):
        http.infer(CLICK)


def test_a_slow_answer(server: KServe) -> None:
    server.behaviour.hold = threading.Event()
    http = HttpTransport(server.address, 0.2, {})
    with pytest.raises(DeadlineExceeded, match=server.address.target):
        http.infer(CLICK)
    server.behaviour.hold.set()
    server.behaviour.hold = None
    assert len(server.behaviour.seen) == 1  # nothing was sent twice
    assert np.array_equal(http.infer(CLICK)["scores"], ANSWER)
    http.close()


def test_a_server_that_accepts_and_says_nothing() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        http = HttpTransport(Address(f"127.0.0.1:{listening.getsockname()[1]}", grpc=False, tls=False), 0.2, {})
        with pytest.raises(DeadlineExceeded):
            http.infer(CLICK)
        assert not http.is_ready("sam2")


# readiness


@pytest.mark.parametrize(("status", "ready"), [(200, True), (400, False), (503, False)])
def test_is_ready(status: int, ready: bool, server: KServe, http: HttpTransport) -> None:
    server.behaviour.status = status
    assert http.is_ready("sam2") is ready
    assert server.behaviour.seen[0].path == "/v2/models/sam2/ready"


# parameters


def test_parameters_of_a_model(server: KServe) -> None:
    config = {"name": "sam2", "parameters": {"model_id": {"string_value": "sam2:tiny"}, "odd": {}}}
    server.behaviour.body = json.dumps(config).encode()
    http = HttpTransport(server.address, 20.0, {"authorization": "Bearer x"})
    assert http.parameters("sam2") == {"model_id": "sam2:tiny", "odd": ""}
    assert server.behaviour.seen[0].path == "/v2/models/sam2/config"
    assert server.behaviour.seen[0].headers["authorization"] == "Bearer x"
    http.close()


def test_parameters_of_a_model_that_is_not_there(server: KServe, http: HttpTransport) -> None:
    server.behaviour.status = 404
    server.behaviour.body = json.dumps({"error": "Request for unknown model: 'x' is not found"}).encode()
    with pytest.raises(NotFound, match="unknown model"):
        http.parameters("x")


def test_parameters_without_a_server() -> None:
    for kind, is_grpc in ((HttpTransport, False), (GrpcTransport, True)):
        transport = kind(Address(f"127.0.0.1:{free_port()}", grpc=is_grpc, tls=False), 20.0, {})
        with pytest.raises(ServerUnreachable):
            transport.parameters("sam2")
        transport.close()


# threads


def test_each_thread_has_a_client_of_its_own(server: KServe, http: HttpTransport) -> None:
    together = threading.Barrier(8, timeout=20)
    calls = [
        Call("sam2", click_inputs(f"key {'x' * number}", {"number": [number] * number}), ("scores",))
        for number in range(8)
    ]

    def work(number: int) -> tuple[int, bool]:
        together.wait()
        right = all(np.array_equal(http.infer(calls[number])["scores"], ANSWER) for _ in range(5))
        together.wait()  # so that no two of them are the same thread after the other
        connection = http._connection()
        assert http._connection() is connection
        http.close()
        return id(connection), right

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(8)))
    assert all(right for _, right in answers)
    assert len(server.behaviour.seen) == 40
    assert len({seen.client for seen in server.behaviour.seen}) == 8  # one connection each, and kept


def test_two_threads_have_two_connections(server: KServe, http: HttpTransport) -> None:
    http.infer(CLICK)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(http.infer, CLICK).result()
        pool.submit(http.close).result()
    http.infer(CLICK)  # closing on one thread leaves the others alone
    mine, other, again = (seen.client for seen in server.behaviour.seen)
    assert mine == again != other


def test_a_failed_connection_is_not_used_again(server: KServe, http: HttpTransport) -> None:
    http.infer(CLICK)
    server.behaviour.hang_up = True
    with pytest.raises(ServerUnreachable):
        http.infer(CLICK)
    server.behaviour.hang_up = False
    http.infer(CLICK)
    first, again, retried, last = (seen.client for seen in server.behaviour.seen)
    assert first == again, "kept"
    assert len({again, retried, last}) == 3, "a kept connection that was closed is tried once more, on a new one"


def test_a_kept_connection_that_the_server_has_closed_meanwhile(server: KServe, http: HttpTransport) -> None:
    http.infer(CLICK)
    http._connection()._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    assert np.array_equal(http.infer(CLICK)["scores"], ANSWER)
    assert len({seen.client for seen in server.behaviour.seen}) == 2


def test_a_header_with_a_line_break(server: KServe) -> None:
    http = HttpTransport(server.address, 20.0, {"authorization": "Bearer x\r\nHost: elsewhere"})
    with pytest.raises(InvalidInput, match="line break"):
        http.infer(CLICK)
    assert not server.behaviour.seen


def raw_server(*answers: bytes, reads: int = 2**20) -> tuple[Address, threading.Thread]:
    """Accepts connections one after the other; each reads a little, says its answer and closes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(reads)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve)
    thread.start()
    return Address(f"127.0.0.1:{listening.getsockname()[1]}", grpc=False, tls=False), thread


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{",
        b"not HTTP at all\r\n\r\n",
    ],
)
def test_an_answer_that_is_none_is_an_error_and_its_connection_is_gone(answer: bytes) -> None:
    address, thread = raw_server(answer)
    http = HttpTransport(address, 20.0, {})
    with pytest.raises(ServerUnreachable):
        http.infer(CLICK)
    assert http._connection()._socket is None
    thread.join()


def test_a_server_that_refuses_before_it_has_read_all_is_heard() -> None:
    body = b'{"error": "the image is too large [too-large]"}'
    head = b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    address, thread = raw_server(head + body, reads=100)
    http = HttpTransport(address, 20.0, {})
    with pytest.raises(TritonSamError) as caught:
        http.infer(Call("sam2", image_inputs(bytes(50_000_000)), ("image_key",)))
    assert isinstance(caught.value, TooLarge | ServerUnreachable)  # a reset may overtake what was said
    thread.join()


def test_credentials_in_an_address_are_no_host_and_lengths_are_ours(server: KServe) -> None:
    http = HttpTransport(
        Address(f"me:secret@{server.address.target}", grpc=False, tls=False), 20.0, {"Content-Length": "7", "X-A": "1"}
    )
    http.infer(CLICK)
    http.close()
    headers = {name.lower(): value for name, value in server.behaviour.seen[0].headers.items()}
    assert headers["host"] == server.address.target
    assert headers["x-a"] == "1"


def test_a_large_image_arrives_whole(server: KServe, http: HttpTransport) -> None:
    data = bytes(range(256)) * 4096
    http.infer(Call("sam2", image_inputs(data), ("image_key",)))
    assert server.behaviour.seen[0].tensors["image"] == data


def test_a_connection_is_kept(server: KServe, http: HttpTransport) -> None:
    for _ in range(3):
        http.infer(CLICK)
    assert len({seen.client for seen in server.behaviour.seen}) == 1


def test_close_twice_and_go_on(http: HttpTransport) -> None:
    http.infer(CLICK)
    http.close()
    http.close()
    assert http.is_ready("sam2")


# gRPC


def test_grpc_without_a_server() -> None:
    address = Address(f"127.0.0.1:{free_port()}", grpc=True, tls=False)
    grpc = GrpcTransport(address, 20.0, {})
    with pytest.raises(ServerUnreachable, match=address.target):
        grpc.infer(CLICK)
    assert not grpc.is_ready("sam2")
    grpc.close()


def test_grpc_and_a_server_that_says_nothing() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        grpc = GrpcTransport(Address(f"127.0.0.1:{listening.getsockname()[1]}", grpc=True, tls=False), 0.3, {})
        with pytest.raises(TritonSamError) as caught:
            grpc.infer(CLICK)
        grpc.close()
    assert isinstance(caught.value, DeadlineExceeded | ServerUnreachable)


# connect


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("localhost:8000", HttpTransport),
        ("http://host", HttpTransport),
        ("https://host/prefix", HttpTransport),
        ("grpc://host:8001", GrpcTransport),
        ("grpcs://host", GrpcTransport),
    ],
)
def test_connect_picks_the_transport(url: str, kind: type[Transport]) -> None:
    transport = connect(Address.parse(url), 3.0, {"a": "b"})
    try:
        assert type(transport) is kind
    finally:
        transport.close()
