"""Fixes the number of images in an encoder to one, and with it every shape: what is left is arithmetic on pixels.

An encoder that is exported with a free number of images computes the shapes of its windows again and again, from
tensors of all sizes. Rewrites cannot see through that. With one image these numbers are constants, and padding or
cutting by nothing, and conversions to the type that is there already, are steps without an effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from triton_sam.export.onnx_graph import FloatArray, Graph, onnx_package

#: Operators whose output may be their input, by type or by shape.
_MAYBE_WITHOUT_EFFECT = ("Cast", "Pad", "Slice", "Reshape", "Identity", "Squeeze", "Unsqueeze")


def for_one_image(model: Any, image: str) -> Any:
    """The model for one image at a time, with constant shapes; the model itself if it computes no shapes.

    Args:
        image: name of the input, [N,3,height,width].
    """
    entry = next(entry for entry in model.graph.input if entry.name == image)
    axes = entry.type.tensor_type.shape.dim
    computes_shapes = any(node.op_type == "Shape" for node in model.graph.node)
    if not computes_shapes or len(axes) != 4 or any(not axis.dim_value for axis in axes[1:]):
        return model
    axes[0].dim_value = 1
    sizes = [axis.dim_value for axis in axes]
    for value in model.graph.output:  # it is another one now, and inferred
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    graph = Graph(model)
    _fold(graph, model, image, sizes)
    folded = Graph(graph.finish())
    _drop_steps_without_effect(folded)
    return folded.finish()


def _fold(graph: Graph, model: Any, image: str, sizes: list[int]) -> None:
    """Replaces what depends on nothing but shapes by its values, which one run tells."""
    fixed = _fixed_nodes(graph)
    names = {name for node in fixed for name in node.output}
    gone = {id(node) for node in fixed}
    asked = {name for node in graph.nodes if id(node) not in gone for name in node.input if name in names}
    if asked:
        pixels = np.zeros(sizes, np.float32)
        for name, value in zip(sorted(asked), _values(model, sorted(asked), {image: pixels}), strict=True):
            graph.add_constant(name, value)
    graph.replace(fixed, [])


def _fixed_nodes(graph: Graph) -> list[Any]:
    """The nodes whose outputs depend on the shapes of tensors and on constants alone, in order."""
    known: set[str] = {""}
    found = []
    for node in graph.in_order(graph.nodes):
        if node.op_type == "Shape" or all(name in known or graph.constant(name) is not None for name in node.input):
            known.update(node.output)
            found.append(node)
    return found


def _values(model: Any, names: Sequence[str], feeds: Mapping[str, FloatArray]) -> list[Any]:
    """Values of tensors inside a model."""
    looked = type(model)()
    looked.CopyFrom(model)
    del looked.graph.output[:]
    looked.graph.output.extend(onnx_package().ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(looked.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def _drop_steps_without_effect(graph: Graph) -> None:
    for node in list(graph.nodes):
        if node.op_type in _MAYBE_WITHOUT_EFFECT and _is_without_effect(graph, node):
            graph.bypass(node)


def _is_without_effect(graph: Graph, node: Any) -> bool:
    before, after = graph.shape(node.input[0]), graph.shape(node.output[0])
    if node.op_type == "Cast":
        return 0 < graph.kind(node.input[0]) == int(graph.attribute(node, "to", -1))
    if not before or None in before or before != after:
        return False
    if node.op_type == "Pad":
        amounts = graph.constant(node.input[1])
        return amounts is not None and not amounts.any()
    steps = graph.constant(node.input[4]) if node.op_type == "Slice" and len(node.input) > 4 else np.ones(1)
    return steps is not None and bool((steps == 1).all())
