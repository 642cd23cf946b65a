"""Exports a checkpoint from end to end: read it, write both graphs, check them against torch, publish the folder."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from triton_sam.errors import InvalidInput, SetupError
from triton_sam.export.checkpoint import check_variant, network_of, read_checkpoint, recognise
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.export.concept_graphs import write_concept_graphs
from triton_sam.export.memory_graphs import write_memory_graphs
from triton_sam.export.onnx_files import GraphInput, export_graph, files_of
from triton_sam.export.parity import ParityCheck
from triton_sam.export.parity_concepts import check_concepts
from triton_sam.export.parity_memory import check_memory
from triton_sam.export.parity_reference import Reference
from triton_sam.export.parity_report import Report
from triton_sam.export.parity_scenes import scenes
from triton_sam.export.precision_conversion import convert_graph
from triton_sam.export.wrappers import Decoder, Encoder
from triton_sam.models.catalog import get_spec
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import (
    BACKBONE_FEATURES,
    CONCEPT_GRAPHS,
    CONCEPTS_FILE,
    DECODER_FILE,
    ENCODER_FILE,
    GRAPHS_FILE,
    MEMORY_FILE,
    MEMORY_GRAPHS,
    Graphs,
    ModelSpec,
    Precision,
    exported_graphs,
    graphs_to_json,
)
from triton_sam.networks.segmenters import check_side

REPORT_FILE = "report.json"
#: Version of the exporter. Increase it when the exported graphs change, so that cached ones are exported again.
EXPORTER = 4
#: All files of an export but its description and its report.
_GRAPHS = (ENCODER_FILE, DECODER_FILE, *MEMORY_GRAPHS, MEMORY_FILE, *CONCEPT_GRAPHS, CONCEPTS_FILE)
#: Given instead of a model's id: the model is recognised by its tensors.
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        image_size: side of the model's square input, pixels; None for the one it was trained with.
        device: the device that torch runs on.
        seed: seed of the images and prompts that the graphs are compared on; the same seed repeats a check.
    """

    image_size: int | None = None
    device: str = "cpu"
    precision: Precision = Precision.FP32
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export.

    Attributes:
        spec: the catalogue row, with the graphs as they were exported.
        report: the content of ``report.json``.
    """

    spec: ModelSpec
    folder: Path
    report: dict[str, Any]


def export_checkpoint(
    model: ModelSpec | str,
    checkpoint: Path,
    folder: Path,
    options: ExportOptions | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Exports a checkpoint into ``folder``, which is only written to once the graphs have passed the parity check.

    Args:
        model: a catalogue row, or "auto" to recognise the model by its tensors.
        say: callback for progress messages.
    """
    options = options or ExportOptions()
    check_options(options, None if isinstance(model, str) else model)
    started = time.monotonic()
    weights = map_keys(read_checkpoint(checkpoint))
    spec = _recognised(weights) if isinstance(model, str) else model
    check_variant(weights, spec)
    side = _own_side(spec) if options.image_size is None else options.image_size
    graphs = exported_graphs(spec.architecture, side, options.precision)
    network = network_of(spec, side, weights).to(options.device)
    unused, memory = weights.unused, MEMORY_TRAITS[spec.architecture.generation] if weights.memory else None
    del weights
    with _build_folder(folder) as building:
        opsets = write_graphs(network, spec, graphs, building, say)
        say("checking against torch")
        results = _check(network, spec, graphs, building, options.seed)
        report = {
            "model": spec.id,
            "exporter": EXPORTER,
            "checkpoint": {
                "name": checkpoint.name,
                "sha256": checkpoint_sha256(checkpoint),
                "unused_keys": len(unused),
            },
            "image_size": side,
            "opset": opsets,
            "parameters_m": round(sum(weight.numel() for weight in network.parameters()) / 1e6, 1),
            "seconds": round(time.monotonic() - started, 1),
            **_facts(results, building),
        }
        failed = next((result for result in results.values() if not result.passed), None)
        if failed is not None:
            reason = f"{failed.reason} (seed {failed.seed})"
            raise SetupError(f"the export of {spec.id} does not equal torch, so it was not kept: {reason}")
        (building / REPORT_FILE).write_text(json.dumps(report, indent=2) + "\n")
        (building / GRAPHS_FILE).write_text(graphs_to_json(graphs))
        _publish(building, folder)
    return Exported(dataclasses.replace(spec, graphs=graphs, memory=memory), folder, report)


