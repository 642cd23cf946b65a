"""Reads and writes safetensors files with numpy alone: the package safetensors comes with torch's extras only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import SetupError
from triton_sam.export.onnx_graph import replacing

Array = npt.NDArray[Any]
Weights = Mapping[str, Array]

_TYPES: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}
_LENGTH = 8
#: A header names tensors: a longer one is no header.
_LONGEST_HEADER = 16 * 1024 * 1024


def read_weights(path: Path) -> dict[str, Array]:
    """The tensors of a file, floating-point ones as float32; SetupError if it cannot be read."""
    try:
        content = path.read_bytes()
        length = int.from_bytes(content[:_LENGTH], "little")
        if not 0 < length <= min(_LONGEST_HEADER, len(content) - _LENGTH):
            raise ValueError("no header")
        header = json.loads(content[_LENGTH : _LENGTH + length])
        data = memoryview(content)[_LENGTH + length :]
        return {name: _tensor(entry, data) for name, entry in header.items() if name != "__metadata__"}
    except OSError as error:
        raise SetupError(f"{path} cannot be read ({error.strerror}): install triton-sam again") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise SetupError(f"{path} is damaged: install triton-sam again") from None


def _tensor(entry: Mapping[str, Any], data: memoryview) -> Array:
    kind = np.dtype(_TYPES[entry["dtype"]])
    first, end = entry["data_offsets"]
    shape = tuple(map(int, entry["shape"]))
    if end - first != math.prod(shape) * kind.itemsize or not 0 <= first <= end <= len(data):
        raise ValueError("a tensor is cut short")
    array = np.frombuffer(data[first:end], kind).reshape(shape)
    return array.astype(np.float32) if kind.kind == "f" else array


def write_weights(weights: Weights, path: Path) -> Path:
    """Writes tensors to ``path``, atomically and always as the same bytes, and returns ``path``."""
    names = {np.dtype(kind): name for name, kind in _TYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    for name in sorted(weights):
        array = weights[name]
        header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH, "little") + text)
        for name in sorted(weights):
            file.write(np.ascontiguousarray(weights[name]).tobytes())
    return path
