"""Writes the graphs of what finds concepts, and its traits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from triton_sam.export.onnx_files import GraphInput, export_graph
from triton_sam.export.onnx_graph import replacing
from triton_sam.export.precision_conversion import convert_graph
from triton_sam.models.concept_traits import concept_traits, traits_to_json
from triton_sam.models.specs import (
    BACKBONE_FEATURES,
    CONCEPTS_FILE,
    DETECTOR_FILE,
    TEXT_ENCODER_FILE,
    Graphs,
    ModelSpec,
    Precision,
)

_EXEMPLARS = torch.tensor([[0.3, 0.4, 0.3, 0.5], [0.7, 0.6, 0.5, 0.2], [0.5, 0.5, 0.9, 0.9]])


class TextEncoder(nn.Module):
    """[N,T] tokens and which of them count -> [N,T,C] features."""

    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.layers = layers
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        features: Tensor = self.layers.read(input_ids, attention_mask)
        return features


def write_concept_graphs(network: Any, spec: ModelSpec, graphs: Graphs, folder: Path) -> dict[str, int]:
    """Writes both graphs and the traits into ``folder`` and returns the graphs' opsets."""
    layers, device = network.concepts, network.concepts.positions.device
    traits = concept_traits(spec.architecture, graphs.side)
    texts, concepts = {0: "texts"}, {0: "concepts"}
    some = torch.rand

    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=torch.int64, device=device)

    opsets = {
        "text_encoder": export_graph(
            TextEncoder(layers),
            [
                GraphInput("input_ids", ones(2, traits.tokens), texts),
                GraphInput("attention_mask", ones(2, traits.tokens), texts),
            ],
            {"text_features": texts},
            folder / TEXT_ENCODER_FILE,
        ),
        "detector": export_graph(
            layers.eval(),
            [
                GraphInput(BACKBONE_FEATURES, some(1, traits.channels, traits.side, traits.side, device=device), {}),
                GraphInput("text_features", some(2, traits.tokens, traits.text_width, device=device), concepts),
                GraphInput("text_mask", ones(2, traits.tokens), concepts),
                GraphInput("boxes", _EXEMPLARS.to(device).expand(2, -1, -1), concepts | {1: "exemplars"}),
                GraphInput("box_labels", ones(2, len(_EXEMPLARS)), concepts | {1: "exemplars"}),
            ],
            dict.fromkeys(("pred_logits", "presence_logits", "pred_boxes", "pred_masks"), concepts),
            folder / DETECTOR_FILE,
        ),
    }
    if graphs.precision is Precision.FP16:
        for name in (TEXT_ENCODER_FILE, DETECTOR_FILE):
            convert_graph(folder / name, graphs.precision, is_decoder=True)
    write_traits(spec, graphs.side, folder)
    return opsets


def write_traits(spec: ModelSpec, side: int, folder: Path) -> Path:
    """Writes the traits into ``folder`` and returns the file."""
    file = folder / CONCEPTS_FILE
    with replacing(file) as partial:
        partial.write_text(traits_to_json(concept_traits(spec.architecture, side)))
    return file
