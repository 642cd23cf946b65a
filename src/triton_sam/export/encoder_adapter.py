"""Adapts an exported encoder to the output names and the pixel range that another tool expects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from triton_sam.export.onnx_files import save


def adapt_encoder(
    graph: Path, target: Path, *, outputs: Mapping[str, str], pixel_range: tuple[float, float] = (0.0, 1.0)
) -> None:
    """Writes a copy of ``graph`` to ``target``.

    Args:
        outputs: our output name -> the other tool's.
        pixel_range: the other tool's values of black and white; ours are 0 and 1.
    """
    model = onnx.load(str(graph))
    for node in model.graph.node:
        node.output[:] = [outputs.get(name, name) for name in node.output]
        node.input[:] = [outputs.get(name, name) for name in node.input]
    for entry in model.graph.output:
        entry.name = outputs.get(entry.name, entry.name)
    if pixel_range != (0.0, 1.0):
        _rescale_input(model.graph, pixel_range)
    save(model, target)


def _rescale_input(graph: onnx.GraphProto, pixel_range: tuple[float, float]) -> None:
    black, white = pixel_range
    image = graph.input[0].name
    inner, shifted = f"{image}/unit", f"{image}/shifted"
    for node in graph.node:
        node.input[:] = [inner if name == image else name for name in node.input]
    constants = {f"{image}/black": black, f"{image}/span": white - black}
    graph.initializer.extend(numpy_helper.from_array(np.float32(value), name) for name, value in constants.items())
    graph.node.insert(0, helper.make_node("Sub", [image, f"{image}/black"], [shifted]))
    graph.node.insert(1, helper.make_node("Div", [shifted, f"{image}/span"], [inner]))
