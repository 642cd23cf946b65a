"""Writes the graphs of a network's memory, and what is in none of them.

All are float32 in every precision: errors of memories add up from frame to frame, and their share of the work on a CPU
is small beside the encoder's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import torch

from triton_sam.export.memory_wrappers import OnnxKernels, VideoDecoder
from triton_sam.export.onnx_files import GraphInput, export_graph, save
from triton_sam.export.onnx_graph import replacing
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import (
    MEMORY_ATTENTION_FILE,
    MEMORY_ENCODER_FILE,
    MEMORY_FILE,
    VIDEO_DECODER_FILE,
    Graphs,
    ModelSpec,
)
from triton_sam.networks.memory_steps import ConditionOnMemory, EncodeMemory


def write_memory_graphs(network: Any, spec: ModelSpec, graphs: Graphs, folder: Path) -> dict[str, int]:
    """Writes the three graphs and the description into ``folder`` and returns the graphs' opsets."""
    traits = MEMORY_TRAITS[spec.architecture.generation]
    device = network.no_memory_embedding.device
    grid = graphs.decoder.mask_side // 4
    width = traits.width

    def some(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device=device)

    def ages(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=device)

    rows, images = {0: "rows"}, {0: "images"}
    embedding = GraphInput("image_embeddings", some(1, 256, grid, grid), images)
    opsets = {
        "memory_attention": export_graph(
            ConditionOnMemory(network, traits, grid, OnnxKernels()).eval(),
            [
                embedding,
                GraphInput("memories", some(2, 2, width, grid, grid), rows | {1: "memories"}),
                GraphInput("memory_ages", ages(2, 2), rows | {1: "memories"}),
                GraphInput("pointers", some(2, 3, 256), rows | {1: "pointers"}),
                GraphInput("pointer_distances", some(2, 3), rows | {1: "pointers"}),
            ],
            {"conditioned": rows},
            folder / MEMORY_ATTENTION_FILE,
        ),
        "video_decoder": export_graph(
            VideoDecoder(network, spec.architecture),
            [
                embedding,
                GraphInput("high_res_feats_0", some(1, 32, 4 * grid, 4 * grid), {0: "fine_images"}),
                GraphInput("high_res_feats_1", some(1, 64, 2 * grid, 2 * grid), {0: "finer_images"}),
                GraphInput("point_coords", some(2, 3, 2) * graphs.side, rows | {1: "points"}),
                GraphInput("point_labels", torch.ones(2, 3, device=device), rows | {1: "points"}),
                GraphInput("mask_input", some(2, 1, 4 * grid, 4 * grid), {0: "mask_rows"}),
                GraphInput("has_mask_input", torch.ones(2, device=device), {0: "mask_flags"}),
                GraphInput("multimask_output", torch.ones(2, device=device), {0: "choice_flags"}),
            ],
            {"masks": rows, "iou_predictions": rows, "object_scores": rows, "pointers": rows},
            folder / VIDEO_DECODER_FILE,
        ),
        "memory_encoder": export_graph(
            EncodeMemory(network, traits, graphs.side, grid).eval(),
            [
                embedding,
                GraphInput("masks", some(2, 1, 4 * grid, 4 * grid), rows),
                GraphInput("hard", torch.ones(2, device=device), rows),
                GraphInput("object_scores", some(2, 1), rows),
            ],
            {"memories": rows},
            folder / MEMORY_ENCODER_FILE,
        ),
    }
    share_constants(folder / MEMORY_ATTENTION_FILE)
    write_description(network, spec, folder)
    return opsets


def share_constants(graph: Path) -> None:
    """Stores equal constants of a graph once: the exporter writes a copy of a table for each use."""
    model = onnx.load(str(graph))
    known: dict[bytes, str] = {}
    names: dict[str, str] = {}
    kept = []
    for node in model.graph.node:
        constant = node.op_type == "Constant" and node.attribute[0].name == "value"
        if not constant:
            kept.append(node)
            continue
        tensor = node.attribute[0].t
        tensor.name = ""
        content = tensor.SerializeToString(deterministic=True)
        names[node.output[0]] = known.setdefault(content, node.output[0])
        if names[node.output[0]] == node.output[0]:
            kept.append(node)
    for node in kept:
        node.input[:] = [names.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    save(model, graph)


def write_description(network: Any, spec: ModelSpec, folder: Path) -> Path:
    """Writes what an engine needs beside the graphs, for masks that a person gives, and returns the file."""
    numbers = {
        "mask_downsample_weight": network.mask_downsample.weight,
        "mask_downsample_bias": network.mask_downsample.bias,
        "no_object_pointer": network.no_object_pointer,
        "no_memory_embedding": network.no_memory_embedding,
    }
    content = {"generation": spec.architecture.generation} | {
        name: tensor.detach().flatten().tolist() for name, tensor in numbers.items()
    }
    file = folder / MEMORY_FILE
    with replacing(file) as partial:
        partial.write_text(json.dumps(content) + "\n")
    return file
