"""Clicks, boxes and corrections, as SAM is trained with them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from training.concepts.losses import click_loss
from training.concepts.network import MASK_SIDE, SIDE, ConceptNetwork
from training.concepts.scenes import Batch

#: Things of a scene that are prompted, and answers to each: the first and its corrections.
PROMPTED, ANSWERS = 1, 3
_CELL = SIDE / MASK_SIDE
_CLIP = 32.0


def answer_clicks(
    network: ConceptNetwork, features: Tensor, batch: Batch, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Loss and mean IoU of the last answers to clicks and boxes on some things of each scene.

    Args:
        features: [B,C,24,24] of the backbone.
    """
    scenes, device = len(features), features.device
    chance = torch.rand(batch.there.shape, generator=random, device=device) * batch.there
    things = chance.topk(PROMPTED, dim=1).indices.flatten()  # [B*2]
    rows = torch.arange(scenes, device=device).repeat_interleave(PROMPTED)
    usable = batch.there[rows, things]
    target = batch.masks[rows, things].float() / 9
    maps = tuple(one.repeat_interleave(PROMPTED, 0) for one in network.click_maps(features))
    boxed = torch.rand(len(rows), generator=random, device=device) < 0.4
    points, labels = _first(target, batch.boxes[rows, things], boxed, random)
    logits = torch.zeros(len(rows), 1, MASK_SIDE, MASK_SIDE, device=device)
    given = torch.zeros(len(rows), dtype=torch.bool, device=device)
    target = target * usable[:, None, None]
    total = torch.zeros((), device=device)
    for turn in range(ANSWERS):
        masks, scores, there = network.click(maps, points, labels, logits, given)
        total = total + click_loss(masks, scores, there, target)
        best = torch.where((turn == 0) & ~boxed, 1 + scores[:, 1:].argmax(1), 0)
        logits = masks.detach().gather(1, best[:, None, None, None].expand(-1, 1, *masks.shape[2:]))
        logits = logits.float().clamp(-_CLIP, _CLIP)
        if turn < ANSWERS - 1:
            point, label = correction(logits[:, 0] > 0, target > 0.5, random)
            points, labels = torch.cat([points, point[:, None]], 1), torch.cat([labels, label[:, None]], 1)
            given = torch.rand(len(rows), generator=random, device=device) < 0.8
    said, wanted = logits[:, 0] > 0, target > 0.5
    overlap = (said & wanted).sum((1, 2)) / (said | wanted).sum((1, 2)).clamp(min=1)
    return total / ANSWERS, overlap.mean()


def _first(target: Tensor, boxes: Tensor, boxed: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points [B,2,2] in pixels and labels [B,2]: a click and nothing, or the corners of a box."""
    click = _inside(target > 0.5, random)
    size = boxes[:, 2:] - boxes[:, :2]
    off = (torch.rand(boxes.shape, generator=random, device=boxes.device) - 0.5) * 0.16
    corners = ((boxes + off * torch.cat([size, size], 1)) * SIDE).reshape(-1, 2, 2)
    points = torch.where(boxed[:, None, None], corners, torch.stack([click, torch.zeros_like(click)], 1))
    return points, torch.stack([torch.where(boxed, 2, 1), torch.where(boxed, 3, -1)], 1)


def correction(said: Tensor, wanted: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """A click [B,2] in the larger error of a mask [B,96,96], and its label [B]; in the thing if nothing is wrong."""
    missed, added = wanted & ~said, said & ~wanted
    more = missed.sum((1, 2)) >= added.sum((1, 2))
    wrong = torch.where(more[:, None, None], missed, added)
    right = ~wrong.any(2).any(1)
    wrong = torch.where(right[:, None, None], wanted, wrong)
    return _inside(wrong, random), (more | right).long()


def _inside(mask: Tensor, random: torch.Generator) -> Tensor:
    """[B,96,96] -> [B,2] pixels of a cell of each mask, away from its border where it is thick enough."""
    inner = mask.float()
    smaller = 1 - functional.max_pool2d(1 - inner[:, None], 3, 1, 1)[:, 0]
    chance = (inner + 3 * smaller).flatten(1) * torch.rand(inner.flatten(1).shape, generator=random, device=mask.device)
    place = chance.argmax(1)
    off = torch.rand((len(mask), 2), generator=random, device=mask.device)
    cell = torch.stack([place % MASK_SIDE, place // MASK_SIDE], 1)
    # The network adds half a pixel.
    return (cell + off) * _CELL - 0.5
