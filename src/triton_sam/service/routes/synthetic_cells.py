"""A synthetic fluorescence microscopy image of cells, free to use."""

from __future__ import annotations

import functools
import io
import math

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

SIZE = (1024, 768)
"""(width, height)."""
_CELLS = 26
_SEED = 7
_RADII = (44.0, 84.0)
#: Cytoplasm and nucleus, linear RGB at full brightness.
_GREEN = np.array([0.10, 0.62, 0.26], np.float32)
_BLUE = np.array([0.22, 0.42, 1.00], np.float32)
_BACKGROUND = np.array([0.012, 0.024, 0.034], np.float32)

_Floats = npt.NDArray[np.float32]


@functools.cache
def picture() -> bytes:
    """A JPEG of :data:`SIZE`, always the same. The first call takes a fraction of a second, so run it on a thread."""
    rng = np.random.default_rng(_SEED)
    width, height = SIZE
    light = np.zeros((height, width, 3), np.float32) + _BACKGROUND
    light *= np.exp(0.4 * _texture(rng, height, width, 200))[:, :, None]  # stray light
    for x, y, radius in _cell_positions(rng):
        _add_cell(light, rng, x, y, radius)
    shots = rng.normal(0, 1, light.shape).astype(np.float32)
    light += shots * (0.012 + 0.05 * np.sqrt(light))  # shot noise grows with the light
    pixels = (255 * np.clip(light, 0, 1) ** (1 / 1.6)).astype(np.uint8)
    drawn = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(1.1))
    buffer = io.BytesIO()
    drawn.save(buffer, "JPEG", quality=90, subsampling=0)
    return buffer.getvalue()


def _cell_positions(rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """x, y, radius of each cell. Cells may touch or be cut off at the border; one without room is left out."""
    placed: list[tuple[float, float, float]] = []
    for radius in sorted(rng.uniform(*_RADII, _CELLS), reverse=True):
        for _ in range(2000):
            x, y = rng.uniform(0.2 * radius, np.array(SIZE) - 0.2 * radius)
            if all(math.hypot(x - a, y - b) > 0.98 * (radius + other) for a, b, other in placed):
                placed.append((x, y, radius))
                break
    return placed


def _add_cell(light: _Floats, rng: np.random.Generator, x: float, y: float, radius: float) -> None:
    """Adds one cell to [H,W,3] linear light."""
    reach = int(1.7 * radius)
    top, left = max(0, int(y) - reach), max(0, int(x) - reach)
    window = light[top : int(y) + reach, left : int(x) + reach]
    height, width = window.shape[:2]
    rows, columns = np.mgrid[top : top + height, left : left + width].astype(np.float32)
    body = _disc(rng, columns - x, rows - y, radius, rough=0.11, soft=2.5)
    # The nucleus lies somewhat off the middle.
    angle, off = rng.uniform(0, 2 * math.pi), rng.uniform(0, 0.22) * radius
    core_radius = rng.uniform(0.33, 0.5) * radius
    core_x, core_y = x + off * math.cos(angle), y + off * math.sin(angle)
    core = _disc(rng, columns - core_x, rows - core_y, core_radius, rough=0.05, soft=1.6)
    fall = np.exp(-((columns - core_x) ** 2 + (rows - core_y) ** 2) / (2 * (0.6 * radius) ** 2))
    grain = np.exp(0.22 * _texture(rng, height, width, 6) + 0.22 * _texture(rng, height, width, 18))
    glow = rng.uniform(0.22, 0.8) * body * (0.2 + 0.8 * fall) * grain * (1 - 0.75 * core)
    clumps = np.exp(0.2 * _texture(rng, height, width, 9))
    shine = rng.uniform(0.4, 0.95) * core * clumps
    window += glow[:, :, None] * _GREEN + shine[:, :, None] * _BLUE


def _disc(rng: np.random.Generator, x: _Floats, y: _Floats, radius: float, *, rough: float, soft: float) -> _Floats:
    """[h,w] from 0 outside to 1 inside a roundish shape around (0, 0).

    Args:
        rough: deviation of the outline, as a fraction of the radius.
        soft: width of the edge, in pixels.
    """
    angles = np.arctan2(y, x)
    outline = np.full_like(x, radius)
    for waves in range(2, 7):
        outline += radius * rough * rng.normal() / (waves - 1) * np.cos(waves * angles + rng.uniform(0, 2 * math.pi))
    # The shape stays inside the window that it is drawn into.
    inside = np.clip(outline, 0.5 * radius, 1.5 * radius) - np.hypot(x, y)
    covered: _Floats = 1 / (1 + np.exp(-np.clip(inside / soft, -30, 30)))
    return covered


def _texture(rng: np.random.Generator, height: int, width: int, grain: int) -> _Floats:
    """[height,width] of smooth noise with mean 0 and standard deviation about 1, at a scale of ``grain`` pixels."""
    coarse = rng.normal(0, 1.2, (height // grain + 3, width // grain + 3)).astype(np.float32)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(smooth, np.float32)
