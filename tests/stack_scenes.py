"""A stack as a microscope makes them, with known labels: cells and vessels in 16 bits, blurred, with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SLICES, HEIGHT, WIDTH = 64, 256, 320
MIDDLE = SLICES // 2


@dataclass(frozen=True)
class Body:
    """A vessel that winds through all slices, or a cell that is in some of them only.

    Attributes:
        centre: x, y in the middle slice.
        way: how far it moves from slice to slice, in pixels.
        radius: in the middle slice.
        half: a cell has so many slices above and below the middle one; None for a vessel.
        brightness: of 16 bits.
    """

    centre: tuple[float, float]
    way: tuple[float, float]
    radius: float
    half: int | None
    brightness: float


#: In the order of their numbers. Vessels wind around each other's slices, but do not touch.
BODIES = (
    Body((80, 70), (0.9, 0.3), 22, None, 2600),
    Body((235, 80), (-0.5, 0.4), 30, 21, 1900),
    Body((110, 185), (-0.6, -0.2), 26, None, 2100),
    Body((240, 190), (0.3, -0.3), 18, 26, 3000),
)


def scene(seed: int = 0) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """The stack and its labels, [N,H,W]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    ground = _smooth(rng, 24) * 120 + 420
    textures = [_smooth(rng, 5) * 0.18 + 1 for _ in BODIES]
    phases = rng.uniform(0, 2 * np.pi, (len(BODIES), 4))
    values, labels = np.zeros((SLICES, HEIGHT, WIDTH), np.uint16), np.zeros((SLICES, HEIGHT, WIDTH), np.uint8)
    for index in range(SLICES):
        light = ground.copy()
        for name, (body, texture, phase) in enumerate(zip(BODIES, textures, phases, strict=True), start=1):
            inside = _inside(body, phase, index - MIDDLE, x, y)
            labels[index][inside] = name
            light[inside] = body.brightness * np.roll(texture, 2 * index, axis=1)[inside]
        blurred = _blurred(light, 1.3)
        values[index] = (rng.poisson(blurred / 8) * 8 + rng.normal(0, 12, light.shape)).clip(0, 65_535)
    return values, labels


def centres(labels: npt.NDArray[Any]) -> dict[int, tuple[int, int]]:
    """Object -> x, y of its middle in a slice [H,W]."""
    found = {}
    for name in np.unique(labels[labels > 0]).tolist():
        rows, columns = np.nonzero(labels == name)
        found[int(name)] = round(float(columns.mean())), round(float(rows.mean()))
    return found


def overlaps(given: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> dict[int, npt.NDArray[np.float64]]:
    """Object -> IoU in each slice, [N]; 1 where both are empty."""
    found = {}
    for name in np.unique(wanted[wanted > 0]).tolist():
        one, other = given == name, wanted == name
        union = (one | other).sum(axis=(1, 2))
        shared = (one & other).sum(axis=(1, 2))
        found[int(name)] = np.where(union > 0, shared / np.maximum(union, 1), 1.0)
    return found


def _inside(body: Body, phase: npt.NDArray[Any], away: int, x: Any, y: Any) -> npt.NDArray[np.bool_]:
    """[H,W] of a body so many slices away from the middle one."""
    radius = body.radius
    if body.half is not None:
        radius *= float(np.sqrt(max(0.0, 1 - (away / (body.half + 0.5)) ** 2)))
    else:
        radius *= 1 + 0.2 * float(np.sin(away / 7 + phase[0]) - np.sin(phase[0]))
    turn = 6 * np.sin(away / 9 + phase[1:3]) - 6 * np.sin(phase[1:3])
    across = x - body.centre[0] - body.way[0] * away - turn[0]
    down = y - body.centre[1] - body.way[1] * away - turn[1]
    angle = np.arctan2(down, across)
    border = radius * (1 + 0.12 * np.sin(2 * angle + phase[3] + away / 20) + 0.06 * np.sin(3 * angle - away / 15))
    inside: npt.NDArray[np.bool_] = np.hypot(across, down) < border
    return inside if radius > 3 else np.zeros_like(inside)


def _smooth(rng: np.random.Generator, size: float) -> npt.NDArray[np.float32]:
    """[H,W] of noise with structures of this size, deviation 1."""
    found = _blurred(rng.normal(size=(HEIGHT, WIDTH)), size)
    smooth: npt.NDArray[np.float32] = ((found - found.mean()) / found.std()).astype(np.float32)
    return smooth


def _blurred(image: npt.NDArray[Any], deviation: float) -> npt.NDArray[np.float64]:
    """By a Gaussian; what leaves on one side comes back on the other."""
    down, across = np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None]
    passed = np.exp(-2 * (np.pi * deviation) ** 2 * (down**2 + across**2))
    return np.fft.irfft2(np.fft.rfft2(image) * passed, s=image.shape)
