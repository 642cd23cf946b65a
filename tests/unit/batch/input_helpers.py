"""Small images on a disk, and what they are as items."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from PIL import Image

from tests.unit.core.image_helpers import Pixels
from triton_sam.batch.records import Item


def png(width: int = 4, height: int = 3) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def stack(path: Path, values: Pixels, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, values, photometric="minisblack", **options)
    return path


def zarr2(folder: Path, values: Pixels) -> Path:
    """A Zarr array, format 2, without compression, one chunk a plane; written without the package."""
    folder.mkdir(parents=True)
    chunks = list(values.shape) if values.ndim == 2 else [1, *values.shape[1:]]
    description = {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": chunks,
        "dtype": values.dtype.str,
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
    }
    (folder / ".zarray").write_text(json.dumps(description))
    parts = [values] if values.ndim == 2 else list(values)
    for number, part in enumerate(parts):
        name = ".".join([str(number) if values.ndim > 2 else "0", *["0"] * (values.ndim - 1)])
        (folder / name).write_bytes(np.ascontiguousarray(part).tobytes())
    return folder


def item(path: Path, page: int | None = None) -> Item:
    return Item(0, path.name, path, path.stem, page)
