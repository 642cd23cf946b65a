"""How long does a tracked frame take on a CPU, served, against transformers' session in the same run?

A frame is served from end to end: a JPEG in, run lengths out, with several frames under way. transformers gets frames
that are prepared already, and its masks stay as they are. Both have the same random weights, two threads, and a full
memory; they run in turns, in an order that is drawn anew for each round. A server's threads have a low priority: beside
other work, CPU time tells more than time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.video_device import write_frames
from benchmarks.video_film import Answer, Film, Order
from benchmarks.video_weights import as_transformers, random_network
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result
from triton_sam.engines.onnx import open_session
from triton_sam.export.run import write_graphs
from triton_sam.models.catalog import get_spec
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import (
    CPU_ENCODER_FILE,
    GRAPHS_FILE,
    MEMORY_ATTENTION_FILE,
    MEMORY_ENCODER_FILE,
    VIDEO_DECODER_FILE,
    ModelSpec,
    exported_graphs,
    graphs_to_json,
)
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.repository.setup import write_exported
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

_IMAGE = Path(__file__).parents[1] / "docs" / "images" / "coffee.png"
_SIZE = 1280, 720
#: Frames after the first prompt until 7 memories and 16 pointers are attended to, and some more.
_WARM = 20
#: Objects -> a served frame at most, as a share of transformers'.
BARS = {1: 1.0, 5: 0.8}
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class VideoCpuPlan:
    """What to measure.

    Attributes:
        side: of the model's input, pixels.
        objects: how many are tracked, of each measurement.
        rounds: turns of each.
        frames: of a turn.
        threads: of both.
    """

    model: str = "sam2.1:tiny"
    side: int = 512
    objects: tuple[int, ...] = (1, 5)
    rounds: int = 7
    frames: int = 6
    threads: int = 2
    image: Path = _IMAGE
    size: tuple[int, int] = _SIZE


def run_video_cpu(plan: VideoCpuPlan) -> Result:
    """Exports a model with random weights, serves it in a temporary repository, and measures it."""
    about = {"model": plan.model, "side": str(plan.side), "threads": str(plan.threads)}
    result = Result("video-cpu", about=about)
    torch.set_num_threads(plan.threads)
    with tempfile.TemporaryDirectory(prefix="triton-sam-bench-") as name:
        folder = Path(name)
        spec, network = random_export(plan.model, plan.side, folder / "export")
        repository = folder / "repository"
        served = write_exported(get_spec(plan.model), folder / "export", repository, cpu_encoder=True)[0]
        (folder / "frames").mkdir()
        write_frames(folder / "frames", plan.image, plan.size)
        reference = as_transformers(spec, network.state_dict())
        del network
        # The session waits while the other has its turn, which takes minutes beside other work.
        settings = {"TRITON_SAM_THREADS": str(plan.threads), "TRITON_SAM_VIDEO_IDLE_SECONDS": "3600"}
        options = ServingOptions(
            repository,
            find_segmenters(repository),
            Settings(home=folder / "home"),
            ports=Ports(0, 0, 0, 0),
            environment=settings,
        )
        with serving(options) as running:
            for count in plan.objects:
                ours = ServedTrack(running, served, folder / "frames", plan.size, count)
                theirs = TransformersTrack(reference, spec, folder / "frames", count)
                result.figures += measure_video_cpu(ours, theirs, plan, count)
                ours.close()
        for count in plan.objects:
            result.figures += part_times(repository / served / "1", spec, plan, count)
        pixels = pixels_of(folder / "frames", spec.side)[0][None]
        with torch.inference_mode():
            taken = _median_of(lambda: reference.get_image_features(pixels), plan.rounds)
        result.figures.append(Figure("encoder of transformers", 1e3 * taken, "ms"))
    return result


def random_export(model: str, side: int, folder: Path) -> tuple[ModelSpec, Any]:
    """A network with random weights whose graphs are written to ``folder``; and its model."""
    row = get_spec(model)
    graphs = exported_graphs(row.architecture, side)
    spec = dataclasses.replace(row, graphs=graphs, memory=MEMORY_TRAITS[row.architecture.generation])
    network = random_network(spec).requires_grad_(False)
    folder.mkdir(parents=True)
    write_graphs(network, spec, graphs, folder)
    (folder / GRAPHS_FILE).write_text(graphs_to_json(graphs))
    return spec, network


@dataclass(slots=True)
class Spent:
    """Seconds a frame: of the clock, and of all cores together."""

    clock: float = 0.0
    cpu: float = 0.0


@contextlib.contextmanager
def timed(frames: int, cpu_seconds: Callable[[], float]) -> Iterator[Spent]:
    """Fills in what the frames take that are tracked inside."""
    spent = Spent()
    begun, cpu = time.perf_counter(), cpu_seconds()
    yield spent
    spent.clock, spent.cpu = (time.perf_counter() - begun) / frames, (cpu_seconds() - cpu) / frames


class ServedTrack:
    """A video that a server tracks, its memory full."""

    def __init__(self, running: RunningServer, model: str, frames: Path, size: tuple[int, int], objects: int) -> None:
        port = int(running.urls["HTTP"].rpartition(":")[2].strip("/"))
        self._film = Film(Order(port, model, f"{objects} objects", str(frames), *size, objects))
        self._film.begin()
        self._next = 0
        self.answers: list[Answer] = []
        self.track(_WARM)
        self.answers.clear()

    def track(self, count: int) -> Spent:
        """The next frames."""
        with timed(count, _cpu_of_children) as spent:
            self.answers += self._film.track(self._next, count)
        self._next += count
        return spent

    def close(self) -> None:
        self._film.close()


class TransformersTrack:
    """The same video in transformers' session."""

    def __init__(self, network: Any, spec: ModelSpec, frames: Path, objects: int) -> None:
        from transformers import Sam2VideoInferenceSession

        video = pixels_of(frames, spec.side)
        session = Sam2VideoInferenceSession(video=video, video_height=1, video_width=1, dtype=torch.float32)
        session.processed_frames = {number: video[number % len(video)] for number in range(10_000)}
        for number in range(objects):
            x, y = (0.5 + 0.381966 * number) % 1 * spec.side, (0.5 + 0.618034 * number) % 1 * spec.side
            point = {"point_coords": torch.tensor([[[[x, y]]]]), "point_labels": torch.ones(1, 1, 1, dtype=torch.int32)}
            session.add_point_inputs(session.obj_id_to_idx(number), 0, point)
        session.obj_with_new_inputs = list(range(objects))
        with torch.inference_mode():
            network(session, frame_idx=0)
        self._steps = network.propagate_in_video_iterator(session, start_frame_idx=1)
        self.track(_WARM)

    def track(self, count: int) -> Spent:
        """The next frames."""
        with timed(count, time.process_time) as spent, torch.inference_mode():
            for _ in range(count):
                next(self._steps)
        return spent


