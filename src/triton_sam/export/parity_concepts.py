"""Parity check of what finds concepts: its graphs in ONNX Runtime against the same modules in torch.

That the modules are the published definition does not depend on the weights, and tests compare them with transformers'
``Sam3Model``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triton_sam.export.parity import cpu_session
from triton_sam.export.parity_reference import exactly
from triton_sam.export.parity_report import Report, compare, worst_iou
from triton_sam.export.parity_scenes import Scene
from triton_sam.export.wrappers import Encoder
from triton_sam.models.architecture import ConceptArchitecture
from triton_sam.models.specs import (
    BACKBONE_FEATURES,
    DETECTOR_FILE,
    ENCODER_FILE,
    TEXT_ENCODER_FILE,
    Graphs,
    ModelSpec,
    Precision,
)
from triton_sam.networks.concept_layers import PADDING

#: Tokens of the texts, the first and the last included: a name, some words, and as many as there is room for.
_LENGTHS = (3, 8, 0)
_OUTPUTS = ("pred_logits", "presence_logits", "pred_boxes", "pred_masks")
#: Numbers of the order of one, of which an output may have too few for a standard deviation.
_FEW = ("presence_logits",)


def check_concepts(network: Any, spec: ModelSpec, graphs: Graphs, folder: Path, scene: Scene, seed: int) -> Report:
    """Compares both graphs in ``folder``, and what the encoder's graph gives to them, with a network's layers."""
    sizes = spec.architecture.concepts
    assert sizes is not None
    # In 8 bits only the encoder is; its own check judges that.
    whole = Precision.FP16 if graphs.precision is Precision.FP16 else Precision.FP32
    report = Report(whole, seed=seed)
    device = network.concepts.positions.device
    features = _features(network, spec, scene, device)
    if graphs.precision is not Precision.INT8:
        pixels = {graphs.encoder.image: torch.from_numpy(scene.pixels)}
        _compare(report, scene, "", {BACKBONE_FEATURES: features}, folder / ENCODER_FILE, pixels)
    ids, mask = _texts(sizes, seed)
    with exactly():
        text = network.concepts.read(ids.to(device), mask.to(device)).cpu()
    given = {"input_ids": ids, "attention_mask": mask}
    _compare(report, scene, "words", {"text_features": text}, folder / TEXT_ENCODER_FILE, given)
    for case, rows, boxes, labels in _cases(len(ids)):
        feeds = {
            BACKBONE_FEATURES: features,
            "text_features": text[rows],
            "text_mask": mask[rows],
            "boxes": boxes,
            "box_labels": labels,
        }
        with exactly():
            found = [one.cpu() for one in network.concepts(*(tensor.to(device) for tensor in feeds.values()))]
        _compare(report, scene, case, dict(zip(_OUTPUTS, found, strict=True)), folder / DETECTOR_FILE, feeds)
    report.judge()
    return report


def _features(network: Any, spec: ModelSpec, scene: Scene, device: torch.device) -> Tensor:
    """[1,C,g,g]: what the image encoder in torch gives to the detector."""
    encoder = Encoder(network, spec.architecture).to(device)
    with exactly():
        features: Tensor = encoder(torch.from_numpy(scene.pixels).to(device))[-1]
        return features.cpu()


def _texts(sizes: ConceptArchitecture, seed: int) -> tuple[Tensor, Tensor]:
    """[3,T] random tokens with their end, and which count."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([[min(length or sizes.tokens, sizes.tokens)] for length in _LENGTHS])
    places = torch.arange(sizes.tokens)
    ids = torch.randint(0, sizes.words, (len(lengths), sizes.tokens), generator=generator)
    ids = torch.where(places < lengths - 1, ids, sizes.end_token)
    return ids, (places < lengths).long()


def _cases(count: int) -> Iterator[tuple[str, slice, Tensor, Tensor]]:
    """(case, its texts, [B,E,4] boxes as cx, cy, w, h, [B,E] labels). Few rows: at full size each takes a gigabyte."""
    for row in range(count):
        yield "words", slice(row, row + 1), torch.zeros(1, 0, 4), torch.zeros(1, 0, dtype=torch.int64)
    boxes = torch.tensor([[0.3, 0.4, 0.3, 0.5], [0.7, 0.6, 0.2, 0.2]]).expand(2, -1, -1)
    yield "words and exemplars", slice(0, 2), boxes, torch.tensor([[1, 0], [PADDING, PADDING]])


def _compare(
    report: Report, scene: Scene, case: str, wanted: Mapping[str, Tensor], graph: Path, feeds: Mapping[str, Tensor]
) -> None:
    """Adds the comparison of a graph's outputs with these."""
    given = cpu_session(graph).run(list(wanted), {name: tensor.numpy() for name, tensor in feeds.items()})
    for (name, reference), ours in zip(wanted.items(), given, strict=True):
        entry = compare(scene.name, name, reference.numpy(), ours, 1.0 if name in _FEW else None)
        entry.prompt = case
        if reference.ndim == 4 and case:
            entry.iou, entry.sure_iou = worst_iou(reference.numpy(), ours)
        report.comparisons.append(entry)
