"""One request after the other: an image, a click, a user's session."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from triton_sam.bench.bare import NO_FOLDER, Bare
from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Figure
from triton_sam.bench.pictures import fresh_numbers
from triton_sam.bench.plain import PlainClient, plain_clients
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Clock, Plan, Series, fitted, in_turns, timed
from triton_sam.bench.target import Target
from triton_sam.bench.wire_counter import WireCounter
from triton_sam.client import wire
from triton_sam.client.core import ImageFile
from triton_sam.client.link import ModelLink
from triton_sam.client.sync_client import SAM2TritonClient

#: A mask's bits as they travel, without the client's array of them; and what the client makes an array of.
PACKED = "packed bits"
FORMS = ("bits", "rle", "png", "logits")
_MASKS = 10
_MANY_IMAGES = 8
_WIRE_CLICKS = 5
_MORE = 5
#: How much dearer one more prompt may become with many of them: linear or better, and 10 % for the machine's noise.
_LINEAR = 1.1


def measure_encode(target: Target, plan: Plan) -> Result:
    """JPEG bytes to key by every protocol, the server's own account of it, and the encoder alone."""
    result = target.result("encode")
    numbers = fresh_numbers()
    accounts: dict[str, list[dict[str, float]]] = defaultdict(list)

    def send(protocol: str, link: ModelLink) -> float:
        inputs = wire.image_inputs(target.pictures.jpeg(next(numbers)))
        started = time.perf_counter()
        outputs = link.infer(inputs, ("image_key", "result_json"))
        spent = time.perf_counter() - started
        account = json.loads(wire.text_of(outputs, "result_json"))["timings_ms"]
        accounts[protocol].append(account | {"around": spent * 1e3 - account["total"]})
        return spent

    with _links(target) as links, plain_clients(target) as plain:
        actions: dict[str, Clock] = {
            f"encode, {protocol}": (lambda protocol=protocol, link=link: send(protocol, link))  # type: ignore[misc]
            for protocol, link in links.items()
        }
        actions |= {f"encode, {name}": timed(client.new_image) for name, client in plain.items()}
        if target.folder is None:
            result.notes.append(NO_FOLDER)
        else:
            bare = Bare(target)
            prepared = bare.prepare(target.pictures.jpeg())
            actions["encoder alone"] = lambda: bare.encode_seconds(prepared)
            if bare.most_images > 1:
                batch = min(bare.most_images, _MANY_IMAGES)
                name = f"encoder alone, {batch} images at a time, each"
                actions[name] = lambda: bare.encode_seconds(prepared, batch)
        measured = in_turns(actions, plan)
    for series in measured.values():
        result.add(series)
    counted = {protocol: rows[-plan.rounds * plan.samples :] for protocol, rows in accounts.items()}
    steps = {
        step: [median(row.get(step, 0.0) for row in rows) for rows in counted.values()] for step in _steps(counted)
    }
    for step, values in steps.items():
        for protocol, value in zip(counted, values, strict=True):
            result.figures.append(Figure(f"of it {_said(step)}, {protocol}", value, "ms", detail="median"))
    result.charts += [
        _times(
            "encode",
            f"A new image: {target.spec.id}, {target.pictures.size}",
            {"": list(measured.values())},
            [name.removeprefix("encode, ") for name in measured],
        ),
        Chart(
            "encode_steps",
            f"Where the time of a new image goes: {target.spec.id}, medians of the steps",
            [
                Panel(
                    "protocol",
                    "time, ms",
                    [Curve(_said(step), values) for step, values in steps.items()],
                    "stacked",
                    list(counted),
                )
            ],
        ),
    ]
    return result


def _steps(accounts: dict[str, list[dict[str, float]]]) -> list[str]:
    """In the server's order, without the sum; what is around the server comes last."""
    return [step for step in next(iter(accounts.values()))[0] if step != "total"]


def _said(step: str) -> str:
    return {
        "queue_encode": "waiting",
        "queue": "waiting",
        "image": "file to pixels",
        "encode": "encoder",
        "around": "client and protocol",
    }.get(step, step)


