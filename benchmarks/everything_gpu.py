"""Everything in a photograph by the torch engine in this process: time for all points, by part, and the same masks?

usage: python -m benchmarks.everything_gpu NETWORK_FILE [--model sam2:tiny] [--image FILE] [--profile 20]

It runs on a machine with numpy, torch and what the engine imports; only the decoder for grids is compiled. Figures are
printed as JSON, one line each, in milliseconds. The network file is made from a checkpoint by
``python -m benchmarks.everything_gpu --convert CHECKPOINT NETWORK_FILE``, where transformers' weights are at hand.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from triton_sam.core.everything.ahead import find_ahead
from triton_sam.core.everything.candidates import Candidates, Place
from triton_sam.core.everything.driver import Find, find_with, run
from triton_sam.core.everything.grids import CropBox, plan
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.everything.records import answer_of
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Embedding, Row
from triton_sam.engines.torch.compiled_steps import compile_module
from triton_sam.engines.torch.decoder import RowDecoder
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.finding import GridRunner
from triton_sam.engines.torch.grid_decoder import GridStep
from triton_sam.engines.torch.layout import Layout
from triton_sam.engines.torch.measuring import Limits, measured
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.models.catalog import get_spec
from triton_sam.networks.segmenters import build

_IMAGE = Path(__file__).parents[1] / "docs" / "images" / "coffee.png"
_THRESHOLDS = {"sam1": 0.88}
_FOUND = 0.5


def say(**figures: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", type=Path)
    parser.add_argument("--model", default="sam2:tiny")
    parser.add_argument("--image", type=Path, default=_IMAGE)
    parser.add_argument("--size", type=int, nargs=2, default=(1536, 1024))
    parser.add_argument("--side", type=int, default=32, help="points a side")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--depth", type=int, default=3, help="chunks under way at a time")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--rows", type=int, default=GridStep.ROWS, help="points of a chunk")
    parser.add_argument("--slice", type=int, default=GridStep.SLICE, help="rows whose masks are made at a time")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="the N slowest kernels of a chunk")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--convert", type=Path, metavar="CHECKPOINT", help="only write the network file")
    parser.add_argument("--compile-into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    GridStep.ROWS = GridRunner.MOST_POINTS = given.rows
    GridStep.SLICE = given.slice
    if given.convert is not None:
        convert(given)
    elif given.compile_into is not None:
        compile_grid(given)
    else:
        Bench(given).run()


def convert(given: argparse.Namespace) -> None:
    """A checkpoint -> a network file in half precision, half as large."""
    from safetensors.torch import save_file

    from triton_sam.export.checkpoint import load_weights

    spec = get_spec(given.model)
    network = build(spec.architecture, spec.side)
    load_weights(network, given.convert, spec)
    state = {
        name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in network.state_dict().items()
    }
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, given.network)


def compile_grid(given: argparse.Namespace) -> None:
    """The decoder for grids, as the compiling process of an engine makes it."""
    spec = get_spec(given.model)
    torch.backends.cuda.enable_cudnn_sdp(False)
    decoder = RowDecoder(build(spec.architecture, spec.side), spec.architecture, Layout.of(spec))
    step = GridStep(decoder.cast(torch.device(given.device), torch.float16))
    compile_module(step, step.inputs(given.rows, torch.device(given.device)), "default", given.compile_into)


class Bench:
    """An engine with one encoded photograph."""

    def __init__(self, given: argparse.Namespace) -> None:
        from safetensors.torch import load_file

        self.given = given
        spec = get_spec(given.model)
        network = build(spec.architecture, spec.side)
        network.load_state_dict(load_file(given.network))
        device = torch.device(given.device, 0) if given.device == "cuda" else torch.device("cpu")
        dtype = torch.float16 if given.device == "cuda" else torch.float32
        begun = time.perf_counter()
        self.engine = TorchEngine(spec, network, TorchOptions(device, dtype, dtype))
        self.engine.warm_up()
        say(warm_up_s=round(time.perf_counter() - begun, 1), torch=torch.__version__, kernels=self.grids._by_kernel)
        self.width, self.height = given.size
        buffer = io.BytesIO()
        Image.open(given.image).convert("RGB").resize(given.size, Image.Resampling.BICUBIC).save(buffer, "PNG")
        file = EncodedImage(buffer.getvalue(), max_bytes=2**26, max_pixels=2**26)
        (self.embedding,) = self.engine.encode([self.engine.prepare(file)])
        self.place = Place((0, 0, *given.size), *given.size)
        least = _THRESHOLDS.get(spec.family, 0.8)
        self.options = EverythingOptions(given.side, given.rows, least)

    @property
    def grids(self) -> GridRunner:
        return self.engine.grids

    def run(self) -> None:
        """Everything that is measured."""
        self.parts("uncompiled")
        found = self.all_points("uncompiled")
        if not self.given.no_compile:
            self.compile()
            self.parts("compiled")
            found = self.all_points("compiled")
        self.compare(found)
        if self.given.device == "cuda":
            say(peak_gpu_mb=round(torch.cuda.max_memory_allocated() / 2**20))

    def compile(self) -> None:
        """In another process, as a server does."""
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.everything_gpu", *sys.argv[1:], "--compile-into", folder]
            subprocess.run(command, check=True, timeout=120)
            compiled = time.perf_counter()
            self.grids.use_compiled(Path(folder))
            say(compile_s=round(compiled - begun, 1), switch_s=round(time.perf_counter() - compiled, 1))

    def parts(self, kind: str) -> None:
        """The device's time for one chunk, by part."""
        if self.given.device != "cuda":
            return
        grids, frame, one = self.grids, self.embedding.frame, self.points()[0]
        limits = Limits(0.8, -1.0, 0.0, 1.0)

        def whole() -> object:
            return self.engine.begin_find(self.embedding, one, self.place, self.options)()

        def measure(least: float) -> object:
            given = limits._replace(least=least)
            return measured(logits[:, 1:], scores[:, 1:-1], frame, given, by_kernel=grids._by_kernel)

        whole()
        with torch.inference_mode(), torch.cuda.stream(grids._stream):
            logits, _, scores = grids._ready().run()
            say(
                what=f"one chunk, {kind}",
                step=device_ms(grids._ready().run),
                clone=device_ms(logits[:, 1:].clone),
                measure=device_ms(lambda: measure(0.8)),
                measure_all=device_ms(lambda: measure(-9.0)),
            )
        if self.given.profile:
            profile(whole, self.given.profile)

    def points(self) -> list[Any]:
        """The points of each chunk."""
        return [chunk.points for chunk in plan(self.options, self.width, self.height, GridRunner.MOST_POINTS)]

    def open(self, spent: dict[str, float]) -> Callable[[CropBox], Find]:
        """An opener that adds up the host's seconds."""

        def begin(points: Any) -> Callable[[], Candidates]:
            with timed(spent, "begin"):
                finish = self.engine.begin_find(self.embedding, points, self.place, self.options)

            def finished() -> Candidates:
                with timed(spent, "finish"):
                    found = finish()
                spent["candidates"] = spent.get("candidates", 0) + len(found)
                return found

            return finished

        return lambda _: find_ahead(begin, self.points(), self.given.depth)

    def all_points(self, kind: str) -> Candidates:
        """The driver over all chunks, with run lengths of what stays."""
        whole, parts = [], []
        for _ in range(self.given.rounds):
            spent: dict[str, float] = {}
            begun = time.perf_counter()
            *_, last = run(self.options, self.width, self.height, self.open(spent), most_rows=GridRunner.MOST_POINTS)
            with timed(spent, "records"):
                text = json.dumps(answer_of(last.found, "rle", self.width, self.height))
            whole.append(1000 * (time.perf_counter() - begun))
            parts.append(spent)
        medians = {name: round(1000 * statistics.median(part[name] for part in parts), 2) for name in parts[0]}
        candidates = parts[-1].pop("candidates")
        medians.pop("candidates")
        say(
            what=f"all points, {kind}",
            points=last.of,
            masks=len(last.found),
            candidates=int(candidates),
            answer_kb=len(text) // 1024,
            median=round(statistics.median(whole), 2),
            fastest=round(min(whole), 2),
            host=medians,
        )
        return last.found

    def compare(self, found: Candidates) -> None:
        """The same by rows of the same engine and the core's filters."""

        def decode(points: Any, *, multimask: bool, mask_input: Any = None) -> tuple[Any, Any]:
            rows = [row_of(self.embedding, point, multimask) for point in points]
            answers = self.engine.decode(rows)
            return np.stack([each.logits for each in answers]), np.stack([each.scores for each in answers])  # type: ignore[misc]

        def open_crop(_: CropBox) -> Find:
            return find_with(decode, self.embedding.frame, self.place, self.options, 16)

        begun = time.perf_counter()
        *_, last = run(self.options, self.width, self.height, open_crop, most_rows=16)
        seconds = time.perf_counter() - begun
        mine, others = ([np.packbits(mask.pixels()) for mask in each.masks] for each in (found, last.found))
        ious = np.array([[iou(one, other) for other in others] for one in mine]).reshape(len(mine), len(others))
        forth, back = ious.max(1, initial=0), ious.max(0, initial=0)
        matched = forth[forth > _FOUND]
        say(
            what="against rows of the same engine",
            rows_s=round(seconds, 2),
            masks=[len(mine), len(others)],
            mean_iou=round(float(matched.mean()) if len(matched) else 0.0, 5),
            unmatched=[int((each <= _FOUND).sum()) for each in (forth, back)],
        )


