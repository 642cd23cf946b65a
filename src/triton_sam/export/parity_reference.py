"""The reference of the parity check: a torch network's own ``forward``, and every mask that it could return."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from triton_sam.export.mask_choice import StabilityRule, rule_of
from triton_sam.export.parity_scenes import Case, Scene, prompts
from triton_sam.models.architecture import Architecture
from triton_sam.models.specs import Graphs
from triton_sam.networks.segmenters import normalisation

FloatArray = npt.NDArray[np.float32]
_MASK_CLIP = 32.0


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """The network's outputs for one case: [B,4,h,w] logits and [B,4] scores, the token of the single mask first."""

    case: Case
    masks: FloatArray
    scores: FloatArray


class Reference:
    """A network with its outputs cached: embeddings per scene, masks per scene for the last seed."""

    def __init__(self, network: Any, architecture: Architecture, graphs: Graphs) -> None:
        self.graphs = graphs
        self._network, self._architecture = network, architecture
        self._embeddings: dict[Scene, Any] = {}
        self._answers: dict[Scene, tuple[int, list[Wanted]]] = {}

    @property
    def rule(self) -> StabilityRule | None:
        return rule_of(self._network)

    def outputs(self, scene: Scene) -> dict[str, FloatArray]:
        """Name of the encoder graph's output -> the expected array."""
        levels = _in_order(self._encoded(scene), self.graphs)
        return {name: level.numpy() for (name, _), level in zip(self.graphs.encoder.outputs, levels, strict=True)}

    def answers(self, scene: Scene, seed: int) -> list[Wanted]:
        """The expected masks and scores for one case of each kind of prompt."""
        seed_before, found = self._answers.get(scene, (None, []))
        if seed_before != seed:
            with exactly():
                found = list(self._ask(scene, seed))
            self._answers[scene] = seed, found
        return found

    def _encoded(self, scene: Scene) -> Any:
        if scene not in self._embeddings:
            with exactly():
                self._embeddings[scene] = embeddings_of(self._network, self._architecture, scene.pixels)
        return self._embeddings[scene]

    def _ask(self, scene: Scene, seed: int) -> Iterator[Wanted]:
        embeddings = self._encoded(scene)

        def ask(case: Case) -> Wanted:
            return Wanted(case, *candidates(self._network, case, embeddings))

        first, *others = prompts(scene, self.graphs.side, seed)
        yield (wanted := ask(first))
        yield from map(ask, others)
        mask = torch.from_numpy(wanted.masks[:1, :1]).clip(-_MASK_CLIP, _MASK_CLIP)
        yield ask(Case("mask and point", first.points, first.labels, mask=mask))
        yield ask(Case("mask", torch.zeros(1, 0, 2), torch.zeros(1, 0), mask=mask))


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Disables TF32: by default a GPU's convolutions round to ten bits, an error of 0.5 % of the deviation."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products


def embeddings_of(network: Any, architecture: Architecture, pixels: FloatArray) -> Any:
    mean, std = normalisation(architecture)
    device = next(network.parameters()).device
    found = network.get_image_embeddings(((torch.from_numpy(pixels) - mean) / std).to(device))
    return [level.cpu() for level in found] if isinstance(found, Sequence) else found.cpu()


def _in_order(embeddings: Any, graphs: Graphs) -> list[Tensor]:
    """The network's levels, which come from fine to coarse, in the order of the graph's outputs."""
    if isinstance(embeddings, Tensor):
        return [embeddings]
    coarse_first = graphs.encoder.outputs[0][0] == graphs.encoder.embedding
    return [embeddings[-1], *embeddings[:-1]] if coarse_first else list(embeddings)


def answer(network: Any, case: Case, embeddings: Any, multimask: bool) -> tuple[FloatArray, FloatArray]:
    """([B,M,h,w], [B,M]) of the network's own forward; several prompts on one image are its "point batch"."""
    device = next(network.parameters()).device
    has_points = case.points.shape[1] > 0
    moved = [level.to(device) for level in embeddings] if isinstance(embeddings, list) else embeddings.to(device)
    found = network(
        image_embeddings=moved,
        input_points=case.points[None].to(device) if has_points else None,
        input_labels=case.labels[None].to(device, torch.int64) if has_points else None,
        input_boxes=None if case.boxes is None else case.boxes[None].to(device),
        input_masks=None if case.mask is None else case.mask.to(device),
        multimask_output=multimask,
    )
    return found.pred_masks[0].cpu().numpy(), found.iou_scores[0].cpu().numpy()


def candidates(network: Any, case: Case, embeddings: Any) -> tuple[FloatArray, FloatArray]:
    """([B,4,h,w], [B,4]): every mask that the network could return, that of the single mask's own token first."""
    if rule_of(network) is not None:
        with _nothing_chosen(network):
            return answer(network, case, embeddings, multimask=False)
    single = answer(network, case, embeddings, multimask=False)
    several = answer(network, case, embeddings, multimask=True)
    return np.concatenate([single[0], several[0]], axis=1), np.concatenate([single[1], several[1]], axis=1)


@contextlib.contextmanager
def _nothing_chosen(network: Any) -> Iterator[None]:
    """Makes the network return all four candidates instead of the single mask that it would choose."""
    decoder = network.mask_decoder
    decoder._dynamic_multimask_via_stability = lambda masks, scores: (masks, scores)
    try:
        yield
    finally:
        del decoder._dynamic_multimask_via_stability
