"""Rewrites of a plain encoder that change what it costs on a CPU but not what it computes.

Each rewrite looks for one pattern and returns how often it found it. What does not match is left as it is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.export.onnx_graph import CONTRIB, Graph

#: The fused operator is faster from this many keys on, and for a single head. For small windows it only adds two
#: transposes.
_LEAST_KEYS = 1024
_HEADS_AFTER_TOKENS = [0, 2, 1, 3]
_KEYS_LAST = [0, 2, 3, 1]


def join_convolutions(graph: Graph) -> int:
    """Joins two 1x1 convolutions in a row into one: SAM2's neck computes 256 channels and then reduces them to 32.

    Returns:
        the number of pairs, also of those that are cheaper as two, and stay.
    """
    done = 0
    for first in list(graph.nodes):
        second = graph.sole_consumer(first.output[0], "Conv") if first.op_type == "Conv" else None
        if second is None or not (_is_pointwise(graph, first) and _is_pointwise(graph, second)):
            continue
        inner, outer = graph.weights(first.input[1], 4), graph.weights(second.input[1], 4)
        if inner is None or outer is None:
            continue
        if inner.shape[1] > inner.shape[0]:
            done += 1  # a bottleneck is cheaper as two convolutions
            continue
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
    """Splits the joint MatMul of queries, keys and values into three, which saves copying its result apart."""
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
        assert weights is not None  # checked by matmul_with_bias
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
    """The number of attentions in a plain encoder, however they are written: each has one softmax."""
    return sum(node.op_type == "Softmax" for node in graph.nodes)


def fuse_attention(graph: Graph) -> int:
    """Fuses softmax(q k^T) v, together with the factors of q and k.

    Global attention becomes one operator, which never stores all weights (64 million for SAM2). Windowed attention
    keeps its nodes, except that the keys are no longer transposed element by element.
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
    """(the tensor before it was multiplied by a number, that number)."""
    node = graph.producer(name, "Mul")
    for tensor, factor in () if node is None else (tuple(node.input), tuple(reversed(node.input))):
        number = graph.number(factor)
        if number is not None and math.isfinite(number):
            return tensor, number
    return name, 1.0
