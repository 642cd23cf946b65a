"""Latency of a user's session: a new image and ten masks on it, one after the other."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Figure
from triton_sam.bench.pictures import fresh_numbers
from triton_sam.bench.protocol_clients import protocol_clients
from triton_sam.bench.raw_http_client import RawHttpClient, raw_http_clients
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Clock, Plan, Series, in_turns
from triton_sam.bench.target import Target
from triton_sam.client.sync_client import SAM2TritonClient

_MASKS = 10


def measure_session(target: Target, plan: Plan) -> Result:
    """Sessions by every protocol in turns, and the part of the image in them."""
    result = target.result("session")
    numbers = fresh_numbers()
    #: Client -> milliseconds of the image in each session.
    images: dict[str, list[float]] = defaultdict(list)
    points = [[list(target.pictures.point(number))] for number in range(_MASKS)]

    def session(protocol: str, client: SAM2TritonClient) -> float:
        image = target.pictures.jpeg(next(numbers))
        started = time.perf_counter()
        client.set_image(image)
        images[protocol].append((time.perf_counter() - started) * 1e3)
        for point in points:
            assert client.segment(point).masks.masks.shape[0] == 1
        return time.perf_counter() - started

    def raw_session(name: str, client: RawHttpClient) -> float:
        started = time.perf_counter()
        key = client.new_image()
        images[name].append((time.perf_counter() - started) * 1e3)
        for number in range(_MASKS):
            client.click(key, number)
        return time.perf_counter() - started

    with protocol_clients(target) as clients, raw_http_clients(target) as raw_clients:
        actions: dict[str, Clock] = {
            protocol: functools.partial(session, protocol, client) for protocol, client in clients.items()
        }
        actions |= {name: functools.partial(raw_session, name, client) for name, client in raw_clients.items()}
        measured = in_turns(actions, plan)
    # Without those of the warm-up.
    counted = {name: values[-plan.rounds * plan.samples :] for name, values in images.items()}
    _report(result, target, measured, {name: median(counted[name]) for name in measured})
    return result


def _report(result: Result, target: Target, measured: Mapping[str, Series], images: Mapping[str, float]) -> None:
    """``measured``: client -> times of its sessions; ``images``: client -> milliseconds of the image."""
    parts: dict[str, list[float]] = {"image": [], f"{_MASKS} masks": []}
    for name, series in measured.items():
        result.add(Series(f"1 image + {_MASKS} masks, {name}", series.unit, series.rounds))
        for part, value in zip(parts, (images[name], series.median - images[name]), strict=True):
            parts[part].append(value)
            result.figures.append(Figure(f"of it the {part}, {name}", value, "ms", detail="median"))
    title = f"One image and {_MASKS} masks, one after the other: {target.spec.id}, {target.pictures.size}"
    curves = [Curve(part, values) for part, values in parts.items()]
    result.charts.append(Chart("session", title, [Panel("protocol", "time, ms", curves, "stacked", list(measured))]))
