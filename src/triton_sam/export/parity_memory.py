"""Parity check of the memory graphs: in ONNX Runtime against the same modules in torch, through one short track.

The reference computes in torch with torch's own attention. That it is the published definition does not depend on the
weights, and tests compare it with transformers' video networks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from triton_sam.export.memory_wrappers import VideoDecoder
from triton_sam.export.parity import cpu_session
from triton_sam.export.parity_reference import embeddings_of, exactly
from triton_sam.export.parity_report import Report, compare
from triton_sam.export.parity_scenes import Scene
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import (
    MEMORY_ATTENTION_FILE,
    MEMORY_ENCODER_FILE,
    VIDEO_DECODER_FILE,
    Graphs,
    ModelSpec,
    Precision,
)
from triton_sam.networks.memory_steps import ConditionOnMemory, EncodeMemory

FloatArray = npt.NDArray[np.float32]
#: Logits so far from zero that no rounding changes a sign.
_SURE = 10.0


def check_memory(network: Any, spec: ModelSpec, graphs: Graphs, folder: Path, scene: Scene, seed: int) -> Report:
    """Compares the three graphs in ``folder`` with a network that has a memory. They are float32 in every precision."""
    return _Check(network, spec, graphs, folder, scene).run(Report(Precision.FP32, seed=seed))


class _Check:
    """Two objects in a frame, their memories, and the same frame conditioned on these."""

    def __init__(self, network: Any, spec: ModelSpec, graphs: Graphs, folder: Path, scene: Scene) -> None:
        traits, grid = MEMORY_TRAITS[spec.architecture.generation], graphs.decoder.mask_side // 4
        self._scene, self._folder, self._side = scene, folder, graphs.side
        self._device = network.no_memory_embedding.device
        self._conditioner = ConditionOnMemory(network, traits, grid).eval()
        self._decoder = VideoDecoder(network, spec.architecture)
        self._encoder = EncodeMemory(network, traits, graphs.side, grid).eval()
        with exactly():
            self._levels = embeddings_of(network, spec.architecture, scene.pixels)

    def run(self, report: Report) -> Report:
        finest, finer, coarse = self._levels
        mask_side = finest.shape[-1]
        points = torch.tensor(self._scene.points[:2])[:, None] * self._side
        prompt = {
            "high_res_feats_0": finest,
            "high_res_feats_1": finer,
            "point_coords": points,
            "point_labels": torch.ones(2, 1),
            "mask_input": torch.zeros(1, 1, mask_side, mask_side),
            "has_mask_input": torch.zeros(1),
            "multimask_output": torch.ones(1),
        }
        masks, _, scores, pointers = self._compare(
            report, "a prompt", self._decoder, VIDEO_DECODER_FILE, {"image_embeddings": coarse} | prompt
        )
        sure = torch.where(masks > 0, _SURE, -_SURE)  # of any sign where the object is not there
        remembered = {"image_embeddings": coarse, "object_scores": scores}
        (soft,) = self._compare(
            report, "soft masks", self._encoder, MEMORY_ENCODER_FILE, _encoder_feeds(remembered, masks, 0)
        )
        (hard,) = self._compare(
            report, "hard masks", self._encoder, MEMORY_ENCODER_FILE, _encoder_feeds(remembered, sure, 1)
        )
        seen = {
            "memories": torch.stack([hard, soft], dim=1),
            "memory_ages": torch.tensor([[0, 1], [0, -1]]),
            "pointers": torch.stack([pointers, pointers.flip(0)], dim=1),
            "pointer_distances": torch.tensor([[0.2, 1.0], [0.4, -1e9]]),
        }
        (conditioned,) = self._compare(
            report, "memories", self._conditioner, MEMORY_ATTENTION_FILE, {"image_embeddings": coarse} | seen
        )
        tracked = {"image_embeddings": conditioned} | prompt | {"point_labels": -torch.ones(2, 1)}
        self._compare(report, "tracking", self._decoder, VIDEO_DECODER_FILE, tracked)
        report.judge()
        return report

    def _compare(
        self, report: Report, case: str, module: nn.Module, graph: str, feeds: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """Adds the comparison of a graph's outputs, and returns torch's."""
        with exactly():
            found = module(*(tensor.to(self._device) for tensor in feeds.values()))
        wanted = [tensor.cpu() for tensor in (found if isinstance(found, tuple) else (found,))]
        session = cpu_session(self._folder / graph)
        names = [output.name for output in session.get_outputs()]
        given = session.run(names, {name: tensor.numpy() for name, tensor in feeds.items()})
        for name, reference, ours in zip(names, wanted, given, strict=True):
            # Two numbers are too few for a standard deviation: such outputs are of the order of one.
            deviation = 1.0 if reference.numel() <= len(reference) else None
            entry = compare(self._scene.name, name, reference.numpy(), ours, deviation)
            entry.prompt = case
            report.comparisons.append(entry)
        return tuple(wanted)


def _encoder_feeds(remembered: dict[str, Tensor], masks: Tensor, hard: int) -> dict[str, Tensor]:
    """In the order of the module's arguments."""
    return {
        "image_embeddings": remembered["image_embeddings"],
        "masks": masks,
        "hard": torch.full((len(masks),), float(hard)),
        "object_scores": remembered["object_scores"],
    }
