"""Samples for a browser: integers as they are, the rest mapped to 16 bits without a loss that is avoidable."""

from __future__ import annotations

import numpy as np
import pytest

from triton_sam.core.plane_encoding import encode_planes


def test_samples_without_a_value_are_black_and_leave_the_range_alone() -> None:
    page = np.array([[[1000.0, np.nan, 1000.5], [np.inf, -np.inf, 1001.0]]], np.float32)
    encoded = encode_planes([page, page + 1])
    assert (encoded.low, encoded.high, encoded.not_finite) == (1000, 1002, 6)
    np.testing.assert_array_equal(encoded.pages[0], [[[0, 0, 16384], [0, 0, 32768]]])
    np.testing.assert_array_equal(encoded.pages[1], [[[32768, 0, 49151], [0, 0, 65535]]])


def test_a_page_without_any_value_is_black() -> None:
    encoded = encode_planes([np.full((1, 2, 2), np.nan, np.float64)])
    assert (encoded.low, encoded.high, encoded.not_finite) == (0, 0, 4)
    assert not encoded.pages[0].any()


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.uint32])
def test_integers_that_fit_are_the_files_own(dtype: type) -> None:
    encoded = encode_planes([np.array([[[0, 7], [300, 32767]]], dtype)])
    assert (encoded.low, encoded.high) == (0, 65535)
    np.testing.assert_array_equal(encoded.pages[0], [[[0, 7], [300, 32767]]])
