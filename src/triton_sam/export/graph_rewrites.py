"""ONNX graphs as something to rewrite, and rewrites that change the cost of a graph but not what it computes.

Every rewrite looks for one pattern and gives the number of places where it found it. What does not match stays.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import SetupError

#: The domain of ONNX Runtime's own operators.
CONTRIB = "com.microsoft"
#: From this many keys on, and for a single head, the fused operator wins; small windows it would only transpose twice.
_LEAST_KEYS = 1024
_HEADS_AFTER_TOKENS = [0, 2, 1, 3]
_KEYS_LAST = [0, 2, 3, 1]

FloatArray = npt.NDArray[np.float32]


def onnx_package() -> Any:
    """The package ``onnx``: serving needs it nowhere else, so that it is looked for only here."""
    try:
        import onnx
    except ImportError:
        raise SetupError("graphs are rewritten with the package onnx: pip install onnx") from None
    return onnx


@contextlib.contextmanager
def replacing(destination: Path) -> Iterator[Path]:
    """A path to write to; what is there in the end takes the place of ``destination``, and nothing where it fails."""
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
    """A model's nodes with their neighbours at hand. ``model`` is taken over: ask :meth:`finish` for the result."""

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
        # A caller may put another value in the place of an initializer that is an input too.
        for entry in model.graph.input:
            self._constants.pop(entry.name, None)
        self.outputs = {entry.name for entry in model.graph.output}
        self._shapes = self._infer_shapes()
        self._index()

    def _infer_shapes(self) -> dict[str, list[int | None]]:
        """Name -> sizes of the axes, None where they are free."""
        inferred = self._onnx.shape_inference.infer_shapes(self._model, data_prop=True).graph
        return {
            value.name: [axis.dim_value or None for axis in value.type.tensor_type.shape.dim]
            for value in (*inferred.value_info, *inferred.input, *inferred.output)
            if value.type.tensor_type.HasField("shape")
        }

    def _index(self) -> None:
        self._producers = {name: node for node in self.nodes for name in node.output if name}
        self._consumers: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self._consumers.setdefault(name, []).append(node)

    def producer(self, name: str, *kinds: str) -> Any:
        """The node that gives a tensor; None where it is of another kind."""
        node = self._producers.get(name)
        return node if node is not None and (not kinds or node.op_type in kinds) else None

    def consumers(self, name: str) -> list[Any]:
        return self._consumers.get(name, [])

    def sole_consumer(self, name: str, *kinds: str) -> Any:
        """The only node that takes a tensor, where it is of one of these kinds and nobody outside sees the tensor."""
        nodes = self.consumers(name)
        alone = len(nodes) == 1 and name not in self.outputs
        return nodes[0] if alone and (not kinds or nodes[0].op_type in kinds) else None

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        tensor = self._constants.get(name)
        return None if tensor is None else self._onnx.numpy_helper.to_array(tensor)

    def weights(self, name: str, rank: int) -> FloatArray | None:
        """A float32 constant with so many axes."""
        array = self.constant(name)
        return array if array is not None and array.dtype == np.float32 and array.ndim == rank else None

    def number(self, name: str) -> float | None:
        """A constant of one element."""
        array = self.constant(name)
        return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def shape(self, name: str) -> list[int | None]:
        """Sizes of the axes, None where they are free; empty where nothing is known."""
        return self._shapes.get(name, [])

    def attribute(self, node: Any, name: str, default: Any = None) -> Any:
        for entry in node.attribute:
            if entry.name == name:
                return self._onnx.helper.get_attribute_value(entry)
        return default

    def add_constant(self, name: str, array: npt.NDArray[Any]) -> str:
        """Puts a constant in and gives its name back."""
        self._constants[name] = self._onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def node(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any
    ) -> Any:
        return self._onnx.helper.make_node(
            kind, list(inputs), list(outputs), name=f"{outputs[0]}/{kind}", domain=domain, **attributes
        )

    def replace(self, old: Sequence[Any], new: Sequence[Any]) -> None:
        """Takes nodes out and puts others in; the order is made right by :meth:`finish`."""
        gone = {id(node) for node in old}
        self.nodes = [node for node in self.nodes if id(node) not in gone] + list(new)
        self._index()

    def matmul_with_bias(self, name: str) -> tuple[Any, Any, str] | None:
        """(MatMul with constant weights [K,N], Add, name of its bias [N]) that give a tensor; else None."""
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
        """Tensor -> its place on the longest way from the inputs (0) to the end of the graph (1)."""
        steps: dict[str, int] = {}
        for node in self._in_order(self.nodes):
            depth = 1 + max((steps.get(name, 0) for name in node.input), default=0)
            steps.update(dict.fromkeys(node.output, depth))
        longest = max(steps.values(), default=1)
        return {name: depth / longest for name, depth in steps.items()}

    def drop_unused(self) -> None:
        """Takes out what nobody needs any more, and puts the others in order."""
        needed, queue = set(), [self._producers[name] for name in self.outputs if name in self._producers]
        while queue:
            node = queue.pop()
            if id(node) not in needed:
                needed.add(id(node))
                queue += [self._producers[name] for name in node.input if name in self._producers]
        self.nodes = self._in_order([node for node in self.nodes if id(node) in needed])
        self._index()

    def finish(self) -> Any:
        """The model, with its nodes in order and without what nobody needs any more."""
        self.drop_unused()
        result = type(self._model)()
        result.CopyFrom(self._model)
        for field in ("node", "initializer", "value_info"):  # old shapes say nothing of new tensors
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
        """A graph of its own for a node that runs it: float32 tensors go in and out, constants are copied into it.

        Nodes are changed: every name gets the prefix.
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

    def _in_order(self, nodes: list[Any]) -> list[Any]:
        """Every node after those whose outputs it takes; otherwise in the order in which they come."""
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


def join_convolutions(graph: Graph) -> int:
    """Two 1x1 convolutions with nothing between them -> one: SAM2's neck makes 256 channels of which 32 come out."""
    done = 0
    for first in list(graph.nodes):
        second = graph.sole_consumer(first.output[0], "Conv") if first.op_type == "Conv" else None
        if second is None or not (_is_pointwise(graph, first) and _is_pointwise(graph, second)):
            continue
        inner, outer = graph.weights(first.input[1], 4), graph.weights(second.input[1], 4)
        if inner is None or outer is None or inner.shape[1] > inner.shape[0]:
            continue  # a bottleneck is cheaper in two steps
        left, right = outer[:, :, 0, 0].astype(np.float64), inner[:, :, 0, 0].astype(np.float64)
        weights = (left @ right).astype(np.float32)[:, :, None, None]
        bias = (left @ _bias(graph, first, len(right)) + _bias(graph, second, len(left))).astype(np.float32)
        name = second.output[0]
        inputs = [
            first.input[0],
            graph.add_constant(f"{name}/weights", weights),
            graph.add_constant(f"{name}/bias", bias),
        ]
        graph.replace([first, second], [graph.node("Conv", inputs, [name], kernel_shape=[1, 1])])
        done += 1
    return done


