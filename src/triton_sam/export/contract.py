"""Ready-made graphs under the raw-tensor contract of our exports, so that every two-stage client can call them.

Only the package onnx is needed. The network inside is untouched: nodes are put in front of it and behind it.

- encoder: pixels in [0,1], normalised inside; any number of images, one after the other; the contract's names.
- decoder: the contract's names; features, mask and flags may be left out; one mask, or all with ``multimask_output``.
  A ready-made decoder gives its three masks without the single-mask one, so that the single mask is that of the best
  predicted IoU, as our segmenter chooses it. Flags of masks may differ from row to row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import SetupError
from triton_sam.export.graph_rewrites import onnx_package, replacing
from triton_sam.models.checksums import matches_checksum, write_checksum
from triton_sam.models.specs import Graphs, ModelSpec, raw_graphs

#: Goes into the names under which the files are kept: another number where the same graphs become other files.
RECIPE = 1
#: In front of the names of all tensors that are added, so that they are nobody else's.
_OURS = "contract/"
_ROWS = "rows"


def write_contract_pair(spec: ModelSpec, encoder: Path, decoder: Path, folder: Path) -> tuple[Path, Path] | None:
    """A model's graphs under the contract, made once and kept in ``folder``; None where they keep it as they are.

    Args:
        encoder, decoder: as ``spec.graphs`` describes them; SetupError where they are no such graphs.
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
    """Writes an encoder with the names and the pixel range of ``contract`` to ``target``, which is returned.

    Args:
        plain: an encoder as ``own`` describes it, for one image at a time.
    """
    model = _load(plain)
    outputs = zip(_output_names(own), _output_names(contract), strict=True)
    _rename(model.graph, {own.encoder.image: f"{_OURS}normal", **{old: f"{_OURS}one/{new}" for old, new in outputs}})
    mean, std = own.encoder.mean or (0.0, 0.0, 0.0), own.encoder.std or (1.0, 1.0, 1.0)
    constants: dict[str, npt.NDArray[Any]] = {
        f"{_OURS}mean": np.array(mean, np.float32).reshape(3, 1, 1),
        f"{_OURS}std": np.array(std, np.float32).reshape(3, 1, 1),
        f"{_OURS}first": np.array([0], np.int64),
    }
    onnx = onnx_package()
    node, tensor = onnx.helper.make_node, _tensor_of(onnx)
    pixels = [3, contract.side, contract.side]
    shapes = {name: list(shape[1:]) for name, shape in contract.encoder.outputs}
    # A ready-made graph takes one image: it becomes the body of a loop over them.
    body = onnx.helper.make_graph(
        [
            node("Sub", [f"{_OURS}pixels", f"{_OURS}mean"], [f"{_OURS}shifted"]),
            node("Div", [f"{_OURS}shifted", f"{_OURS}std"], [f"{_OURS}scaled"]),
            node("Unsqueeze", [f"{_OURS}scaled", f"{_OURS}first"], [f"{_OURS}normal"]),
            *model.graph.node,
            *[node("Squeeze", [f"{_OURS}one/{name}", f"{_OURS}first"], [f"{_OURS}each/{name}"]) for name in shapes],
        ],
        "one_image",
        [tensor(f"{_OURS}pixels", pixels)],
        [tensor(f"{_OURS}each/{name}", shape) for name, shape in shapes.items()],
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
    """Writes a decoder with the inputs and outputs of ``contract`` to ``target``, which is returned.

    Args:
        plain: a decoder as ``own`` describes it: always ``masks_per_prompt`` masks, one row of embeddings for all
            prompts, and a flag that only multiplies.
    """
    model = _load(plain)
    onnx = onnx_package()
    node, tensor = onnx.helper.make_node, _tensor_of(onnx)
    ours, theirs = own.decoder, contract.decoder
    assert theirs.multimask is not None  # exported graphs always have it
    features = dict(zip(_output_names(own), _output_names(contract), strict=True))
    inner = {
        ours.mask: f"{_OURS}mask",
        ours.mask_flag: f"{_OURS}flag",
        ours.masks: f"{_OURS}masks",
        ours.scores: f"{_OURS}scores",
    }
    _rename(model.graph, features | {ours.points: theirs.points, ours.labels: theirs.labels} | inner)
    count, side = ours.masks_per_prompt, ours.mask_side
    constants: dict[str, npt.NDArray[Any]] = {
        f"{_OURS}zero": np.array([0], np.int64),
        f"{_OURS}one": np.array([1], np.int64),
        f"{_OURS}one_mask": np.array([1, side, side], np.int64),
        f"{_OURS}flag_shape": np.array([-1, 1, 1, 1], np.int64),
        f"{_OURS}mask_shape": np.array([1, 1, side, side], np.int64),
        f"{_OURS}half": np.array(0.5, np.float32),
        f"{_OURS}count": np.array([count], np.int64),
        f"{_OURS}last_axes": np.array([2, 3], np.int64),
    }
    before = [
        node("Shape", [theirs.points], [f"{_OURS}points_shape"]),
        node("Gather", [f"{_OURS}points_shape", f"{_OURS}zero"], [f"{_OURS}rows"], axis=0),
        node("Concat", [f"{_OURS}rows", f"{_OURS}one_mask"], [f"{_OURS}mask_rows"], axis=0),
        node("Expand", [theirs.mask, f"{_OURS}mask_rows"], [f"{_OURS}mask"]),
        node("Reshape", [theirs.mask_flag, f"{_OURS}flag_shape"], [f"{_OURS}flag"]),
    ]
    after = [
        node("ArgMax", [f"{_OURS}scores"], [f"{_OURS}best"], axis=1, keepdims=1),
        node("GatherElements", [f"{_OURS}scores", f"{_OURS}best"], [f"{_OURS}best_score"], axis=1),
        node("Unsqueeze", [f"{_OURS}best", f"{_OURS}last_axes"], [f"{_OURS}best_place"]),
        node("Expand", [f"{_OURS}best_place", f"{_OURS}mask_shape"], [f"{_OURS}best_places"]),
        node("GatherElements", [f"{_OURS}masks", f"{_OURS}best_places"], [f"{_OURS}best_mask"], axis=1),
        # The single one stands in front of all, and the flag says which part is given.
        node("Concat", [f"{_OURS}best_mask", f"{_OURS}masks"], [f"{_OURS}all_masks"], axis=1),
        node("Concat", [f"{_OURS}best_score", f"{_OURS}scores"], [f"{_OURS}all_scores"], axis=1),
        node("Greater", [theirs.multimask, f"{_OURS}half"], [f"{_OURS}several"]),
        node("Cast", [f"{_OURS}several"], [f"{_OURS}start"], to=onnx.TensorProto.INT64),
        node("Mul", [f"{_OURS}start", f"{_OURS}count"], [f"{_OURS}further"]),
        node("Add", [f"{_OURS}further", f"{_OURS}one"], [f"{_OURS}end"]),
        *[
            node("Slice", [f"{_OURS}all_{kind}", f"{_OURS}start", f"{_OURS}end", f"{_OURS}one"], [name])
            for kind, name in (("masks", theirs.masks), ("scores", theirs.scores))
        ],
    ]
    inputs: dict[str, list[int | str]] = {
        **{name: [_ROWS, *shape[1:]] for name, shape in contract.encoder.outputs},
        theirs.points: ["prompts", "points", 2],
        theirs.labels: ["prompts", "points"],
        theirs.mask: ["mask_rows", 1, side, side],
        theirs.mask_flag: ["flags"],
        theirs.multimask: [1],
    }
    # An initializer with an input's name is its default. One cell that broadcasts spares 12 MB, and needs free axes.
    for name in theirs.optional:
        channels = inputs[name][1:2]
        if len(inputs[name]) == 4:
            inputs[name] = [_ROWS, *channels, "height", "width"]
        constants[name] = np.zeros([1, *map(int, channels), 1, 1] if channels else [1], np.float32)
    graph = onnx.helper.make_graph(
        [*before, *model.graph.node, *after],
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


def _output_names(graphs: Graphs) -> list[str]:
    """The embedding first, then the features from the finest on: the same order for graphs of one architecture."""
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
    if not model.graph.node:  # protobuf takes almost any bytes for a message of unknown fields
        raise SetupError(f"{plain.name} is no ONNX file: pull the model again")
    return model


def _save(model: Any, target: Path) -> Path:
    with replacing(target) as partial:
        partial.write_bytes(model.SerializeToString(deterministic=True))
    return target