def check_options(options: ExportOptions, spec: ModelSpec | None) -> None:
    """Raises InvalidInput for options that no checkpoint can be exported with; ``spec`` is None if not yet known."""
    if options.device != "cpu" and not torch.cuda.is_available():
        raise InvalidInput("there is no CUDA device here: use --device cpu")
    if spec is not None and options.image_size is not None:
        check_side(spec.architecture, options.image_size)


@contextlib.contextmanager
def _build_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder inside ``folder``. It is removed afterwards, and so is ``folder`` if it is empty."""
    building = folder / f".export-{os.getpid()}"
    try:
        building.mkdir(parents=True)
        yield building
    except OSError as error:
        raise SetupError(f"cannot write the export to {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # fails if it is not empty, as it should


def _publish(building: Path, folder: Path) -> None:
    """Moves a finished export into ``folder``.

    The description is deleted first and written last, so that a partial export has none. What was made of the graphs
    before goes with them.
    """
    (folder / GRAPHS_FILE).unlink(missing_ok=True)
    for made in folder.glob(f"{Path(ENCODER_FILE).stem}-cpu*"):
        made.unlink(missing_ok=True)
    for name in _GRAPHS:
        for old in files_of(folder / name):
            old.unlink(missing_ok=True)
        for file in _present(building, name):
            file.replace(folder / file.name)
    for name in (REPORT_FILE, GRAPHS_FILE):
        (building / name).replace(folder / name)


def _recognised(weights: Any) -> ModelSpec:
    rows = recognise(weights)
    if not rows:
        raise InvalidInput("this checkpoint is not a model of the catalogue: its encoder has another shape")
    return rows[0]


def _own_side(spec: ModelSpec) -> int:
    return get_spec(spec.id).side


def write_graphs(
    network: Any, spec: ModelSpec, graphs: Graphs, folder: Path, say: Callable[[str], None] = lambda _: None
) -> dict[str, int]:
    """Writes the graphs of a network into ``folder``, with those of its memory if it has one; returns their opsets."""
    say("writing the encoder")
    encoder, decoder = folder / ENCODER_FILE, folder / DECODER_FILE
    device = next(network.parameters()).device
    pixels = torch.rand(1, 3, graphs.side, graphs.side, device=device)
    opsets = {
        "encoder": export_graph(
            Encoder(network, spec.architecture).to(device),
            [GraphInput(graphs.encoder.image, pixels, {0: "batch"})],
            {name: {0: "batch"} for name in encoder_outputs(network, graphs)},
            encoder,
        )
    }
    say("writing the decoder")
    prompts = {0: "prompts", 1: "choices"}
    opsets["decoder"] = export_graph(
        Decoder(network, spec.architecture).to(device),
        decoder_inputs(graphs, device),
        {graphs.decoder.masks: prompts, graphs.decoder.scores: prompts},
        decoder,
    )
    if graphs.precision is not Precision.FP32:
        say(f"converting to {graphs.precision.value}")
        convert_graph(encoder, graphs.precision, is_decoder=False)
        convert_graph(decoder, graphs.precision, is_decoder=True)
    if hasattr(network, "memory_attention"):
        say("writing the memory")
        opsets |= write_memory_graphs(network, spec, graphs, folder)
    if hasattr(network, "concepts"):
        say("writing what finds concepts")
        opsets |= write_concept_graphs(network, spec, graphs, folder)
    return opsets


def encoder_outputs(network: Any, graphs: Graphs) -> list[str]:
    """Names of all outputs of the encoder's graph; its description has only those that decoders take."""
    names = [name for name, _ in graphs.encoder.outputs]
    return [*names, BACKBONE_FEATURES] if hasattr(network, "concepts") else names


