"""One step of training: some objects are prompted in the first frame of their clips and tracked through the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.memory.network import MASK_SIDE, SIDE, TRAITS, Found, Frame, Memory, MemoryModel, given_logits, lost
from training.memory.scenes import Scene

#: Weights of the parts of the loss. Meta's: 20, 1, 1, 1.
_FOCAL, _DICE, _SCORE, _APPEARANCE = 20.0, 1.0, 1.0, 1.0
#: What the masks that were not chosen count.
_OTHERS = 0.3
#: An object is there if so many cells of a mask's 128 x 128 are.
_LEAST_CELLS = 4.0
#: Pointers' distances are shares of this span, and how far away the first frame may pretend to be.
_SPAN, _FARTHEST = 15.0, 60
_GIVEN_SHARE = 0.6


@dataclass(slots=True)
class Figures:
    """Sums over the tracked frames of a step, as tensors on the device.

    Attributes:
        loss: what is minimised.
        overlap: mean IoU of masks of objects that are there.
        right: share of frames in which it is known whether the object is there.
    """

    loss: Tensor
    overlap: Tensor
    right: Tensor


def track_scene(model: MemoryModel, scene: Scene, rows: int, truth: float, random: torch.Generator) -> Figures:
    """
    Args:
        rows: objects that are tracked.
        truth: share of objects whose memories are made of their true masks.
    """
    device = scene.frames.device
    frames = scene.frames.shape[1]
    drawn = torch.randperm(len(scene.prompted), generator=random, device=device)
    drawn = drawn.repeat(-(-rows // len(drawn)))[:rows]
    clip, thing = scene.prompted[drawn].unbind(1)
    masks = scene.masks[clip, thing]  # [R,T,128,128]
    present = masks.sum((2, 3)) > _LEAST_CELLS
    whole = model.encode(scene.frames.flatten(0, 1))
    first = whole.of(clip * frames)
    memory, losses = _prompt(model, first, scene.first[clip, thing][:, None], random)
    truths = torch.rand(rows, generator=random, device=device) < truth
    far = torch.randint(_FARTHEST, (rows,), generator=random, device=device).float()
    far = far * (torch.rand(rows, generator=random, device=device) < 0.5)
    kept: list[Memory] = []
    overlaps, rights = [], []
    for frame in range(1, frames):
        seen = whole.of(clip * frames + frame)
        recent = kept[-(TRAITS.memories - 1) :]
        ages = [0, *range(len(recent), 0, -1)]
        times = [(frame + far) / _SPAN, *(torch.full_like(far, age / _SPAN) for age in range(len(kept), 0, -1))]
        found = model.track(seen, [memory, *recent], ages, [memory, *kept], torch.stack(times, 1))
        there = present[:, frame]
        losses.append(judge(found, masks[:, frame], there))
        with torch.no_grad():
            overlap = _overlap(found.logits, masks[:, frame])
            overlaps.append((overlap * there).sum() / there.sum().clamp(min=1))
            rights.append(((found.appearance > 0) == there).float().mean())
            there = torch.where(truths, there, found.appearance > 0)
            true_logits = 20.0 * masks[:, frame] - 10.0
            logits = lost(torch.where(truths[:, None, None], true_logits, found.logits.float()), there)
        features = model.remember(seen, logits, hard=False, there=there)
        kept.append(Memory(features, model.point(found.token.detach(), there)))
    return Figures(torch.stack(losses).mean(), torch.stack(overlaps).mean(), torch.stack(rights).mean())


def _prompt(model: MemoryModel, frame: Frame, masks: Tensor, random: torch.Generator) -> tuple[Memory, list[Tensor]]:
    """What is remembered of the first frame, in which some objects are given by masks and the others clicked.

    Args:
        masks: [R,1,512,512], 0 or 1.
    """
    rows = len(masks)
    there = torch.ones(rows, dtype=torch.bool, device=masks.device)
    given = torch.rand(rows, generator=random, device=masks.device) < _GIVEN_SHARE
    points = inner_points(masks, random)
    clicked = model.click(frame, points, torch.ones_like(points[..., 0]))
    appearance = clicked.appearance
    token = torch.where(given[:, None], model.given(frame, masks), clicked.token)
    logits = torch.where(given[:, None, None], given_logits(masks), clicked.logits.float())
    features = model.remember(frame, logits, hard=True, there=there)
    loss = functional.binary_cross_entropy_with_logits(appearance.float(), torch.ones_like(appearance.float()))
    return Memory(features, model.point(token, there)), [loss * 0.1]


def inner_points(masks: Tensor, random: torch.Generator) -> Tensor:
    """[R,1,512,512] masks -> [R,1,2] a pixel of each, away from its border where it is thick enough."""
    inner = masks
    for _ in range(3):
        smaller = 1 - functional.max_pool2d(1 - inner, 9, 1, 4)
        inner = torch.where(smaller.flatten(1).any(1)[:, None, None, None], smaller, inner)
    chance = inner.flatten(1) * torch.rand(inner.flatten(1).shape, generator=random, device=inner.device)
    place = chance.argmax(1)
    return torch.stack([place % SIDE, place // SIDE], -1)[:, None].float() + 0.5


def judge(found: Found, target: Tensor, there: Tensor) -> Tensor:
    """The loss of one frame: of masks and scores where the object is there, and of whether it is."""
    masks, wanted = found.masks.float(), target[:, None].float()
    chances = masks.sigmoid()
    cross = functional.binary_cross_entropy_with_logits(masks, wanted.expand_as(masks), reduction="none")
    hit = chances * wanted + (1 - chances) * (1 - wanted)
    weight = 0.25 * wanted + 0.75 * (1 - wanted)
    focal = (weight * (1 - hit).square() * cross).mean((2, 3))
    dice = 1 - (2 * (chances * wanted).sum((2, 3)) + 1) / (chances.sum((2, 3)) + wanted.sum((2, 3)) + 1)
    with torch.no_grad():
        overlap = _overlap(masks.flatten(0, 1), wanted.expand_as(masks).flatten(0, 1)).reshape(found.scores.shape)
    score = (found.scores.float() - overlap).abs()
    each = _FOCAL * focal + _DICE * dice + _SCORE * score  # [R,3]
    chosen = each.gather(1, found.best[:, None])[:, 0] + _OTHERS * each.mean(1)
    of_masks = (chosen * there).sum() / there.sum().clamp(min=1)
    appearance = functional.binary_cross_entropy_with_logits(found.appearance.float(), there.float())
    return of_masks + _APPEARANCE * appearance


def _overlap(logits: Tensor, target: Tensor) -> Tensor:
    """[B,128,128] -> [B] IoU."""
    mask, wanted = logits > 0, target > 0.5
    both, either = (mask & wanted).sum((1, 2)), (mask | wanted).sum((1, 2))
    return both / either.clamp(min=1)


assert MASK_SIDE * 4 == SIDE
