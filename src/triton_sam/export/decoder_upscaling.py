"""Rewrites a decoder's upscaling from image tokens to masks: channels last, products instead of convolutions.

A transposed 2x2 convolution with a stride of 2 is one product per pixel, whose four results lie side by side. With the
channels last, the tokens need no transpose, results are moved as whole rows, and norms run over contiguous memory. The
result is the same up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_sam.export.decoder_analysis import DecoderFacts
from triton_sam.export.node_builder import NodeBuilder
from triton_sam.export.onnx_graph import CONTRIB, Graph
from triton_sam.models.specs import Graphs

_CHANNELS_LAST = [0, 2, 3, 1]
_CHANNELS_FIRST = [0, 3, 1, 2]


@dataclass(frozen=True, slots=True)
class _Pixels:
    """A tensor of the plain graph, [B,C,H,W], and the one [B,H,W,C] that replaces it."""

    plain: str
    last: str
    height: int
    width: int
    channels: int


def count_upscalings(graphs: Graphs) -> int:
    """How often a decoder doubles the sides of the image to reach the masks' size."""
    grid = dict(graphs.encoder.outputs)[graphs.encoder.embedding][-1]
    return (graphs.decoder.mask_side // grid).bit_length() - 1


def upscale_with_channels_last(graph: Graph, facts: DecoderFacts) -> int:
    """Rewrites the chain of transposed convolutions that ends in the masks; returns the number of convolutions."""
    for node in [node for node in graph.nodes if node.op_type == "ConvTranspose"]:
        start = _from_tokens(graph, facts, node)
        if start is None:
            continue
        builder = NodeBuilder(graph, node.output[0])
        height, width = start[1], start[2]
        tokens = builder.reshape(start[0], -1, height * width, start[3])
        pixels, done = _Pixels(node.input[0], tokens, height, width, start[3]), 0
        while True:
            following = _next(graph, facts, pixels, builder)
            if following is None:
                break
            pixels, convolutions = following
            done += convolutions
        if done and _into_masks(graph, pixels, builder):
            return done
    return 0


def _from_tokens(graph: Graph, facts: DecoderFacts, convolution: Any) -> tuple[str, int, int, int] | None:
    """(tokens [B,N,C] or [B,1,N,C], H, W, C) that a convolution takes as [B,C,H,W]."""
    shaped = graph.producer(convolution.input[0], "Reshape")
    transposed = None if shaped is None else graph.producer(shaped.input[0], "Transpose")
    sizes = () if shaped is None else facts.shape(shaped.output[0])
    if transposed is None or len(sizes) != 4 or sizes[1] is None or sizes[2] is None or sizes[3] is None:
        return None
    order = list(graph.attribute(transposed, "perm", []))
    tokens = facts.shape(transposed.input[0])
    if order not in ([0, 2, 1], [0, 1, 3, 2]) or tokens[-2:] != (sizes[2] * sizes[3], sizes[1]):
        return None
    return transposed.input[0], sizes[2], sizes[3], sizes[1]


def _next(graph: Graph, facts: DecoderFacts, pixels: _Pixels, builder: NodeBuilder) -> tuple[_Pixels, int] | None:
    """(the pixels after the next node of the chain, 1 if it was a convolution else 0); None at the end of the chain."""
    consumers = _users(graph, pixels.plain)
    if pixels.plain in graph.outputs or not consumers:
        return None
    norm = _norm(graph, consumers)
    if norm is not None:
        output, scale, bias, epsilon = norm
        names = [builder.constant(scale), builder.constant(bias)]
        last = builder.add("LayerNormalization", pixels.last, *names, axis=-1, epsilon=epsilon)
        return _Pixels(output, last, pixels.height, pixels.width, pixels.channels), 0
    if len(consumers) != 1:
        return None
    node = consumers[0]
    if node.op_type == "Gelu" and node.domain == CONTRIB:
        last = builder.add("Gelu", pixels.last, domain=CONTRIB)
        return _Pixels(node.output[0], last, pixels.height, pixels.width, pixels.channels), 0
    if node.op_type == "Add":
        return _added(graph, facts, pixels, node, builder)
    if node.op_type == "ConvTranspose":
        return _convolved(graph, pixels, node, builder)
    return None


def _convolved(graph: Graph, pixels: _Pixels, node: Any, builder: NodeBuilder) -> tuple[_Pixels, int] | None:
    """[B,H,W,C] -> [B,2H,2W,c]."""
    weights = graph.weights(node.input[1], 4)
    bias = graph.weights(node.input[2], 1) if len(node.input) > 2 else None
    wanted = {"strides": 2, "dilations": 1, "pads": 0, "output_padding": 0}
    plain = all(value == number for name, number in wanted.items() for value in graph.attribute(node, name, []))
    strides = graph.attribute(node, "strides", [])
    named = graph.attribute(node, "auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
    if weights is None or weights.shape[2:] != (2, 2) or not plain or len(strides) != 2 or not named:
        return None
    if graph.attribute(node, "group", 1) != 1 or (bias is None and len(node.input) > 2):
        return None
    channels, results = weights.shape[:2]
    matrix = weights.transpose(0, 2, 3, 1).reshape(channels, 4 * results)
    height, width = 2 * pixels.height, 2 * pixels.width
    product = builder.add("MatMul", pixels.last, builder.constant(matrix))
    if bias is not None:
        product = builder.add("Add", product, builder.constant(np.tile(bias, 4)))
    rows = builder.reshape(product, -1, pixels.width, 2, 2 * results)
    rows = builder.add("Transpose", rows, perm=[0, 2, 1, 3])
    last = builder.reshape(rows, -1, height, width, results)
    return _Pixels(node.output[0], last, height, width, results), 1


def _added(
    graph: Graph, facts: DecoderFacts, pixels: _Pixels, node: Any, builder: NodeBuilder
) -> tuple[_Pixels, int] | None:
    """The pixels after finer features [B or 1,c,H,W] are added to them."""
    other = next((name for name in node.input if name != pixels.plain), None)
    if other is None or len(facts.shape(other)) != 4 or graph.constant(other) is not None:
        return None
    features = builder.add("Transpose", other, perm=_CHANNELS_LAST)
    last = builder.add("Add", pixels.last, features)
    return _Pixels(node.output[0], last, pixels.height, pixels.width, pixels.channels), 0


def _norm(graph: Graph, consumers: list[Any]) -> tuple[str, Any, Any, float] | None:
    """(output, scale [C], bias [C], epsilon) of a norm over the channels, in either of the two forms it may have."""
    if len(consumers) == 1 and consumers[0].op_type == "Transpose":
        return _transposed_norm(graph, consumers[0])
    kinds = sorted(node.op_type for node in consumers)
    return _written_out_norm(graph, consumers) if kinds == ["ReduceMean", "Sub"] else None


def _transposed_norm(graph: Graph, transposed: Any) -> tuple[str, Any, Any, float] | None:
    """A norm written as Transpose, LayerNormalization, Transpose."""
    norm = graph.sole_consumer(transposed.output[0], "LayerNormalization")
    back = None if norm is None else graph.sole_consumer(norm.output[0], "Transpose")
    if back is None or len(norm.input) != 3 or graph.attribute(norm, "axis", -1) not in (-1, 3):
        return None
    orders = [list(graph.attribute(node, "perm", [])) for node in (transposed, back)]
    scale, bias = (graph.weights(name, 1) for name in norm.input[1:])
    if orders != [_CHANNELS_LAST, _CHANNELS_FIRST] or scale is None or bias is None:
        return None
    return back.output[0], scale, bias, graph.attribute(norm, "epsilon", 1e-5)


def _written_out_norm(graph: Graph, consumers: list[Any]) -> tuple[str, Any, Any, float] | None:
    """A norm written as one node per operation: (x - mean) / sqrt(variance + epsilon) * scale + bias."""
    mean, centred = sorted(consumers, key=lambda node: node.op_type)
    if centred.input[1] != mean.output[0] or not _is_over_channels(graph, mean):
        return None
    uses = {node.op_type: node for node in graph.consumers(centred.output[0])}
    power, divided = uses.get("Pow"), uses.get("Div")
    if len(uses) != 2 or power is None or divided is None or graph.number(power.input[1]) != 2.0:
        return None
    variance = graph.sole_consumer(power.output[0], "ReduceMean")
    shifted = None if variance is None else graph.sole_consumer(variance.output[0], "Add")
    root = None if shifted is None else graph.sole_consumer(shifted.output[0], "Sqrt")
    if shifted is None or root is None or not _is_over_channels(graph, variance) or divided.input[1] != root.output[0]:
        return None
    scaled = graph.sole_consumer(divided.output[0], "Mul")
    moved = None if scaled is None else graph.sole_consumer(scaled.output[0], "Add")
    epsilon = next((number for name in shifted.input if (number := graph.number(name)) is not None), None)
    if moved is None or epsilon is None:
        return None
    scale, bias = (
        next((array for name in node.input if (array := graph.weights(name, 3)) is not None), None)
        for node in (scaled, moved)
    )
    if scale is None or bias is None or scale.shape[1:] != (1, 1) or bias.shape != scale.shape:
        return None
    return moved.output[0], scale.reshape(-1), bias.reshape(-1), epsilon


def _is_over_channels(graph: Graph, mean: Any) -> bool:
    """Whether a ReduceMean is over axis 1. The axes are an attribute before opset 18 and an input since."""
    axes = graph.constant(mean.input[1]) if len(mean.input) > 1 else graph.attribute(mean, "axes")
    return axes is not None and list(axes) == [1] and graph.attribute(mean, "keepdims", 1) == 1


def _into_masks(graph: Graph, pixels: _Pixels, builder: NodeBuilder) -> bool:
    """Ends the chain: [B,M,c] times the pixels, as [B,M,H,W]. Only the requested masks are computed."""
    flat = _only_use(graph, pixels.plain, "Reshape")
    product = None if flat is None else _only_use(graph, flat.output[0], "MatMul")
    shaped = None if product is None else _only_use(graph, product.output[0], "Reshape")
    if flat is None or product is None or shaped is None or product.input[1] != flat.output[0]:
        return False
    tokens, end, gone = product.input[0], shaped.output[0], [product, shaped]
    cut = graph.sole_consumer(end, "Slice")
    if cut is not None and _is_of_masks(graph, cut):
        tokens = builder.add("Slice", tokens, *cut.input[1:])
        end, gone = cut.output[0], [*gone, cut]
    last = builder.reshape(pixels.last, -1, pixels.height * pixels.width, pixels.channels)
    masks = builder.add("FusedMatMul", tokens, last, domain=CONTRIB, transB=1)
    builder.reshape(masks, 0, 0, pixels.height, pixels.width, to=end)
    graph.replace(gone, builder.nodes)
    return True


def _only_use(graph: Graph, name: str, kind: str) -> Any:
    """The only node that uses a tensor's values, if it is of this kind; else None."""
    nodes = _users(graph, name)
    return nodes[0] if len(nodes) == 1 and nodes[0].op_type == kind and name not in graph.outputs else None


def _users(graph: Graph, name: str) -> list[Any]:
    """The consumers of a tensor except Shape nodes, which are not needed with the channels last."""
    return [node for node in graph.consumers(name) if node.op_type != "Shape"]


def _is_of_masks(graph: Graph, cut: Any) -> bool:
    """Whether a Slice has constant bounds and slices axis 1 only."""
    axes = graph.constant(cut.input[3]) if len(cut.input) > 3 else None
    return axes is not None and list(axes) == [1] and all(graph.constant(name) is not None for name in cut.input[1:])
