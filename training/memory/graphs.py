"""Writes the recipes of the graphs that ``triton-sam setup sam2:tiny_video`` puts together without torch.

``python -m training.memory.graphs`` exports a network of the model's architecture with random weights, twice, and takes
the weights out: see :mod:`training.recipes`.

Run it again when the exporter changes (``EXPORTER`` in ``triton_sam/export/run.py``); a test of the part video
compares. It needs torch, and the files of the published model.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from training.recipes import SEEDS, write_recipes
from triton_sam.export.assembly.prepared import with_prepared
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.export.ort_to_onnx import as_onnx
from triton_sam.export.random_weights import randomise
from triton_sam.export.run import write_graphs
from triton_sam.models.catalog import VIDEO_MODEL, get_spec
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import DECODER_FILE, ENCODER_FILE, MEMORY_GRAPHS, ModelSpec, Role
from triton_sam.models.weights import WeightStore
from triton_sam.networks.segmenters import build
from triton_sam.settings import get_settings

FOLDER = Path(__file__).resolve().parent / "recipes"
GRAPHS = (ENCODER_FILE, DECODER_FILE, *MEMORY_GRAPHS)
_Arrays = dict[str, np.ndarray[Any, Any]]


def make_recipes(spec: ModelSpec, published: Mapping[str, list[Any]], folder: Path) -> None:
    """Writes the recipes of a model's graphs into ``folder``.

    Args:
        published: see :func:`published_table`.
    """
    grid = spec.decoder.mask_side // 4
    with tempfile.TemporaryDirectory() as scratch:
        exports = [_export(spec, seed, Path(scratch) / str(seed)) for seed in SEEDS]
        weights = with_prepared(exports[0][1], grid)
        write_recipes([written for written, _ in exports], GRAPHS, weights, folder, side=spec.side, published=published)


def _export(spec: ModelSpec, seed: int, folder: Path) -> tuple[Path, _Arrays]:
    folder.mkdir()
    network = build(spec.architecture, spec.side, MEMORY_TRAITS[spec.architecture.generation])
    randomise(network, seed)
    write_graphs(network, spec, spec.graphs, folder)
    return folder, {name: tensor.numpy() for name, tensor in network.state_dict().items()}


# -- published weights ---------------------------------------------------------------------------------------

#: Names in the published graphs -> Meta's, and how the weight lies there.
_ENCODER = (
    (r"^/image_encoder/trunk/Transpose_output_0$", "", ""),
    (r"^/image_encoder/(.*)/Transpose_output_0$", r"image_encoder.\1.weight", "transposed"),
    (r"^model\.(.*)$", r"\1", "as-is"),
    (r"^(no_mem_embed)$", r"\1", "as-is"),
)
_POSITIONS, _TOKENS, _NO_MASK = "/image_encoder/trunk/Transpose_output_0", "onnx::Expand_1994", "onnx::Mul_1992"
_ROWS = {"obj_score_token": (0, 1), "iou_token": (1, 2), "mask_tokens": (2, 6)}
#: By the last part of the operator that uses a nameless tensor of the decoder.
_ENTRIES = {"MatMul": ("weight", "transposed"), "Mul": ("weight", "as-is"), "Add_1": ("bias", "as-is")}


def published_table(graphs: Mapping[str, Path], spec: ModelSpec) -> dict[str, list[Any]]:
    """See :data:`triton_sam.export.assembly.published.Table`: all weights of the image network.

    Args:
        graphs: "encoder" and "decoder" -> ONNX file with the weights of the image network.
    """
    with torch.device("meta"):
        network = build(spec.architecture, spec.side).state_dict()
    meta = dict(_encoder_weights(graphs["encoder"])) | dict(_decoder_weights(graphs["decoder"]))
    mapped = map_keys({key: torch.empty(0) for key in meta if not _is_point(key)})
    table: dict[str, list[Any]] = {}
    for name, key in sorted(mapped.origin.items()):
        which, how, *tensors = meta[key]
        table[name] = [which, how, list(network[name].shape), *tensors]
    frequencies = "prompt_encoder.shared_embedding.positional_embedding"
    table["shared_image_embedding.positional_embedding"] = table[frequencies]
    points = [f"prompt_encoder.point_embeddings.{label}.weight" for label in range(4)]
    name = "prompt_encoder.point_embed.weight"
    table[name] = ["decoder", "joined", list(network[name].shape), *points]
    sides = f"{spec.architecture.background} {spec.architecture.windows[0]}"
    for entry, kind in (("pos_embed", "background"), ("pos_embed_window", "window")):
        name = f"vision_encoder.backbone.{entry}"
        table[name] = ["encoder", f"{kind} {sides}", list(network[name].shape), _POSITIONS]
    return dict(sorted(table.items()))


def _is_point(key: str) -> bool:
    return ".point_embeddings." in key


def _encoder_weights(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    for tensor in onnx.load(str(path)).graph.initializer:
        for pattern, key, how in _ENCODER:
            if tensor.data_type == onnx.TensorProto.FLOAT and re.match(pattern, tensor.name):
                if key:
                    yield re.sub(pattern, key, tensor.name).replace("/", "."), ("encoder", how, tensor.name)
                break


def _decoder_weights(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    graph = onnx.load(str(path)).graph
    users = {name: node.name for node in graph.node for name in node.input}
    for tensor in graph.initializer:
        if not tensor.name.startswith("onnx::"):
            yield f"sam_{tensor.name}", ("decoder", "as-is", tensor.name)
        elif tensor.name == _TOKENS:
            for token, (first, end) in _ROWS.items():
                yield f"sam_mask_decoder.{token}.weight", ("decoder", f"rows {first} {end}", tensor.name)
        elif tensor.name == _NO_MASK:
            yield "sam_prompt_encoder.no_mask_embed.weight", ("decoder", "as-is", tensor.name)
        else:
            *place, operator = users[tensor.name].strip("/").split("/")
            entry, how = _ENTRIES[operator]
            module = "sam_prompt_encoder." if place[0] == "mask_downscaling" else "sam_mask_decoder."
            where = place[1:] if place[0] == "mask_downscaling" else place
            yield f"{module}{'.'.join(where)}.{entry}", ("decoder", how, tensor.name)


def published_graphs(spec: ModelSpec, store: WeightStore) -> dict[str, Path]:
    """The published files as ONNX, downloaded if needed."""
    files = store.pull(spec)
    return {role.value: as_onnx(files[role], store.home / "converted") for role in (Role.ENCODER, Role.DECODER)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    spec = get_spec(VIDEO_MODEL)
    graphs = published_graphs(spec, WeightStore(get_settings().home))
    make_recipes(spec, published_table(graphs, spec), folder)


if __name__ == "__main__":
    main()
