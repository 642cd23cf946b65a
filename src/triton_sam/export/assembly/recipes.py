"""Graphs without their weights, and which weight belongs where."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from triton_sam.errors import SetupError
from triton_sam.export.assembly.published import Table
from triton_sam.export.assembly.tensor_files import Array, Weights
from triton_sam.export.onnx_graph import onnx_package, replacing

#: Of all graphs of a model: which weight belongs where.
TABLE_FILE = "weights.json"
GRAPH_SUFFIX = ".xz"
#: Before the name of a weight that a graph has transposed.
TRANSPOSED = "transposed "


@dataclass(frozen=True, slots=True)
class Recipes:
    """The graphs of a model, to be filled.

    Attributes:
        side: of the model's input, pixels.
        exporter: version of the exporter that wrote the graphs.
        made_with: package -> version, of those that shape exported graphs.
        published: see :data:`~triton_sam.export.assembly.published.Table`.
        graphs: file name -> tensor of the graph -> weight.
        folder: where the graphs are.
    """

    side: int
    exporter: int
    made_with: Mapping[str, str]
    published: Table
    graphs: Mapping[str, Mapping[str, str]]
    folder: Path = field(default_factory=Path)

    @staticmethod
    def read(folder: Path) -> Recipes:
        """SetupError if the folder has none."""
        try:
            content = json.loads((folder / TABLE_FILE).read_bytes())
            return Recipes(**content, folder=folder)
        except OSError as error:
            raise SetupError(f"{folder} has no graphs ({error.strerror}): install triton-sam again") from None
        except (ValueError, TypeError):
            raise SetupError(f"{folder / TABLE_FILE} is damaged: install triton-sam again") from None

    def files(self) -> list[Path]:
        """All files, in a fixed order."""
        return [self.folder / TABLE_FILE, *(self.folder / f"{name}{GRAPH_SUFFIX}" for name in sorted(self.graphs))]

    def write_graph(self, name: str, weights: Weights, target: Path) -> Path:
        """Writes one graph with its weights to ``target`` and returns ``target``.

        Args:
            weights: with those of :func:`~triton_sam.export.assembly.prepared.with_prepared`.
        """
        path = self.folder / f"{name}{GRAPH_SUFFIX}"
        try:
            model = onnx_package().load_model_from_string(lzma.decompress(path.read_bytes()))
        except OSError as error:
            raise SetupError(f"{path} cannot be read ({error.strerror}): install triton-sam again") from None
        except Exception:  # of lzma and of protobuf, whose exceptions differ between its releases
            raise SetupError(f"{path} is damaged: install triton-sam again") from None
        sources = self.graphs[name]
        for tensor_name, tensor in tensors_of(model):
            if tensor_name in sources:
                tensor.raw_data = _content(weights, sources[tensor_name], tuple(tensor.dims), path)
        with replacing(target) as partial:
            partial.write_bytes(model.SerializeToString(deterministic=True))
        return target


def tensors_of(model: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of a model's initializers and constants."""
    for tensor in model.graph.initializer:
        yield tensor.name, tensor
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def source_of(weights: Weights, source: str) -> Array:
    """The weight that a table names, transposed if it says so."""
    is_transposed = source.startswith(TRANSPOSED)
    array = weights[source.removeprefix(TRANSPOSED)]
    return array.T if is_transposed else array


def _content(weights: Weights, source: str, shape: tuple[int, ...], path: Path) -> bytes:
    try:
        array = source_of(weights, source)
    except KeyError:
        raise SetupError(
            f"{path.name} needs the weight {source!r}, which is missing: install triton-sam again"
        ) from None
    if array.size != np.prod(shape):
        raise SetupError(f"{source!r} does not fit {path.name}: install triton-sam again")
    return np.ascontiguousarray(array, "<f4").tobytes()