def _is_pointwise(graph: Graph, node: Any) -> bool:
    plain = {"strides": 1, "dilations": 1, "pads": 0}
    weights = graph.weights(node.input[1], 4)
    return (
        weights is not None
        and weights.shape[2:] == (1, 1)
        and graph.attribute(node, "group", 1) == 1
        and all(value == wanted for name, wanted in plain.items() for value in graph.attribute(node, name, []))
        and all(graph.weights(name, 1) is not None for name in node.input[2:])
    )


def _bias(graph: Graph, node: Any, channels: int) -> npt.NDArray[np.float64]:
    found = graph.weights(node.input[2], 1) if len(node.input) > 2 else None
    return np.zeros(channels) if found is None else found.astype(np.float64)


def split_projections(graph: Graph) -> int:
    """One MatMul for queries, keys and values whose result is cut in three -> three of them: nothing is copied."""
    done = 0
    for cut in [node for node in graph.nodes if node.op_type == "Split"]:
        reshape = graph.producer(cut.input[0], "Reshape")
        target = None if reshape is None else graph.constant(reshape.input[1])
        found = None if reshape is None else graph.matmul_with_bias(reshape.input[0])
        squeezes = [graph.sole_consumer(name, "Squeeze") for name in cut.output]
        if found is None or target is None or target.size != 5 or None in squeezes or len(squeezes) != 3:
            continue
        axis = graph.attribute(cut, "axis", 0)
        if axis != 2 or target[2] != 3 or 0 in target[2:] or any(_axes(graph, node) != [2] for node in squeezes):
            continue
        alone = graph.sole_consumer(reshape.output[0]) is not None and graph.sole_consumer(reshape.input[0]) is not None
        if not alone:
            continue
        matmul, add, bias = found
        weights, offsets = graph.weights(matmul.input[1], 2), graph.weights(bias, 1)
        assert weights is not None  # matmul_with_bias has looked
        assert offsets is not None
        shape = graph.add_constant(f"{reshape.output[0]}/heads", np.delete(target, 2))
        new = []
        for part, columns, values in zip(squeezes, np.split(weights, 3, 1), np.split(offsets, 3), strict=True):
            name = part.output[0]
            inputs = [matmul.input[0], graph.add_constant(f"{name}/weights", columns)]
            new.append(graph.node("MatMul", inputs, [f"{name}/product"]))
            inputs = [f"{name}/product", graph.add_constant(f"{name}/bias", values)]
            new.append(graph.node("Add", inputs, [f"{name}/flat"]))
            new.append(graph.node("Reshape", [f"{name}/flat", shape], [name]))
        graph.replace([matmul, add, reshape, cut, *squeezes], new)
        done += 1
    return done


