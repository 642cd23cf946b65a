"""One contrast for a whole stack: percentiles of a sample, told in a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from triton_sam.video.opening import open_clip
from triton_sam.video.stacks.contrast import contrast_of, parts_to_sample, spread, thinned
from triton_sam.video.stacks.stack_clip import StackClip


def test_percentiles_are_told() -> None:
    found = contrast_of([np.arange(10_000, dtype=np.uint16)], np.dtype(np.uint16))
    assert found.window == (34, 9964)
    assert found.note == "contrast: 34 to 9964 of 16 bits (percentiles 0.35 and 99.65)"
    assert found.applied(np.array([0, 34, 9964, 9999], np.uint16)).tolist() == [0, 0, 255, 255]


@pytest.mark.parametrize(
    ("values", "dtype", "window", "told"),
    [
        ([7] * 1000, "u2", (7, 8), "every pixel that was looked at is 7, so frames may be black"),
        ([0] * 1000, "i4", (0, 1), "every pixel that was looked at is 0"),
        ([2.5e9] * 10, "f4", (2.5e9, 2.5e9 + 2.5e9 * 2**-20), "is 2500000000"),
        ([0] * 9999 + [500], "u2", (0, 500), "contrast: 0 to 500 of 16 bits (all values: few differ)"),
        ([np.nan] * 9, "f4", (0, 1), "no pixel that was looked at has a number"),
        ([np.nan, np.inf, -np.inf, 1.5, 2.25], "f4", (1.5, 2.25), "contrast: 1.5 to 2.25 (percentiles"),
        (list(range(-1000, 1000)), "i2", (-994, 992), "contrast: -994 to 992 of 16 bits"),
    ],
)
def test_odd_values(values: list[float], dtype: str, window: tuple[float, float], told: str) -> None:
    array = np.array(values, dtype)
    found = contrast_of([array], array.dtype)
    assert found.window == pytest.approx(window)
    assert told in found.note
    shown = found.applied(array)
    assert shown.dtype == np.uint8
    if len(set(values)) == 1:
        assert not shown.any()


@given(
    arrays.arrays(
        st.sampled_from([np.uint16, np.int16, np.int32, np.float32, np.float64, np.uint64, np.float16]),
        arrays.array_shapes(min_dims=1, max_dims=3, max_side=12),
    )
)
def test_any_values_have_a_contrast(values: npt.NDArray[Any]) -> None:
    with np.errstate(all="ignore"):
        found = contrast_of([values], values.dtype)
        shown = found.applied(values)
    assert found.low < found.high
    assert (shown.shape, shown.dtype) == (values.shape, np.uint8)
    order = np.argsort(values.ravel(), kind="stable")
    if np.isfinite(values).all():
        assert (np.diff(shown.ravel()[order].astype(int)) >= 0).all()  # what is brighter is not shown darker


def test_frames_share_one_contrast_even_if_some_are_empty() -> None:
    values = np.random.default_rng(0).normal(1000, 100, (20, 40, 50)).astype(np.float32)
    values[3] = 0
    values[5] = np.nan
    clip = open_clip(values, axis="z")
    assert clip.contrast is not None
    expected = np.percentile(values[np.isfinite(values)], (0.35, 99.65), method="inverted_cdf")
    assert clip.contrast.window == pytest.approx(expected)
    again = open_clip(values[::-1], axis="z").contrast
    assert again is not None
    assert again.window == pytest.approx(clip.contrast.window)


def test_eight_bits_are_shown_as_they_are() -> None:
    values = np.full((3, 4, 5), 9, np.uint8)
    assert open_clip(values, axis="z").contrast is None
    given_one = open_clip(values, axis="z", contrast=(8, 10)).contrast
    assert given_one is not None
    assert given_one.note == "contrast: 8 to 10 as given"


def test_the_sample_is_bounded() -> None:
    """Of a stack of 4 GiB, whose chunks count how often they are read."""

    class Large:
        shape, dtype, chunks = (512, 2048, 2048), np.dtype(np.uint16), (32, 256, 256)
        read = 0

        def __getitem__(self, index: tuple[slice, ...]) -> npt.NDArray[Any]:
            sides = [each.stop - each.start for each in index]
            self.read += 1
            assert sides == [32, 256, 256]
            return np.full(sides, index[0].start * 10, np.uint16)

    array = Large()
    clip = open_clip(array, axis="z")
    assert isinstance(clip, StackClip)
    assert clip.contrast is not None
    assert array.read == 16  # of 1,024
    assert clip.contrast.low < 1000 < 4000 < clip.contrast.high
    assert clip.contrast is clip.contrast


@given(st.integers(1, 10_000), st.integers(1, 100))
def test_spread_has_both_ends(count: int, wanted: int) -> None:
    found = spread(count, wanted)
    assert found[0] == 0
    assert len(found) <= min(count, wanted)
    assert wanted == 1 or found[-1] == count - 1
    assert found == sorted(set(found))


def test_parts_shrink_to_the_sample() -> None:
    assert parts_to_sample(1) == 64
    assert parts_to_sample(2**40) == 8
    part = thinned(np.zeros((64, 1024, 1024), np.uint8), 8)
    assert 2**18 < part.size < 2**20
    assert thinned(np.arange(6).reshape(2, 3), 8).tolist() == [0, 1, 2, 3, 4, 5]
