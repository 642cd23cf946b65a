"""Latency of a click on a cached image: by form of the mask, by protocol, and by prompts in a request."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Figure
from triton_sam.bench.protocol_clients import protocol_clients, protocol_links, times_chart
from triton_sam.bench.raw_http_client import RawHttpClient, raw_http_clients
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Line, Plan, Series, fitted, in_turns, timed
from triton_sam.bench.target import Target
from triton_sam.bench.wire_counter import COUNTED_CALLS, WireCounter, bytes_per_call
from triton_sam.client import wire
from triton_sam.client.core import ImageFile
from triton_sam.client.link import ModelLink
from triton_sam.client.sync_client import SAM2TritonClient

#: A mask's bits as they are sent; the client does not unpack them to an array.
PACKED = "packed bits"
#: Forms that the client decodes to an array.
FORMS = ("bits", "rle", "png", "logits")
#: Packed bits are measured so many times as often as the other forms.
_PACKED_FACTOR = 5
#: Bar on the growth of the cost of one more prompt: linear, and 10 % for the machine's noise.
_LINEAR = 1.1


def measure_click(target: Target, plan: Plan, prompts: Sequence[int] = (1, 4, 16, 64)) -> Result:
    """One cached image: every form by every protocol, its bytes, and how time grows with the prompts of a request.

    Args:
        prompts: three numbers or more, rising.
    """
    result = target.result("click")
    point = [list(target.pictures.point())]
    with (
        protocol_clients(target) as clients,
        protocol_links(target) as links,
        raw_http_clients(target) as raw_clients,
    ):
        packed = {f"click, {PACKED}, {protocol}": timed(_packed_call(target, link)) for protocol, link in links.items()}
        packed |= {f"click, {PACKED}, {name}": timed(_raw_call(client)) for name, client in raw_clients.items()}
        arrays = {
            f"click, {form}, {protocol}": timed(click_call(client, form, point))
            for form in FORMS
            for protocol, client in clients.items()
        }
        # The fastest ones by themselves and more often: in turns with slower forms their tail would not be their own.
        packed_plan = replace(plan, samples=plan.samples * _PACKED_FACTOR)
        measured = in_turns(packed, packed_plan) | in_turns(arrays, plan)
        for series in measured.values():
            result.add(series)
        result.figures += [_size(target, form, protocol) for form in FORMS for protocol in clients]
        protocol, client = next(iter(clients.items()))
        result.figures.append(_client_cost(client, point, protocol))
        forms = (PACKED, *FORMS)
        groups = {protocol: [measured[f"click, {form}, {protocol}"] for form in forms] for protocol in clients}
        result.charts.append(times_chart("click", f"A click by form and protocol: {target.spec.id}", groups, forms))
        growth_plan = replace(plan, samples=max(1, plan.samples // 6))
        by_prompts = in_turns(
            {str(count): timed(_many_prompts_call(target, client, count)) for count in prompts}, growth_plan
        )
        _report_prompts(result, target, protocol, {count: by_prompts[str(count)] for count in prompts})
    return result


def wire_bytes(target: Target, protocol: str, form: str) -> float:
    """Bytes of request and response of one click, headers and frames included."""
    with (
        WireCounter(target.urls[protocol]) as counter,
        contextlib.closing(SAM2TritonClient(counter.url, target.name)) as client,
    ):
        client.set_image(target.pictures.jpeg())
        click = click_call(client, form, [list(target.pictures.point())])
        click()
        return bytes_per_call(counter, click)


def click_call(client: SAM2TritonClient, form: str, points: list[list[float]]) -> Callable[[], object]:
    """A click as a call, for one form of the mask."""
    if form == "logits":
        return lambda: client.predict(points, [1])
    return lambda: client.segment(points, format=form)


def _raw_call(client: RawHttpClient) -> Callable[[], object]:
    key = client.new_image()
    return lambda: client.click(key)


def _packed_call(target: Target, link: ModelLink) -> Callable[[], object]:
    key = link.encode(ImageFile(target.pictures.jpeg()))
    inputs = wire.click_inputs(key, {"points": [list(target.pictures.point())], "labels": [1], "format": "bits"})
    return lambda: link.infer(inputs, ("masks", "scores"))


def _many_prompts_call(target: Target, client: SAM2TritonClient, count: int) -> Callable[[], object]:
    objects = [{"points": [list(target.pictures.point(number))], "labels": [1]} for number in range(count)]
    return lambda: client.segment(objects=objects, format="rle")


def _size(target: Target, form: str, protocol: str) -> Figure:
    size = wire_bytes(target, protocol, form) / 1e3
    detail = f"request and response, mean of {COUNTED_CALLS}"
    return Figure(f"bytes of a click, {form}, {protocol}", size, "kB", detail=detail, better="lower")


def _client_cost(client: SAM2TritonClient, point: list[list[float]], protocol: str) -> Figure:
    """CPU time of the client, which limits what one client process can send."""
    spent = []
    for _ in range(20):
        started = time.process_time()
        client.segment(point)
        spent.append((time.process_time() - started) * 1e3)
    detail = "SAM2TritonClient.segment, packed bits, median of 20"
    return Figure(f"processor time of the client for a click, {protocol}", median(spent), "ms", detail=detail)


def _report_prompts(result: Result, target: Target, protocol: str, measured: Mapping[int, Series]) -> None:
    """``measured``: prompts in a request -> times of the request."""
    for count, series in measured.items():
        name = f"{count} prompts in a request" if count > 1 else "1 prompt in a request"
        result.add(Series(name, series.unit, series.rounds))
    prompts, medians = list(measured), [series.median for series in measured.values()]
    line = fitted(prompts, medians)
    detail = f"fitted, on top of {line.start:.1f} ms"
    result.figures.append(Figure("cost of one more prompt", line.slope, "ms", detail=detail, better="lower"))
    fewest, middle, most = prompts[0], prompts[-2], prompts[-1]
    early = (medians[-2] - medians[0]) / (middle - fewest)
    late = (medians[-1] - medians[-2]) / (most - middle)
    name = f"cost of one more prompt, from {middle} to {most} / from {fewest} to {middle}"
    per_prompt = ", ".join(f"{measured[count].median / count:.1f} ms of {count}" for count in prompts)
    detail = f"linear growth is 1; time per prompt: {per_prompt}"
    result.figures.append(Figure(name, late / early if early > 0 else float("inf"), "x", _LINEAR, detail))
    title = f"A click with several prompts in one request: {target.spec.id}, RLE, {protocol}"
    result.charts.append(Chart("click_prompts", title, _prompt_panels(measured, line)))


def _prompt_panels(measured: Mapping[int, Series], line: Line) -> list[Panel]:
    """Time of a request with its fitted line, and time per prompt."""
    prompts, every = list(measured), list(measured.values())
    medians = [series.median for series in every]
    low, high = ([series.percentile(percent) for series in every] for percent in (5, 95))
    fit = f"{line.start:.1f} ms + {line.slope:.1f} ms x prompts"
    requests = [
        Curve("median (band: p5 to p95)", medians, prompts, "points", low, high),
        Curve(fit, [line.at(count) for count in prompts], prompts, "dashed"),
    ]
    each = Curve("median", [value / count for count, value in zip(prompts, medians, strict=True)], prompts)
    return [
        Panel("prompts in a request", "time of the request, ms", requests),
        Panel("prompts in a request", "time per prompt, ms", [each], doubling=True),
    ]
