"""Writes torch modules as ONNX files, with dynamic axes, optional inputs and external data for large graphs."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from triton_sam.errors import SetupError
from triton_sam.models.specs import EXTERNAL_DATA_SUFFIX

#: The lowest opset first, so that older runtimes accept the graphs; the second is tried if the first does not suffice.
_OPSETS = (17, 18)
#: protobuf refuses messages of 2 GiB; larger weights go to a file of their own.
_LARGEST_INLINE = 1_800_000_000


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of a graph.

    Attributes:
        dynamic: axis -> name, for axes of variable length.
        default: the value if a caller leaves the input out; None makes the input required.
    """

    name: str
    example: Tensor
    dynamic: Mapping[int, str]
    default: Tensor | None = None


def export_graph(
    module: nn.Module, inputs: Sequence[GraphInput], outputs: Mapping[str, Mapping[int, str]], target: Path
) -> int:
    """Writes ``module`` as ONNX to ``target`` and returns the opset that was needed.

    Args:
        outputs: name -> dynamic axes.
    """
    refusals = []
    for opset in _OPSETS:
        # The exporter may write one file per large tensor: they are merged afterwards.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".graph-") as folder:
            raw = Path(folder) / "graph.onnx"
            try:
                _trace(module, inputs, outputs, raw, opset)
            except torch.onnx.errors.UnsupportedOperatorError as error:
                refusals.append(f"opset {opset}: {error}")
                continue
            model = onnx.load(str(raw))
            _set_defaults(model, inputs)
            save(model, target)
        return opset
    raise SetupError(f"{target.name} cannot be written as ONNX ({'; '.join(refusals)})")


def _trace(
    module: nn.Module,
    inputs: Sequence[GraphInput],
    outputs: Mapping[str, Mapping[int, str]],
    target: Path,
    opset: int,
) -> None:
    axes = {entry.name: dict(entry.dynamic) for entry in inputs} | {name: dict(ax) for name, ax in outputs.items()}
    with warnings.catch_warnings(), torch.inference_mode():
        # The tracer warns of every shape that it assumes to be constant; the parity check verifies these.
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            module,
            tuple(entry.example for entry in inputs),
            str(target),
            input_names=[entry.name for entry in inputs],
            output_names=list(outputs),
            dynamic_axes={name: named for name, named in axes.items() if named},
            opset_version=opset,
            do_constant_folding=True,
            dynamo=False,
        )


def _set_defaults(model: Any, inputs: Sequence[GraphInput]) -> None:
    """Makes inputs optional: an initializer with an input's name is that input's default in every runtime."""
    present = {entry.name for entry in model.graph.input}
    for entry in inputs:
        if entry.default is not None and entry.name in present:
            array = np.ascontiguousarray(entry.default.cpu().numpy())
            model.graph.initializer.append(numpy_helper.from_array(array, entry.name))


def save(model: Any, target: Path) -> None:
    """Writes a model; weights too large for protobuf go to ``<target>_data``, which must keep that name."""
    data = external_data(target)
    data.unlink(missing_ok=True)
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    if size > _LARGEST_INLINE:
        onnx.save(model, str(target), save_as_external_data=True, location=data.name, size_threshold=1024)
    else:
        onnx.save(model, str(target))


def external_data(graph: Path) -> Path:
    """The path of a graph's external data, whether or not it exists."""
    return graph.with_name(graph.name + EXTERNAL_DATA_SUFFIX)


def files_of(graph: Path) -> list[Path]:
    """A graph's file and, if it exists, its external data."""
    data = external_data(graph)
    return [graph, data] if data.exists() else [graph]
