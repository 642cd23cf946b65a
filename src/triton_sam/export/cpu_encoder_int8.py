"""8-bit quantisation of a CPU encoder: selects the matrix products, prepares their inputs and replaces them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_sam.export.onnx_graph import CONTRIB, FloatArray, Graph

#: Narrower products are limited by memory traffic, so 8 bits gain little.
LEAST_WIDTH = 384
#: Attention averages queries, keys and values, which reduces their error: they may be narrower, and early in the
#: network.
LEAST_HEADS_WIDTH = 192
#: The first part of the network stays in float32: every later layer propagates its error, and the fine features of SAM2
#: are computed there.
EARLY_SHARE = 0.35
#: Allowed standard deviation of one product's error over its result's own, on the calibration picture.
MOST_PRODUCT_ERROR = 0.024
_LEVELS = 127
_RANGE = 255
#: How much of an input channel's range moves to its weights. At 0.5 both are equally hard to round; the inputs need
#: more help, because they share one scale and weights have one for each column.
_SHARE_OF_INPUT = 0.75
_ROWS = 256
#: Operators that reorder or pad tokens and leave channels where they are.
_MOVES = ("Reshape", "Transpose", "Pad")

Look = Callable[[Any, Sequence[str]], Sequence[FloatArray]]


@dataclass(frozen=True, slots=True, eq=False)
class TensorStats:
    """Statistics of a tensor [...,C] on the calibration picture.

    Attributes:
        rows: [N,C], a sample of its rows.
        largest: [C], the largest absolute value of each channel.
        low, high: the range of all values and zero.
    """

    rows: FloatArray
    largest: FloatArray
    low: float
    high: float

    @classmethod
    def of(cls, array: FloatArray) -> TensorStats:
        flat = array.reshape(-1, array.shape[-1])
        rows = flat[:: max(1, len(flat) // _ROWS)]
        return cls(rows.copy(), np.abs(flat).max(axis=0), min(0.0, float(flat.min())), max(0.0, float(flat.max())))


def observe(graph: Graph, names: Sequence[str], look: Look) -> dict[str, TensorStats]:
    """Runs the graph in its current state and collects statistics of some of its tensors."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return {}  # onnxruntime takes an empty list for all outputs
    return {name: TensorStats.of(array) for name, array in zip(wanted, look(graph.finish(), wanted), strict=True)}


def equalise_channels(graph: Graph, look: Look) -> int:
    """Moves factors from a LayerNormalization's channels to the rows of the weights that follow.

    All channels then have about the same range, so that one scale suits them. The result of the graph is the same.

    Returns:
        The number of LayerNormalizations that were changed.
    """
    found = {}
    for norm in graph.nodes:
        products = _fed_by(graph, norm.output[0]) if norm.op_type == "LayerNormalization" else None
        if products and len(norm.input) == 3 and all(graph.weights(name, 1) is not None for name in norm.input[1:]):
            found[norm.output[0]] = (norm, products)
    seen = observe(graph, list(found), look)
    for name, (norm, products) in found.items():
        weights = [graph.weights(product.input[1], 2) for product in products]
        strength = np.max([np.abs(array).max(axis=1) for array in weights if array is not None], axis=0)
        factors = np.maximum(seen[name].largest, 1e-6) ** _SHARE_OF_INPUT
        factors /= np.maximum(strength, 1e-6) ** (1 - _SHARE_OF_INPUT)
        factors = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
        _scale(graph, norm, products, factors)
    return len(found)


def _scale(graph: Graph, norm: Any, products: Sequence[Any], factors: FloatArray) -> None:
    for index, part in ((1, "gain"), (2, "shift")):
        array = graph.weights(norm.input[index], 1)
        assert array is not None  # checked by equalise_channels
        norm.input[index] = graph.add_constant(f"{norm.output[0]}/{part}", array / factors)
    for product in products:
        array = graph.weights(product.input[1], 2)
        assert array is not None
        product.input[1] = graph.add_constant(f"{product.output[0]}/rows", array * factors[:, None])


def _fed_by(graph: Graph, name: str) -> list[Any] | None:
    """The products with constant weights [C,N] that take a tensor [...,C], directly or reordered.

    None if something else takes the tensor too.
    """
    width = graph.shape(name)[-1:]
    if name in graph.outputs or width in ([], [None]):
        return None
    found = []
    for node in graph.consumers(name):
        if node.op_type in _MOVES and node.input[0] == name and graph.shape(node.output[0])[-1:] == width:
            further = _fed_by(graph, node.output[0])
            if further is None:
                return None
            found += further
        elif node.op_type == "MatMul" and node.input[0] == name and graph.weights(node.input[1], 2) is not None:
            found.append(node)
        else:
            return None
    return found


