"""Builds the new nodes of a graph one after another, with names that derive from their result."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.export.onnx_graph import Graph


class NodeBuilder:
    """Collects nodes that compute one tensor and are named after it; the caller puts ``nodes`` into the graph."""

    def __init__(self, graph: Graph, end: str) -> None:
        self._graph, self._end = graph, end
        self._constants = 0
        self.nodes: list[Any] = []

    def constant(self, array: npt.NDArray[Any]) -> str:
        self._constants += 1
        return self._graph.add_constant(f"{self._end}/constant_{self._constants}", array)

    def add(self, kind: str, *inputs: str, to: str = "", domain: str = "", **attributes: Any) -> str:
        """Adds a node with one output and returns the output's name: ``to``, or a numbered one."""
        output = to or f"{self._end}/step_{len(self.nodes)}"
        self.nodes.append(self._graph.node(kind, inputs, [output], domain, **attributes))
        return output

    def reshape(self, tensor: str, *shape: int, to: str = "") -> str:
        return self.add("Reshape", tensor, self.constant(np.array(shape, np.int64)), to=to)
