"""Instances of the torch engine against transformers' ``Sam3Model``, candidate by candidate and as they are served."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from triton_sam.core.concepts.request import ConceptPrompt
from triton_sam.core.geometry import Frame
from triton_sam.engines.base import Embedding
from triton_sam.engines.concepts import ConceptRow
from triton_sam.engines.tokenizing import TextTokenizer
from triton_sam.engines.torch.engine import TorchEngine

_NO_LABELS = np.zeros(0, np.int32)
NO_BOXES = np.zeros((0, 4), np.float32)
Found = dict[str, torch.Tensor]


def prompts(frame: Frame) -> dict[str, ConceptPrompt]:
    """One of each kind, for an image."""
    scale = np.array([frame.width, frame.height, frame.width, frame.height], np.float32)
    boxes = np.array([[0.1, 0.2, 0.4, 0.5], [0.5, 0.5, 0.9, 0.8]], np.float32) * scale
    labels = np.array([1, 0], np.int32)
    return {
        "text": ConceptPrompt("red thing", NO_BOXES, _NO_LABELS),
        "examples": ConceptPrompt(None, boxes, labels),
        "both": ConceptPrompt("coin", boxes[:1], labels[:1]),
    }


@dataclass
class Reference:
    """transformers' model, and how it is asked."""

    model: Any
    tokenizer: TextTokenizer

    def __post_init__(self) -> None:
        from transformers.models.sam3 import modeling_sam3

        if not hasattr(modeling_sam3, "torchvision"):  # a machine without it, for a try
            modeling_sam3.torchvision = SimpleNamespace(ops=SimpleNamespace(roi_align=_own_roi_align))

    @property
    def device(self) -> torch.device:
        found: torch.device = next(self.model.parameters()).device
        return found

    def tokens(self, text: str) -> tuple[torch.Tensor, torch.Tensor]:
        """[1,32] each on the device."""
        ids, mask = (torch.from_numpy(one)[None].to(self.device) for one in self.tokenizer.encode(text))
        return ids, mask

    def find(self, pixels: torch.Tensor, prompt: ConceptPrompt, frame: Frame) -> Found:
        """All candidates in one image [3,S,S], normalised; in float32."""
        ids, mask = self.tokens(prompt.words)
        scale = np.tile([frame.width, frame.height], 2)
        corners = torch.from_numpy((prompt.boxes / scale).astype(np.float32)).to(self.device)
        low, high = corners[:, :2], corners[:, 2:]
        dtype = next(self.model.parameters()).dtype
        boxes = {}
        if len(corners):
            given = torch.cat([(low + high) / 2, high - low], dim=1)[None]
            labels = torch.from_numpy(prompt.labels.astype(np.int64))[None].to(self.device)
            boxes = {"input_boxes": given.to(dtype), "input_boxes_labels": labels}
        with torch.inference_mode():
            found = self.model(pixel_values=pixels[None].to(dtype), input_ids=ids, attention_mask=mask, **boxes)
        logits, presence = found.pred_logits[0].float(), found.presence_logits[0].float()
        return {
            "scores": logits.sigmoid() * presence.sigmoid(),
            "logits": logits,
            "presence": presence,
            "boxes": found.pred_boxes[0].float(),
            "masks": found.pred_masks[0].float(),
        }


def _own_roi_align(features: torch.Tensor, boxes: Any, size: int) -> torch.Tensor:
    from triton_sam.networks.roi_align import roi_align

    return roi_align(features, torch.stack(list(boxes)), size).flatten(0, 1)


def candidates(engine: TorchEngine, embedding: Embedding, given: list[ConceptPrompt]) -> list[Found]:
    """All candidates of the engine for concepts of an image, looked for together."""
    finder = engine.concepts
    assert finder is not None
    finish = engine.begin_concepts([ConceptRow(embedding, prompt, -1.0, 1) for prompt in given])
    finish()
    # The candidates themselves are there until the next run.
    run = finder._last() if finder._last is not None else None
    assert run is not None
    queries = finder.detect.queries
    found = []
    for index in range(len(given)):
        facts, weights, pixels = run.facts[index].to(run.weights.device), run.weights[index], run.pixels[index]
        logits, presence = facts[:queries], facts[-1:]
        with torch.inference_mode():
            masks = weights[:, :-1] @ pixels.float().T + weights[:, -1:]
        side = round(masks.shape[1] ** 0.5)
        found.append(
            {
                "scores": logits.sigmoid() * presence.sigmoid(),
                "logits": logits,
                "presence": presence,
                "boxes": facts[queries:-1].view(queries, 4),
                "masks": masks.view(queries, side, side),
            }
        )
    return found


def differences(found: Found, known: Found, best: int) -> dict[str, Any]:
    """Largest differences, those of logits, boxes and masks in standard deviations; and IoU of low-resolution masks: of
    all candidates, and of those with the ``best`` scores."""
    worst = {
        f"{name}_off": round(float((found[name] - known[name]).abs().max() / known[name].std().clamp(1e-9)), 6)
        for name in ("logits", "boxes", "masks")
    }
    iou = _iou(found["masks"] > 0, known["masks"] > 0)
    top = known["scores"].argsort(descending=True)[:best]
    rms = float((found["masks"] - known["masks"]).square().mean().sqrt() / known["masks"].std())
    return {
        **worst,
        "masks_rms": round(rms, 6),
        "scores_off": round(float((found["scores"] - known["scores"]).abs().max()), 7),
        "presence_off": round(float((found["presence"] - known["presence"]).abs().max()), 6),
        "iou_least": round(float(iou.min()), 4),
        "iou_mean": round(float(iou.mean()), 5),
        "iou_least_of_best": round(float(iou[top].min()), 4),
    }


def answered(engine: TorchEngine, embedding: Embedding, prompt: ConceptPrompt, known: Found, best: int) -> Any:
    """The engine's answer, packed bits, against masks of the reference: for each of its best, the most alike."""
    row = ConceptRow(embedding, prompt, -1.0, best, logits=False, pixels=True)
    (found,) = engine.begin_concepts([row])()
    frame, packed = embedding.frame, found.decoded.packed
    assert packed is not None
    bits = np.unpackbits(np.asarray(packed), axis=2)[:, :, : frame.width].astype(bool)
    masks = torch.from_numpy(bits).to(known["masks"].device)
    top = known["scores"].argsort(descending=True)[: len(bits)]
    size = frame.height, frame.width
    large = functional.interpolate(known["masks"][top][None], size=size, mode="bilinear", align_corners=False)[0] > 0
    one, other = large.flatten(1).float(), masks.flatten(1).float()
    shared = one @ other.T
    iou = shared / (one.sum(1)[:, None] + other.sum(1)[None] - shared).clamp(min=1)
    scores = torch.from_numpy(np.asarray(found.decoded.scores)).flatten().to(known["scores"].device)
    return {
        "instances": len(bits),
        "iou_least": round(float(iou.amax(1).min()), 4),
        "iou_mean": round(float(iou.amax(1).mean()), 5),
        "scores_off": round(float((scores - known["scores"][top]).abs().max()), 7),
    }


def _iou(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    union = (one | other).sum((1, 2))
    # Two empty masks are the same.
    return torch.where(union > 0, (one & other).sum((1, 2)) / union.clamp(min=1), torch.ones_like(union).float())
