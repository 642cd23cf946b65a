"""Numbers and run lengths of masks on the device: torch's steps against the core, and the kernels, interpreted."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.torch_engine.interpreter import interpreted
from tests.unit.torch_engine.measure_kinds import KINDS
from triton_sam.core.everything.candidates import Place
from triton_sam.core.everything.measures import measure
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.masks import full_size
from triton_sam.core.rle import rle
from triton_sam.engines.torch import measure_trial, measuring, tracing
from triton_sam.engines.torch.measure_trial import kernel_measures
from triton_sam.engines.torch.measuring import Limits, measured
from triton_sam.engines.torch.tracing import run_lengths

pytestmark = pytest.mark.torch
FRAMES = [
    Frame(width, height, 256, policy) for policy in ResizePolicy for width, height in ((90, 70), (31, 140), (20, 9))
]


@pytest.fixture(scope="module")
def off() -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = interpreted("measure_kinds")
    return found


@pytest.mark.part("bench")
@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_the_kernels_give_what_torch_gives(off: dict[str, tuple[int, int]], name: str) -> None:
    assert off[name] == [0, 0]


def smooth(count: int, side: int = 32) -> Tensor:
    """[count,side,side]: blobs, the last one without any pixel."""
    noise = torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    logits = torch.nn.functional.interpolate(noise, (side, side), mode="bicubic")[:, 0] * 4
    logits[-1] = -5
    return logits


@pytest.mark.parametrize("frame", FRAMES, ids=str)
def test_numbers_are_those_of_the_core(frame: Frame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_AT_A_TIME", 2 * frame.width * frame.height)
    logits = smooth(6).view(2, 3, 32, 32)
    scores = torch.tensor([[0.9, 0.2, 0.8], [0.7, float("nan"), 0.9]])
    numbers = measured(logits, scores, frame, Limits(0.5, -0.75, 0.25, 1.25), by_kernel=False)
    assert numbers.shape == (6, 7)
    assert numbers.dtype is torch.int32
    for index, found in enumerate(numbers.tolist()):
        if index in (1, 4, 5):  # two whose scores are too low, and an empty one
            assert found == [0] * 7
            continue
        known = measure(logits.flatten(0, 1)[index].numpy(), frame, 0.25, 1.0)
        assert known is not None
        low, area, high, *ends = found
        assert area == known.area > 0
        assert high / low == pytest.approx(known.stability, abs=1e-6)
        assert (frame.width - ends[0], frame.height - ends[1], ends[2] - 1, ends[3] - 1) == known.box


@pytest.mark.parametrize("frame", FRAMES, ids=str)
@pytest.mark.parametrize("corner", [None, (7, 4)])
def test_run_lengths_are_those_of_the_pixels(
    frame: Frame, corner: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several goes, and of a crop in an image."""
    monkeypatch.setattr(tracing, "_AT_A_TIME", 3 * (frame.width + 10) * (frame.height + 10))
    monkeypatch.setattr(tracing, "_COUNTS", 7)
    logits = smooth(8)
    logits[0] = 5  # begins with the object, and has no other run
    x, y = corner or (0, 0)
    crop = x, y, x + frame.width, y + frame.height
    whole = (frame.width + 10, frame.height + 10) if corner else (frame.width, frame.height)
    found = run_lengths(logits, 0.5, frame, crop, whole, by_kernel=False)
    place = Place(crop, *whole)
    expected = [rle(place.paste(full_size(one - np.float32(0.5), frame))) for one in logits.numpy()]
    assert found == expected


def on_cpu(make: Any, *args: float, device: torch.device) -> Tensor:
    made: Tensor = make(*args)
    return made


class Kernels:
    """Torch's steps in the place of the kernels, with something wrong."""

    def __init__(self, wrong: int = 0, why: str = "") -> None:
        self.wrong, self.why = wrong, why

    def measure(self, logits: Tensor, scores: Tensor, least: float, limits: Any, size: tuple[int, int]) -> Tensor:
        if self.why:
            raise ValueError(self.why)
        frame = Frame(size[1], size[0], 64, ResizePolicy.SQUASH)
        return measured(logits, scores, frame, Limits(least, *limits), by_kernel=False) + self.wrong

    def trace(self, logits: Tensor, threshold: float, size: Any, corner: Any, whole: Any) -> Tensor:
        frame = Frame(size[1], size[0], 64, ResizePolicy.SQUASH)
        crop = corner[1], corner[0], corner[1] + size[1], corner[0] + size[0]
        return tracing.changes(logits, threshold, frame, crop, whole[::-1], by_kernel=False)


@pytest.mark.parametrize(
    ("kernels", "why"),
    [(Kernels(), None), (Kernels(why="no C compiler"), "no C compiler"), (Kernels(wrong=1), "pixels differ")],
)
def test_kernels_that_fail_their_trial_are_told_and_not_used(
    kernels: Kernels, why: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(measuring, "kernel", kernels)
    plain = SimpleNamespace(**vars(torch))
    plain.linspace = partial(on_cpu, torch.linspace)
    monkeypatch.setattr(measure_trial, "torch", plain)
    assert kernel_measures(torch.device("cuda"), torch.float16) is (why is None)
    assert (why or "") in caplog.text


def test_without_a_gpu_the_kernels_are_not_tried() -> None:
    assert not kernel_measures(torch.device("cpu"), torch.float32)
