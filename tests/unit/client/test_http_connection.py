"""Connections of the HTTP transport: one per thread, kept, and replaced when they fail."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import RemoteDisconnected

import numpy as np
import pytest

from tests.unit.client.kserve import ANSWER, CLICK, KServe
from triton_sam.client.http_connection import HttpConnection, HttpResponse
from triton_sam.client.transport import HttpTransport
from triton_sam.client.wire import Address, Call, click_inputs, image_inputs
from triton_sam.errors import (
    InvalidInput,
    ServerUnreachable,
    TooLarge,
    TritonSamError,
)

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
        connection = http._connections.get()
        assert http._connections.get() is connection
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
    http._connections.get()._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
    assert np.array_equal(http.infer(CLICK)["scores"], ANSWER)
    assert len({seen.client for seen in server.behaviour.seen}) == 2


def test_a_request_that_is_sent_twice(http: HttpTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that was offered for its masks is not used again."""
    told: list[bool] = []
    monkeypatch.setattr(http._local_masks, "sent_again", lambda: told.append(True))
    for _ in range(2):
        http.infer(CLICK)
    assert not told
    exchange, failures = HttpConnection._exchange, [RemoteDisconnected("gone")]

    def failing_once(self: HttpConnection, method: str, head: bytes, body: bytes) -> HttpResponse:
        if failures:
            raise failures.pop()
        return exchange(self, method, head, body)

    monkeypatch.setattr(HttpConnection, "_exchange", failing_once)
    assert np.array_equal(http.infer(CLICK)["scores"], ANSWER)
    assert told == [True]


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
    assert http._connections.get()._socket is None
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
