"""Area, box and stability without pixels, against the resized logits themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.everything import box_of, upsampled
from triton_sam.core.everything.measures import measure
from triton_sam.core.geometry import Frame, ResizePolicy

Floats = npt.NDArray[np.float32]
SIDE = 64  # of the model; logits have a quarter of it
sides = st.integers(1, 150)


def random_logits(seed: int, roughness: int, side: int = SIDE // 4) -> Floats:
    """Smooth for a small roughness, noise for a large one."""
    generator = np.random.default_rng(seed)
    coarse = generator.normal(0, 4, (roughness, roughness)).astype(np.float32)
    return upsampled(coarse, side, side, None).astype(np.float32) + np.float32(generator.normal(0, 2))


@given(st.integers(0, 10**6), st.integers(1, 16), sides, sides, st.sampled_from(ResizePolicy), st.floats(0, 3))
def test_numbers_are_those_of_the_pixels(
    seed: int, roughness: int, width: int, height: int, policy: ResizePolicy, offset: float
) -> None:
    logits = random_logits(seed, roughness)
    frame = Frame(width, height, SIDE, policy)
    threshold = float(np.random.default_rng(seed).normal())
    full = upsampled(logits.astype(np.float64), width, height, SIDE if policy is ResizePolicy.PAD else None)
    measures = measure(logits, frame, threshold, offset)
    # A pixel on a threshold up to rounding may go either way.
    unsure = sum(int((np.abs(full - at) < 1e-4).sum()) for at in (threshold, threshold - offset, threshold + offset))
    low, high = (full > threshold - offset).sum(), (full > threshold + offset).sum()
    assert abs(measures.area - (full > threshold).sum()) <= unsure
    assert measures.stability == pytest.approx(high / low if low else 0.0, abs=1e-9 if not unsure else 1)
    if not unsure:
        assert list(measures.box) == box_of(full > threshold)


@given(st.integers(0, 10**6), st.integers(1, 16), sides, sides, st.sampled_from(ResizePolicy))
def test_nothing_is_above_the_threshold_outside_the_support(
    seed: int, roughness: int, width: int, height: int, policy: ResizePolicy
) -> None:
    logits = random_logits(seed, roughness)
    frame = Frame(width, height, SIDE, policy)
    measures = measure(logits, frame, 0.0, 1.0)
    cut = np.full_like(logits, -1)
    cut[measures.support] = logits[measures.support]
    side = SIDE if policy is ResizePolicy.PAD else None
    np.testing.assert_array_equal(upsampled(cut, width, height, side) > 0, upsampled(logits, width, height, side) > 0)


def test_empty_and_full() -> None:
    frame = Frame(90, 50, SIDE, ResizePolicy.SQUASH)
    nothing = measure(np.full((16, 16), -5, np.float32), frame, 0.0, 1.0)
    assert (nothing.area, nothing.box, nothing.stability) == (0, (0, 0, 0, 0), 0.0)
    everything = measure(np.full((16, 16), 5, np.float32), frame, 0.0, 1.0)
    assert (everything.area, everything.box, everything.stability) == (4500, (0, 0, 89, 49), 1.0)
    faint = measure(np.full((16, 16), -0.5, np.float32), frame, 0.0, 1.0)
    assert (faint.area, faint.stability) == (0, 0.0)


def test_the_outline_of_a_large_image_is_looked_at_in_parts() -> None:
    logits = np.where(np.add.outer(np.arange(64), np.arange(64)) % 2, 5, -5).astype(np.float32)
    frame = Frame(3000, 2000, 256, ResizePolicy.SQUASH)
    full = upsampled(logits, 3000, 2000, None)
    measures = measure(logits, frame, 0.0, 1.0)
    assert measures.area == pytest.approx((full > 0).sum(), rel=1e-5)
    assert list(measures.box) == box_of(full > 0)
