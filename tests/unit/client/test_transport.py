"""Requests, responses and errors of the blocking transports."""

from __future__ import annotations

import json
import socket
import struct
import threading

import numpy as np
import pytest

from tests.unit.client.kserve import ANSWER, CLICK, ENCODE, LENGTH_HEADER, KServe
from triton_sam.client.transport import GrpcTransport, HttpTransport, Transport, connect
from triton_sam.client.wire import Address, Call
from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    ImageExpired,
    InternalError,
    InvalidInput,
    NotAuthorised,
    NotFound,
    QueueFull,
    ServerUnreachable,
    TritonSamError,
    Unavailable,
)
from triton_sam.server.host import free_port

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
    ("status", "kind"),
    [(503, Unavailable), (502, Unavailable), (500, InternalError), (404, ServerUnreachable), (403, NotAuthorised)],
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