def decoder_inputs(graphs: Graphs, device: torch.device) -> list[GraphInput]:
    """The decoder's inputs in the order of :class:`Decoder`, with examples, dynamic axes and defaults."""
    names, shapes = graphs.decoder, dict(graphs.encoder.outputs)
    embedding = shapes.pop(graphs.encoder.embedding)
    side = names.mask_side
    features = list(shapes.items()) or [("unused_0", (1, 32, 1, 1)), ("unused_1", (1, 64, 1, 1))]

    def some(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device=device)

    inputs = [GraphInput(graphs.encoder.embedding, some(*embedding), {0: "images"})]
    for name, shape in features:
        # One cell of zeros broadcasts: a default of full size would add 12 MB to every file.
        free = {0: f"{name}_rows", 2: f"{name}_height", 3: f"{name}_width"}
        inputs.append(GraphInput(name, some(*shape), free, torch.zeros(1, shape[1], 1, 1)))
    return [
        *inputs,
        GraphInput(names.points, some(2, 3, 2) * graphs.side, {0: "prompts", 1: "points"}),
        GraphInput(names.labels, torch.ones(2, 3, device=device), {0: "prompts", 1: "points"}),
        GraphInput(names.mask, some(1, 1, side, side), {0: "mask_rows"}, torch.zeros(1, 1, side, side)),
        GraphInput(names.mask_flag, torch.ones(1, device=device), {0: "flags"}, torch.zeros(1)),
        GraphInput(names.multimask or "", torch.ones(1, device=device), {}, torch.zeros(1)),
    ]


def _check(network: Any, spec: ModelSpec, graphs: Graphs, folder: Path, seed: int) -> dict[str, Report]:
    """The result for images and, if the network has these parts, those for video and for words."""
    shown, files = scenes(graphs.side, seed), (folder / ENCODER_FILE, folder / DECODER_FILE)
    # Nothing keeps the sessions: at full size each takes gigabytes.
    results = {"parity": ParityCheck(Reference(network, spec.architecture, graphs), *files).run(shown, seed)}
    if hasattr(network, "memory_attention"):
        results["memory_parity"] = check_memory(network, spec, graphs, folder, shown[0], seed)
    if hasattr(network, "concepts"):
        results["concept_parity"] = check_concepts(network, spec, graphs, folder, shown[0], seed)
    return results


def _present(folder: Path, name: str) -> list[Path]:
    """A file of an export and its external data, if it is there."""
    return files_of(folder / name) if (folder / name).is_file() else []


def _facts(results: Mapping[str, Report], folder: Path) -> dict[str, Any]:
    """The part of the report about files and differences."""
    files = [file for name in _GRAPHS for file in _present(folder, name)]
    packages = ("torch", "transformers", "onnx", "onnxruntime")
    return {
        "files": {file.name: file.stat().st_size for file in files},
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "summary": [
            {"output": output, "max_abs_diff": worst, "share": share, "iou": overlap}
            for result in results.values()
            for output, worst, share, overlap in result.summary()
        ],
        **{name: result.as_dict() for name, result in results.items()},
    }


def checkpoint_sha256(checkpoint: Path) -> str:
    """SHA-256 of the file, or of all weight files of a folder in the order of their names."""
    digest = hashlib.sha256()
    for file in sorted(checkpoint.glob("*.safetensors")) if checkpoint.is_dir() else [checkpoint]:
        with file.open("rb") as stream:
            while chunk := stream.read(8 * 1024 * 1024):
                digest.update(chunk)
    return digest.hexdigest()
