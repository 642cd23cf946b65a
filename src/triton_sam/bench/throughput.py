"""More and more clients at a time, until a queue refuses: clicks on images of their own, and new images."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Figure
from triton_sam.bench.load import Crowd, Job, Step, crowd, http_job
from triton_sam.bench.pictures import fresh_numbers, number_at
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Series
from triton_sam.bench.target import Target
from triton_sam.client.core import ImageFile
from triton_sam.errors import InvalidInput, TritonSamError

#: Seconds at least, latencies, and at most times the length of a step.
_RAMP_SECONDS, _RAMP_LATENCIES, _RAMP_MOST = 1.0, 1.5, 4.0
#: Numbers of images: those that are clicked on, then those of each client that sends new ones.
_CLICKED, _SENT, _EACH = 1, 1_000_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """How much is sent.

    Attributes:
        most: clients at a time, at most; they are doubled from 1 on.
        seconds: that every step lasts.
        form: of the clicks' answers.
        least_clicks, least_images: what must be reached a second, with 32 and 16 clients; None where nothing is asked.
    """

    most: int = 64
    seconds: float = 5.0
    form: str = "bits"
    least_clicks: float | None = None
    least_images: float | None = None

    @property
    def steps(self) -> list[int]:
        doubled = [2**power for power in range(self.most.bit_length())]
        return [count for count in doubled if count <= self.most]


#: Clients at which the bars are asked for.
CLICK_CLIENTS, IMAGE_CLIENTS = 32, 16


def measure_throughput(target: Target, load: Load) -> Result:
    """Clicks first: the images that they need are still cached then."""
    if "HTTP" not in target.urls:
        raise InvalidInput("a load is sent over plain HTTP: give --url http://host:port")
    result = target.result("throughput")
    run = uuid.uuid4().hex[:8]  # another run's sessions must not be taken for these
    link = target.link("HTTP")
    base = next(fresh_numbers())

    def click_job(client: int) -> Job:
        key = link.encode(ImageFile(target.pictures.jpeg(base + _CLICKED + client)))
        prompt = {"points": [list(target.pictures.point(client))], "labels": [1], "format": load.form}
        inputs = {"image_key": key.encode(), "prompt_json": json.dumps(prompt).encode()}
        outputs = ("masks", "scores") if load.form == "bits" else ("result_json",)
        return http_job(target.urls["HTTP"], target.name, inputs, outputs, session=f"{run} click {client}")

    def image_job(client: int) -> Job:
        data = target.pictures.jpeg()
        return http_job(
            target.urls["HTTP"],
            target.name,
            {"image": data},
            ("image_key",),
            session=f"{run} image {client}",
            number=number_at(data),
            first_number=base + _SENT + client * _EACH,
        )

    def withdraw(kind: str, clients: int) -> None:
        """What still waits when the time is over need not be computed."""
        for client in range(clients):
            session: dict[str, str | int | bool] = {"session_id": f"{run} {kind} {client}", "cancel": True}
            with contextlib.suppress(TritonSamError):
                link.infer({}, ("result_json",), session)

    try:
        for kind, make, least, at in (
            ("click", click_job, load.least_clicks, CLICK_CLIENTS),
            ("image", image_job, load.least_images, IMAGE_CLIENTS),
        ):
            steps = _rise(make, load, lambda clients, kind=kind: withdraw(kind, clients))  # type: ignore[misc]
            _report(result, target, load, kind, steps, {at: least} if least is not None else {})
    finally:
        link.transport.close()
    return result


def _rise(make: Callable[[int], Job], load: Load, withdraw: Callable[[int], None]) -> list[Step]:
    """Step after step until one is refused."""
    steps: list[Step] = []
    with crowd() as clients:
        for count in load.steps:
            _fill(clients, count, make)
            stop = clients.begin(count, load.seconds, _ramp(count, load.seconds, steps))
            time.sleep(max(0.0, stop - time.monotonic()))
            withdraw(count)
            steps.append(clients.outcome(count, load.seconds))
            if steps[-1].refused:
                break
    return steps


def _ramp(clients: int, seconds: float, steps: Sequence[Step]) -> float:
    """How long a step goes on before it counts: until each client has had an answer, by the rate so far.

    Without it only the quickest of the first answers would lie inside a short window, and latencies be told too small.
    """
    rate = max((step.rate for step in steps), default=0.0)
    expected = _RAMP_LATENCIES * clients / rate if rate else 0.0
    return min(max(_RAMP_SECONDS, expected), _RAMP_MOST * seconds)


def _fill(clients: Crowd, count: int, make: Callable[[int], Job]) -> None:
    before = len(clients)
    for number in range(before, count):
        clients.add(make(number))
    clients.wait_until_ready(before)


def _report(
    result: Result, target: Target, load: Load, kind: str, steps: Sequence[Step], least: dict[int, float]
) -> None:
    for step in steps:
        name = f"{kind}s a second, {step.clients} client{'s' if step.clients > 1 else ''}"
        result.figures.append(
            Figure(name, step.rate, f"{kind}s/s", None, step.said, least.get(step.clients), better="higher")
        )
        milliseconds = tuple(spent * 1e3 for spent in step.latencies)
        result.series.append(Series(f"{kind}, {step.clients} clients", "ms", (milliseconds,)))
    last = steps[-1]
    if last.refused:
        said = f"{kind}s: with {last.clients} clients the queue refused {last.refused} requests"
    else:
        said = f"{kind}s: {last.clients} clients were not refused (--most)"
    result.notes.append(said)
    cost = max(step.cpu_seconds for step in steps) * 1e3
    detail = "of the load's own client, at most: it must stay far below the latency"
    result.figures.append(Figure(f"processor time of a client for one {kind}", cost, "ms", detail=detail))
    shown = [step for step in steps if step.latencies]
    counts = [step.clients for step in steps]
    what = f"clicks ({load.form})" if kind == "click" else "new images"
    result.charts.append(
        Chart(
            f"throughput_{kind}s",
            f"{what.capitalize()} with more and more clients at a time: {target.spec.id}",
            [
                Panel(
                    "clients at a time",
                    f"{kind}s answered a second",
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


def _refused(last: Step) -> list[Curve]:
    """A mark on the step at which the queue was full."""
    return [Curve("the queue refuses more", [last.rate], [last.clients], "points")] if last.refused else []
