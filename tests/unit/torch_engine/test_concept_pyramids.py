"""Pyramids of several images that are kept side by side."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from triton_sam.engines.torch.concept_pyramids import KeptPyramids

pytestmark = pytest.mark.torch


class Detector:
    """What it reads is made of an image's features, or brought back."""

    def __init__(self, most: int) -> None:
        self.pyramid = (torch.zeros(3), torch.zeros(2, 2))
        self.kept = KeptPyramids(self.pyramid, most)
        self.made = 0

    def look(self, features: Tensor) -> None:
        if not self.kept.load(features):
            self.made += 1
            for one in self.pyramid:
                one.fill_(float(features))
            self.kept.save(features)
        assert all(bool((one == features).all()) for one in self.pyramid)


def images(count: int) -> list[Tensor]:
    return [torch.tensor(float(number + 1)) for number in range(count)]


@pytest.mark.parametrize(("most", "made"), [(0, 12), (1, 12), (2, 12), (3, 3), (4, 3)])
def test_images_in_turn(most: int, made: int) -> None:
    detector, shown = Detector(most), images(3)
    for _ in range(4):
        for features in shown:
            detector.look(features)
    assert detector.made == made


def test_the_least_recently_used_one_goes() -> None:
    detector, (first, second, third) = Detector(2), images(3)
    for features in (first, second, first, third, first):
        detector.look(features)
    assert detector.made == 3
    detector.look(second)
    assert detector.made == 4


def test_images_that_are_gone_make_room() -> None:
    detector, (first, second) = Detector(2), images(2)
    detector.look(first)
    detector.look(second)
    first = torch.tensor(7.0)  # the old one is no longer in memory
    detector.look(first)
    detector.look(second)
    assert detector.made == 3


def test_nothing_is_left_of_other_code() -> None:
    detector, (only,) = Detector(2), images(1)
    detector.look(only)
    detector.kept.forget()
    detector.look(only)
    detector.look(only)
    assert detector.made == 2
