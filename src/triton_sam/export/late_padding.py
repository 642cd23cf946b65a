"""Projects the tokens of an image before they are padded for windows, and after what was padded is cut off again.

Where windows do not fit the image, it is padded with zeros, at 512 pixels to 1.7 times its tokens. A token's products
do not depend on others: those of a zero are zero, so that padding may come after the product and before the bias, and
the product behind the attention need not be made of tokens that are cut off.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_sam.export.onnx_graph import Graph

_WINDOWS_FIRST = [0, 1, 3, 2, 4, 5]


def project_before_padding(graph: Graph) -> int:
    """Moves products of padded tokens in front of the padding; returns their number."""
    return sum(_move_forward(graph, node) for node in [node for node in graph.nodes if node.op_type == "MatMul"])


def _move_forward(graph: Graph, matmul: Any) -> bool:
    weights = graph.weights(matmul.input[1], 2)
    last = graph.producer(matmul.input[0], "Reshape")
    turned = None if last is None else graph.producer(last.input[0], "Transpose")
    first = None if turned is None else graph.producer(turned.input[0], "Reshape")
    pad = None if first is None else graph.producer(first.input[0], "Pad")
    if weights is None or pad is None or not _pads_tokens(graph, pad) or not _keeps_tokens(graph, first, turned, last):
        return False
    name, width = matmul.output[0], weights.shape[1]
    parts = [f"{name}/{part}" for part in ("product", "padded", "parts", "windows")]
    new = [
        graph.node("MatMul", [pad.input[0], matmul.input[1]], parts[:1]),
        graph.node("Pad", [parts[0], pad.input[1]], parts[1:2]),
        graph.node("Reshape", [parts[1], _with_width(graph, parts[2], first, width)], parts[2:3]),
        graph.node("Transpose", [parts[2]], parts[3:], perm=_WINDOWS_FIRST),
        graph.node("Reshape", [parts[3], _with_width(graph, name, last, width)], [name]),
    ]
    graph.replace([matmul], new)
    return True


def _pads_tokens(graph: Graph, pad: Any) -> bool:
    """Whether a Pad adds rows and columns of zeros to an image [1,H,W,C]."""
    amounts = graph.constant(pad.input[1])
    value = graph.number(pad.input[2]) if len(pad.input) > 2 and pad.input[2] else 0.0
    is_plain = value == 0.0 and graph.attribute(pad, "mode", b"constant") == b"constant" and len(pad.input) < 4
    return is_plain and amounts is not None and amounts.size == 8 and not amounts[[0, 3, 4, 7]].any()


def _keeps_tokens(graph: Graph, first: Any, turned: Any, last: Any) -> bool:
    """Whether the nodes split an image [1,H,W,C] into windows [N,h,w,C], or join them: no token is torn apart."""
    shapes = [graph.shape(name) for name in (first.input[0], first.output[0], last.output[0])]
    if any(None in shape for shape in shapes) or [len(shape) for shape in shapes] != [4, 6, 4]:
        return False
    is_turned = list(graph.attribute(turned, "perm", [])) == _WINDOWS_FIRST
    return is_turned and len({shape[-1] for shape in shapes}) == 1


def _with_width(graph: Graph, name: str, reshape: Any, width: int) -> str:
    sizes = [*graph.shape(reshape.output[0])[:-1], width]
    return graph.add_constant(f"{name}/shape", np.array(sizes, np.int64))


def project_after_cutting(graph: Graph) -> int:
    """Moves products behind the cutting off of padded tokens; returns their number."""
    return sum(_move_back(graph, node) for node in [node for node in graph.nodes if node.op_type == "Slice"])


def _move_back(graph: Graph, cut: Any) -> bool:
    """
    Args:
        cut: a Slice; only the last one of several in a row is moved behind.
    """
    if graph.sole_consumer(cut.output[0], "Slice") is not None:
        return False
    slices = [cut]
    while (before := graph.producer(slices[0].input[0], "Slice")) is not None and _is_alone(graph, before):
        slices.insert(0, before)
    last = graph.producer(slices[0].input[0], "Reshape")
    turned = None if last is None else graph.producer(last.input[0], "Transpose")
    first = None if turned is None else graph.producer(turned.input[0], "Reshape")
    found = None if first is None else graph.matmul_with_bias(first.input[0])
    if first is None or found is None or not all(_is_alone(graph, node) for node in (last, turned, first, found[1])):
        return False
    matmul, add, bias = found
    weights = graph.weights(matmul.input[1], 2)
    is_square = weights is not None and weights.shape[0] == weights.shape[1]
    if (
        not is_square
        or not _keeps_tokens(graph, first, turned, last)
        or not all(_keeps_width(graph, one) for one in slices)
    ):
        return False
    name = cut.output[0]
    first.input[0] = matmul.input[0]
    cut.output[0] = f"{name}/tokens"
    new = [
        graph.node("MatMul", [cut.output[0], matmul.input[1]], [f"{name}/product"]),
        graph.node("Add", [f"{name}/product", bias], [name]),
    ]
    graph.replace([matmul, add], new)
    return True


def _is_alone(graph: Graph, node: Any) -> bool:
    return graph.sole_consumer(node.output[0]) is not None


def _keeps_width(graph: Graph, cut: Any) -> bool:
    """Whether a Slice leaves the last of four axes whole."""
    before, after = graph.shape(cut.input[0]), graph.shape(cut.output[0])
    return len(before) == len(after) == 4 and before[3] is not None and before[3] == after[3]