def _axes(graph: Graph, squeeze: Any) -> list[int]:
    """Axes of a Squeeze: an input since opset 13."""
    axes = graph.constant(squeeze.input[1]) if len(squeeze.input) > 1 else None
    return [] if axes is None else [int(axis) for axis in axes.reshape(-1)]


def count_attentions(graph: Graph) -> int:
    """How many attentions a plain encoder has, however they are spelled: each has a softmax."""
    return sum(node.op_type == "Softmax" for node in graph.nodes)


def fuse_attention(graph: Graph) -> int:
    """softmax(q k^T) v, with the factors of q and k taken into it.

    The whole image attending to itself becomes one operator, which never writes down all weights (64 million for
    SAM2). Windows keep their steps, and only the keys are no longer transposed number by number.
    """
    return sum(_fuse_one(graph, node) for node in [node for node in graph.nodes if node.op_type == "Softmax"])


def _fuse_one(graph: Graph, softmax: Any) -> bool:
    scores = graph.producer(softmax.input[0], "MatMul")
    mixed = graph.sole_consumer(softmax.output[0], "MatMul")
    if scores is None or mixed is None or mixed.input[0] != softmax.output[0] or not _is_last_axis(graph, softmax):
        return False
    if graph.sole_consumer(scores.output[0]) is None:
        return False
    (query, query_factor), (key, key_factor) = (_without_factor(graph, name) for name in scores.input)
    tokens = [graph.producer(name, "Transpose") for name in (query, key, mixed.input[1])]
    back = graph.sole_consumer(mixed.output[0], "Transpose")
    flat = None if back is None else graph.sole_consumer(back.output[0], "Reshape")
    if flat is None or None in tokens:
        return False
    orders = [list(graph.attribute(node, "perm", [])) for node in (*tokens, back)]
    if orders != [_HEADS_AFTER_TOKENS, _KEYS_LAST, _HEADS_AFTER_TOKENS, _HEADS_AFTER_TOKENS]:
        return False
    keys = graph.shape(tokens[1].input[0])
    if len(keys) != 4 or keys[2] is None or keys[3] is None:
        return False
    name, scale = softmax.output[0], query_factor * key_factor
    if keys[2] == 1 or (keys[1] or 0) >= _LEAST_KEYS:
        shape = graph.add_constant("attention/flat_heads", np.array([0, 0, -1], np.int64))
        parts = [f"{name}/{part}" for part in ("query", "key", "value")]
        new = [graph.node("Reshape", [node.input[0], shape], [part]) for node, part in zip(tokens, parts, strict=True)]
        attributes = {"num_heads": keys[2], "scale": scale}
        new.append(graph.node("MultiHeadAttention", parts, [f"{name}/mixed"], CONTRIB, **attributes))
        new.append(graph.node("Reshape", [f"{name}/mixed", flat.input[1]], [flat.output[0]]))
        graph.replace([scores, softmax, mixed, back, flat], new)
    else:
        transposed = graph.node("Transpose", [tokens[1].input[0]], [f"{name}/key"], perm=_HEADS_AFTER_TOKENS)
        inputs = [query, f"{name}/key"]
        product = graph.node("FusedMatMul", inputs, [scores.output[0]], CONTRIB, transB=1, alpha=scale)
        graph.replace([scores], [transposed, product])
    return True


def _is_last_axis(graph: Graph, softmax: Any) -> bool:
    return graph.attribute(softmax, "axis", -1) in (-1, 3)


def _without_factor(graph: Graph, name: str) -> tuple[str, float]:
    """A tensor before it was multiplied with a number, and that number."""
    node = graph.producer(name, "Mul")
    for tensor, factor in () if node is None else (tuple(node.input), tuple(reversed(node.input))):
        number = graph.number(factor)
        if number is not None and math.isfinite(number):
            return tensor, number
    return name, 1.0
