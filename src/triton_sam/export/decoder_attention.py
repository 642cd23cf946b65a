"""Attention between a few tokens and the whole image, without projecting the image.

A decoder's image has thousands of places, its prompt a handful of tokens. Products can be taken in another order: in
``q (X W)^T = (q W^T) X^T`` the projection moves from the image to the tokens, which halves the work for a click, and
positions that are added to the image become constants. Exact but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_sam.export.decoder_facts import Facts
from triton_sam.export.graph_rewrites import CONTRIB, FloatArray, Graph
from triton_sam.export.graph_steps import Steps

_HEADS_AFTER_TOKENS = [0, 2, 1, 3]
_KEYS_LAST = [0, 2, 3, 1]
#: A sequence of a fixed length from here on is an image; tokens are few, and as many as the prompt wants.
_LEAST_PLACES = 256


@dataclass(frozen=True, slots=True)
class _Projection:
    """``source W + b``, cut into heads.

    Attributes:
        heads: the tensor [B,heads,L,d], or [B,heads,d,L], as attention takes it.
        factor: what it has been multiplied with.
        weights, bias: [C,heads,d] and [heads,d].
    """

    source: str
    heads: str
    factor: float
    weights: FloatArray
    bias: FloatArray


@dataclass(frozen=True, slots=True)
class _Image:
    """An image as a sequence, and what is added to it.

    Attributes:
        tensor: name of [B,N,C].
        positions: [N,C], the same for every image; None where there are none.
    """

    tensor: str
    places: int
    channels: int
    positions: FloatArray | None


@dataclass(frozen=True, slots=True)
class _Attention:
    """softmax(factor q k^T) v as nodes.

    Attributes:
        steps: its nodes from the scores on.
        mixed: the last of them.
    """

    query: _Projection
    key: _Projection
    value: _Projection
    factor: float
    steps: list[Any]
    mixed: Any


def count_attentions(graph: Graph, facts: Facts) -> int:
    """How many attentions between tokens and an image a plain decoder has, however they are spelled.

    Each has a softmax over as many numbers as there are tokens and places, and projects the image twice: to keys and
    values, or to queries and back.
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
    """Whether one is a number of places, and the other as many as the prompt wants."""
    return (rows is None) != (columns is None) and (rows or columns or 0) >= _LEAST_PLACES


def absorb_image_projections(graph: Graph, facts: Facts) -> int:
    """Rewrites every attention between tokens and an image; gives the number of them."""
    done = 0
    for softmax in [node for node in graph.nodes if node.op_type == "Softmax"]:
        found = _match(graph, facts, softmax)
        if found is None:
            continue
        done += _tokens_ask(graph, facts, found) or _image_asks(graph, facts, found)
    return done


def _match(graph: Graph, facts: Facts, softmax: Any) -> _Attention | None:
    product, factor = _without_factor(graph, softmax.input[0])
    scores = graph.producer(product, "MatMul")
    mixed = graph.sole_consumer(softmax.output[0], "MatMul")
    if scores is None or mixed is None or mixed.input[0] != softmax.output[0]:
        return None
    if graph.attribute(softmax, "axis", -1) not in (-1, 3):
        return None
    steps = [scores, softmax, mixed]
    if product != softmax.input[0]:
        steps.insert(1, graph.producer(softmax.input[0]))
    if any(graph.sole_consumer(step.output[0]) is None for step in steps[:-1]):
        return None
    orders = (_HEADS_AFTER_TOKENS, _KEYS_LAST, _HEADS_AFTER_TOKENS)
    names = (scores.input[0], scores.input[1], mixed.input[1])
    parts = [_projection(graph, facts, name, order) for name, order in zip(names, orders, strict=True)]
    query, key, value = parts
    if query is None or key is None or value is None:
        return None
    return _Attention(query, key, value, factor, steps, mixed)


def _projection(graph: Graph, facts: Facts, name: str, order: list[int]) -> _Projection | None:
    tensor, factor, turned = _before_turns(graph, name)
    cut = graph.producer(tensor, "Reshape")
    found = None if cut is None or turned != order else graph.matmul_with_bias(cut.input[0])
    sizes = facts.shape(tensor)
    if found is None or len(sizes) != 4 or sizes[2] is None or sizes[3] is None:
        return None
    matmul, _, bias = found
    weights, offsets = graph.weights(matmul.input[1], 2), graph.weights(bias, 1)
    if weights is None or offsets is None or offsets.size != sizes[2] * sizes[3]:
        return None
    heads = (sizes[2], sizes[3])
    return _Projection(matmul.input[0], name, factor, weights.reshape(-1, *heads), offsets.reshape(heads))


def _before_turns(graph: Graph, name: str) -> tuple[str, float, list[int]]:
    """A tensor with four axes before it was multiplied with numbers and transposed: (its name, factor, order)."""
    factor, order = 1.0, [0, 1, 2, 3]
    while True:
        name, number = _without_factor(graph, name)
        factor *= number
        turn = graph.producer(name, "Transpose")
        axes = [] if turn is None else list(graph.attribute(turn, "perm", []))
        if len(axes) == len(order):
            name, order = turn.input[0], [axes[axis] for axis in order]
        elif number == 1.0:
            return name, factor, order


def _without_factor(graph: Graph, name: str) -> tuple[str, float]:
    """A tensor before it was multiplied with a number, or divided by one, and the factor."""
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


