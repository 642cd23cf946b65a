"""Answers piece by piece over HTTP, against a small server that speaks server-sent events."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from triton_sam.client.vlm_client import Answer, AsyncTritonVLMClient, TritonVLMClient
from triton_sam.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    NotFound,
    QueueFull,
    ServerUnreachable,
    TooLarge,
    TritonSamError,
    Unavailable,
)

IMAGE = b"bytes of an image"
PATIENCE = 20.0


def event(**document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


USAGE = json.dumps({"prompt_tokens": 7, "completion_tokens": 2})
ANSWER = [
    event(generated_text="Hé", finish_reason=""),
    event(generated_text="llo", finish_reason=""),
    event(generated_text="", finish_reason="stop", usage_json=USAGE),
]


class EventServer:
    """Answers every POST with a status and a script: bytes are sent, callables called; its end cuts the connection."""

    def __init__(self, status: int, script: list[Any], complete: bool = True) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.gone = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked.append((self.path, json.loads(body)))
                outer.heads.append(dict(self.headers))
                self.send_response(status)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    for step in script:
                        if callable(step):
                            step(outer)
                        else:
                            self.wfile.write(b"%x\r\n%s\r\n" % (len(step), step))
                    if complete:
                        self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    outer.gone.set()
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        self.address = f"127.0.0.1:{self._http.server_port}"
        self.over = threading.Event()

    def close(self) -> None:
        self.over.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


Speaks = Callable[..., EventServer]


@pytest.fixture
def speaks() -> Iterator[Speaks]:
    servers: list[EventServer] = []

    def start(status: int, script: list[Any], complete: bool = True) -> EventServer:
        servers.append(EventServer(status, script, complete))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def ask(server: EventServer, **options: Any) -> Answer:
    with TritonVLMClient(server.address, retries=0, **options) as client:
        return client.answer("llava", IMAGE, "Whät?", max_new_tokens=5, stop=["a", "b"])


def test_an_answer(speaks: Speaks) -> None:
    server = speaks(200, ANSWER)
    assert ask(server) == Answer("Héllo", "stop", 7, 2)
    path, document = server.asked[0]
    assert path == "/v2/models/llava_stream/generate_stream"
    assert base64.b64decode(document.pop("image_b64")) == IMAGE
    assert document == {"prompt": "Whät?", "max_new_tokens": 5, "stop": ["a", "b"]}


def test_events_that_come_in_crumbs(speaks: Speaks) -> None:
    whole = b"".join(ANSWER)
    assert ask(speaks(200, [whole[place : place + 3] for place in range(0, len(whole), 3)])).text == "Héllo"


def test_a_large_image_and_a_long_event(speaks: Speaks) -> None:
    text = "x" * 600_000
    server = speaks(200, [event(generated_text=text, finish_reason="stop")])
    with TritonVLMClient(server.address) as client:
        assert client.infer("llava", bytes(2_000_000), "What?") == text
    assert len(base64.b64decode(server.asked[0][1]["image_b64"])) == 2_000_000


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "too long [too-large]", TooLarge),
        (400, "wrong [invalid-input]", InvalidInput),
        (400, "wrong", InvalidInput),
        (400, "full [queue-full]", QueueFull),
        (400, "is loading, 3 s so far [unavailable]", Unavailable),
        (404, "Request for unknown model: 'llava_stream' is not found", NotFound),
        pytest.param(
            404,
            "Request for unknown model: 'llava_stream' has no available versions",
            Unavailable,
        ),
        (500, "oh", InternalError),
        (503, "later", Unavailable),
    ],
)
@pytest.mark.parametrize("form", ["plain", "event"])
def test_errors_before_the_first_piece(
    status: int, message: str, expected: type[TritonSamError], form: str, speaks: Speaks
) -> None:
    body = event(error=message) if form == "event" else json.dumps({"error": message}).encode()
    with pytest.raises(TritonSamError) as caught:
        ask(speaks(status, [body]))
    assert type(caught.value) is expected
    assert "[" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "expected"), [("stopping [unavailable]", Unavailable), ("fault", InternalError)], ids=str
)
def test_an_error_in_the_midst(message: str, expected: type[TritonSamError], speaks: Speaks) -> None:
    server = speaks(200, [ANSWER[0], event(error=message)])
    with pytest.raises(expected, match=message.partition(" [")[0]):
        ask(server)
    assert len(server.asked) == 1


@pytest.mark.parametrize("complete", [True, False])
def test_a_connection_that_is_cut(complete: bool, speaks: Speaks) -> None:
    with pytest.raises(ServerUnreachable):
        ask(speaks(200, ANSWER[:2], complete))


def test_events_that_are_no_json_are_a_fault_of_the_server(speaks: Speaks) -> None:
    with pytest.raises(InternalError):
        ask(speaks(200, [ANSWER[0], b"data: {oops\n\n"]))


def test_nobody_there() -> None:
    with TritonVLMClient("127.0.0.1:1", retries=0) as client, pytest.raises(ServerUnreachable):
        client.infer("llava", IMAGE, "What?")


def test_pieces_that_come_too_slowly(speaks: Speaks) -> None:
    server = speaks(200, [ANSWER[0], lambda outer: outer.over.wait(PATIENCE)])
    with pytest.raises(DeadlineExceeded):
        ask(server, timeout=0.2)


def test_the_time_limit_counts_between_two_pieces(speaks: Speaks) -> None:
    pause = lambda outer: outer.over.wait(0.8)  # noqa: E731
    script = [step for part in ANSWER for step in (pause, part)]
    assert ask(speaks(200, script), timeout=2.0).text == "Héllo"


def test_leaving_early_cuts_the_connection(speaks: Speaks) -> None:
    def go_on(outer: EventServer) -> None:
        outer.over.wait(0.01)

    server = speaks(200, [step for _ in range(1000) for step in (ANSWER[0], go_on)])
    with TritonVLMClient(server.address) as client:
        for text in client.stream("llava", IMAGE, "What?"):
            assert text == "Hé"
            break
        assert server.gone.wait(PATIENCE)


def test_leaving_early_with_asyncio(speaks: Speaks) -> None:
    begun = threading.Event()

    def go_on(outer: EventServer) -> None:
        begun.set()
        outer.over.wait(0.01)

    server = speaks(200, [step for _ in range(1000) for step in (ANSWER[0], go_on)])

    async def go() -> None:
        async with AsyncTritonVLMClient(server.address) as client:
            question = asyncio.create_task(client.infer("llava", IMAGE, "What?"))
            assert await asyncio.to_thread(begun.wait, PATIENCE)
            question.cancel()
            with pytest.raises(asyncio.CancelledError):
                await question
            assert await asyncio.to_thread(server.gone.wait, PATIENCE)

    asyncio.run(go())
