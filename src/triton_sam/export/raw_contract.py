"""Rewrites ready-made graphs to the raw-tensor contract of our exports, so that every two-stage client can call them.

Only the package onnx is needed. The network itself is unchanged: nodes are added before and after it.

- encoder: pixels in [0,1], normalised inside the graph; any number of images, encoded one by one; the contract's names.
- decoder: the contract's names; features, mask and flags are optional; one mask, or all with ``multimask_output``.
  A ready-made decoder returns three masks without the single-mask one. The single mask is therefore the one of the best
  predicted IoU, as our segmenter chooses it. Mask flags may differ from row to row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import SetupError
from triton_sam.export.onnx_graph import onnx_package, replacing
from triton_sam.models.checksums import matches_checksum, write_checksum
from triton_sam.models.specs import DecoderGraph, Graphs, ModelSpec, raw_graphs

#: Part of the cached files' names. Increase it when the same graphs are written differently.
RECIPE = 1
#: Prefix of all added tensors' names, so that they cannot clash with the network's own.
_PREFIX = "contract/"
_ROWS = "rows"


def write_contract_pair(spec: ModelSpec, encoder: Path, decoder: Path, folder: Path) -> tuple[Path, Path] | None:
    """(encoder, decoder) under the contract, written once and cached in ``folder``; None if the originals follow it.

    Args:
        encoder, decoder: as ``spec.graphs`` describes them.

    Raises:
        SetupError: they are not such graphs.
    """
    contract = raw_graphs(spec)
    if contract == spec.graphs:
        return None

    def made(graph: Path, write: Callable[[Path, Path, Graphs, Graphs], Path]) -> Path:
        target = folder / f"{graph.stem}-raw{RECIPE}.onnx"
        if not matches_checksum(target):
            write(graph, target, spec.graphs, contract)
            write_checksum(target)
        return target

    return made(encoder, write_contract_encoder), made(decoder, write_contract_decoder)


def write_contract_encoder(plain: Path, target: Path, own: Graphs, contract: Graphs) -> Path:
    """Writes an encoder with the names and the pixel range of ``contract`` to ``target``, and returns ``target``.

    Args:
        plain: an encoder as ``own`` describes it, for one image at a time.
    """
    model = _load(plain)
    outputs = zip(_output_names(own), _output_names(contract), strict=True)
    _rename(
        model.graph, {own.encoder.image: f"{_PREFIX}normal", **{old: f"{_PREFIX}one/{new}" for old, new in outputs}}
    )
    mean, std = own.encoder.mean or (0.0, 0.0, 0.0), own.encoder.std or (1.0, 1.0, 1.0)
    constants: dict[str, npt.NDArray[Any]] = {
        f"{_PREFIX}mean": np.array(mean, np.float32).reshape(3, 1, 1),
        f"{_PREFIX}std": np.array(std, np.float32).reshape(3, 1, 1),
        f"{_PREFIX}first": np.array([0], np.int64),
    }
    onnx = onnx_package()
    node, tensor = onnx.helper.make_node, _tensor_of(onnx)
    pixels = [3, contract.side, contract.side]
    shapes = {name: list(shape[1:]) for name, shape in contract.encoder.outputs}
    # A ready-made graph takes one image, so it becomes the body of a loop over the images.
    body = onnx.helper.make_graph(
        [
            node("Sub", [f"{_PREFIX}pixels", f"{_PREFIX}mean"], [f"{_PREFIX}shifted"]),
            node("Div", [f"{_PREFIX}shifted", f"{_PREFIX}std"], [f"{_PREFIX}scaled"]),
            node("Unsqueeze", [f"{_PREFIX}scaled", f"{_PREFIX}first"], [f"{_PREFIX}normal"]),
            *model.graph.node,
            *[
                node("Squeeze", [f"{_PREFIX}one/{name}", f"{_PREFIX}first"], [f"{_PREFIX}each/{name}"])
                for name in shapes
            ],
        ],
        "one_image",
        [tensor(f"{_PREFIX}pixels", pixels)],
        [tensor(f"{_PREFIX}each/{name}", shape) for name, shape in shapes.items()],
    )
    image = contract.encoder.image
    loop = node("Scan", [image], list(shapes), body=body, num_scan_inputs=1)
    graph = onnx.helper.make_graph(
        [loop],
        "encoder",
        [tensor(image, [_ROWS, *pixels])],
        [tensor(name, [_ROWS, *shape]) for name, shape in shapes.items()],
        [*model.graph.initializer, *_initializers(onnx, constants)],
    )
    model.graph.CopyFrom(graph)
    return _save(model, target)


def write_contract_decoder(plain: Path, target: Path, own: Graphs, contract: Graphs) -> Path:
    """Writes a decoder with the inputs and outputs of ``contract`` to ``target``, and returns ``target``.

    Args:
        plain: a decoder as ``own`` describes it: always ``masks_per_prompt`` masks, one row of embeddings for all
            prompts, and a mask flag that only multiplies.
    """
    model = _load(plain)
    onnx = onnx_package()
    tensor = _tensor_of(onnx)
    ours, theirs = own.decoder, contract.decoder
    assert theirs.multimask is not None  # exported graphs always have it
    _rename(model.graph, _decoder_names(own, contract))
    side = ours.mask_side
    inputs: dict[str, list[int | str]] = {
        **{name: [_ROWS, *shape[1:]] for name, shape in contract.encoder.outputs},
        theirs.points: ["prompts", "points", 2],
        theirs.labels: ["prompts", "points"],
        theirs.mask: ["mask_rows", 1, side, side],
        theirs.mask_flag: ["flags"],
        theirs.multimask: [1],
    }
    constants = _decoder_constants(ours.masks_per_prompt, side) | _make_optional(inputs, theirs.optional)
    graph = onnx.helper.make_graph(
        [*_mask_prompt_nodes(onnx, theirs), *model.graph.node, *_mask_selection_nodes(onnx, theirs)],
        "decoder",
        [tensor(name, shape) for name, shape in inputs.items()],
        [
            tensor(theirs.masks, ["prompts", "masks", side, side]),
            tensor(theirs.scores, ["prompts", "masks"]),
        ],
        [*model.graph.initializer, *_initializers(onnx, constants)],
    )
    model.graph.CopyFrom(graph)
    return _save(model, target)


def _decoder_names(own: Graphs, contract: Graphs) -> dict[str, str]:
    """Tensor of the ready-made decoder -> its name in the new graph, where nodes are added around it."""
    ours, theirs = own.decoder, contract.decoder
    features = dict(zip(_output_names(own), _output_names(contract), strict=True))
    inner = {
        ours.mask: f"{_PREFIX}mask",
        ours.mask_flag: f"{_PREFIX}flag",
        ours.masks: f"{_PREFIX}masks",
        ours.scores: f"{_PREFIX}scores",
    }
    return features | {ours.points: theirs.points, ours.labels: theirs.labels} | inner


def _decoder_constants(count: int, side: int) -> dict[str, npt.NDArray[Any]]:
    """The constants of the added nodes, for ``count`` masks per prompt of ``side`` pixels."""
    return {
        f"{_PREFIX}zero": np.array([0], np.int64),
        f"{_PREFIX}one": np.array([1], np.int64),
        f"{_PREFIX}one_mask": np.array([1, side, side], np.int64),
        f"{_PREFIX}flag_shape": np.array([-1, 1, 1, 1], np.int64),
        f"{_PREFIX}mask_shape": np.array([1, 1, side, side], np.int64),
        f"{_PREFIX}half": np.array(0.5, np.float32),
        f"{_PREFIX}count": np.array([count], np.int64),
        f"{_PREFIX}last_axes": np.array([2, 3], np.int64),
    }


def _make_optional(inputs: dict[str, list[int | str]], names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Defaults of the optional inputs: an initializer with an input's name is that input's default.

    Each default is one cell that broadcasts, which saves 12 MB per file. It needs free axes, so the shapes in
    ``inputs`` are changed.
    """
    defaults: dict[str, npt.NDArray[Any]] = {}
    for name in names:
        channels = inputs[name][1:2]
        if len(inputs[name]) == 4:
            inputs[name] = [_ROWS, *channels, "height", "width"]
        defaults[name] = np.zeros([1, *map(int, channels), 1, 1] if channels else [1], np.float32)
    return defaults


