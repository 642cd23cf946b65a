"""What does the service cost? The same click through it and straight to Triton, and beside slow senders."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import multiprocessing
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from testkit.slow_senders import slow_senders
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Clock, Plan, in_turns, seconds
from triton_sam.bench.target import Target, TargetOptions, open_target

_SLOW_CONNECTIONS = 100


@dataclass(frozen=True, slots=True)
class ClickPlan:
    """The clicks to time, as the measuring process gets them.

    Attributes:
        triton, service: their addresses.
        key: of the image on the server.
        point: xy, original pixels.
        rounds: clicks of each kind.
    """

    triton: str
    service: str
    model: str
    key: str
    point: tuple[float, float]
    rounds: int


class JsonConnection:
    """One connection to a server that is kept open, with JSON requests and responses."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._connection.connect()
        # The head and the body are two writes: without this the second may wait 40 ms for the first's acknowledgement.
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, document: object) -> bytes:
        self._connection.request("POST", path, json.dumps(document).encode(), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path} returned {response.status}: {body[:200]!r}")
        return body

    def close(self) -> None:
        self._connection.close()


def run_service(model: str, rounds: int) -> Result:
    """Starts a server with the service, and measures it."""
    with open_target(TargetOptions(model), service=True) as target:
        return measure_service(target, rounds)


def measure_service(target: Target, rounds: int) -> Result:
    """A click that returns RLE: POST /v1/segment against Triton's own infer, with the same client.

    The time that the model's process reports for a click is subtracted on both sides: a decode varies by more than
    what is measured here. The client runs in its own process, as users' clients do: in this one it would share an
    interpreter with the service but not with Triton.
    """
    running = target.started_server("the service")
    result = target.result("service")
    with target.client("HTTP") as client:
        key = client.set_image(target.pictures.jpeg())
    plan = ClickPlan(running.urls["HTTP"], running.urls["service"], target.name, key, target.pictures.point(), rounds)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        overheads = pool.apply(_click_overheads, (plan,))
        alone = pool.apply(_service_clicks, (plan,))
        with slow_senders(running.urls["service"], _SLOW_CONNECTIONS):
            crowded = pool.apply(_service_clicks, (plan,))
    via, straight = (median(overheads[route]) for route in ("service", "direct"))
    detail = f"around a click: {via:.2f} ms through it, {straight:.2f} ms direct; medians of {rounds} in turns"
    result.figures.append(Figure("service minus direct Triton, click", via - straight, "ms", 3.0, detail))
    detail = f"{median(crowded) * 1e3:.1f} ms with {_SLOW_CONNECTIONS} of them, {median(alone) * 1e3:.1f} ms without"
    beside = median(crowded) / median(alone)
    result.figures.append(Figure("click beside slow connections / alone", beside, "x", 2.0, detail))
    return result


def _click_overheads(plan: ClickPlan) -> dict[str, list[float]]:
    """Route -> milliseconds of each click minus those that the model's process spent on it."""
    with _routes(plan) as routes:

        def overhead(click: Callable[[], bytes]) -> float:
            started = time.perf_counter()
            response = json.loads(click())
            spent = time.perf_counter() - started
            result = response if "timings_ms" in response else json.loads(response["outputs"][0]["data"][0])
            return spent - float(result["timings_ms"]["total"]) / 1e3

        actions: dict[str, Clock] = {name: functools.partial(overhead, click) for name, click in routes.items()}
        measured = in_turns(actions, Plan(rounds=1, samples=plan.rounds, warm_up=3))
        return {name: series.values for name, series in measured.items()}


def _service_clicks(plan: ClickPlan) -> list[float]:
    """Seconds of each click through the service."""
    with _routes(plan) as routes:
        return [seconds(routes["service"]) for _ in range(plan.rounds)]


@contextlib.contextmanager
def _routes(plan: ClickPlan) -> Iterator[dict[str, Callable[[], bytes]]]:
    """Name -> the same click, straight to Triton and through the service."""
    prompt = {"points": [list(plan.point)], "format": "rle"}
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [1], "data": [value]}
        for name, value in (("image_key", plan.key), ("prompt_json", json.dumps(prompt)))
    ]
    call = {"inputs": inputs, "outputs": [{"name": "result_json"}]}
    with (
        contextlib.closing(JsonConnection(plan.triton)) as triton,
        contextlib.closing(JsonConnection(plan.service)) as service,
    ):
        yield {
            "direct": lambda: triton.post(f"/v2/models/{plan.model}/infer", call),
            "service": lambda: service.post("/v1/segment", {"image_key": plan.key, **prompt}),
        }
