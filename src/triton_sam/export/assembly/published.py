"""Reads the weights inside ready-made graphs under the names of transformers' networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import SetupError
from triton_sam.export.assembly.positions import split_positions
from triton_sam.export.assembly.tensor_files import Array
from triton_sam.export.onnx_graph import onnx_package

#: Name of a weight -> (encoder or decoder, how it is made, its shape, the graph's tensors).
Table = Mapping[str, Sequence[Any]]


def published_weights(graphs: Mapping[str, Path], table: Table) -> dict[str, Array]:
    """Name -> float32 weight.

    Args:
        graphs: "encoder" and "decoder" -> the ONNX file.
    """
    tensors = {which: _constants(path) for which, path in graphs.items()}
    return {
        name: _made(how, shape, [tensors[which][tensor] for tensor in names])
        for name, (which, how, shape, *names) in table.items()
    }


def _made(how: str, shape: Sequence[int], arrays: Sequence[Array]) -> Array:
    kind, *numbers = how.split()
    array = arrays[0]
    if kind == "transposed":
        array = array.T
    elif kind == "joined":
        array = np.concatenate(arrays)
    elif kind == "rows":  # of a tensor that begins with an axis of 1
        first, end = map(int, numbers)
        array = array[0, first:end]
    elif kind in ("background", "window"):
        background, window = (int(number) for number in numbers)
        array = split_positions(array, background, window)[kind == "window"]
    elif kind != "as-is":
        raise SetupError(f"weights cannot be made {kind!r} from published graphs: install triton-sam again")
    return np.ascontiguousarray(array, np.float32).reshape(tuple(shape))


def _constants(path: Path) -> dict[str, npt.NDArray[Any]]:
    onnx = onnx_package()
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf's exceptions differ between its releases
        raise SetupError(f"{path.name} cannot be read as ONNX: {error}") from None
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