def row_of(embedding: Embedding, point: Any, multimask: bool) -> Row:
    prompt = ObjectPrompt(np.asarray(point, np.float32)[None], np.ones(1, np.int32))
    return Row(embedding, prompt, multimask)


def iou(one: Any, other: Any) -> float:
    """Of packed masks."""
    either = int(np.bitwise_count(one | other).sum()) if hasattr(np, "bitwise_count") else count(one | other)
    both = int(np.bitwise_count(one & other).sum()) if hasattr(np, "bitwise_count") else count(one & other)
    return both / max(either, 1)


_BITS = np.array([bin(value).count("1") for value in range(256)], np.uint8)


def count(packed: Any) -> int:
    return int(_BITS[packed].sum(dtype=np.int64))


class timed:  # noqa: N801  (used like a function)
    """Adds the seconds of a block to an entry."""

    def __init__(self, spent: dict[str, float], name: str) -> None:
        self._spent, self._name = spent, name

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._spent[self._name] = self._spent.get(self._name, 0.0) + time.perf_counter() - self._begun


def profile(function: Callable[[], object], most: int) -> None:
    """The kernels of one call that take longest, with milliseconds and number of launches."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        function()
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    for event in events[:most]:
        say(kernel=event.key[:100], ms=round(event.self_device_time_total / 1000, 3), launches=event.count)


def device_ms(function: Callable[[], object], times: int = 20) -> float:
    """The device's milliseconds for one call, on the current stream."""
    function()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(times):
        function()
    last.record()
    last.synchronize()
    return round(float(first.elapsed_time(last)) / times, 3)


if __name__ == "__main__":
    main()
