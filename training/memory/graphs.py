"""Writes the recipes of the graphs that ``triton-sam setup sam2:tiny_video`` puts together without torch.

``python -m training.memory.graphs`` exports a network of the model's architecture with random weights, twice. A tensor
that is the same both times belongs to the graph. Every other one must equal a weight, or what
:mod:`triton_sam.export.assembly.prepared` computes from weights; it is taken out, and where it came from is noted.
Trained weights only change numbers, so recipes do not depend on them.

Run it again when the exporter changes (``EXPORTER`` in ``triton_sam/export/run.py``); a test of the part video
compares. It needs torch, and the files of the published model.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import lzma
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from triton_sam.export.assembly.prepared import with_prepared
from triton_sam.export.assembly.recipes import GRAPH_SUFFIX, TABLE_FILE, TRANSPOSED, tensors_of
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.export.ort_to_onnx import as_onnx
from triton_sam.export.random_weights import randomise
from triton_sam.export.run import EXPORTER, write_graphs
from triton_sam.models.catalog import VIDEO_MODEL, get_spec
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import DECODER_FILE, ENCODER_FILE, MEMORY_GRAPHS, ModelSpec, Role
from triton_sam.models.weights import WeightStore
from triton_sam.networks.segmenters import build
from triton_sam.settings import get_settings

FOLDER = Path(__file__).resolve().parent / "recipes"
GRAPHS = (ENCODER_FILE, DECODER_FILE, *MEMORY_GRAPHS)
_PACKAGES = ("torch", "transformers", "onnx")
#: Constants of the graphs themselves are smaller, or one number repeated.
_LARGEST_CONSTANT = 256
#: Share of the largest number by which numpy's positions may differ from torch's.
_MOST_ROUNDING = 2e-5
_SEEDS = (0, 1)
_Arrays = dict[str, np.ndarray[Any, Any]]


def make_recipes(spec: ModelSpec, published: Mapping[str, list[Any]], folder: Path) -> None:
    """Writes the recipes of a model's graphs into ``folder``.

    Args:
        published: see :func:`published_table`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    grid = spec.decoder.mask_side // 4
    with tempfile.TemporaryDirectory() as scratch:
        exports = [_export(spec, seed, Path(scratch) / str(seed)) for seed in _SEEDS]
        weights = with_prepared(exports[0][1], grid)
        tables = {}
        for name in GRAPHS:
            models = [onnx.load(str(written / name)) for written, _ in exports]
            tables[name] = _take_out(models[0], models[1], weights)
            plain = models[0].SerializeToString(deterministic=True)
            (folder / f"{name}{GRAPH_SUFFIX}").write_bytes(lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME))
    content = {
        "side": spec.side,
        "exporter": EXPORTER,
        "made_with": {package: importlib.metadata.version(package) for package in _PACKAGES},
        "published": dict(published),
        "graphs": tables,
    }
    (folder / TABLE_FILE).write_text(_text(content))


def _text(content: Mapping[str, Any], indent: str = "") -> str:
    """JSON with one line for each tensor."""
    lines = [
        f"{indent} {json.dumps(name)}: "
        + (_text(value, f"{indent} ").strip() if isinstance(value, dict) else json.dumps(value))
        for name, value in content.items()
    ]
    return f"{indent}{{\n" + ",\n".join(lines) + f"\n{indent}}}\n"


def _export(spec: ModelSpec, seed: int, folder: Path) -> tuple[Path, _Arrays]:
    folder.mkdir()
    network = build(spec.architecture, spec.side, MEMORY_TRAITS[spec.architecture.generation])
    randomise(network, seed)
    write_graphs(network, spec, spec.graphs, folder)
    return folder, {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def _take_out(model: Any, other: Any, weights: _Arrays) -> dict[str, str]:
    """Removes the weights from a graph; tensor -> weight.

    Args:
        other: the same graph with other weights.
    """
    twins = dict(tensors_of(other))
    by_size: dict[int, list[str]] = {}
    for name, array in weights.items():
        by_size.setdefault(array.size, []).append(name)
    table = {}
    for name, tensor in tensors_of(model):
        array = numpy_helper.to_array(tensor)
        is_constant = np.array_equal(array, numpy_helper.to_array(twins[name]))
        if is_constant and (array.size <= _LARGEST_CONSTANT or (array == array.flat[0]).all()):
            continue
        sources = by_size.get(array.size, [])
        found = next((source for source in _ways(sources, weights) if _is_same(weights, source, array)), None)
        if found is None:
            raise SystemExit(f"nothing is known of {name} {array.shape}: prepared.py has to compute it")
        table[name] = found
        tensor.raw_data = b""
    return table


def _ways(names: list[str], weights: _Arrays) -> Iterator[str]:
    yield from names
    yield from (f"{TRANSPOSED}{name}" for name in names if weights[name].ndim == 2)


def _is_same(weights: _Arrays, source: str, array: np.ndarray[Any, Any]) -> bool:
    name = source.removeprefix(TRANSPOSED)
    weight = (weights[name].T if source != name else weights[name]).reshape(array.shape)
    return bool(np.abs(weight - array).max() <= _MOST_ROUNDING * np.abs(array).max())


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
