"""The benchmark of tracked frames on a CPU, without a server and without a network."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.video_cpu import Spent, VideoCpuPlan, _cpu_of_children, measure_video_cpu, pixels_of, timed
from benchmarks.video_film import Answer

pytestmark = [pytest.mark.torch]


class Track:
    """Frames take what it is told."""

    def __init__(self, clock: float, cpu: float) -> None:
        self.spent = Spent(clock, cpu)
        self.answers = [Answer(0.0, {"encode": 70.0, "track": 30.0}, 2000, 1)]
        self.tracked: list[int] = []

    def track(self, count: int) -> Spent:
        self.tracked.append(count)
        return self.spent


def test_ratios_of_rounds() -> None:
    ours: Any = Track(0.09, 0.12)
    theirs: Any = Track(0.1, 0.2)
    figures = {one.name: one for one in measure_video_cpu(ours, theirs, VideoCpuPlan(rounds=3, frames=4), 5)}
    assert ours.tracked == theirs.tracked == [4, 4, 4]
    ratio = figures["served frame / transformers, 5 objects"]
    assert ratio.value == pytest.approx(0.9)
    assert ratio.bar == 0.8
    assert not ratio.reached
    assert ratio.detail == "90 ms / 100 ms; pairs 0.90 to 0.90"
    assert figures["the same in CPU time, 5 objects"].value == pytest.approx(0.6)
    assert figures["served frame, 5 objects"].detail == "ms of its steps: encode 70, track 30"
    assert figures["run lengths of a frame, 5 objects"].value == 2.0
    assert next(iter(measure_video_cpu(ours, theirs, VideoCpuPlan(rounds=1), 1))).reached


def test_time_is_that_of_a_frame() -> None:
    cpu = iter([10.0, 16.0])
    with timed(4, lambda: next(cpu)) as spent:
        begun = time.perf_counter()
    assert spent.cpu == 1.5
    assert spent.clock <= time.perf_counter() - begun + 1.0


def test_cpu_time_of_processes_that_were_started() -> None:
    before = _cpu_of_children()
    busy = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert _cpu_of_children() - before >= 0.15
        process.communicate(b"\n")


def test_frames_for_transformers_are_normalised(tmp_path: Path) -> None:
    for name, shade in (("001", 255), ("000", 0)):
        Image.new("RGB", (40, 20), (shade,) * 3).save(tmp_path / f"{name}.jpg")
    pixels = pixels_of(tmp_path, 16)
    assert pixels.shape == (2, 3, 16, 16)
    assert pixels[0, 0].max().item() == pytest.approx(-0.485 / 0.229, abs=1e-4)
    assert pixels[1, 2].min().item() == pytest.approx((1 - 0.406) / 0.225, abs=1e-4)
