"""Latency of a new image: by protocol, by step of the server, and of the encoder alone."""

from __future__ import annotations

import functools
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Figure
from triton_sam.bench.local_engine import NO_MODEL_FILES, LocalEngine
from triton_sam.bench.pictures import fresh_numbers
from triton_sam.bench.protocol_clients import protocol_links, times_chart
from triton_sam.bench.raw_http_client import raw_http_clients
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Clock, Plan, in_turns, timed
from triton_sam.bench.target import Target
from triton_sam.client import wire
from triton_sam.client.link import ModelLink

_MANY_IMAGES = 8
#: Step of the server's ``timings_ms`` -> its name in figures.
_STEP_NAMES = {
    "queue_encode": "waiting",
    "queue": "waiting",
    "image": "file to pixels",
    "encode": "encoder",
    "around": "client and protocol",
}
#: Protocol -> for each request, step -> milliseconds. "around" is the time outside of the server.
StepTimes = Mapping[str, list[dict[str, float]]]


def measure_encode(target: Target, plan: Plan) -> Result:
    """From JPEG bytes to the image key by every protocol, the server's own timings, and the encoder alone."""
    result = target.result("encode")
    numbers = fresh_numbers()
    step_times: dict[str, list[dict[str, float]]] = defaultdict(list)

    def send(protocol: str, link: ModelLink) -> float:
        inputs = wire.image_inputs(target.pictures.jpeg(next(numbers)))
        started = time.perf_counter()
        outputs = link.infer(inputs, ("image_key", "result_json"))
        spent = time.perf_counter() - started
        steps = json.loads(wire.text_of(outputs, "result_json"))["timings_ms"]
        step_times[protocol].append(steps | {"around": spent * 1e3 - steps["total"]})
        return spent

    with protocol_links(target) as links, raw_http_clients(target) as raw_clients:
        actions: dict[str, Clock] = {
            f"encode, {protocol}": functools.partial(send, protocol, link) for protocol, link in links.items()
        }
        actions |= {f"encode, {name}": timed(client.new_image) for name, client in raw_clients.items()}
        if target.folder is None:
            result.notes.append(NO_MODEL_FILES)
        else:
            actions |= _encoder_alone(target)
        measured = in_turns(actions, plan)
    for series in measured.values():
        result.add(series)
    labels = [name.removeprefix("encode, ") for name in measured]
    title = f"A new image: {target.spec.id}, {target.pictures.size}"
    result.charts.append(times_chart("encode", title, {"": list(measured.values())}, labels))
    # Without those of the warm-up.
    counted = {protocol: rows[-plan.rounds * plan.samples :] for protocol, rows in step_times.items()}
    _report_steps(result, target, counted)
    return result


def _encoder_alone(target: Target) -> dict[str, Clock]:
    """The encoder in this process, with one image and, if it can, with several at a time."""
    engine = LocalEngine(target)
    prepared = engine.prepare(target.pictures.jpeg())
    actions: dict[str, Clock] = {"encoder alone": lambda: engine.encode_seconds(prepared)}
    if engine.most_images > 1:
        batch = min(engine.most_images, _MANY_IMAGES)
        actions[f"encoder alone, {batch} images at a time, each"] = lambda: engine.encode_seconds(prepared, batch)
    return actions


def _report_steps(result: Result, target: Target, step_times: StepTimes) -> None:
    """Adds the medians of the steps, in the server's order and without their total."""
    first = next(iter(step_times.values()))[0]
    steps = {
        step: [median(row.get(step, 0.0) for row in rows) for rows in step_times.values()]
        for step in first
        if step != "total"
    }
    for step, values in steps.items():
        for protocol, value in zip(step_times, values, strict=True):
            result.figures.append(Figure(f"of it {_step_name(step)}, {protocol}", value, "ms", detail="median"))
    curves = [Curve(_step_name(step), values) for step, values in steps.items()]
    title = f"Where the time of a new image goes: {target.spec.id}, medians of the steps"
    panel = Panel("protocol", "time, ms", curves, "stacked", list(step_times))
    result.charts.append(Chart("encode_steps", title, [panel]))


def _step_name(step: str) -> str:
    return _STEP_NAMES.get(step, step)
