"""Rewrites attention between prompt tokens and the image so that the image is not projected.

A decoder's image has thousands of cells, its prompt a few tokens. The products are computed in another order:
``q (X W)^T = (q W^T) X^T`` moves the projection from the image to the tokens. That halves the work for a click, and the
positions that are added to the image become constants. The result is the same up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_sam.export.decoder_analysis import DecoderFacts
from triton_sam.export.node_builder import NodeBuilder
from triton_sam.export.onnx_graph import CONTRIB, FloatArray, Graph

_HEADS_AFTER_TOKENS = [0, 2, 1, 3]
_KEYS_LAST = [0, 2, 3, 1]
#: A sequence of a fixed length of at least this is an image; tokens are few, and their number depends on the prompt.
_LEAST_CELLS = 256


@dataclass(frozen=True, slots=True)
class _Projection:
    """``source W + b``, split into heads.

    Attributes:
        heads: name of the tensor [B,heads,L,d], or [B,heads,d,L], as attention takes it.
        factor: the number that it has been multiplied by.
        weights, bias: [C,heads,d] and [heads,d].
    """

    source: str
    heads: str
    factor: float
    weights: FloatArray
    bias: FloatArray


@dataclass(frozen=True, slots=True)
class _Image:
    """An image as a sequence, and the positions that are added to it.

    Attributes:
        tensor: name of the tensor [B,N,C].
        cells: N.
        positions: [N,C], the same for every image; None if nothing is added.
    """

    tensor: str
    cells: int
    channels: int
    positions: FloatArray | None


@dataclass(frozen=True, slots=True)
class _Attention:
    """The nodes of softmax(factor q k^T) v.

    Attributes:
        nodes: from the scores on.
        mixed: the last node, the product with the values.
    """

    query: _Projection
    key: _Projection
    value: _Projection
    factor: float
    nodes: list[Any]
    mixed: Any


def count_attentions(graph: Graph, facts: DecoderFacts) -> int:
    """The number of attentions between tokens and an image in a plain decoder, however they are written.

    Each has a softmax over tokens by cells, and projects the image twice: to keys and values, or to queries and back.
    """
    softmaxes = [facts.shape(node.output[0])[-2:] for node in graph.nodes if node.op_type == "Softmax"]
    between = [sizes for sizes in softmaxes if len(sizes) == 2 and _is_between(*sizes)]
    projections = [
        node
        for node in graph.nodes
        if node.op_type == "MatMul"
        and graph.weights(node.input[1], 2) is not None
        and _image(graph, facts, node.input[0]) is not None
    ]
    return max(len(between), len(projections) // 2)


def _is_between(rows: int | None, columns: int | None) -> bool:
    """Whether one size is a number of cells, and the other depends on the prompt."""
    return (rows is None) != (columns is None) and (rows or columns or 0) >= _LEAST_CELLS


def absorb_image_projections(graph: Graph, facts: DecoderFacts) -> int:
    """Rewrites every attention between tokens and an image; returns how many were rewritten."""
    done = 0
    for softmax in [node for node in graph.nodes if node.op_type == "Softmax"]:
        found = _match(graph, facts, softmax)
        if found is None:
            continue
        done += _rewrite_tokens_to_image(graph, facts, found) or _rewrite_image_to_tokens(graph, facts, found)
    return done


def _match(graph: Graph, facts: DecoderFacts, softmax: Any) -> _Attention | None:
    product, factor = _without_factor(graph, softmax.input[0])
    scores = graph.producer(product, "MatMul")
    mixed = graph.sole_consumer(softmax.output[0], "MatMul")
    if scores is None or mixed is None or mixed.input[0] != softmax.output[0]:
        return None
    if graph.attribute(softmax, "axis", -1) not in (-1, 3):
        return None
    nodes = [scores, softmax, mixed]
    if product != softmax.input[0]:
        nodes.insert(1, graph.producer(softmax.input[0]))
    if any(graph.sole_consumer(node.output[0]) is None for node in nodes[:-1]):
        return None
    orders = (_HEADS_AFTER_TOKENS, _KEYS_LAST, _HEADS_AFTER_TOKENS)
    names = (scores.input[0], scores.input[1], mixed.input[1])
    parts = [_projection(graph, facts, name, order) for name, order in zip(names, orders, strict=True)]
    query, key, value = parts
    if query is None or key is None or value is None:
        return None
    return _Attention(query, key, value, factor, nodes, mixed)


def _projection(graph: Graph, facts: DecoderFacts, name: str, order: list[int]) -> _Projection | None:
    tensor, factor, transposed = _before_transposes(graph, name)
    split = graph.producer(tensor, "Reshape")
    found = None if split is None or transposed != order else graph.matmul_with_bias(split.input[0])
    sizes = facts.shape(tensor)
    if found is None or len(sizes) != 4 or sizes[2] is None or sizes[3] is None:
        return None
    matmul, _, bias = found
    weights, offsets = graph.weights(matmul.input[1], 2), graph.weights(bias, 1)
    if weights is None or offsets is None or offsets.size != sizes[2] * sizes[3]:
        return None
    heads = (sizes[2], sizes[3])
    return _Projection(matmul.input[0], name, factor, weights.reshape(-1, *heads), offsets.reshape(heads))


def _before_transposes(graph: Graph, name: str) -> tuple[str, float, list[int]]:
    """A tensor with four axes before it was multiplied by numbers and transposed: (its name, factor, order)."""
    factor, order = 1.0, [0, 1, 2, 3]
    while True:
        name, number = _without_factor(graph, name)
        factor *= number
        transpose = graph.producer(name, "Transpose")
        axes = [] if transpose is None else list(graph.attribute(transpose, "perm", []))
        if len(axes) == len(order):
            name, order = transpose.input[0], [axes[axis] for axis in order]
        elif number == 1.0:
            return name, factor, order


def _without_factor(graph: Graph, name: str) -> tuple[str, float]:
    """(the tensor before it was multiplied or divided by a number, the factor)."""
    node = graph.producer(name, "Mul", "Div")
    if node is None:
        return name, 1.0
    number = graph.number(node.input[1])
    if node.op_type == "Div":
        return (node.input[0], 1.0 / number) if number else (name, 1.0)
    if number is not None:
        return node.input[0], number
    number = graph.number(node.input[0])
    return (name, 1.0) if number is None else (node.input[1], number)


def _image(graph: Graph, facts: DecoderFacts, name: str) -> _Image | None:
    """A tensor [B,N,C] or [B,1,N,C] as an image; None if it is not one."""
    sizes = facts.shape(name)
    if len(sizes) not in (3, 4) or (len(sizes) == 4 and sizes[1] != 1):
        return None
    cells, channels = sizes[-2], sizes[-1]
    if cells is None or channels is None or cells < _LEAST_CELLS:
        return None
    add = graph.producer(name, "Add")
    for tensor, other in () if add is None else (tuple(add.input), tuple(reversed(add.input))):
        positions = facts.constants.get(other, graph.constant(other))
        if positions is None or positions.size != cells * channels or not facts.shape(tensor):
            continue
        if facts.shape(tensor)[-2:] == (cells, channels):
            return _Image(tensor, cells, channels, positions.reshape(cells, channels).astype(np.float32))
    return _Image(name, cells, channels, None)


def _as_rows(graph: Graph, facts: DecoderFacts, image: _Image) -> str:
    """Name of the image as [B,N,C], whatever its rank."""
    if len(facts.shape(image.tensor)) == 3:
        return image.tensor
    name = f"{image.tensor}/rows"
    if graph.producer(name) is None:
        shape = graph.add_constant(f"{name}/shape", np.array([-1, image.cells, image.channels], np.int64))
        graph.replace([], [graph.node("Reshape", [image.tensor, shape], [name])])
    return name


def _rewrite_tokens_to_image(graph: Graph, facts: DecoderFacts, attention: _Attention) -> bool:
    """Tokens [B,heads,T,d] attend to an image [B,N,C]."""
    key, value = attention.key, attention.value
    asked, given = _image(graph, facts, key.source), _image(graph, facts, value.source)
    if asked is None or given is None or _image(graph, facts, attention.query.source) is not None:
        return False
    channels, heads, _ = key.weights.shape
    rows = _as_rows(graph, facts, asked)
    given_rows = _as_rows(graph, facts, _Image(value.source, given.cells, given.channels, None))
    builder = NodeBuilder(graph, attention.mixed.output[0])
    query = attention.query.heads
    # The keys' bias adds the same number to all scores of a token, which does not change the softmax.
    factor = np.float32(key.factor * attention.factor)
    inner = key.weights.transpose(1, 2, 0) * factor  # [heads,d,C]
    wide = builder.add("MatMul", query, builder.constant(inner))
    wide = builder.reshape(wide, 0, -1, channels)
    scores = builder.add("FusedMatMul", wide, rows, domain=CONTRIB, transB=1)
    scores = builder.reshape(scores, 0, heads, -1, asked.cells)
    if asked.positions is not None:
        placed = np.einsum("nc,chd->hdn", asked.positions, key.weights * factor, optimize=True)
        scores = builder.add("Add", scores, builder.add("MatMul", query, builder.constant(placed)))
    weights = builder.add("Softmax", scores, axis=-1)
    weights = builder.reshape(weights, 0, -1, asked.cells)
    mixed = builder.reshape(builder.add("MatMul", weights, given_rows), 0, heads, -1, channels)
    mixed = builder.add("MatMul", mixed, builder.constant(value.weights.transpose(1, 0, 2) * np.float32(value.factor)))
    bias = builder.constant(value.bias[:, None] * np.float32(value.factor))
    builder.add("Add", mixed, bias, to=attention.mixed.output[0])
    graph.replace(attention.nodes, builder.nodes)
    return True


def _rewrite_image_to_tokens(graph: Graph, facts: DecoderFacts, attention: _Attention) -> bool:
    """An image [B,N,C] attends to tokens [B,heads,T,d], and the result is projected back."""
    query = attention.query
    image = _image(graph, facts, query.source)
    if image is None or any(_image(graph, facts, part.source) for part in (attention.key, attention.value)):
        return False
    ending = _projected_back(graph, attention.mixed)
    if ending is None:
        return False
    last, out_weights, out_bias, gone = ending
    channels, heads, width = query.weights.shape
    rank = len(facts.shape(image.tensor))
    rows = _as_rows(graph, facts, image)
    builder = NodeBuilder(graph, last)
    keys = attention.key.heads  # [B,heads,d,T]
    factor = np.float32(query.factor * attention.factor)
    asking = builder.add("MatMul", builder.constant(query.weights.transpose(1, 0, 2) * factor), keys)
    asking = builder.add("Transpose", asking, perm=_HEADS_AFTER_TOKENS)
    scores = builder.add("MatMul", rows, builder.reshape(asking, 0, channels, -1))  # [B,N,heads*T]
    # Positions and bias are known beforehand. The keys become block-diagonal, one block per head.
    positions = np.zeros((image.cells, channels), np.float32) if image.positions is None else image.positions
    placed = np.einsum("nc,chd->nhd", positions, query.weights, optimize=True) + query.bias
    apart = builder.reshape(keys, 0, heads, width, 1, -1)
    own = np.eye(heads, dtype=np.float32).reshape(heads, 1, heads, 1)
    apart = builder.reshape(builder.add("Mul", apart, builder.constant(own)), 0, heads * width, -1)
    placed_scores = builder.add("MatMul", builder.constant(placed.reshape(image.cells, -1) * factor), apart)
    scores = builder.add("Add", scores, placed_scores)
    weights = builder.add("Softmax", builder.reshape(scores, 0, image.cells, heads, -1), axis=-1)
    weights = builder.reshape(weights, 0, image.cells, -1)
    answers = builder.add("MatMul", attention.value.heads, builder.constant(out_weights.reshape(heads, width, -1)))
    # The weights of a head add up to one, so an equal share of the bias in each head adds up to the bias.
    answers = builder.add("Add", answers, builder.constant(out_bias / np.float32(heads)))
    learnt = builder.add("MatMul", weights, builder.reshape(answers, 0, -1, channels))  # [B,N,C]
    back = [-1, image.cells, channels] if rank == 3 else [-1, 1, image.cells, channels]
    builder.reshape(learnt, *back, to=last)
    graph.replace([*attention.nodes, *gone], builder.nodes)
    return True


def _projected_back(graph: Graph, mixed: Any) -> tuple[str, FloatArray, FloatArray, list[Any]] | None:
    """(name of the attention's result, weights [heads*d,C], bias [C], the nodes after ``mixed`` that compute it)."""
    transposes = [node for node in graph.consumers(mixed.output[0]) if node.op_type != "Shape"]
    if len(transposes) != 1 or transposes[0].op_type != "Transpose":
        return None
    back = transposes[0]
    flat = graph.sole_consumer(back.output[0], "Reshape")
    matmul = graph.sole_consumer(flat.output[0], "MatMul") if flat is not None else None
    add = graph.sole_consumer(matmul.output[0], "Add") if matmul is not None else None
    found = graph.matmul_with_bias(add.output[0]) if add is not None else None
    if found is None or list(graph.attribute(back, "perm", [])) != _HEADS_AFTER_TOKENS:
        return None
    weights, bias = graph.weights(found[0].input[1], 2), graph.weights(found[2], 1)
    if weights is None or bias is None:
        return None
    return found[1].output[0], weights, bias, [back, flat, *found[:2]]
