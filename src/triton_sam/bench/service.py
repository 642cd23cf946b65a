"""What the service costs: the same click through it and straight to Triton, in turns; and who slow senders disturb."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from statistics import median

from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Plan, in_turns, seconds
from triton_sam.bench.target import Target

_SLOW_CONNECTIONS = 100
_SLOW_PAUSE = 0.1
_SLOW_HEAD = (
    b"POST /v1/segment HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
)


class KeepAlive:
    """One connection to a server, with JSON both ways."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._connection.connect()
        # The head and the body are two writes: without this the second may wait 40 ms for the first's receipt.
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, document: object) -> bytes:
        self._connection.request("POST", path, json.dumps(document).encode(), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}: {body[:200]!r}")
        return body

    def close(self) -> None:
        self._connection.close()


def measure_service(target: Target, rounds: int) -> Result:
    """A click with RLE out: POST /v1/segment against Triton's own infer, the same client for both.

    What the model's process itself spent on a click, by its own account, is taken off on both sides: a decode varies
    by more than what is measured here. The client has a process of its own, as users' clients have: in this one it
    would share an interpreter with the service and not with Triton.
    """
    running = target.own("the service")
    result = target.result("service")
    with target.client("HTTP") as client:
        key = client.set_image(target.pictures.jpeg())
    place = target.pictures.point()
    arguments = (running.urls["HTTP"], running.urls["service"], target.name, key, place, rounds)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        around = pool.apply(_around_the_click, arguments)
        alone = pool.apply(_service_clicks, arguments)
        with slow_senders(running.urls["service"], _SLOW_CONNECTIONS):
            crowded = pool.apply(_service_clicks, arguments)
    via, straight = (median(around[way]) for way in ("service", "direct"))
    detail = f"around a click: {via:.2f} ms through it, {straight:.2f} ms direct; medians of {rounds} in turns"
    result.figures.append(Figure("service minus direct Triton, click", via - straight, "ms", 3.0, detail))
    detail = f"{median(crowded) * 1e3:.1f} ms with {_SLOW_CONNECTIONS} of them, {median(alone) * 1e3:.1f} ms without"
    beside = median(crowded) / median(alone)
    result.figures.append(Figure("click beside slow connections / alone", beside, "x", 2.0, detail))
    return result


def _around_the_click(
    triton: str, service: str, model: str, key: str, place: tuple[float, float], rounds: int
) -> dict[str, list[float]]:
    """Way -> milliseconds of each click less those that the model's process spent on it."""
    with _ways(triton, service, model, key, place) as ways:

        def around(way: Callable[[], bytes]) -> float:
            started = time.perf_counter()
            answer = json.loads(way())
            spent = time.perf_counter() - started
            result = answer if "timings_ms" in answer else json.loads(answer["outputs"][0]["data"][0])
            return spent - float(result["timings_ms"]["total"]) / 1e3

        actions = {name: (lambda way=way: around(way)) for name, way in ways.items()}
        measured = in_turns(actions, Plan(rounds=1, samples=rounds, warm_up=3))
        return {name: series.values for name, series in measured.items()}


def _service_clicks(
    triton: str, service: str, model: str, key: str, place: tuple[float, float], rounds: int
) -> list[float]:
    with _ways(triton, service, model, key, place) as ways:
        return [seconds(ways["service"]) for _ in range(rounds)]


@contextlib.contextmanager
def _ways(
    triton: str, service: str, model: str, key: str, place: tuple[float, float]
) -> Iterator[dict[str, Callable[[], bytes]]]:
    """The same click, by both ways."""
    prompt = {"points": [list(place)], "format": "rle"}
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [1], "data": [value]}
        for name, value in (("image_key", key), ("prompt_json", json.dumps(prompt)))
    ]
    call = {"inputs": inputs, "outputs": [{"name": "result_json"}]}
    with contextlib.closing(KeepAlive(triton)) as direct, contextlib.closing(KeepAlive(service)) as through:
        yield {
            "direct": lambda: direct.post(f"/v2/models/{model}/infer", call),
            "service": lambda: through.post("/v1/segment", {"image_key": key, **prompt}),
        }


@contextlib.contextmanager
def slow_senders(url: str, count: int) -> Iterator[None]:
    """Clients that send a large body byte by byte, ten bytes a second each."""
    parts = urllib.parse.urlsplit(url)
    stop = threading.Event()
    sockets = [socket.create_connection((parts.hostname, parts.port or 80), timeout=10) for _ in range(count)]

    def trickle() -> None:
        for connection in sockets:
            connection.sendall(_SLOW_HEAD)
        while not stop.wait(_SLOW_PAUSE):
            for connection in sockets:
                with contextlib.suppress(OSError):  # the service may have had enough of it
                    connection.send(b" ")

    thread = threading.Thread(target=trickle)
    thread.start()
    time.sleep(5 * _SLOW_PAUSE)  # until each has begun
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for connection in sockets:
            connection.close()
