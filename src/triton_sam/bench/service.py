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
from pathlib import Path
from statistics import median

from triton_sam.bench.figures import Figure
from triton_sam.bench.measure import POINT, connected, in_turns, model_name, photograph, seconds
from triton_sam.serving import Running

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


def overhead(running: Running, sample: Path, rounds: int) -> Iterator[Figure]:
    """A click with RLE out: POST /v1/segment against Triton's own infer, the same client for both.

    What the model's process itself spent on a click, by its own account, is taken off on both sides: a decode varies
    by more than what is measured here. The client has a process of its own, as users' clients have: in this one it
    would share an interpreter with the service and not with Triton.
    """
    with connected(running, "HTTP") as client:
        key = client.set_image(photograph(sample))
    arguments = (running.urls["HTTP"], running.urls["service"], model_name(running), key, rounds)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        around = pool.apply(_around_the_click, arguments)
        alone = pool.apply(_service_clicks, arguments)
        with slow_senders(running.urls["service"], _SLOW_CONNECTIONS):
            crowded = pool.apply(_service_clicks, arguments)
    via, straight = (median(around[way]) * 1e3 for way in ("service", "direct"))
    detail = f"around a click: {via:.2f} ms through it, {straight:.2f} ms direct; medians of {rounds} in turns"
    yield Figure("service minus direct Triton, click", via - straight, "ms", 3.0, detail)
    detail = f"{median(crowded) * 1e3:.1f} ms with {_SLOW_CONNECTIONS} of them, {median(alone) * 1e3:.1f} ms without"
    yield Figure("click beside slow connections / alone", median(crowded) / median(alone), "x", 2.0, detail)


def _around_the_click(triton: str, service: str, model: str, key: str, rounds: int) -> dict[str, list[float]]:
    """Way -> seconds of each click less those that the model's process spent on it."""
    with _ways(triton, service, model, key) as ways:

        def around(way: Callable[[], bytes]) -> float:
            started = time.perf_counter()
            answer = json.loads(way())
            spent = time.perf_counter() - started
            result = answer if "timings_ms" in answer else json.loads(answer["outputs"][0]["data"][0])
            return spent - float(result["timings_ms"]["total"]) / 1e3

        return in_turns({name: (lambda way=way: around(way)) for name, way in ways.items()}, rounds)  # type: ignore[misc]


def _service_clicks(triton: str, service: str, model: str, key: str, rounds: int) -> list[float]:
    with _ways(triton, service, model, key) as ways:
        return [seconds(ways["service"]) for _ in range(rounds)]


@contextlib.contextmanager
def _ways(triton: str, service: str, model: str, key: str) -> Iterator[dict[str, Callable[[], bytes]]]:
    """The same click, by both ways."""
    prompt = {"points": [list(POINT)], "format": "rle"}
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
