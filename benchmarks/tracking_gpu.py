"""Tracking by the torch engine in this process, with memory full: time of a frame, by part, and is it right?

usage: python -m benchmarks.tracking_gpu [--model sam2.1:base_plus] [--profile 12] [--compile]

It runs on a machine with a GPU, numpy, torch and what the engine imports; weights are random. The image encoder is not
measured. Figures are printed as JSON, one line each, in milliseconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triton_sam.core.geometry import Frame
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.core.video.bank import Attended
from triton_sam.engines.base import Embedding
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.engines.torch.compile_process import TRACKING, CompileRequest, compile_missing
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.engines.torch.tracking import TrackRunner
from triton_sam.engines.tracking import Tracked, TrackRow
from triton_sam.export.random_weights import randomise
from triton_sam.models.catalog import get_spec
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.networks.segmenters import build_layers

_SIZE = (1280, 720)
_FRAMES = 24
Memory = tuple[Any, Any]


def say(**figures: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="sam2.1:base_plus")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="the N slowest kernels")
    parser.add_argument("--compile", action="store_true", help="and compiled, as in a server at full speed")
    parser.add_argument("--frames", type=int, default=300, help="tracked to see whether memory grows")
    given = parser.parse_args()
    Bench(given).run()


class Bench:
    """Engines of one network, in the server's precision and in float32, and frames for them."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.device = torch.device(given.device)
        spec = get_spec(given.model)
        self.spec = dataclasses.replace(spec, memory=MEMORY_TRAITS[spec.architecture.generation])
        with torch.device(self.device):
            network = build_layers(self.spec.architecture, self.spec.side, self.spec.memory)
        network.to("cpu")
        randomise(network)
        network.mask_decoder.pred_obj_score_head.proj_out.bias += 10  # objects are there
        half = torch.float16 if self.device.type == "cuda" else torch.float32
        whole = TorchOptions(self.device, graphs=False)
        self.exact = TorchEngine(self.spec, network, whole)
        options = TorchOptions(self.device, half, half, compile_mode="default")
        begun = time.perf_counter()
        self.engine = TorchEngine(self.spec, network, options)
        assert self.engine.tracker is not None
        self.tracker: TrackRunner = self.engine.tracker
        self.wait()
        say(built=round(time.perf_counter() - begun, 2), **self.memory())
        self.engine.rows.use_packing_kernel()
        self.frame = Frame(*_SIZE, self.spec.side, self.spec.resize)
        rng = np.random.default_rng(0)
        self.images = []
        for _ in range(_FRAMES):
            shapes = self.spec.encoder.outputs
            arrays = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes}
            self.images.append([engine.adopt(self.frame, arrays) for engine in (self.engine, self.exact)])

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def memory(self) -> dict[str, int]:
        """MiB in use and reserved."""
        if self.device.type != "cuda":
            return {}
        return {"used": torch.cuda.memory_allocated() >> 20, "reserved": torch.cuda.memory_reserved() >> 20}

    def run(self) -> None:
        objects = self.objects(16)
        self.accuracy(objects)
        self.measure("torch's operators", objects)
        begun = time.perf_counter()
        self.tracker.use_kernels()
        self.wait()
        say(kernels=round(time.perf_counter() - begun, 2), **self.memory())
        self.accuracy(objects)
        self.measure("kernels", objects)
        if self.given.compile:
            self.compile()
            self.accuracy(objects)
            self.measure("compiled", objects)
        if self.given.profile:
            for count in (1, 16):
                self.profile(objects, count)
        self.growth(objects)

    def compile(self) -> None:
        """Steps in parallel processes, as the engine's own process makes them one after the other."""
        counts = (1, 5, 8, 16)
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            request = CompileRequest(
                self.spec.architecture, self.spec.graphs, self.spec.memory, str(self.device), "float16", "float16",
                "default", (), root, {},
            )  # fmt: skip
            with ProcessPoolExecutor(len(counts), get_context("spawn")) as pool:
                seconds = list(pool.map(partial(_compile, request), counts))
            say(compiled=dict(zip(counts, seconds, strict=True)), seconds=round(time.perf_counter() - begun, 1))
            for count in counts:
                begun = time.perf_counter()
                folder = CodeFolder(root / str(count), {}).find(f"{TRACKING}{count}")
                assert folder is not None
                self.tracker.use_compiled(count, folder)
                say(switched=count, seconds=round(time.perf_counter() - begun, 1), **self.memory())

    def objects(self, count: int) -> list[list[Memory]]:
        """Memories of so many objects in the frames, made by the engine in float32, in its form."""
        prompts = [
            ObjectPrompt(np.array([[40.0 + 70 * index, 300.0]], np.float32), np.ones(1, np.int32))
            for index in range(count)
        ]
        found: list[list[Memory]] = [[] for _ in prompts]
        for number, (_, image) in enumerate(self.images[:-2]):
            rows = [
                TrackRow(image, None if number == 0 else self.attended(found[index]), prompt if number == 0 else None)
                for index, prompt in enumerate(prompts)
            ]
            for start in range(0, len(rows), 4):
                for place, one in enumerate(self.exact.track(rows[start : start + 4])):
                    found[start + place].append((one.features, one.pointer))
        say(objects=count, frames=len(found[0]))
        return found

    def attended(self, memories: Sequence[Memory]) -> Attended:
        """What the next frame attends to."""
        first, others = memories[0], memories[1:]
        recent = [(one, age) for age, (one, _) in enumerate(reversed(others[-6:]), 1)][::-1]
        pointers = [(pointer, age) for age, (_, pointer) in enumerate(reversed(others[-15:]), 1)]
        return Attended(((first[0], 0), *recent), ((first[1], len(memories)), *pointers), 15)

    def rows(self, objects: Sequence[Sequence[Memory]], image: Embedding, *, of: TorchEngine) -> list[TrackRow]:
        """Of a frame in which each object's memory is full."""
        moved = []
        for memories in objects:
            if of is self.exact:
                moved.append(memories)
            else:
                moved.append([of.memory_from_host(one) for one in self.exact.memories_to_host(memories)])
        return [TrackRow(image, self.attended(memories), columns=True) for memories in moved]

    def accuracy(self, objects: Sequence[Sequence[Memory]]) -> None:
        """Relative differences to float32 of what 5 objects give."""
        few = objects[:5]
        mine, theirs = (
            engine.track(self.rows(few, self.images[-1][index], of=engine))
            for index, engine in enumerate((self.engine, self.exact))
        )
        off: dict[str, list[float]] = {}
        for one, other in zip(mine, theirs, strict=True):
            for name, value in _parts(one).items():
                wanted = _parts(other)[name]
                off.setdefault(name, []).append(float((value - wanted).norm() / wanted.norm()))
        say(off={name: round(max(values), 4) for name, values in off.items()})

    def measure(self, what: str, objects: Sequence[Sequence[Memory]]) -> None:
        """Objects of one frame, and one object in each of eight videos."""
        engine = self.engine
        every = self.rows(objects, self.images[-1][0], of=engine)
        others = [image for image, _ in self.images[:8]]
        for count in (1, 5, 16):
            pair = [every[:count], [dataclasses.replace(row, embedding=self.images[-2][0]) for row in every[:count]]]
            say(what=what, objects=count, **self.timed(pair))
        videos = [dataclasses.replace(row, embedding=image) for row, image in zip(every[:8], others, strict=True)]
        say(what=what, videos=8, **self.timed([videos, [*videos[1:], videos[0]]]))

    def timed(self, frames: Sequence[Sequence[TrackRow]]) -> dict[str, float]:
        """Milliseconds of one call; frames alternate, so that images are placed as in a video."""
        for rows in frames:
            self.engine.track(rows)
        taken = []
        for number in range(self.given.rounds):
            begun = time.perf_counter()
            self.engine.track(frames[number % len(frames)])
            taken.append(1e3 * (time.perf_counter() - begun))
        return {"ms": round(statistics.median(taken), 2), "least": round(min(taken), 2), "most": round(max(taken), 2)}

    def profile(self, objects: Sequence[Sequence[Memory]], count: int) -> None:
        """The slowest kernels of a frame."""
        rows = self.rows(objects[:count], self.images[-1][0], of=self.engine)
        self.engine.track(rows)
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as found:
            for _ in range(3):
                self.engine.track(rows)
        events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
        say(profile=count, whole=round(sum(event.self_device_time_total for event in events) / 3e3, 3))
        for event in events[: self.given.profile]:
            say(ms=round(event.self_device_time_total / 3e3, 3), times=event.count / 3, kernel=event.key[:110])

    def growth(self, objects: Sequence[Sequence[Memory]]) -> None:
        """Memory after tracking many frames, of which only what is needed is kept."""
        known = [[self.engine.memory_from_host(one) for one in self.exact.memories_to_host(each)] for each in objects]
        known = [each[:1] + each[-15:] for each in known]
        for number in range(self.given.frames):
            if number in (20, self.given.frames // 2):
                say(frame=number, **self.memory())
            count = (1, 5, 16)[number % 3]
            image = self.images[number % _FRAMES][0]
            rows = [TrackRow(image, self.attended(each), columns=True) for each in known[:count]]
            for each, one in zip(known, self.engine.track(rows), strict=False):
                each.append((one.features, one.pointer))
                del each[1:-15]
        say(frame=self.given.frames, **self.memory())


def _compile(request: CompileRequest, count: int) -> float:
    begun = time.perf_counter()
    request = dataclasses.replace(request, steps=(f"{TRACKING}{count}",), root=request.root / str(count))
    compile_missing(request, CodeFolder(request.root, request.key), lambda _: None)
    return round(time.perf_counter() - begun, 1)


def _parts(one: Tracked) -> dict[str, torch.Tensor]:
    return {
        "logits": torch.from_numpy(one.decoded.logits),
        "memory": one.features.float().cpu(),
        "pointer": one.pointer.float().cpu(),
    }


if __name__ == "__main__":
    main()
