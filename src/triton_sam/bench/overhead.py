"""What the server adds to its engine, how encodes slow down clicks, and how soon it recovers from a kill."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

from triton_sam.bench.click import click_call, wire_bytes
from triton_sam.bench.figures import Figure
from triton_sam.bench.local_engine import LocalEngine
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Plan, in_turns, ratio, seconds, timed
from triton_sam.bench.target import Target
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.errors import TritonSamError
from triton_sam.serving import RunningServer

_START_BAR, _ENCODE_BAR = 10.0, 1.05
#: Form and protocol of a click -> milliseconds that it may take in addition to the decoder.
_CLICK_BARS = {
    ("logits", "HTTP"): 4.0,
    ("logits", "gRPC"): 4.0,
    ("bits", "HTTP"): 4.0,
    ("png", "HTTP"): 12.0,
    ("rle", "HTTP"): 12.0,
}
_FORM_NAMES = {"bits": "packed bits", "png": "PNG", "rle": "RLE"}
_RECOVERY_SECONDS = 120


def measure_overhead(target: Target, plan: Plan) -> Result:
    """All figures of docs/data/server.json.

    Args:
        plan: of the clicks; there are three fifths as many encodes.
    """
    running = target.started_server("this")
    result = target.result("server")
    result.figures.append(Figure("start until ready", target.ready_seconds, "s", _START_BAR, "model installed"))
    engine = LocalEngine(target)
    _encode(result, target, engine, replace(plan, samples=max(1, plan.samples * 3 // 5), warm_up=1))
    _click(result, target, engine, plan)
    result.figures += _click_during_encode(target, plan.rounds * plan.samples)
    result.figures += _recovery(target, running)
    return result


def _encode(result: Result, target: Target, engine: LocalEngine, plan: Plan) -> None:
    """A new image through the server against the encoder alone."""
    prepared = engine.prepare(target.pictures.jpeg())
    numbers = itertools.count(2)
    with target.client("HTTP") as client:

        def send_new_image() -> float:
            image = target.pictures.jpeg(next(numbers))
            return seconds(lambda: client.set_image(image))

        both = in_turns({"bare": lambda: engine.encode_seconds(prepared), "served": send_new_image}, plan)
    series = ratio("served encode / bare encode", both["served"], both["bare"])
    detail = f"{both['served'].median:.0f} ms served, {both['bare'].median:.0f} ms bare; {series.detail}"
    result.add(series, Figure(series.name, series.median, "x", _ENCODE_BAR, detail, better="lower"))


def _click(result: Result, target: Target, engine: LocalEngine, plan: Plan) -> None:
    """A click through the server against the decoder alone, by form of the mask, and its bytes on the wire."""
    point = target.pictures.point()
    embedding = engine.encode(engine.prepare(target.pictures.jpeg()))
    with target.client("HTTP") as http, target.client("gRPC") as grpc:
        clients = {"HTTP": http, "gRPC": grpc}
        for client in clients.values():
            client.set_image(target.pictures.jpeg())
        clicks = {
            f"{_FORM_NAMES.get(form, form)}, {protocol}": timed(click_call(clients[protocol], form, [list(point)]))
            for form, protocol in _CLICK_BARS
        }
        measured = in_turns({"bare": lambda: engine.decode_seconds(embedding, point), **clicks}, plan)
    alone = measured["bare"].median
    for name, bar in zip(clicks, _CLICK_BARS.values(), strict=True):
        series = measured[name]
        detail = f"{series.median:.1f} ms served, {alone:.1f} ms bare; {series.detail}"
        result.add(series, Figure(f"click minus bare decode, {name}", series.median - alone, "ms", bar, detail))
    size = f"{target.pictures.width} px"
    for form in ("png", "rle"):
        sent = wire_bytes(target, "HTTP", form) / 1e3
        result.figures.append(Figure(f"{form.upper()} click on the wire", sent, "kB", 100.0, size, better="lower"))


def _click_during_encode(target: Target, clicks: int) -> Iterator[Figure]:
    """One client's clicks while another client's images are encoded, against the same clicks on an idle server."""
    points = [list(target.pictures.point())]
    with target.client("HTTP") as client:
        client.set_image(target.pictures.jpeg())

        def click() -> float:
            return seconds(lambda: client.predict(points, [1])) * 1e3

        for _ in range(3):
            click()
        alone = [click() for _ in range(clicks)]
        with _endless_encodes(target) as encodes:
            busy = [click() for _ in range(clicks)]
            while encodes() < 1:
                busy.append(click())
    detail = f"{median(busy):.0f} ms during, {median(alone):.0f} ms alone, worst {max(busy):.0f} ms"
    yield Figure("click during an encode / click alone", median(busy) / median(alone), "x", 4.0, detail, better="lower")


@contextmanager
def _endless_encodes(target: Target) -> Iterator[Callable[[], int]]:
    """Another client sends one new image after the other; yields a function that counts the finished ones."""
    stop = threading.Event()
    done: list[str] = []

    def send() -> None:
        with target.client("HTTP") as other:
            for number in itertools.count(10_000):
                if stop.is_set():
                    return
                done.append(other.set_image(target.pictures.jpeg(number)))

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield lambda: len(done)
        finally:
            stop.set()
            sending.result()


def _recovery(target: Target, running: RunningServer) -> Iterator[Figure]:
    """Seconds from kill -9 until the right mask is served again, minus the time of the image's encode."""
    points = [list(target.pictures.point())]
    load_seconds = target.ready_seconds
    with target.client("HTTP") as client:
        client.set_image(target.pictures.jpeg())
        expected = client.segment(points).masks.masks
        encoding = seconds(lambda: client.set_image(target.pictures.jpeg(77)))
        client.set_image(target.pictures.jpeg())
        for name, find_pid in (("the model's process", _segmenter_pid), ("tritonserver", _server_pid)):
            os.kill(find_pid(running), signal.SIGKILL)  # looked up here: the previous kill may have caused a restart
            spent = seconds(lambda: _wait_for_mask(client, points, expected)) - encoding
            detail = f"model load and start {load_seconds:.1f} s, the image's encode ({encoding:.1f} s) not counted"
            yield Figure(f"right masks after kill -9 of {name}", spent, "s", 5.0 + load_seconds, detail)


def _segmenter_pid(running: RunningServer) -> int:
    return next(pid for pid, model in running.supervisor.process.model_pids.items() if model in running.segmenters)


def _server_pid(running: RunningServer) -> int:
    return running.supervisor.process.process.pid


def _wait_for_mask(client: SAM2TritonClient, points: list[list[float]], expected: Any) -> None:
    deadline = time.monotonic() + _RECOVERY_SECONDS
    while time.monotonic() < deadline:
        try:
            if (client.segment(points).masks.masks == expected).all():
                return
        except TritonSamError:
            time.sleep(0.02)
    raise TimeoutError(f"the server did not return the expected mask within {_RECOVERY_SECONDS} s")
