from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.core.geometry import Frame, ResizePolicy

SIDES = (1024, 1008, 256)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Sizes 1..6000 with an aspect between 1:3 and 3:1."""
    width = draw(st.integers(1, 6000))
    height = draw(st.integers(max(1, -(-width // 3)), min(6000, 3 * width)))
    return Frame(width, height, draw(st.sampled_from(SIDES)), draw(st.sampled_from(ResizePolicy)))


@given(frames(), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20))
def test_there_and_back_again(frame: Frame, relative: list[tuple[float, float]]) -> None:
    points = np.array(relative) * [frame.width, frame.height]
    there = frame.to_model(points)
    assert there.dtype == np.float32
    assert there.shape == points.shape
    np.testing.assert_allclose(frame.to_original(there), points, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(frame.to_model(frame.to_original(there)), there, rtol=1e-5, atol=1e-3)


@given(frames())
def test_corners_of_the_image_are_corners_of_the_inner_region(frame: Frame) -> None:
    inner_width, inner_height = frame.resized
    corners = [[0, 0], [frame.width, 0], [0, frame.height], [frame.width, frame.height]]
    expected = [[0, 0], [inner_width, 0], [0, inner_height], [inner_width, inner_height]]
    np.testing.assert_allclose(frame.to_model(corners), expected, atol=1e-3)
    np.testing.assert_allclose(frame.to_original(expected), corners, atol=1e-3)


@given(frames())
def test_the_inner_region_follows_the_policy(frame: Frame) -> None:
    inner_width, inner_height = frame.resized
    if frame.policy is ResizePolicy.SQUASH:
        assert (inner_width, inner_height) == (frame.side, frame.side)
        return
    assert max(inner_width, inner_height) == frame.side
    assert 1 <= min(inner_width, inner_height) <= frame.side
    scale = frame.side / max(frame.width, frame.height)
    assert abs(inner_width - frame.width * scale) <= 0.5 + 1e-6
    assert abs(inner_height - frame.height * scale) <= 0.5 + 1e-6


def test_known_values() -> None:
    squash = Frame(2000, 1000, 1024, ResizePolicy.SQUASH)
    np.testing.assert_allclose(squash.to_model([[1000, 500], [500, 250]]), [[512, 512], [256, 256]])
    pad = Frame(2000, 1000, 1024, ResizePolicy.PAD)
    assert pad.resized == (1024, 512)
    np.testing.assert_allclose(pad.to_model([1000, 500]), [512, 256])
    upright = Frame(1000, 2000, 1024, ResizePolicy.PAD)
    assert upright.resized == (512, 1024)
    np.testing.assert_allclose(upright.to_original([512, 1024]), [1000, 2000])


def test_half_a_pixel_is_rounded_up_as_the_reference_does() -> None:
    assert Frame(1024, 683, 512, ResizePolicy.PAD).resized == (512, 342)  # 341.5


def test_the_thinnest_image_keeps_one_pixel() -> None:
    assert Frame(6000, 1, 1024, ResizePolicy.PAD).resized == (1024, 1)
    assert Frame(1, 6000, 1024, ResizePolicy.PAD).resized == (1, 1024)


def test_any_leading_axes_are_kept() -> None:
    frame = Frame(640, 480, 1024, ResizePolicy.SQUASH)
    points = np.arange(24, dtype=np.float64).reshape(3, 4, 2)
    mapped = frame.to_model(points)
    assert mapped.shape == (3, 4, 2)
    np.testing.assert_allclose(mapped[2, 3], frame.to_model(points[2, 3]))
    assert frame.to_model(np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize(
    ("width", "height", "side"), [(0, 10, 1024), (10, 0, 1024), (10, 10, 0), (-1, 10, 1024), (10, -5, 1024)]
)
@pytest.mark.parametrize("policy", list(ResizePolicy))
def test_senseless_frames_are_refused(width: int, height: int, side: int, policy: ResizePolicy) -> None:
    with pytest.raises(ValueError, match="positive sizes"):
        Frame(width, height, side, policy)