def measure_video_cpu(ours: ServedTrack, theirs: TransformersTrack, plan: VideoCpuPlan, count: int) -> Iterator[Figure]:
    """Rounds in turns."""
    taken: dict[str, list[Spent]] = {"served": [], "transformers": []}
    turns: dict[str, Callable[[int], Spent]] = {"served": ours.track, "transformers": theirs.track}
    for _ in range(plan.rounds):
        for name in random.sample(list(turns), len(turns)):
            taken[name].append(turns[name](plan.frames))
    what = "1 object" if count == 1 else f"{count} objects"
    clock = {name: [one.clock for one in found] for name, found in taken.items()}
    cpu = {name: [one.cpu for one in found] for name, found in taken.items()}
    yield _ratio(f"served frame / transformers, {what}", clock, BARS.get(count))
    yield _ratio(f"the same in CPU time, {what}", cpu, None)
    steps = sorted({step for answer in ours.answers for step in answer.timings})
    times = ", ".join(f"{step} {median(one.timings.get(step, 0.0) for one in ours.answers):.0f}" for step in steps)
    yield Figure(f"served frame, {what}", 1e3 * median(clock["served"]), "ms", None, f"ms of its steps: {times}")
    runs = median(answer.rle_bytes for answer in ours.answers)
    yield Figure(f"run lengths of a frame, {what}", runs / 1e3, "kB")


def _ratio(name: str, taken: Mapping[str, Sequence[float]], bar: float | None) -> Figure:
    """The median of the rounds' ratios."""
    pairs = [one / other for one, other in zip(taken["served"], taken["transformers"], strict=True)]
    served, bare = (1e3 * median(taken[part]) for part in ("served", "transformers"))
    detail = f"{served:.0f} ms / {bare:.0f} ms; pairs {min(pairs):.2f} to {max(pairs):.2f}"
    return Figure(name, median(pairs), "x", bar, detail, better="lower")


def _cpu_of_children() -> float:
    """CPU seconds of all processes that this one has started, and of theirs."""
    parents, spent = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)], spent[int(entry.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return sum(spent[pid] for pid in found[1:]) / os.sysconf("SC_CLK_TCK")


def part_times(folder: Path, spec: ModelSpec, plan: VideoCpuPlan, count: int) -> Iterator[Figure]:
    """Each graph alone, with all rows of a frame."""
    assert spec.memory is not None
    sizes = {"rows": count, "memories": spec.memory.memories, "pointers": spec.memory.pointers, "points": 0}
    parts = {
        "encoder": CPU_ENCODER_FILE,
        "attention to memories": MEMORY_ATTENTION_FILE,
        "decoder": VIDEO_DECODER_FILE,
        "memory encoder": MEMORY_ENCODER_FILE,
    }
    for name, file in parts.items():
        if name == "encoder" and count != plan.objects[0]:
            continue  # it knows no objects
        session = open_session(folder / file, plan.threads, spinning=name != "encoder")
        feeds = _feeds(session.get_inputs(), sizes)
        taken = _median_of(lambda session=session, feeds=feeds: session.run(None, feeds), plan.rounds)  # type: ignore[misc]
        what = name if name == "encoder" else f"{name}, {count} rows"
        yield Figure(what, 1e3 * taken, "ms")


def pixels_of(frames: Path, side: int) -> torch.Tensor:
    """[T,3,side,side], normalised."""
    pictures = [Image.open(path).convert("RGB").resize((side, side)) for path in sorted(frames.glob("*.jpg"))]
    values = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2) / 255
    mean, deviation = (torch.tensor(each).reshape(3, 1, 1) for each in (_MEAN, _DEVIATION))
    return ((values - mean) / deviation).contiguous()


def _feeds(inputs: Sequence[Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Random inputs; axes that have no size here are 1."""
    generator = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for one in inputs:
        shape = [axis if isinstance(axis, int) else sizes.get(axis, 1) for axis in one.shape]
        if "int64" in one.type:
            feeds[one.name] = np.broadcast_to(np.arange(shape[-1]), shape).astype(np.int64)  # ages
        else:
            feeds[one.name] = generator.random(shape, np.float32)
    return feeds


def _median_of(action: Callable[[], object], rounds: int) -> float:
    """Seconds, after a first run that warms up."""
    taken = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begun)
    return median(taken[1:])
