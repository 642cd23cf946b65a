"""An ONNX model as an editable graph: find a node's neighbours, replace nodes, and write the model again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import SetupError
from triton_sam.installation import install

#: The domain of ONNX Runtime's own operators.
CONTRIB = "com.microsoft"

FloatArray = npt.NDArray[np.float32]


def onnx_package() -> Any:
    """The package ``onnx``, imported here only: it is optional for serving."""
    try:
        import onnx
    except ImportError:
        raise SetupError(f"rewriting graphs needs the package onnx: {install('onnx')}") from None
    return onnx


@contextlib.contextmanager
def replacing(destination: Path) -> Iterator[Path]:
    """A temporary path to write to, which replaces ``destination`` on success and is removed on failure."""
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(destination)
    except OSError as error:
        raise SetupError(f"{destination.name} cannot be written: {error}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


class Graph:
    """A model's nodes with an index of their producers and consumers.

    ``model`` must not be used afterwards: :meth:`finish` returns the result.
    """

    def __init__(self, model: Any) -> None:
        self._onnx = onnx_package()
        self._model = model
        self.nodes: list[Any] = []
        self._constants: dict[str, Any] = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            value = self.attribute(node, "value") if node.op_type == "Constant" else None
            if value is None:
                self.nodes.append(node)
            else:
                self._constants[node.output[0]] = value
        # An initializer that is an input too is only a default, which a caller may override.
        for entry in model.graph.input:
            self._constants.pop(entry.name, None)
        self.outputs = {entry.name for entry in model.graph.output}
        #: Of ONNX's own operators.
        self.opset = next((entry.version for entry in model.opset_import if not entry.domain), 0)
        self._shapes, self._kinds = self._inferred()
        self._index()

    def _inferred(self) -> tuple[dict[str, list[int | None]], dict[str, int]]:
        """(name -> sizes of the axes, None for dynamic ones; name -> ONNX's number of the type of an element)."""
        inferred = self._onnx.shape_inference.infer_shapes(self._model, data_prop=True).graph
        types = {
            value.name: value.type.tensor_type
            for value in (*inferred.value_info, *inferred.input, *inferred.output)
            if value.type.HasField("tensor_type")
        }
        shapes = {
            name: [axis.dim_value or None for axis in kind.shape.dim]
            for name, kind in types.items()
            if kind.HasField("shape")
        }
        return shapes, {name: kind.elem_type for name, kind in types.items()}

    def _index(self) -> None:
        self._producers = {name: node for node in self.nodes for name in node.output if name}
        self._consumers: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self._consumers.setdefault(name, []).append(node)

    def producer(self, name: str, *kinds: str) -> Any:
        """The node that produces a tensor; None if there is none, or if it is of another kind."""
        node = self._producers.get(name)
        return node if node is not None and (not kinds or node.op_type in kinds) else None

    def consumers(self, name: str) -> list[Any]:
        return self._consumers.get(name, [])

    def sole_consumer(self, name: str, *kinds: str) -> Any:
        """The only consumer of a tensor, if it is of one of these kinds and the tensor is no output of the graph."""
        nodes = self.consumers(name)
        alone = len(nodes) == 1 and name not in self.outputs
        return nodes[0] if alone and (not kinds or nodes[0].op_type in kinds) else None

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        tensor = self._constants.get(name)
        return None if tensor is None else self._onnx.numpy_helper.to_array(tensor)

    def weights(self, name: str, rank: int) -> FloatArray | None:
        """A float32 constant of this rank; else None."""
        array = self.constant(name)
        return array if array is not None and array.dtype == np.float32 and array.ndim == rank else None

    def number(self, name: str) -> float | None:
        """The value of a constant of one element; else None."""
        array = self.constant(name)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def shape(self, name: str) -> list[int | None]:
        """Sizes of the axes, None for dynamic ones; empty if nothing is known."""
        return self._shapes.get(name, [])

    def kind(self, name: str) -> int:
        """ONNX's number of the type of an element; 0 if it is not known."""
        return self._kinds.get(name, 0)

    def attribute(self, node: Any, name: str, default: Any = None) -> Any:
        for entry in node.attribute:
            if entry.name == name:
                return self._onnx.helper.get_attribute_value(entry)
        return default

    def add_constant(self, name: str, array: npt.NDArray[Any]) -> str:
        """Adds a constant and returns its name."""
        self._constants[name] = self._onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def node(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any
    ) -> Any:
        return self._onnx.helper.make_node(
            kind, list(inputs), list(outputs), name=f"{outputs[0]}/{kind}", domain=domain, **attributes
        )

    def replace(self, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Removes nodes and adds others, in any order: :meth:`finish` sorts them."""
        gone = {id(node) for node in old}
        self.nodes = [node for node in self.nodes if id(node) not in gone] + list(new)
        self._index()

    def bypass(self, node: Any) -> None:
        """Removes a node whose output is its first input; one whose output is the graph's stays."""
        (output,) = node.output
        if output in self.outputs:
            return
        for consumer in self.consumers(output):
            consumer.input[:] = [node.input[0] if name == output else name for name in consumer.input]
        self.replace([node], [])

    def matmul_with_bias(self, name: str) -> tuple[Any, Any, str] | None:
        """(MatMul with constant weights [K,N], Add, name of its bias [N]) that produce a tensor; else None."""
        add = self.producer(name, "Add")
        if add is None:
            return None
        for product, bias in (tuple(add.input), tuple(reversed(add.input))):
            matmul = self.producer(product, "MatMul")
            values = self.weights(bias, 1)
            if matmul is None or values is None or self.sole_consumer(product) is None:
                continue
            weights = self.weights(matmul.input[1], 2)
            if weights is not None and weights.shape[1] == values.size:
                return matmul, add, bias
        return None

    def depths(self) -> dict[str, float]:
        """Tensor -> its relative depth on the longest path from the inputs (0) to the end of the graph (1)."""
        steps: dict[str, int] = {}
        for node in self.in_order(self.nodes):
            depth = 1 + max((steps.get(name, 0) for name in node.input), default=0)
            steps.update(dict.fromkeys(node.output, depth))
        longest = max(steps.values(), default=1)
        return {name: depth / longest for name, depth in steps.items()}

    def drop_unused(self) -> None:
        """Removes nodes that no output depends on, and sorts the others."""
        needed, queue = set(), [self._producers[name] for name in self.outputs if name in self._producers]
        while queue:
            node = queue.pop()
            if id(node) not in needed:
                needed.add(id(node))
                queue += [self._producers[name] for name in node.input if name in self._producers]
        self.nodes = self.in_order([node for node in self.nodes if id(node) in needed])
        self._index()

    def finish(self) -> Any:
        """The model with its nodes sorted and without unused nodes and constants."""
        self.drop_unused()
        result = type(self._model)()
        result.CopyFrom(self._model)
        for field in ("node", "initializer", "value_info"):  # recorded shapes do not cover new tensors
            result.graph.ClearField(field)
        result.graph.node.extend(self.nodes)
        inputs = {entry.name for entry in self._model.graph.input}
        result.graph.initializer.extend(tensor for tensor in self._model.graph.initializer if tensor.name in inputs)
        for name in dict.fromkeys(name for node in self.nodes for name in node.input):
            if name in self._constants:
                entry = result.graph.initializer.add()
                entry.CopyFrom(self._constants[name])
                entry.name = name
        if all(entry.domain != CONTRIB for entry in result.opset_import):
            result.opset_import.append(self._onnx.helper.make_opsetid(CONTRIB, 1))
        return result

    def subgraph(
        self, prefix: str, nodes: Sequence[Any], inputs: Mapping[str, list[int]], outputs: Mapping[str, list[int]]
    ) -> Any:
        """A subgraph for a node that runs it, with float32 inputs and outputs; constants are copied into it.

        The nodes are modified: every name gets the prefix.
        """
        helper, made = self._onnx.helper, {name for node in nodes for name in node.output} | set(inputs)
        constants = {}
        for node in nodes:
            for name in node.input:
                if name and name not in made:
                    constants[name] = type(self._constants[name])()
                    constants[name].CopyFrom(self._constants[name])
                    constants[name].name = f"{prefix}/{name}"
            for names in (node.input, node.output):
                renamed = [name and f"{prefix}/{name}" for name in names]
                del names[:]
                names.extend(renamed)
        ends = [
            [
                helper.make_tensor_value_info(f"{prefix}/{name}", self._onnx.TensorProto.FLOAT, shape)
                for name, shape in side
            ]
            for side in (inputs.items(), outputs.items())
        ]
        return helper.make_graph(list(nodes), prefix, *ends, list(constants.values()))

    def in_order(self, nodes: list[Any]) -> list[Any]:
        """The nodes in topological order."""
        made_here = {name for node in nodes for name in node.output}
        waits = {id(node): len({name for name in node.input if name in made_here}) for node in nodes}
        ready, ordered = [node for node in nodes if not waits[id(node)]], []
        while ready:
            node = ready.pop()
            ordered.append(node)
            for name in node.output:
                for consumer in self.consumers(name):
                    if id(consumer) in waits:
                        waits[id(consumer)] -= 1
                        if not waits[id(consumer)]:
                            ready.append(consumer)
        return ordered