def choose_products(graph: Graph, look: Look) -> list[Any]:
    """The MatMul nodes that 8 bits make faster with a small measured error."""
    depths = graph.depths()
    wide = [node for node in graph.nodes if _is_wide(graph, node, depths)]
    seen = observe(graph, [node.input[0] for node in wide], look)
    return [node for node in wide if product_error(graph, node, seen) <= MOST_PRODUCT_ERROR]


def _is_wide(graph: Graph, node: Any, depths: Mapping[str, float]) -> bool:
    """Whether a product is worth 8 bits: constant weights, wide, not early, and not the output projection of attention.

    That projection is small, and its error is not averaged.
    """
    weights = graph.weights(node.input[1], 2) if node.op_type == "MatMul" else None
    if weights is None or graph.constant(node.input[0]) is not None:
        return False
    if _makes_heads(graph, node):
        return min(weights.shape) >= LEAST_HEADS_WIDTH
    late = depths[node.output[0]] >= EARLY_SHARE
    return late and min(weights.shape) >= LEAST_WIDTH and not _ends_attention(graph, node)


def _ends_attention(graph: Graph, node: Any) -> bool:
    """Whether a product takes the result of attention, possibly reordered."""
    source = graph.producer(node.input[0])
    while source is not None and source.op_type in _MOVES:
        source = graph.producer(source.input[0])
    if source is None or source.op_type not in ("MatMul", "MultiHeadAttention"):
        return False
    return all(graph.constant(name) is None for name in source.input)


def _makes_heads(graph: Graph, node: Any) -> bool:
    """Whether a product's result is split into heads: [...,C] -> [...,heads,C / heads]."""
    add = graph.sole_consumer(node.output[0], "Add")
    cut = None if add is None else graph.sole_consumer(add.output[0], "Reshape")
    target = None if cut is None else graph.constant(cut.input[1])
    weights = graph.weights(node.input[1], 2)
    if target is None or target.size != 4 or weights is None or target[2] < 1:
        return False
    return bool(target[3] == -1 or target[2] * target[3] == weights.shape[1])


def product_error(graph: Graph, node: Any, seen: Mapping[str, TensorStats]) -> float:
    """Standard deviation of the error over that of the result, with input and weights rounded as they will be."""
    weights, stats = graph.weights(node.input[1], 2), seen[node.input[0]]
    assert weights is not None  # checked by _is_wide
    step = max((stats.high - stats.low) / _RANGE, 1e-12)
    rounded, scales = _to_levels(weights)
    exact = stats.rows @ weights
    error = (np.rint(stats.rows / step) * np.float32(step)) @ (rounded * scales) - exact
    return float(np.std(error) / max(float(np.std(exact)), 1e-12))


def _to_levels(weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights [K,N] as integers [K,N] and a scale for each column [N]."""
    scales = np.abs(weights).max(axis=0) / np.float32(_LEVELS)
    scales[scales == 0] = 1.0
    return np.rint(weights / scales), scales


def to_int8(graph: Graph, products: Sequence[Any]) -> None:
    """Replaces products with constant weights by 8-bit ones: a scale per channel, inputs quantised at run time.

    One operator does it all, bias included. ONNX Runtime's general tool writes five in a row, which cost what is
    gained.
    """
    for node in products:
        weights = graph.weights(node.input[1], 2)
        if weights is None:
            raise ValueError(f"{node.name} has no constant weights")
        add = graph.sole_consumer(node.output[0], "Add")
        found = None if add is None else graph.matmul_with_bias(add.output[0])
        output, bias = (node.output[0], "") if found is None else (add.output[0], found[2])
        rounded, scales = _to_levels(weights)
        inputs = [
            node.input[0],
            graph.add_constant(f"{output}/int8", rounded.astype(np.int8)),
            graph.add_constant(f"{output}/scales", scales),
            graph.add_constant(f"{output}/zeros", np.zeros(len(scales), np.int8)),
            bias,
        ]
        new = graph.node("DynamicQuantizeMatMul", inputs, [output], CONTRIB)
        graph.replace([node] if found is None else [node, add], [new])
