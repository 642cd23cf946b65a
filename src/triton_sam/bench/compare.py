"""Four implementations of the same click, measured in turns, in one run and on the same image.

(a) the engine in this process, (b) this server, (c) the two-stage design on the same Triton, (d) transformers in eager
mode.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.click import wire_bytes
from triton_sam.bench.figures import Figure
from triton_sam.bench.local_engine import NO_MODEL_FILES, LocalEngine
from triton_sam.bench.pictures import fresh_numbers
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Clock, Plan, Series, in_turns, ratio, timed
from triton_sam.bench.target import Target
from triton_sam.bench.two_stage_client import TwoStageClient
from triton_sam.bench.wire_counter import WireCounter, bytes_per_call
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.core.rle import BoolArray
from triton_sam.models.weights import WeightStore

_CLICK_BAR, _BYTES_BAR, _ENCODE_BAR = 1.8, 0.01, 1.05
#: Names of the implementations in figures.
ENGINE, SERVER, TWO_STAGE, TRANSFORMERS = (
    "(a) bare engine",
    "(b) this server",
    "(c) two stages",
    "(d) transformers, eager",
)
#: The least IoU of two implementations of one network: they differ only by rounding at the borders.
_SAME_MASK_IOU = 0.98


class _Implementations:
    """Name -> how to encode a new image (seconds), how to click on the last one (a mask), details for the table."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.encodes: dict[str, Clock] = {}
        self.clicks: dict[str, Callable[[], BoolArray]] = {}
        self.details: dict[str, str] = {}
        self._numbers = fresh_numbers()

    def new_image(self) -> bytes:
        return self.target.pictures.jpeg(next(self._numbers))


def measure_compare(target: Target, plan: Plan, click_plan: Plan, checkpoint: Path | None = None) -> Result:
    """Encodes of all implementations in turns, then clicks; and the bytes of a click.

    Args:
        checkpoint: the weights of (d); None for the downloaded ones, or random ones if there are none.
    """
    result = target.result("compare")
    compared = _Implementations(target)
    with contextlib.ExitStack() as stack:
        _add_engine(compared, result)
        _add_server(compared, stack)
        two_stage = _add_two_stage(compared, result, stack)
        _add_transformers(compared, result, checkpoint)
        for encode in compared.encodes.values():
            encode()  # each then has an image to click on, and has allocated its memory
        result.notes += [note for name in compared.clicks for note in _agreement(name, compared)]
        encodes = in_turns(compared.encodes, plan)
        clicks = in_turns({name: timed(click) for name, click in compared.clicks.items()}, click_plan)
        for what, measured in (("encode", encodes), ("click", clicks)):
            for name, series in measured.items():
                named = Series(f"{what}, {name}", series.unit, series.rounds)
                result.add(named, named.figure(detail=compared.details.get(name, "")))
        _add_ratios(result, target, encodes, clicks, two_stage)
    result.charts.append(_chart(target, encodes, clicks))
    return result


def _add_engine(compared: _Implementations, result: Result) -> None:
    target = compared.target
    if target.folder is None:
        result.notes.append(NO_MODEL_FILES)
        return
    engine = LocalEngine(target)
    prepared = engine.prepare(target.pictures.jpeg())
    embedding = engine.encode(prepared)
    compared.encodes[ENGINE] = lambda: engine.encode_seconds(prepared)
    compared.clicks[ENGINE] = lambda: engine.click(embedding, target.pictures.point())
    compared.details[ENGINE] = "in this process; the encoder on a prepared image"


def _add_server(compared: _Implementations, stack: contextlib.ExitStack) -> None:
    target = compared.target
    for protocol in target.urls:
        client = stack.enter_context(target.client(protocol))
        name = f"{SERVER}, {protocol}"
        compared.encodes[name] = _timed_encode(compared, client.set_image)
        compared.clicks[name] = _segment(client, target.pictures.point())
        compared.details[name] = "JPEG in, RLE out, decoded to a mask by the client"


def _segment(client: SAM2TritonClient, point: tuple[float, float]) -> Callable[[], BoolArray]:
    def click() -> BoolArray:
        found: BoolArray = client.segment([list(point)], format="rle").masks.masks[0]
        return found

    return click


def _timed_encode(compared: _Implementations, send: Callable[[bytes], object]) -> Clock:
    def encode() -> float:
        data = compared.new_image()  # built before the clock starts
        return timed(lambda: send(data))()

    return encode


