"""Parity check of what finds concepts: its graphs in ONNX Runtime against the same modules in torch.

That the modules are the published definition does not depend on the weights, and tests compare them with transformers'
``Sam3Model``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
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

FloatArray = npt.NDArray[np.float32]
#: Tokens of the texts, the first and the last included: a name, some words, and as many as there is room for.
_LENGTHS = (3, 8, 0)
OUTPUTS = ("pred_logits", "presence_logits", "pred_boxes", "pred_masks")
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
        given = _run(folder / ENCODER_FILE, [BACKBONE_FEATURES], [pixels])
        _compare(report, scene, "", {BACKBONE_FEATURES: features}, given)
    ids, mask = _texts(sizes, seed)
    with exactly():
        text = network.concepts.read(ids.to(device), mask.to(device)).cpu()
    given = _run(folder / TEXT_ENCODER_FILE, ["text_features"], [{"input_ids": ids, "attention_mask": mask}])
    _compare(report, scene, "words", {"text_features": text}, given)
    for case, parts in _cases(len(ids)).items():
        feeds = [
            {
                BACKBONE_FEATURES: features,
                "text_features": text[rows],
                "text_mask": mask[rows],
                "boxes": boxes,
                "box_labels": labels,
            }
            for rows, boxes, labels in parts
        ]
        with exactly():
            found = [network.concepts(*(tensor.to(device) for tensor in feed.values())) for feed in feeds]
            wanted = {name: torch.cat(rows).cpu() for name, rows in zip(OUTPUTS, zip(*found, strict=True), strict=True)}
        del found
        _compare(report, scene, case, wanted, _run(folder / DETECTOR_FILE, OUTPUTS, feeds))
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


def _cases(count: int) -> dict[str, list[tuple[slice, Tensor, Tensor]]]:
    """Case -> runs: the texts of one, [B,E,4] boxes as cx, cy, w, h, [B,E] labels.

    Few rows at a time: at full size each takes a gigabyte.
    """
    none = torch.zeros(1, 0, 4), torch.zeros(1, 0, dtype=torch.int64)
    boxes = torch.tensor([[0.3, 0.4, 0.3, 0.5], [0.7, 0.6, 0.2, 0.2]]).expand(2, -1, -1)
    return {
        "words": [(slice(row, row + 1), *none) for row in range(count)],
        "words and exemplars": [(slice(0, 2), boxes, torch.tensor([[1, 0], [PADDING, PADDING]]))],
    }


def _run(graph: Path, outputs: Sequence[str], feeds: Sequence[Mapping[str, Tensor]]) -> list[FloatArray]:
    """A graph's outputs, the rows of all runs together."""
    session = cpu_session(graph)
    found = [session.run(list(outputs), {name: one.numpy() for name, one in feed.items()}) for feed in feeds]
    return [np.concatenate(rows) for rows in zip(*found, strict=True)]


def _compare(
    report: Report, scene: Scene, case: str, wanted: Mapping[str, Tensor], given: Sequence[FloatArray]
) -> None:
    """Adds the comparison of a graph's outputs with these."""
    for (name, reference), ours in zip(wanted.items(), given, strict=True):
        entry = compare(scene.name, name, reference.numpy(), ours, 1.0 if name in _FEW else None)
        entry.prompt = case
        if reference.ndim == 4 and case:
            entry.iou, entry.sure_iou = worst_iou(reference.numpy(), ours)
        report.comparisons.append(entry)
