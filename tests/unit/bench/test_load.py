"""Load-generating clients and the byte counter, against a small HTTP server of the test."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from triton_sam.bench.load_clients import LoadStep, infer_request, load_clients
from triton_sam.bench.pictures import Pictures, number_at
from triton_sam.bench.throughput import ThroughputLoad, _ramp
from triton_sam.bench.wire_counter import WireCounter
from triton_sam.errors import InvalidInput

Answer = Callable[[int, bytes], tuple[int, bytes]]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    answer: Answer
    heads: list[dict[str, str]]
    bodies: list[bytes]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.heads.append(dict(self.headers.items()) | {"path": self.path})
        server.bodies.append(body)
        status, answer = server.answer(len(server.bodies), body)
        self.send_response(status)
        # As Triton does, before the length that counts.
        self.send_header("Inference-Header-Content-Length", "2")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as started:
        started.answer, started.heads, started.bodies = lambda number, body: (200, bytes(300_000)), [], []
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def address(server: _Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def run(server: _Server, count: int, seconds: float = 2.0, **options: Any) -> LoadStep:
    with load_clients() as clients:
        for number in range(count):
            inputs = {"image_key": b"abc", "prompt_json": b"{}"}
            clients.add(infer_request(address(server), "sam2", inputs, ("masks",), session=f"s{number}", **options))
        clients.wait_until_ready()
        clients.begin(count, seconds, 0.0)
        return clients.outcome(count, seconds)


@pytest.mark.part("bench")
def test_clients_ask_again_and_again_and_say_how_long_it_took(server: _Server) -> None:
    step = run(server, 2)
    assert step.clients == 2
    assert 1 <= len(step.latencies) <= len(server.bodies)
    assert step.rate == len(step.latencies) / 2
    assert (step.refused, step.errors) == (0, {})
    assert 0 < step.percentile(50) <= step.percentile(99)
    assert f"{len(step.latencies)} answers in 2 s" in step.detail


@pytest.mark.part("bench")
def test_a_request_is_in_tritons_binary_form(server: _Server) -> None:
    run(server, 1)
    head, body = server.heads[0], server.bodies[0]
    assert head["path"] == "/v2/models/sam2/infer"
    size = int(head["Inference-Header-Content-Length"])
    document = json.loads(body[:size])
    assert document["parameters"] == {"session_id": "s0"}
    assert [(each["name"], each["datatype"]) for each in document["inputs"]] == [
        ("image_key", "BYTES"),
        ("prompt_json", "BYTES"),
    ]
    assert body[size:] == b"\x03\0\0\0abc" + b"\x02\0\0\0{}"


@pytest.mark.part("bench")
def test_every_image_is_another_one(server: _Server) -> None:
    pictures = Pictures(side=64)
    data = pictures.jpeg()
    with load_clients() as clients:
        clients.add(
            infer_request(
                address(server),
                "sam2",
                {"image": data},
                ("image_key",),
                session="s",
                number=number_at(data),
                first_number=40,
            )
        )
        clients.wait_until_ready()
        for _ in range(2):  # the numbers go on in the next run
            clients.begin(1, 0.3, 0.0)
            clients.outcome(1, 0.3)
    size = int(server.heads[0]["Inference-Header-Content-Length"])
    assert [body[size:] for body in server.bodies] == [
        pictures.jpeg(number) for number in range(41, 41 + len(server.bodies))
    ]


@pytest.mark.part("bench")
def test_refusals_and_errors_are_told_apart(server: _Server) -> None:
    answers = [
        (503, b'{"error": "the queue is full [queue-full]"}'),
        (404, b'{"error": "unknown or expired [image-expired]"}'),
        (500, b"no JSON at all"),
        (200, b""),
    ]
    server.answer = lambda number, body: answers[(number - 1) % 4]
    step = run(server, 1)
    assert step.refused >= 1
    assert set(step.errors) == {"ImageExpired", "InternalError"}
    assert step.latencies
    assert "refused" in step.detail


@pytest.mark.part("bench")
def test_a_server_that_goes_away_is_an_error_and_no_hang(server: _Server) -> None:
    request = infer_request("127.0.0.1:9", "sam2", {"image_key": b"k"}, ("masks",), session="s")
    with load_clients() as clients:
        clients.add(request)
        clients.wait_until_ready()
        clients.begin(1, 0.3, 0.0)
        step = clients.outcome(1, 0.3)
    assert set(step.errors) == {"connection lost"}
    assert step.rate == 0


@pytest.mark.part("bench")
def test_what_was_answered_before_the_window_does_not_count(server: _Server) -> None:
    with load_clients() as clients:
        clients.add(infer_request(address(server), "sam2", {"image_key": b"k"}, ("masks",), session="s"))
        clients.wait_until_ready()
        clients.begin(1, 0.0, 0.5)
        assert clients.outcome(1, 1.0).latencies == []


@pytest.mark.parametrize("url", ["grpc://host:8001", "https://host"])
def test_a_load_needs_plain_http(url: str) -> None:
    with pytest.raises(InvalidInput, match="plain HTTP"):
        infer_request(url, "sam2", {"image_key": b"k"}, ("masks",), session="s")


@pytest.mark.parametrize(("most", "steps"), [(1, [1]), (2, [1, 2]), (24, [1, 2, 4, 8, 16]), (32, [1, 2, 4, 8, 16, 32])])
def test_clients_are_doubled(most: int, steps: list[int]) -> None:
    assert ThroughputLoad(most).steps == steps


def test_a_step_settles_as_long_as_a_client_waits_for_its_answer() -> None:
    assert _ramp(1, 5.0, []) == 1.0
    before = [LoadStep(1, 5.0, [0.1] * 50), LoadStep(2, 5.0, [0.2] * 40)]  # 10 and 8 a second
    assert _ramp(4, 5.0, before) == 1.0
    assert _ramp(64, 5.0, before) == pytest.approx(9.6)
    assert _ramp(1024, 5.0, before) == 20.0


def test_latencies_that_a_short_step_cut_are_told() -> None:
    assert "by the rate" not in LoadStep(2, 2.0, [0.1] * 40).detail
    assert "32000 ms by the rate" in LoadStep(64, 2.0, [1.0] * 4).detail


def test_bytes_are_counted_both_ways(server: _Server) -> None:
    import http.client

    server.answer = lambda number, body: (200, bytes(5_000))
    with WireCounter(address(server)) as counter:
        host, port = counter.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("POST", "/v2", bytes(2_000))
        assert len(connection.getresponse().read()) == 5_000
        connection.close()
        assert 7_000 < counter.count < 8_000


def test_boxes_of_a_picture_are_inside_and_different() -> None:
    pictures = Pictures()
    boxes = pictures.boxes(10)
    assert len({tuple(box) for box in boxes}) == 10
    for x0, y0, x1, y1 in boxes:
        assert 0 <= x0 < x1 <= pictures.width
        assert 0 <= y0 < y1 <= pictures.height
