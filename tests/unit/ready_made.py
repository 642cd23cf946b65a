"""A ready-made model in small: graphs with names, a pixel range and habits of their own, as sam2:tiny's have them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import DecoderGraph, EncoderGraph, Graphs, ModelSpec

SIDE, MASK_SIDE = 32, 8
OUTPUTS = (
    ("image_embed", (1, 256, 2, 2)),
    ("high_res_feats_0", (1, 32, MASK_SIDE, MASK_SIDE)),
    ("high_res_feats_1", (1, 64, 4, 4)),
)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def small_ready_made() -> ModelSpec:
    encoder = EncoderGraph("image", MEAN, STD, "image_embed", OUTPUTS)
    graphs = Graphs(SIDE, encoder, DecoderGraph(mask_side=MASK_SIDE), exported=False)
    return dataclasses.replace(get_spec("sam2:tiny"), graphs=graphs)


def write_small_ready_made(folder: Path) -> tuple[Path, Path]:
    """(encoder, decoder) as :func:`small_ready_made` describes them."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder, decoder = folder / "encoder.onnx", folder / "decoder.onnx"
    encoder.write_bytes(_encoder().SerializeToString())
    decoder.write_bytes(_decoder().SerializeToString())
    return encoder, decoder


def _model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], constants: dict[str, Any]) -> Any:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node(kind, takes, [gives], **more) for kind, takes, gives, more in nodes],
        "small",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in outputs.items()],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def _encoder() -> Any:
    """Patches of 16, 4 and 8 pixels, each brought to its channels; for one image only."""
    rng = np.random.default_rng(3)
    nodes, constants = [], {}
    for name, (_, channels, cells, _) in OUTPUTS:
        patch = SIDE // cells
        constants[f"w/{name}"] = (rng.normal(size=(channels, 3, patch, patch)) / patch).astype(np.float32)
        nodes.append(("Conv", ["image", f"w/{name}"], name, {"strides": [patch, patch]}))
    return _model(nodes, {"image": [1, 3, SIDE, SIDE]}, {name: list(shape) for name, shape in OUTPUTS}, constants)


def _decoder() -> Any:
    """Three masks of every input's mean, scored by the mask's own: which one is best depends on the row."""
    means = [("ReduceMean", [name], f"mean/{name}", {"axes": [1, 2, 3]}) for name, _ in OUTPUTS]
    nodes = [
        *means,
        ("Mul", ["has_mask_input", "mask_input"], "given", {}),
        ("Sub", ["one", "has_mask_input"], "absent", {}),
        ("Mul", ["absent", "no_mask"], "blank", {}),
        ("Add", ["given", "blank"], "dense", {}),
        ("Add", ["mean/image_embed", "dense"], "t0", {}),
        ("Add", ["t0", "mean/high_res_feats_1"], "t1", {}),
        ("ReduceMean", ["high_res_feats_0"], "fine", {"axes": [1]}),
        ("Add", ["t1", "fine"], "t2", {}),
        ("ReduceSum", ["point_coords", "last"], "places", {"keepdims": 0}),
        ("Mul", ["places", "point_labels"], "signed", {}),
        ("ReduceMean", ["signed"], "prompt", {"axes": [1]}),
        ("Mul", ["prompt", "small"], "prompt_small", {}),
        ("Unsqueeze", ["prompt_small", "axes"], "prompt_4", {}),
        ("Add", ["t2", "prompt_4"], "base", {}),
        ("Mul", ["base", "three"], "masks", {}),
        ("ReduceMean", ["masks"], "iou_predictions", {"axes": [2, 3], "keepdims": 0}),
    ]
    constants = {
        "one": np.array([1.0], np.float32),
        "no_mask": np.full((1, 1, 1, 1), 0.3, np.float32),
        "last": np.array([2], np.int64),
        "small": np.array(0.01, np.float32),
        "axes": np.array([2, 3], np.int64),
        "three": np.array([-1.0, 0.5, 2.0], np.float32).reshape(1, 3, 1, 1),
    }
    inputs = {
        **{name: list(shape) for name, shape in OUTPUTS},
        "point_coords": ["n", "p", 2],
        "point_labels": ["n", "p"],
        "mask_input": ["n", 1, MASK_SIDE, MASK_SIDE],
        "has_mask_input": [1],
    }
    outputs = {"masks": ["n", 3, MASK_SIDE, MASK_SIDE], "iou_predictions": ["n", 3]}
    return _model(nodes, inputs, outputs, constants)