def _mask_prompt_nodes(onnx: Any, names: DecoderGraph) -> list[Any]:
    """Nodes before the network: the mask prompt and its flag, expanded to one row per prompt."""
    node = onnx.helper.make_node
    return [
        node("Shape", [names.points], [f"{_PREFIX}points_shape"]),
        node("Gather", [f"{_PREFIX}points_shape", f"{_PREFIX}zero"], [f"{_PREFIX}rows"], axis=0),
        node("Concat", [f"{_PREFIX}rows", f"{_PREFIX}one_mask"], [f"{_PREFIX}mask_rows"], axis=0),
        node("Expand", [names.mask, f"{_PREFIX}mask_rows"], [f"{_PREFIX}mask"]),
        node("Reshape", [names.mask_flag, f"{_PREFIX}flag_shape"], [f"{_PREFIX}flag"]),
    ]


def _mask_selection_nodes(onnx: Any, names: DecoderGraph) -> list[Any]:
    """Nodes after the network: all masks if ``multimask_output`` is set, else the one of the best score."""
    node = onnx.helper.make_node
    return [
        node("ArgMax", [f"{_PREFIX}scores"], [f"{_PREFIX}best"], axis=1, keepdims=1),
        node("GatherElements", [f"{_PREFIX}scores", f"{_PREFIX}best"], [f"{_PREFIX}best_score"], axis=1),
        node("Unsqueeze", [f"{_PREFIX}best", f"{_PREFIX}last_axes"], [f"{_PREFIX}best_place"]),
        node("Expand", [f"{_PREFIX}best_place", f"{_PREFIX}mask_shape"], [f"{_PREFIX}best_places"]),
        node("GatherElements", [f"{_PREFIX}masks", f"{_PREFIX}best_places"], [f"{_PREFIX}best_mask"], axis=1),
        # The single mask comes before the others, and the flag selects which slice is the output.
        node("Concat", [f"{_PREFIX}best_mask", f"{_PREFIX}masks"], [f"{_PREFIX}all_masks"], axis=1),
        node("Concat", [f"{_PREFIX}best_score", f"{_PREFIX}scores"], [f"{_PREFIX}all_scores"], axis=1),
        node("Greater", [names.multimask, f"{_PREFIX}half"], [f"{_PREFIX}several"]),
        node("Cast", [f"{_PREFIX}several"], [f"{_PREFIX}start"], to=onnx.TensorProto.INT64),
        node("Mul", [f"{_PREFIX}start", f"{_PREFIX}count"], [f"{_PREFIX}further"]),
        node("Add", [f"{_PREFIX}further", f"{_PREFIX}one"], [f"{_PREFIX}end"]),
        *[
            node("Slice", [f"{_PREFIX}all_{kind}", f"{_PREFIX}start", f"{_PREFIX}end", f"{_PREFIX}one"], [name])
            for kind, name in (("masks", names.masks), ("scores", names.scores))
        ],
    ]


def _output_names(graphs: Graphs) -> list[str]:
    """The embedding, then the features from finest to coarsest: the same order for all graphs of an architecture."""
    encoder = graphs.encoder
    sides = {name: shape[-1] for name, shape in encoder.outputs}
    finest_first = sorted((name for name in sides if name != encoder.embedding), key=lambda name: -sides[name])
    return [encoder.embedding, *finest_first]


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _tensor_of(onnx: Any) -> Any:
    def tensor(name: str, shape: list[int | str]) -> Any:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    return tensor


def _initializers(onnx: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
    return [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]


def _load(plain: Path) -> Any:
    onnx = onnx_package()
    try:
        model = onnx.load(str(plain))
    except Exception as error:  # protobuf's exceptions differ between its releases
        raise SetupError(f"{plain.name} cannot be read as ONNX: {error}") from None
    if not model.graph.node:  # protobuf parses almost any bytes as a message of unknown fields
        raise SetupError(f"{plain.name} is not an ONNX file: pull the model again")
    return model


def _save(model: Any, target: Path) -> Path:
    with replacing(target) as partial:
        partial.write_bytes(model.SerializeToString(deterministic=True))
    return target
