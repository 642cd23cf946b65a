"""Throughput: clicks and new images a second, with more and more concurrent clients until a queue is full."""

from __future__ import annotations

import contextlib
import functools
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Figure
from triton_sam.bench.load_clients import LoadClients, LoadStep, RepeatedRequest, infer_request, load_clients
from triton_sam.bench.pictures import fresh_numbers, number_at
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Series
from triton_sam.bench.target import Target
from triton_sam.client.core import ImageFile
from triton_sam.errors import InvalidInput, TritonSamError

#: The ramp of a step: at least so many seconds, as many latencies, at most so many times the length of the step.
_RAMP_SECONDS, _RAMP_LATENCIES, _RAMP_MOST = 1.0, 1.5, 4.0
#: Offsets of image numbers: images to click on, new images of the first client, numbers of each client.
_CLICKED, _SENT, _EACH = 1, 1_000_000, 1_000_000
#: Those with boxes are other images: more clients than 1024 are not allowed.
_WITH_BOXES = _SENT + 1024 * _EACH


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is counted.

    Attributes:
        file: of its chart; empty for ``many``.
    """

    one: str
    many: str
    title: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class ThroughputLoad:
    """How much load to generate.

    Attributes:
        most: the largest number of concurrent clients; they are doubled from 1 on.
        seconds: length of every step.
        form: how masks are returned.
        least_clicks, least_images: bars, per second, with 32 and 16 clients; None for no bar.
        boxes: also measures new images with so many boxes each in one request, as a batch job sends them; 0: not.
    """

    most: int = 64
    seconds: float = 5.0
    form: str = "bits"
    least_clicks: float | None = None
    least_images: float | None = None
    boxes: int = 0

    @property
    def steps(self) -> list[int]:
        doubled = [2**power for power in range(self.most.bit_length())]
        return [count for count in doubled if count <= self.most]

    @property
    def environment(self) -> dict[str, str]:
        """Settings of the server: each client clicks on its own image, and all of them must fit into the cache."""
        return {"TRITON_SAM_CACHE_BYTES": str(max(2**30, self.most * 40_000_000))}


#: Numbers of clients at which the bars apply.
CLICK_CLIENTS, IMAGE_CLIENTS = 32, 16


def measure_throughput(target: Target, load: ThroughputLoad) -> Result:
    """Clicks first, while the images that they need are still cached."""
    if "HTTP" not in target.urls:
        raise InvalidInput("a load is sent over plain HTTP: give --url http://host:port")
    result = target.result("throughput")
    run = uuid.uuid4().hex[:8]  # other runs on the same server must have other sessions
    link = target.link("HTTP")
    base = next(fresh_numbers())

    def click_request(client: int) -> RepeatedRequest:
        key = link.encode(ImageFile(target.pictures.jpeg(base + _CLICKED + client)))
        prompt = {"points": [list(target.pictures.point(client))], "labels": [1], "format": load.form}
        inputs = {"image_key": key.encode(), "prompt_json": json.dumps(prompt).encode()}
        outputs = ("masks", "scores") if load.form == "bits" else ("result_json",)
        return infer_request(target.urls["HTTP"], target.name, inputs, outputs, session=f"{run} click {client}")

    def image_request(client: int, boxes: int = 0) -> RepeatedRequest:
        data = target.pictures.jpeg()
        inputs, outputs = {"image": data}, ("image_key",)
        if boxes:
            prompt = {"boxes": target.pictures.boxes(boxes), "format": "rle"}
            inputs, outputs = {"prompt_json": json.dumps(prompt).encode(), **inputs}, ("result_json",)
        return infer_request(
            target.urls["HTTP"],
            target.name,
            inputs,
            outputs,
            session=f"{run} {'boxes' if boxes else 'image'} {client}",
            number=number_at(data),
            first_number=base + (_WITH_BOXES if boxes else _SENT) + client * _EACH,
        )

    def cancel(kind: str, clients: int) -> None:
        """Cancels requests that are still queued at the end of a step."""
        for client in range(clients):
            session: dict[str, str | int | bool] = {"session_id": f"{run} {kind} {client}", "cancel": True}
            with contextlib.suppress(TritonSamError):
                link.infer({}, ("result_json",), session)

    try:
        for kind, make_request, least, at in (
            (_Kind("click", "clicks", f"clicks ({load.form})"), click_request, load.least_clicks, CLICK_CLIENTS),
            (_Kind("image", "images", "new images"), image_request, load.least_images, IMAGE_CLIENTS),
        ):
            steps = _increase(make_request, load, functools.partial(cancel, kind.one))
            _report(result, target, kind, steps, {at: least} if least is not None else {})
        if load.boxes:
            with_boxes = functools.partial(image_request, boxes=load.boxes)
            steps = _increase(with_boxes, load, functools.partial(cancel, "boxes"))
            what = f"with {load.boxes} box{'es' if load.boxes > 1 else ''}"
            kind = _Kind(f"image {what}", f"images {what}", f"new images {what}", "images_with_boxes")
            _report(result, target, kind, steps, {})
    finally:
        link.transport.close()
    return result


def _increase(
    make_request: Callable[[int], RepeatedRequest], load: ThroughputLoad, cancel: Callable[[int], None]
) -> list[LoadStep]:
    """Runs step after step until requests are refused."""
    steps: list[LoadStep] = []
    with load_clients() as clients:
        for count in load.steps:
            _add_clients(clients, count, make_request)
            stop = clients.begin(count, load.seconds, _ramp(count, load.seconds, steps))
            time.sleep(max(0.0, stop - time.monotonic()))
            cancel(count)
            steps.append(clients.outcome(count, load.seconds))
            if steps[-1].refused:
                break
    return steps


def _ramp(clients: int, seconds: float, steps: Sequence[LoadStep]) -> float:
    """Seconds of a step that do not count: until each client has had a response, at the best rate so far.

    Without it a short window would contain only the fastest of the first responses, and latencies would be too small.
    """
    rate = max((step.rate for step in steps), default=0.0)
    expected = _RAMP_LATENCIES * clients / rate if rate else 0.0
    return min(max(_RAMP_SECONDS, expected), _RAMP_MOST * seconds)


def _add_clients(clients: LoadClients, count: int, make_request: Callable[[int], RepeatedRequest]) -> None:
    """Adds clients until there are ``count``."""
    before = len(clients)
    for number in range(before, count):
        clients.add(make_request(number))
    clients.wait_until_ready(before)


def _report(result: Result, target: Target, kind: _Kind, steps: Sequence[LoadStep], least: dict[int, float]) -> None:
    """``least``: number of clients -> the bar on the rate."""
    many = kind.many
    for step in steps:
        name = f"{many} a second, {step.clients} client{'s' if step.clients > 1 else ''}"
        result.figures.append(
            Figure(name, step.rate, f"{many}/s", None, step.detail, least.get(step.clients), better="higher")
        )
        milliseconds = tuple(spent * 1e3 for spent in step.latencies)
        result.series.append(Series(f"{kind.one}, {step.clients} clients", "ms", (milliseconds,)))
    last = steps[-1]
    if last.refused:
        note = f"{many}: with {last.clients} clients the queue refused {last.refused} requests"
    else:
        note = f"{many}: {last.clients} clients were not refused (--most)"
    result.notes.append(note)
    cost = max(step.cpu_seconds for step in steps) * 1e3
    detail = "of the load-generating client, at most: it must stay far below the latency"
    result.figures.append(Figure(f"processor time of a client for one {kind.one}", cost, "ms", detail=detail))
    shown = [step for step in steps if step.latencies]
    counts = [step.clients for step in steps]
    result.charts.append(
        Chart(
            f"throughput_{kind.file or many}",
            f"{kind.title.capitalize()} with more and more clients at a time: {target.spec.id}",
            [
                Panel(
                    "clients at a time",
                    f"{many} answered a second",
                    [Curve("answered", [step.rate for step in steps], counts), *_refused(last)],
                    doubling=True,
                ),
                Panel(
                    "clients at a time",
                    "latency, ms",
                    [
                        Curve(f"p{percent}", [step.percentile(percent) for step in shown], [s.clients for s in shown])
                        for percent in (50, 99)
                    ],
                    doubling=True,
                ),
            ],
        )
    )


def _refused(last: LoadStep) -> list[Curve]:
    """A mark on the step at which the queue was full, if there is one."""
    return [Curve("the queue refuses more", [last.rate], [last.clients], "points")] if last.refused else []