def _add_two_stage(
    compared: _Implementations, result: Result, stack: contextlib.ExitStack
) -> dict[str, TwoStageClient]:
    target = compared.target
    if importlib.util.find_spec("onnxruntime") is None:
        result.notes.append(f"{TWO_STAGE} was left out: its models need onnxruntime, which is not installed")
        return {}
    if target.running is None or not target.raw_folders:
        result.notes.append(f"{TWO_STAGE} was left out: the raw encoder and decoder are not served here")
        return {}
    clients = {}
    for protocol, url in target.urls.items():
        client = clients[protocol] = stack.enter_context(
            contextlib.closing(TwoStageClient(url, target.name, target.spec))
        )
        name = f"{TWO_STAGE}, {protocol}"
        compared.encodes[name] = _timed_encode(compared, client.set_image)
        compared.clicks[name] = functools.partial(client.click, target.pictures.point())
        compared.details[name] = "pixels in, embeddings out, and in again with every click"
    return clients


def _add_transformers(compared: _Implementations, result: Result, checkpoint: Path | None) -> None:
    try:
        from triton_sam.bench.transformers_model import TransformersModel
    except ImportError as error:
        result.notes.append(f"{TRANSFORMERS} was left out: {error.name or error} is not installed")
        return
    target = compared.target
    name = ""
    if checkpoint is None and not target.random_weights:
        store = WeightStore(target.settings.home)
        downloaded = (file for file in target.spec.checkpoints if store.path(file).is_file())
        if (file := next(downloaded, None)) is not None:
            checkpoint, name = store.path(file), file.name
    model = TransformersModel(target.spec, checkpoint, name)

    def decode_and_set(data: bytes) -> None:
        with Image.open(io.BytesIO(data)) as opened:
            model.set_image(opened.convert("RGB"))

    compared.encodes[TRANSFORMERS] = _timed_encode(compared, decode_and_set)
    compared.clicks[TRANSFORMERS] = lambda: model.click(target.pictures.point())
    compared.details[TRANSFORMERS] = f"in this process, {model.about}"


def _agreement(name: str, compared: _Implementations) -> list[str]:
    """A note if the mask differs from the server's."""
    reference = next(key for key in compared.clicks if key.startswith(SERVER))
    if name == reference or "random" in compared.details[name] or compared.target.random_weights:
        return []
    mask, expected = compared.clicks[name](), compared.clicks[reference]()
    union = np.logical_or(mask, expected).sum()
    iou = float(np.logical_and(mask, expected).sum() / union) if union else 1.0
    if iou >= _SAME_MASK_IOU:
        return []
    return [f"{name} returned another mask than {reference}: intersection over union {iou:.3f}"]


def _add_ratios(
    result: Result,
    target: Target,
    encodes: dict[str, Series],
    clicks: dict[str, Series],
    two_stage: dict[str, TwoStageClient],
) -> None:
    """Adds the ratios between implementations; those of (b) have bars."""
    http = next(name for name in encodes if name.startswith(SERVER))
    if ENGINE in encodes:
        name = f"encode: {http} / {ENGINE}"
        result.add(series := ratio(name, encodes[http], encodes[ENGINE]), series.figure(bar=_ENCODE_BAR))
    ours = min((name for name in clicks if name.startswith(SERVER)), key=lambda name: clicks[name].median)
    others = {name: series for name, series in clicks.items() if name.startswith(TWO_STAGE)}
    if others:
        other = min(others, key=lambda name: others[name].median)
        series = ratio(f"click: {TWO_STAGE} / {SERVER}", others[other], clicks[ours])
        detail = f"the faster protocol of each: {other} and {ours}; {series.detail}"
        figure = Figure(series.name, series.median, "x", None, detail, _CLICK_BAR, better="higher")
        result.add(series, figure)
        _add_byte_ratios(result, target, two_stage)
    if TRANSFORMERS in clicks:
        series = ratio(f"click: {TRANSFORMERS} / {SERVER}", clicks[TRANSFORMERS], clicks[ours])
        result.add(series, Figure(series.name, series.median, "x", None, series.detail, better="higher"))


def _add_byte_ratios(result: Result, target: Target, two_stage: dict[str, TwoStageClient]) -> None:
    point = target.pictures.point()
    for protocol in two_stage:
        ours = wire_bytes(target, protocol, "rle")
        with (
            WireCounter(target.urls[protocol]) as counter,
            contextlib.closing(TwoStageClient(counter.url, target.name, target.spec)) as client,
        ):
            client.set_image(target.pictures.jpeg())
            client.click(point)
            theirs = bytes_per_call(counter, lambda: client.click(point))
        name = f"bytes of an RLE click: {SERVER} / {TWO_STAGE}, {protocol}"
        detail = f"{ours / 1e3:.2f} kB and {theirs / 1e6:.2f} MB, request and response"
        result.figures.append(Figure(name, ours / theirs, "x", _BYTES_BAR, detail, better="lower"))


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

    title = f"The same image and click by four implementations: {target.spec.id}; medians, lines from p5 to p95"
    return Chart("compare", title, [panel("a new image", encodes), panel("a click, to the mask", clicks)])
