"""Rewrites a decoder so that the part that embeds a mask prompt runs only if there is one.

Exporters write no branches: the convolutions run for every click, and their result is discarded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_sam.export.decoder_comparison import Trial, open_decoder, run_decoder
from triton_sam.export.node_builder import NodeBuilder
from triton_sam.export.onnx_graph import FloatArray, Graph, onnx_package
from triton_sam.models.specs import Graphs


def skip_absent_masks(graph: Graph, model: Any, graphs: Graphs) -> int:
    """Moves the nodes that depend on the mask prompt alone into a branch; returns 1 if it did, else 0.

    Without a mask the branch returns one row [1,C,1,1] for all prompts: the nodes after it must not need a row for
    each.

    Args:
        model: the model that ``graph`` was built from.
    """
    mask, flag = graphs.decoder.mask, graphs.decoder.mask_flag
    inputs = {entry.name: entry for entry in model.graph.input}
    if mask not in inputs or flag not in inputs:
        return 0
    part = _fed_by(graph, {mask, flag}, set(inputs))
    made = {name for node in part for name in node.output}
    inside = {id(node) for node in part}
    ends = [
        name for name in made if name in graph.outputs or any(id(node) not in inside for node in graph.consumers(name))
    ]
    if len(ends) != 1 or ends[0] in graph.outputs or not any(node.op_type == "Conv" for node in part):
        return 0
    end = ends[0]
    nothing = _without_mask(graph, model, part, end, graphs)
    if nothing is None:
        return 0
    onnx = onnx_package()
    result = f"{end}/given"
    renamed = [_with_output(node, end, result) for node in part]
    given = onnx.helper.make_graph(renamed, "mask", [], [onnx.ValueInfoProto(name=result)], _constants(graph, part))
    value = onnx.numpy_helper.from_array(nothing)
    constant = onnx.helper.make_node("Constant", [], [f"{end}/none"], value=value)
    none = onnx.helper.make_graph([constant], "no_mask", [], [onnx.ValueInfoProto(name=f"{end}/none")])
    builder = NodeBuilder(graph, f"{end}/branch")
    largest = builder.add("ReduceMax", builder.add("Abs", flag), keepdims=0)
    wanted = builder.add("Greater", largest, builder.constant(np.zeros((), np.float32)))
    builder.add("If", wanted, to=end, then_branch=given, else_branch=none)
    graph.replace(part, builder.nodes)
    return 1


def _fed_by(graph: Graph, wanted: set[str], inputs: set[str]) -> list[Any]:
    """The nodes, in order, that depend on these inputs and on no others."""
    sources: dict[str, set[str]] = {name: {name} for name in inputs}
    part, waiting = [], list(graph.nodes)
    produced = {name for node in waiting for name in node.output}
    while waiting:
        later = []
        for node in waiting:
            if any(name in produced and name not in sources for name in node.input):
                later.append(node)
                continue
            reached = set().union(*(sources.get(name, set()) for name in node.input))
            sources.update(dict.fromkeys(node.output, reached))
            if reached and reached <= wanted:
                part.append(node)
        waiting = later
    return part


def _without_mask(graph: Graph, model: Any, part: list[Any], end: str, graphs: Graphs) -> FloatArray | None:
    """The part's output if there is no mask, [1,C,1,1]; None if it is not the same everywhere."""
    onnx = onnx_package()
    flags = (graphs.decoder.mask, graphs.decoder.mask_flag)
    inputs = [entry for entry in model.graph.input if entry.name in flags]
    alone = onnx.helper.make_graph(part, "mask", inputs, [onnx.ValueInfoProto(name=end)], _constants(graph, part))
    small = type(model)()
    small.CopyFrom(model)
    small.graph.CopyFrom(alone)
    feeds = Trial(2, 1, mask=True).feeds(graphs) | {graphs.decoder.mask_flag: np.zeros(1, np.float32)}
    (value,) = run_decoder(open_decoder(small.SerializeToString()), [end], feeds)
    if value.ndim != 4 or value.dtype != np.float32:
        return None
    first = value[:1, :, :1, :1]
    return np.ascontiguousarray(first) if (value == first).all() else None


def _constants(graph: Graph, nodes: list[Any]) -> list[Any]:
    onnx = onnx_package()
    names = dict.fromkeys(name for node in nodes for name in node.input)
    arrays = {name: graph.constant(name) for name in names}
    return [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if array is not None]


def _with_output(node: Any, old: str, new: str) -> Any:
    """A copy of a node with one output renamed: a branch must not shadow a name of the graph around it."""
    copy = type(node)()
    copy.CopyFrom(node)
    for index, name in enumerate(copy.output):
        if name == old:
            copy.output[index] = new
    return copy
