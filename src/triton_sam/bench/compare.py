"""Four ways to the same mask, in one run and on the same image, in turns.

(a) the bare engine in this process, (b) this server, (c) the classic two-stage design on the same Triton, (d) plain
transformers in eager mode.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from triton_sam.bench.bare import NO_FOLDER, Bare
from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.classic import ClassicClient
from triton_sam.bench.figures import Figure
from triton_sam.bench.latency import counted_bytes, wire_bytes
from triton_sam.bench.pictures import fresh_numbers
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Clock, Plan, Series, in_turns, ratio, timed
from triton_sam.bench.target import Target
from triton_sam.bench.wire_counter import WireCounter
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.core.rle import BoolArray
from triton_sam.models.weights import WeightStore

_CLICK_BAR, _BYTES_BAR, _ENCODE_BAR = 1.8, 0.01, 1.05
BARE, SERVER, CLASSIC, EAGER = "(a) bare engine", "(b) this server", "(c) two stages", "(d) transformers, eager"
#: Masks of one network by two ways agree but for the borders' rounding.
_SAME_MASK = 0.98


class _Ways:
    """Name -> how to encode a new image, and how to click on the last one, each in seconds."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.encodes: dict[str, Clock] = {}
        self.clicks: dict[str, Callable[[], BoolArray]] = {}
        self.details: dict[str, str] = {}
        self._numbers = fresh_numbers()

    def new_image(self) -> bytes:
        return self.target.pictures.jpeg(next(self._numbers))


def measure_compare(target: Target, plan: Plan, click_plan: Plan, checkpoint: Path | None = None) -> Result:
    """Encodes of all ways in turns, then clicks; and the bytes of a click.

    Args:
        checkpoint: the weights of (d); None for those that were downloaded, or random ones.
    """
    result = target.result("compare")
    ways = _Ways(target)
    with contextlib.ExitStack() as stack:
        _add_bare(ways, result)
        _add_server(ways, stack)
        classic = _add_classic(ways, result, stack)
        _add_eager(ways, result, checkpoint)
        for encode in ways.encodes.values():
            encode()  # each has an image to click on, and its memory
        result.notes += [note for name in ways.clicks for note in _agreement(name, ways)]
        encodes = in_turns(ways.encodes, plan)
        clicks = in_turns({name: timed(click) for name, click in ways.clicks.items()}, click_plan)
        for what, measured in (("encode", encodes), ("click", clicks)):
            for name, series in measured.items():
                named = Series(f"{what}, {name}", series.unit, series.rounds)
                result.add(named, named.figure(detail=ways.details.get(name, "")))
        _judge(result, target, encodes, clicks, classic)
    result.charts.append(_chart(target, encodes, clicks))
    return result


def _add_bare(ways: _Ways, result: Result) -> None:
    target = ways.target
    if target.folder is None:
        result.notes.append(NO_FOLDER)
        return
    bare = Bare(target)
    prepared = bare.prepare(target.pictures.jpeg())
    embedding = bare.encode(prepared)
    ways.encodes[BARE] = lambda: bare.encode_seconds(prepared)
    ways.clicks[BARE] = lambda: bare.click(embedding, target.pictures.point())
    ways.details[BARE] = "in this process; the encoder on a prepared image"


def _add_server(ways: _Ways, stack: contextlib.ExitStack) -> None:
    target = ways.target
    for protocol in target.urls:
        client = stack.enter_context(target.client(protocol))
        name = f"{SERVER}, {protocol}"
        ways.encodes[name] = _timed_image(ways, client.set_image)
        ways.clicks[name] = _segment(client, target.pictures.point())
        ways.details[name] = "JPEG in, RLE out and made a mask by the client"


def _segment(client: SAM2TritonClient, point: tuple[float, float]) -> Callable[[], BoolArray]:
    def click() -> BoolArray:
        found: BoolArray = client.segment([list(point)], format="rle").masks.masks[0]
        return found

    return click


def _timed_image(ways: _Ways, send: Callable[[bytes], object]) -> Clock:
    def encode() -> float:
        data = ways.new_image()  # made before the clock starts
        return timed(lambda: send(data))()

    return encode


def _add_classic(ways: _Ways, result: Result, stack: contextlib.ExitStack) -> dict[str, ClassicClient]:
    target = ways.target
    if importlib.util.find_spec("onnxruntime") is None:
        result.notes.append(f"{CLASSIC} was left out: its models need onnxruntime, which is not installed")
        return {}
    if target.running is None or not target.raw_folders:
        result.notes.append(f"{CLASSIC} was left out: the plain encoder and decoder are not served here")
        return {}
    clients = {}
    for protocol, url in target.urls.items():
        client = clients[protocol] = stack.enter_context(
            contextlib.closing(ClassicClient(url, target.name, target.spec))
        )
        name = f"{CLASSIC}, {protocol}"
        ways.encodes[name] = _timed_image(ways, client.set_image)
        ways.clicks[name] = lambda client=client: client.click(target.pictures.point())  # type: ignore[misc]
        ways.details[name] = "pixels in, embeddings out and in again with every click"
    return clients