def _image(graph: Graph, facts: Facts, name: str) -> _Image | None:
    """A tensor [B,N,C] or [B,1,N,C] as an image; None where it is none."""
    sizes = facts.shape(name)
    if len(sizes) not in (3, 4) or (len(sizes) == 4 and sizes[1] != 1):
        return None
    places, channels = sizes[-2], sizes[-1]
    if places is None or channels is None or places < _LEAST_PLACES:
        return None
    add = graph.producer(name, "Add")
    for tensor, other in () if add is None else (tuple(add.input), tuple(reversed(add.input))):
        positions = facts.constants.get(other, graph.constant(other))
        if positions is None or positions.size != places * channels or not facts.shape(tensor):
            continue
        if facts.shape(tensor)[-2:] == (places, channels):
            return _Image(tensor, places, channels, positions.reshape(places, channels).astype(np.float32))
    return _Image(name, places, channels, None)


def _as_rows(graph: Graph, facts: Facts, image: _Image) -> str:
    """An image as [B,N,C], whatever its rank."""
    if len(facts.shape(image.tensor)) == 3:
        return image.tensor
    name = f"{image.tensor}/rows"
    if graph.producer(name) is None:
        shape = graph.add_constant(f"{name}/shape", np.array([-1, image.places, image.channels], np.int64))
        graph.replace([], [graph.node("Reshape", [image.tensor, shape], [name])])
    return name


def _tokens_ask(graph: Graph, facts: Facts, attention: _Attention) -> bool:
    """Tokens [B,heads,T,d] attend to an image [B,N,C]."""
    key, value = attention.key, attention.value
    asked, given = _image(graph, facts, key.source), _image(graph, facts, value.source)
    if asked is None or given is None or _image(graph, facts, attention.query.source) is not None:
        return False
    channels, heads, _ = key.weights.shape
    rows = _as_rows(graph, facts, asked)
    given_rows = _as_rows(graph, facts, _Image(value.source, given.places, given.channels, None))
    steps = Steps(graph, attention.mixed.output[0])
    query = attention.query.heads
    # The bias of the keys adds the same to all scores of a token, which softmax does not see.
    factor = np.float32(key.factor * attention.factor)
    inner = key.weights.transpose(1, 2, 0) * factor  # [heads,d,C]
    wide = steps.step("MatMul", query, steps.constant(inner))
    wide = steps.reshape(wide, 0, -1, channels)
    scores = steps.step("FusedMatMul", wide, rows, domain=CONTRIB, transB=1)
    scores = steps.reshape(scores, 0, heads, -1, asked.places)
    if asked.positions is not None:
        placed = np.einsum("nc,chd->hdn", asked.positions, key.weights * factor, optimize=True)
        scores = steps.step("Add", scores, steps.step("MatMul", query, steps.constant(placed)))
    weights = steps.step("Softmax", scores, axis=-1)
    weights = steps.reshape(weights, 0, -1, asked.places)
    mixed = steps.reshape(steps.step("MatMul", weights, given_rows), 0, heads, -1, channels)
    mixed = steps.step("MatMul", mixed, steps.constant(value.weights.transpose(1, 0, 2) * np.float32(value.factor)))
    bias = steps.constant(value.bias[:, None] * np.float32(value.factor))
    steps.step("Add", mixed, bias, to=attention.mixed.output[0])
    graph.replace(attention.steps, steps.nodes)
    return True


def _image_asks(graph: Graph, facts: Facts, attention: _Attention) -> bool:
    """An image [B,N,C] attends to tokens [B,heads,T,d]; what it learns is projected back."""
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
    steps = Steps(graph, last)
    keys = attention.key.heads  # [B,heads,d,T]
    factor = np.float32(query.factor * attention.factor)
    asking = steps.step("MatMul", steps.constant(query.weights.transpose(1, 0, 2) * factor), keys)
    asking = steps.step("Transpose", asking, perm=_HEADS_AFTER_TOKENS)
    scores = steps.step("MatMul", rows, steps.reshape(asking, 0, channels, -1))  # [B,N,heads*T]
    # Positions and bias are known beforehand; every head's keys in a matrix of their own, zeros beside them.
    positions = np.zeros((image.places, channels), np.float32) if image.positions is None else image.positions
    placed = np.einsum("nc,chd->nhd", positions, query.weights, optimize=True) + query.bias
    apart = steps.reshape(keys, 0, heads, width, 1, -1)
    own = np.eye(heads, dtype=np.float32).reshape(heads, 1, heads, 1)
    apart = steps.reshape(steps.step("Mul", apart, steps.constant(own)), 0, heads * width, -1)
    placed_scores = steps.step("MatMul", steps.constant(placed.reshape(image.places, -1) * factor), apart)
    scores = steps.step("Add", scores, placed_scores)
    weights = steps.step("Softmax", steps.reshape(scores, 0, image.places, heads, -1), axis=-1)
    weights = steps.reshape(weights, 0, image.places, -1)
    answers = steps.step("MatMul", attention.value.heads, steps.constant(out_weights.reshape(heads, width, -1)))
    # The weights of a head add up to one, so that a share of the bias in each head's answers is the bias in the end.
    answers = steps.step("Add", answers, steps.constant(out_bias / np.float32(heads)))
    learnt = steps.step("MatMul", weights, steps.reshape(answers, 0, -1, channels))  # [B,N,C]
    back = [-1, image.places, channels] if rank == 3 else [-1, 1, image.places, channels]
    steps.reshape(learnt, *back, to=last)
    graph.replace([*attention.steps, *gone], steps.nodes)
    return True


def _projected_back(graph: Graph, mixed: Any) -> tuple[str, FloatArray, FloatArray, list[Any]] | None:
    """(name of the attention's result, weights [heads*d,C], bias [C], the nodes after ``mixed`` that make it)."""
    turns = [node for node in graph.consumers(mixed.output[0]) if node.op_type != "Shape"]
    if len(turns) != 1 or turns[0].op_type != "Transpose":
        return None
    back = turns[0]
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
