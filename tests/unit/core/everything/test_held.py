"""Masks that stay on a device until they are wanted, and chunks that are begun ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from triton_sam.core.everything import driver
from triton_sam.core.everything.ahead import find_ahead
from triton_sam.core.everything.candidates import Candidates, RunMask
from triton_sam.core.everything.driver import run
from triton_sam.core.everything.grids import plan
from triton_sam.core.everything.held import HeldMask, encode_held
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.rle import rle

WIDTH, HEIGHT = 40, 30


@dataclass(frozen=True)
class Device:
    """Holds the corner of a box; equal names are one device."""

    name: str
    asked: list[int] = field(default_factory=list, compare=False)

    def run_lengths(self, blocks: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        self.asked.append(len(blocks))
        return [rle(pixels(block)) for block in blocks]


def pixels(corner: tuple[int, int]) -> Any:
    mask = np.zeros((HEIGHT, WIDTH), np.bool_)
    mask[corner[1] : corner[1] + 5, corner[0] : corner[0] + 4] = True
    return mask


def test_masks_of_a_device_are_encoded_together_and_once() -> None:
    first, second = Device("a"), Device("b")
    corners = [(1, 2), (30, 20), (7, 7)]
    masks = [HeldMask(first, corner, 9) for corner in corners] + [HeldMask(second, (3, 3), 9)]
    run_mask = RunMask(rle(pixels((0, 0))))
    encode_held([*masks, run_mask, object()])
    encode_held(masks)
    assert (first.asked, second.asked) == ([3], [1])
    for mask, corner in zip(masks, [*corners, (3, 3)], strict=True):
        assert mask.is_encoded
        assert mask.rle() == rle(pixels(corner))
        assert np.array_equal(mask.pixels(), pixels(corner))
    assert (first.asked, second.asked) == ([3], [1])


def test_one_alone_is_encoded_when_it_is_asked_for() -> None:
    device = Device("a")
    mask = HeldMask(device, (4, 4), 9)
    assert not mask.is_encoded
    assert mask.rle() is mask.rle()
    assert device.asked == [1]


class Begun:
    """An engine that tells how many chunks are under way."""

    def __init__(self) -> None:
        self.device = Device("a")
        self.begun = self.finished = self.most = 0

    def begin(self, points: Any) -> Callable[[], Candidates]:
        self.begun += 1
        self.most = max(self.most, self.begun - self.finished)

        def finish() -> Candidates:
            self.finished += 1
            count = len(points)
            corners = [(int(x), int(y)) for x, y in points]
            boxes = np.array([(x, y, x + 3, y + 4) for x, y in corners], np.int64)
            masks = tuple(HeldMask(self.device, corner, 1000) for corner in corners)
            ones = np.ones(count, np.float32)
            return Candidates(masks, np.full(count, 20), boxes, ones, ones, points, np.zeros((count, 4), np.int64))

        return finish


@pytest.mark.parametrize("held", [10**6, 2500])
def test_run_lengths_are_made_at_the_end_unless_memory_is_short(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_HELD_BYTES", held)
    options = EverythingOptions(points_per_side=3, points_per_batch=2, pred_iou_thresh=0.8, region=(0, 0, 30, 20))
    chunks = [chunk.points for chunk in plan(options, WIDTH, HEIGHT)]
    engine = Begun()
    *_, last = run(options, WIDTH, HEIGHT, lambda _: find_ahead(engine.begin, chunks, depth=3))
    assert engine.begun == engine.finished == 5
    assert engine.most == 3
    assert sum(engine.device.asked) == len(last.found) == 9
    assert engine.device.asked[-1] == (9 if held > 9000 else 2)
    assert {type(mask) for mask in last.found.masks} == {RunMask}
    for mask, (x, y) in zip(last.found.masks, last.found.points, strict=True):
        assert np.array_equal(mask.pixels(), pixels((int(x), int(y))))
