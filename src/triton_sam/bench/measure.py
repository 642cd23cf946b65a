"""The measurements: the server against the bare graphs, on the same machine, in the same run, in turns.

Machines are noisy and drift, so the two sides of every comparison alternate, and what is compared is medians.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image

from triton_sam.bench.figures import Figure
from triton_sam.client import SAM2TritonClient
from triton_sam.engines.base import Embedding
from triton_sam.engines.onnx import model_points, preprocess
from triton_sam.errors import TritonSamError
from triton_sam.geometry import Frame
from triton_sam.prompts import ObjectPrompt
from triton_sam.serving import Running
from triton_sam.specs import ModelSpec

SIDE = 1024
POINT = (620.0, 740.0)
_SETTLE_SECONDS = 0.1


class BareGraphs:
    """The two graphs on onnxruntime with its default options and nothing around them."""

    def __init__(self, spec: ModelSpec, encoder: Path, decoder: Path) -> None:
        self._spec = spec
        providers = ["CPUExecutionProvider"]
        self._encoder = onnxruntime.InferenceSession(str(encoder), providers=providers)
        self._decoder = onnxruntime.InferenceSession(str(decoder), providers=providers)

    def encode_seconds(self, pixels: Any) -> tuple[float, dict[str, Any]]:
        """Seconds of one run of the encoder on a prepared tensor, and its outputs."""
        names = [name for name, _ in self._spec.encoder.outputs]
        started = time.perf_counter()
        outputs = self._encoder.run(names, {self._spec.encoder.image: pixels})
        return time.perf_counter() - started, dict(zip(names, outputs, strict=True))

    def decode_seconds(self, embedding: Embedding) -> float:
        """Seconds of one run of the decoder for one point."""
        names = self._spec.decoder
        prompt = ObjectPrompt(np.array([POINT], np.float32), np.ones(1, np.int32))
        coords, labels = model_points(prompt, embedding.frame)
        feeds = {
            **embedding.tensors,
            names.points: coords[None],
            names.labels: labels[None],
            names.mask: np.zeros((1, 1, names.mask_side, names.mask_side), np.float32),
            names.mask_flag: np.zeros(1, np.float32),
        }
        if names.multimask is not None:
            feeds[names.multimask] = np.zeros(1, np.float32)
        started = time.perf_counter()
        self._decoder.run([names.masks, names.scores], feeds)
        return time.perf_counter() - started


def model_name(running: Running) -> str:
    """The segmenter that is measured: the only one that is served."""
    return next(iter(running.segmenters))


def connected(running: Running, protocol: str) -> SAM2TritonClient:
    """A client of the measured model."""
    return SAM2TritonClient(running.urls[protocol], model_name(running))


def photograph(path: Path, number: int = 0) -> bytes:
    """A 1024 px JPEG of the photograph; every number is a new image to the server."""
    with Image.open(path) as opened:
        picture = opened.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    picture.putpixel((0, 0), (number % 256, number // 256 % 256, 99))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=92, comment=f"image {number}".encode())
    return buffer.getvalue()


def seconds(action: Callable[[], object]) -> float:
    """How long a call takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def in_turns(actions: dict[str, Callable[[], float]], rounds: int, warm_up: int = 3) -> dict[str, list[float]]:
    """Name -> seconds of every round.

    The order is another one in each round, and each waits until the machine is idle: onnxruntime's threads go on
    spinning for tens of milliseconds after a run, and whoever came next would pay for it.
    """
    order = list(actions)
    shuffle = random.Random(0).shuffle
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + warm_up):
        shuffle(order)
        for name in order:
            time.sleep(_SETTLE_SECONDS)
            spent = actions[name]()
            if number >= warm_up:
                times[name].append(spent)
    return times


def encode(running: Running, bare: BareGraphs, spec: ModelSpec, sample: Path, rounds: int) -> Iterator[Figure]:
    """A new image through the server against the bare encoder."""
    with Image.open(io.BytesIO(photograph(sample))) as opened:
        picture = opened.convert("RGB")
    pixels = preprocess(picture, Frame(picture.width, picture.height, spec.side, spec.resize), spec)
    with connected(running, "HTTP") as client:
        numbers = itertools.count(2)

        def send_new_image() -> float:
            image = photograph(sample, next(numbers))
            return seconds(lambda: client.set_image(image))

        times = in_turns({"bare": lambda: bare.encode_seconds(pixels)[0], "served": send_new_image}, rounds, warm_up=1)
    alone, served = times["bare"], times["served"]
    ratio = median(one / other for one, other in zip(served, alone, strict=True))
    detail = f"{median(served):.3f} s served, {median(alone):.3f} s bare, median of the ratios of {rounds} pairs"
    yield Figure("served encode / bare encode", ratio, "x", 1.05, detail)