def _add_eager(ways: _Ways, result: Result, checkpoint: Path | None) -> None:
    try:
        from triton_sam.bench.eager import EagerModel
    except ImportError as error:
        result.notes.append(f"{EAGER} was left out: {error.name or error} is not installed")
        return
    target = ways.target
    name = ""
    if checkpoint is None and not target.random_weights:
        store = WeightStore(target.settings.home)
        there = (file for file in target.spec.checkpoints if store.path(file).is_file())
        if (file := next(there, None)) is not None:
            checkpoint, name = store.path(file), file.name
    model = EagerModel(target.spec, checkpoint, name)

    def decode_and_set(data: bytes) -> None:
        with Image.open(io.BytesIO(data)) as opened:
            model.set_image(opened.convert("RGB"))

    ways.encodes[EAGER] = _timed_image(ways, decode_and_set)
    ways.clicks[EAGER] = lambda: model.click(target.pictures.point())
    ways.details[EAGER] = f"in this process, {model.about}"


def _agreement(name: str, ways: _Ways) -> list[str]:
    """A sentence where a way's mask is another one than the server's."""
    reference = next(key for key in ways.clicks if key.startswith(SERVER))
    if name == reference or "random" in ways.details[name] or ways.target.random_weights:
        return []
    mine, theirs = ways.clicks[name](), ways.clicks[reference]()
    union = np.logical_or(mine, theirs).sum()
    share = float(np.logical_and(mine, theirs).sum() / union) if union else 1.0
    if share >= _SAME_MASK:
        return []
    return [f"{name} gave another mask than {reference}: intersection over union {share:.3f}"]


def _judge(
    result: Result,
    target: Target,
    encodes: dict[str, Series],
    clicks: dict[str, Series],
    classic: dict[str, ClassicClient],
) -> None:
    """What is asked of (b)."""
    http = next(name for name in encodes if name.startswith(SERVER))
    if BARE in encodes:
        name = f"encode: {http} / {BARE}"
        result.add(series := ratio(name, encodes[http], encodes[BARE]), series.figure(bar=_ENCODE_BAR))
    ours = min((name for name in clicks if name.startswith(SERVER)), key=lambda name: clicks[name].median)
    rivals = {name: series for name, series in clicks.items() if name.startswith(CLASSIC)}
    if rivals:
        rival = min(rivals, key=lambda name: rivals[name].median)
        series = ratio(f"click: {CLASSIC} / {SERVER}", rivals[rival], clicks[ours])
        detail = f"the quicker protocol of each: {rival} and {ours}; {series.detail}"
        figure = Figure(series.name, series.median, "x", None, detail, _CLICK_BAR, better="higher")
        result.add(series, figure)
        _judge_bytes(result, target, classic)
    if EAGER in clicks:
        series = ratio(f"click: {EAGER} / {SERVER}", clicks[EAGER], clicks[ours])
        result.add(series, Figure(series.name, series.median, "x", None, series.detail, better="higher"))


def _judge_bytes(result: Result, target: Target, classic: dict[str, ClassicClient]) -> None:
    point = target.pictures.point()
    for protocol in classic:
        mine = wire_bytes(target, protocol, "rle")
        with (
            WireCounter(target.urls[protocol]) as counter,
            contextlib.closing(ClassicClient(counter.url, target.name, target.spec)) as client,
        ):
            client.set_image(target.pictures.jpeg())
            client.click(point)
            theirs = counted_bytes(counter, lambda: client.click(point))
        name = f"bytes of an RLE click: {SERVER} / {CLASSIC}, {protocol}"
        detail = f"{mine / 1e3:.2f} kB and {theirs / 1e6:.2f} MB, request and answer"
        result.figures.append(Figure(name, mine / theirs, "x", _BYTES_BAR, detail, better="lower"))


def _chart(target: Target, encodes: dict[str, Series], clicks: dict[str, Series]) -> Chart:
    def panel(what: str, measured: dict[str, Series]) -> Panel:
        every = list(measured.values())
        curve = Curve(
            "median",
            [series.median for series in every],
            low=[series.percentile(5) for series in every],
            high=[series.percentile(95) for series in every],
        )
        return Panel(what, "time, ms", [curve], "bars", list(measured))

    title = f"The same image and click by four ways: {target.spec.id}; medians, lines from p5 to p95"
    return Chart("compare", title, [panel("a new image", encodes), panel("a click, to the mask", clicks)])
