"""Stacks as other programs write them: TIFF by tifffile, Zarr by zarr, with metadata of ImageJ, OME and none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile

try:
    import zarr
except ImportError:  # on Python 3.10, which it does not support; tests of it are skipped there
    zarr = None

#: Of the voxels, in micrometres.
SIZES = {"z": 0.5, "y": 0.25, "x": 0.125}


def volume(shape: Sequence[int] = (6, 30, 40), dtype: Any = np.uint16, seed: int = 0) -> npt.NDArray[Any]:
    """Values from 100 to 3900."""
    found: npt.NDArray[Any] = np.random.default_rng(seed).integers(100, 3900, shape).astype(dtype)
    return found


def imagej_tiff(path: Path, values: npt.NDArray[Any], axes: str = "ZYX") -> Path:
    resolution = 1 / SIZES["x"], 1 / SIZES["y"]
    about = {"axes": axes, "unit": "um", "spacing": SIZES["z"], "finterval": 3.0}
    tifffile.imwrite(path, values, imagej=True, resolution=resolution, metadata=about)
    return path


def ome_tiff(path: Path, values: npt.NDArray[Any], axes: str = "ZYX", **how: Any) -> Path:
    about: dict[str, Any] = {"axes": axes, "TimeIncrement": 3.0}
    for name in "zyx":
        about |= {f"PhysicalSize{name.upper()}": SIZES[name], f"PhysicalSize{name.upper()}Unit": "µm"}
    tifffile.imwrite(path, values, ome=True, metadata=about, **how)
    return path


def ome_zarr(path: Path, values: npt.NDArray[Any], axes: str = "zyx", form: int = 2, levels: int = 2) -> Path:
    """Level 1 has half the pixels."""
    group = zarr.open_group(str(path), mode="w", zarr_format=form)
    datasets = []
    for level in range(levels):
        step = 2**level
        found = values[..., ::step, ::step]
        group.create_array(str(level), data=found, chunks=tuple(min(16, side) for side in found.shape))
        scale = [SIZES.get(name, 3.0 if name == "t" else 1.0) * (step if name in "yx" else 1) for name in axes]
        datasets.append({"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": scale}]})
    kinds = {"t": ("time", "second"), "c": ("channel", None)}
    named = []
    for name in axes:
        kind, unit = kinds.get(name, ("space", "micrometer"))
        named.append({"name": name, "type": kind} | ({"unit": unit} if unit else {}))
    image = {"axes": named, "datasets": datasets}
    if form == 2:
        group.attrs["multiscales"] = [{"version": "0.4"} | image]
    else:
        group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    return path
