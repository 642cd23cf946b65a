"""What is minimised: of words and exemplars, with one query or several for a target, and of clicks and boxes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from training.concepts.matching import match_many, match_one
from training.concepts.network import Found

#: The first layers of the decoder learn from several queries for a target, the others from one.
MANY_LAYERS, MANY = 2, 4
_CLASS, _CORNERS, _OVERLAP, _PRESENCE = 2.0, 5.0, 2.0, 2.0
_CROSS, _DICE, _WHOLE = 20.0, 2.0, 10.0
#: What scores of concepts of nothing count: that is the presence's matter.
_NOTHING = 0.2


class Targets(NamedTuple):
    """Of B concepts.

    Attributes:
        boxes: [B,T,4], xyxy in 0..1.
        valid: [B,T], what belongs to the concept.
    """

    boxes: Tensor
    valid: Tensor


def xyxy(boxes: Tensor) -> Tensor:
    """[...,4] cxcywh -> xyxy."""
    centre, size = boxes.split(2, -1)
    return torch.cat([centre - size / 2, centre + size / 2], -1)


def generous_overlap(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Generalised IoU and IoU of boxes [...,4] xyxy, broadcast."""
    low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    both = _area((high - low).clamp(min=0))
    either = _area(one[..., 2:] - one[..., :2]) + _area(other[..., 2:] - other[..., :2]) - both
    hull = torch.maximum(one[..., 2:], other[..., 2:]) - torch.minimum(one[..., :2], other[..., :2])
    whole = _area(hull).clamp(min=1e-7)
    overlap = both / either.clamp(min=1e-7)
    return overlap - (whole - either) / whole, overlap


def _area(size: Tensor) -> Tensor:
    """[...,2] -> [...]; the gradient of ``prod`` would wait for the device."""
    return size[..., 0] * size[..., 1]


def find_loss(found: Found, targets: Targets) -> tuple[dict[str, Tensor], Tensor]:
    """The parts of the loss, summed over layers, and the queries [B,T] of the last layer; -1 without a target."""
    layers, concepts, queries = found.logits.shape
    valid = targets.valid.expand(layers, -1, -1)
    boxes = xyxy(found.boxes)
    cost = _cost(found, boxes, targets)
    many = match_many(cost[:MANY_LAYERS].flatten(0, 1), valid[:MANY_LAYERS].flatten(0, 1), MANY)
    one = match_one(cost[MANY_LAYERS:].flatten(0, 1), valid[MANY_LAYERS:].flatten(0, 1))
    last = one.unflatten(0, (layers - MANY_LAYERS, concepts))[-1]
    # The target of each query, -1 without one.
    single = torch.full((len(one), queries + 1), -1, device=one.device)
    numbers = torch.arange(one.shape[1], device=one.device).expand(len(one), -1)
    single = single.scatter(1, torch.where(one < 0, queries, one), numbers)[:, :queries]
    target = torch.cat([many, single]).unflatten(0, (layers, concepts))
    positive = target >= 0
    wanted = targets.boxes.expand(layers, -1, -1, -1)
    wanted = wanted.gather(2, target.clamp(min=0)[..., None].expand(-1, -1, -1, 4))
    total = positive.sum((1, 2)).clamp(min=1)  # [L]
    there = targets.valid.any(1).float()  # [B]
    generous, _ = generous_overlap(boxes, wanted)
    centred = torch.cat([(wanted[..., :2] + wanted[..., 2:]) / 2, wanted[..., 2:] - wanted[..., :2]], -1)
    corners = (found.boxes - centred).abs().sum(-1)
    chance = found.logits.sigmoid()
    cross = functional.binary_cross_entropy_with_logits(found.logits, positive.float(), reduction="none")
    cross = cross * torch.where(positive, 1 - chance, chance).detach() * (there + _NOTHING * (1 - there))[:, None]
    presence = functional.binary_cross_entropy_with_logits(found.presence, there.expand(layers, -1))
    parts = {
        "class": _CLASS * (cross.sum((1, 2)) / total).sum(),
        "corners": _CORNERS * ((corners * positive).sum((1, 2)) / total).sum(),
        "overlap": _OVERLAP * (((1 - generous) * positive).sum((1, 2)) / total).sum(),
        "presence": _PRESENCE * presence,
    }
    return parts, last


def _cost(found: Found, boxes: Tensor, targets: Targets) -> Tensor:
    """[L,B,T,Q]."""
    with torch.no_grad():
        wanted = targets.boxes[None, :, :, None]
        generous, _ = generous_overlap(boxes[:, :, None], wanted)
        corners = (boxes[:, :, None] - wanted).abs().sum(-1)
        return 5 * corners - 2 * generous - 2 * found.logits.sigmoid()[:, :, None]


def mask_loss(logits: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Of [B,T,h,w] logits and shares in 0..1, where ``valid`` [B,T]."""
    each = _each(logits.float(), target)
    return (each * valid).sum() / valid.sum().clamp(min=1)


def whole_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Of where a concept is at all: [B,h,w] logits and shares in 0..1."""
    return _WHOLE * functional.binary_cross_entropy_with_logits(logits.float(), target)


def _each(logits: Tensor, target: Tensor) -> Tensor:
    """[...,h,w] -> [...]."""
    chance = logits.sigmoid()
    cross = functional.binary_cross_entropy_with_logits(logits, target, reduction="none").mean((-2, -1))
    dice = 1 - (2 * (chance * target).sum((-2, -1)) + 1) / (chance.sum((-2, -1)) + target.sum((-2, -1)) + 1)
    return _CROSS * cross + _DICE * dice


def click_loss(logits: Tensor, scores: Tensor, there: Tensor, target: Tensor) -> Tensor:
    """The single mask and the best of the three others, the error of all predicted IoU, and that there is something.

    Args:
        logits, scores: [B,4,h,w] and [B,4]; the single mask comes first.
        there: [B] logits.
        target: [B,h,w] shares in 0..1.
    """
    each = _each(logits.float(), target[:, None].expand_as(logits))
    with torch.no_grad():
        mask, wanted = logits > 0, target[:, None] > 0.5
        overlap = (mask & wanted).sum((2, 3)) / (mask | wanted).sum((2, 3)).clamp(min=1)
    error = (scores.float() - overlap).square().mean() * 4
    present = functional.binary_cross_entropy_with_logits(there.float(), torch.ones_like(there, dtype=torch.float32))
    return each[:, 0].mean() + each[:, 1:].amin(1).mean() + 0.05 * each[:, 1:].mean() + error + 0.05 * present