def click(running: Running, bare: BareGraphs, spec: ModelSpec, sample: Path, rounds: int) -> Iterator[Figure]:
    """A click through the server against the bare decoder, by form of the answer, and its bytes on the wire."""
    image = photograph(sample)
    with Image.open(io.BytesIO(image)) as opened:
        frame = Frame(opened.width, opened.height, spec.side, spec.resize)
        pixels = preprocess(opened.convert("RGB"), frame, spec)
    embedding = Embedding(frame, bare.encode_seconds(pixels)[1])
    points = [list(POINT)]
    with connected(running, "HTTP") as http, connected(running, "gRPC") as grpc:
        key = http.set_image(image)
        grpc.set_image(image)
        ways: dict[str, tuple[float, Callable[[], object]]] = {
            "logits, HTTP": (4.0, lambda: http.predict(points, [1])),
            "logits, gRPC": (4.0, lambda: grpc.predict(points, [1])),
            "packed bits, HTTP": (4.0, lambda: http.segment(points)),
            "PNG of 1024 px, HTTP": (12.0, lambda: http.segment(points, format="png")),
            "RLE, HTTP": (12.0, lambda: http.segment(points, format="rle")),
        }
        actions: dict[str, Callable[[], float]] = {"bare": lambda: bare.decode_seconds(embedding)}
        actions |= {name: (lambda action=action: seconds(action)) for name, (_, action) in ways.items()}  # type: ignore[misc]
        times = in_turns(actions, rounds)
    alone = times["bare"]
    for name, (bar, _) in ways.items():
        extra = (median(times[name]) - median(alone)) * 1e3
        detail = f"{median(times[name]) * 1e3:.1f} ms served, {median(alone) * 1e3:.1f} ms bare, {rounds} in turns"
        yield Figure(f"click minus bare decode, {name}", extra, "ms", bar, detail)
    for form in ("png", "rle"):
        yield Figure(f"{form.upper()} click on the wire", wire_bytes(running, key, form) / 1e3, "kB", 100.0, "1024 px")


def wire_bytes(running: Running, key: str, form: str) -> int:
    """Bytes of request and answer of one plain JSON click, headers included."""
    prompt = json.dumps({"points": [list(POINT)], "format": form})
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [1], "data": [value]}
        for name, value in (("image_key", key), ("prompt_json", prompt))
    ]
    body = json.dumps({"inputs": inputs}).encode()
    request = urllib.request.Request(f"{running.urls['HTTP']}/v2/models/{model_name(running)}/infer", data=body)
    with urllib.request.urlopen(request, timeout=60) as response:
        return len(body) + len(response.read()) + len(str(response.headers)) + len(str(request.header_items()))


def click_during_encode(running: Running, sample: Path, rounds: int) -> Iterator[Figure]:
    """One user's clicks while another user's images are encoded, against the same clicks on an idle server."""
    points = [list(POINT)]
    with connected(running, "HTTP") as client:
        client.set_image(photograph(sample))
        for _ in range(3):
            client.predict(points, [1])
        alone = [seconds(lambda: client.predict(points, [1])) for _ in range(rounds)]
        with endless_encodes(running, sample) as encodes:
            busy = [seconds(lambda: client.predict(points, [1])) for _ in range(rounds)]
            while encodes() < 1:
                busy.append(seconds(lambda: client.predict(points, [1])))
    detail = f"{median(busy) * 1e3:.0f} ms during, {median(alone) * 1e3:.0f} ms alone, worst {max(busy) * 1e3:.0f} ms"
    yield Figure("click during an encode / click alone", median(busy) / median(alone), "x", 4.0, detail)


@contextmanager
def endless_encodes(running: Running, sample: Path) -> Iterator[Callable[[], int]]:
    """Another client that sends one new image after the other; yields a count of those that are done."""
    stop = threading.Event()
    done: list[str] = []

    def send() -> None:
        with connected(running, "HTTP") as other:
            number = 10_000
            while not stop.is_set():
                done.append(other.set_image(photograph(sample, number)))
                number += 1

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield lambda: len(done)
        finally:
            stop.set()
            sending.result()


def recovery(running: Running, sample: Path, load_seconds: float) -> Iterator[Figure]:
    """kill -9 until a right mask is served again, less what the image's own encode takes."""
    points = [list(POINT)]
    with connected(running, "HTTP") as client:
        client.set_image(photograph(sample))
        expected = client.segment(points).masks.masks
        encoding = seconds(lambda: client.set_image(photograph(sample, 77)))
        client.set_image(photograph(sample))
        for name, find_pid in (("the model's process", _segmenter_pid), ("tritonserver", _server_pid)):
            os.kill(find_pid(running), signal.SIGKILL)  # found only now: the kill before may have cost a restart
            spent = seconds(lambda: _until_right(client, points, expected)) - encoding
            detail = f"model load and start {load_seconds:.1f} s, the image's encode ({encoding:.1f} s) not counted"
            yield Figure(f"right masks after kill -9 of {name}", spent, "s", 5.0 + load_seconds, detail)


def _segmenter_pid(running: Running) -> int:
    return next(pid for pid, model in running.supervisor.process.stubs.items() if model in running.segmenters)


def _server_pid(running: Running) -> int:
    return running.supervisor.process.process.pid


def _until_right(client: SAM2TritonClient, points: list[list[float]], expected: Any) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if (client.segment(points).masks.masks == expected).all():
                return
        except TritonSamError:
            time.sleep(0.02)
    raise TimeoutError("no right mask within 120 s")