def measure_click(target: Target, plan: Plan, prompts: Sequence[int] = (1, 4, 16, 64)) -> Result:
    """One cached image: every form by every protocol, its bytes, and how time grows with the prompts of a request.

    Args:
        prompts: three numbers or more, rising.
    """
    result = target.result("click")
    point = [list(target.pictures.point())]
    with _clients(target) as clients, _links(target) as links, plain_clients(target) as plain:
        packed = {f"click, {PACKED}, {protocol}": timed(_packed(target, link)) for protocol, link in links.items()}
        packed |= {f"click, {PACKED}, {name}": timed(_plain(client)) for name, client in plain.items()}
        arrays = {
            f"click, {form}, {protocol}": timed(_click(client, form, point))
            for form in FORMS
            for protocol, client in clients.items()
        }
        # The quickest by themselves, and more of them: beside forms that take longer their tail would not be their own.
        measured = in_turns(packed, replace(plan, samples=plan.samples * _MORE)) | in_turns(arrays, plan)
        for series in measured.values():
            result.add(series)
        for form in FORMS:
            for protocol in clients:
                size = wire_bytes(target, protocol, form)
                name = f"bytes of a click, {form}, {protocol}"
                detail = f"request and answer, mean of {_WIRE_CLICKS}"
                result.figures.append(Figure(name, size / 1e3, "kB", detail=detail, better="lower"))
        first = next(iter(clients))
        result.figures.append(_client_cost(clients[first], point, first))
        forms = (PACKED, *FORMS)
        groups = {protocol: [measured[f"click, {form}, {protocol}"] for form in forms] for protocol in clients}
        result.charts.append(_times("click", f"A click by form and protocol: {target.spec.id}", groups, forms))
        _grow(result, target, clients[first], first, replace(plan, samples=max(1, plan.samples // 6)), prompts)
    return result


def _client_cost(client: SAM2TritonClient, point: list[list[float]], protocol: str) -> Figure:
    """Processor time of the client: what one process of it can send at most."""
    spent = []
    for _ in range(20):
        started = time.process_time()
        client.segment(point)
        spent.append((time.process_time() - started) * 1e3)
    detail = "SAM2TritonClient.segment, packed bits, median of 20"
    return Figure(f"processor time of the client for a click, {protocol}", median(spent), "ms", detail=detail)


def _grow(
    result: Result, target: Target, client: SAM2TritonClient, protocol: str, plan: Plan, prompts: Sequence[int]
) -> None:
    def ask(count: int) -> Callable[[], object]:
        objects = [{"points": [list(target.pictures.point(number))], "labels": [1]} for number in range(count)]
        return lambda: client.segment(objects=objects, format="rle")

    names = {count: f"{count} prompts in a request" if count > 1 else "1 prompt in a request" for count in prompts}
    measured = in_turns({names[count]: timed(ask(count)) for count in prompts}, plan)
    for series in measured.values():
        result.add(series)
    medians = [measured[names[count]].median for count in prompts]
    line = fitted(prompts, medians)
    result.figures.append(
        Figure(
            "cost of one more prompt", line.slope, "ms", detail=f"fitted, on top of {line.start:.1f} ms", better="lower"
        )
    )
    each = {count: value / count for count, value in zip(prompts, medians, strict=True)}
    said = ", ".join(f"{each[count]:.1f} ms of {count}" for count in prompts)
    fewest, middle, most = prompts[0], prompts[-2], prompts[-1]
    early = (medians[-2] - medians[0]) / (middle - fewest)
    late = (medians[-1] - medians[-2]) / (most - middle)
    name = f"cost of one more prompt, from {middle} to {most} / from {fewest} to {middle}"
    detail = f"linear growth is 1; time per prompt: {said}"
    result.figures.append(Figure(name, late / early if early > 0 else float("inf"), "x", _LINEAR, detail))
    every = [measured[names[count]] for count in prompts]
    result.charts.append(
        Chart(
            "click_prompts",
            f"A click with several prompts in one request: {target.spec.id}, RLE, {protocol}",
            [
                Panel(
                    "prompts in a request",
                    "time of the request, ms",
                    [
                        Curve(
                            "median (band: p5 to p95)",
                            medians,
                            list(prompts),
                            "points",
                            [series.percentile(5) for series in every],
                            [series.percentile(95) for series in every],
                        ),
                        Curve(
                            f"{line.start:.1f} ms + {line.slope:.1f} ms x prompts",
                            [line.at(count) for count in prompts],
                            list(prompts),
                            "dashed",
                        ),
                    ],
                ),
                Panel(
                    "prompts in a request",
                    "time per prompt, ms",
                    [Curve("median", [each[count] for count in prompts], list(prompts))],
                    doubling=True,
                ),
            ],
        )
    )


def measure_session(target: Target, plan: Plan) -> Result:
    """A new image and ten masks on it, one after the other, as a user makes them."""
    result = target.result("session")
    numbers = fresh_numbers()
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

    def plain_session(name: str, client: PlainClient) -> float:
        started = time.perf_counter()
        key = client.new_image()
        images[name].append((time.perf_counter() - started) * 1e3)
        for number in range(_MASKS):
            client.click(key, number)
        return time.perf_counter() - started

    with _clients(target) as clients, plain_clients(target) as plain:
        names = {who: f"1 image + {_MASKS} masks, {who}" for who in (*clients, *plain)}
        actions: dict[str, Clock] = {
            names[protocol]: (lambda protocol=protocol, client=client: session(protocol, client))  # type: ignore[misc]
            for protocol, client in clients.items()
        }
        actions |= {
            names[name]: (lambda name=name, client=client: plain_session(name, client))  # type: ignore[misc]
            for name, client in plain.items()
        }
        measured = in_turns(actions, plan)
    split: dict[str, list[float]] = {"image": [], f"{_MASKS} masks": []}
    for protocol, name in names.items():
        result.add(measured[name])
        image = median(images[protocol][-plan.rounds * plan.samples :])
        rest = measured[name].median - image
        for part, value in zip(split, (image, rest), strict=True):
            split[part].append(value)
            result.figures.append(Figure(f"of it the {part}, {protocol}", value, "ms", detail="median"))
    result.charts.append(
        Chart(
            "session",
            f"One image and {_MASKS} masks, one after the other: {target.spec.id}, {target.pictures.size}",
            [
                Panel(
                    "protocol",
                    "time, ms",
                    [Curve(part, values) for part, values in split.items()],
                    "stacked",
                    list(names),
                )
            ],
        )
    )
    return result


def wire_bytes(target: Target, protocol: str, form: str) -> float:
    """Bytes of request and answer of one click, headers and frames included."""
    point = [list(target.pictures.point())]
    with (
        WireCounter(target.urls[protocol]) as counter,
        contextlib.closing(SAM2TritonClient(counter.url, target.name)) as client,
    ):
        client.set_image(target.pictures.jpeg())
        click = _click(client, form, point)
        click()
        return counted_bytes(counter, click)


def counted_bytes(counter: WireCounter, click: Callable[[], object]) -> float:
    """Mean bytes of a call that goes through a counter."""
    before = counter.count
    for _ in range(_WIRE_CLICKS):
        click()
    return (counter.count - before) / _WIRE_CLICKS


def _click(client: SAM2TritonClient, form: str, point: list[list[float]]) -> Callable[[], object]:
    if form == "logits":
        return lambda: client.predict(point, [1])
    return lambda: client.segment(point, format=form)


def _plain(client: PlainClient) -> Callable[[], object]:
    key = client.new_image()
    return lambda: client.click(key)


def _packed(target: Target, link: ModelLink) -> Callable[[], object]:
    key = link.encode(ImageFile(target.pictures.jpeg()))
    inputs = wire.click_inputs(key, {"points": [list(target.pictures.point())], "labels": [1], "format": "bits"})
    return lambda: link.infer(inputs, ("masks", "scores"))


@contextlib.contextmanager
def _clients(target: Target) -> Iterator[dict[str, SAM2TritonClient]]:
    """One for each protocol, with the image set."""
    with contextlib.ExitStack() as stack:
        clients = {protocol: stack.enter_context(target.client(protocol)) for protocol in target.urls}
        for client in clients.values():
            client.set_image(target.pictures.jpeg())
        yield clients


@contextlib.contextmanager
def _links(target: Target) -> Iterator[dict[str, ModelLink]]:
    with contextlib.ExitStack() as stack:
        links = {protocol: target.link(protocol) for protocol in target.urls}
        for link in links.values():
            stack.callback(link.transport.close)
        yield links


def _times(name: str, title: str, groups: Mapping[str, Sequence[Series]], labels: Sequence[str]) -> Chart:
    """Medians as bars: of each group one for every label."""
    curves = [
        Curve(
            group,
            [series.median for series in every],
            low=[series.percentile(5) for series in every],
            high=[series.percentile(95) for series in every],
        )
        for group, every in groups.items()
    ]
    return Chart(name, f"{title}; medians, lines from p5 to p95", [Panel("", "time, ms", curves, "bars", labels)])
