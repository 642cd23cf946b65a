"""Help that only training has: what each cell of an image shows, and what each text names, told at once.

Without it, a detector learns nothing for a long time: it would have to find out together what a star looks like, what
"star" means, and where boxes go. Cells and words are read by the same layer, so that they become alike where they mean
the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.concepts.losses import generous_overlap
from training.concepts.network import GRID, SIZES
from training.concepts.scenes import Batch
from training.concepts.words import COLOURS, SHAPES, TEXTURES
from training.concepts.words import SIZES as THING_SIZES

_KINDS = tuple(len(names) for names in (SHAPES, COLOURS, THING_SIZES, TEXTURES))
_COVERED, _BOXES, _NAMED = 4.0, 2.0, 0.5
#: What cells of the ground count, beside those of things: that they show no thing is soon learned.
_GROUND = 0.05


class Hints(nn.Module):
    """Linear layers on the cells of the detector's map, on the same cells as the words see them, and on the words."""

    def __init__(self) -> None:
        super().__init__()
        self._covered = nn.Linear(SIZES.neck, 1)
        self._boxed = nn.Linear(SIZES.neck, 1 + 4)
        self._kinds = nn.Linear(SIZES.neck, sum(_KINDS))
        # Made here, because a CUDA graph cannot bring numbers to the device.
        places = (torch.arange(GRID) + 0.5) / GRID
        middles = torch.stack([places.repeat(GRID), places.repeat_interleave(GRID)] * 2, -1)
        self.register_buffer("_middles", middles, persistent=False)  # [g*g,4]
        self.register_buffer("_outward", torch.tensor([-1.0, -1.0, 1.0, 1.0]), persistent=False)

    def covered(self, fused: Tensor, whole: Tensor, things: Tensor) -> Tensor:
        """Loss of whether the concept is in a cell.

        Args:
            fused: [B,g*g,C], the image as the words see it.
            whole: [B,4g,4g], shares of the concept.
            things: [B,g*g], shares of all things.
        """
        coarse = functional.avg_pool2d(whole, whole.shape[-1] // GRID).flatten(1)
        said = self._covered(fused)[..., 0].float()
        each = functional.binary_cross_entropy_with_logits(said, coarse, reduction="none")
        weight = _GROUND + (things > 0.3).float()
        return _COVERED * (each * weight).sum() / weight.sum()

    def shown(self, image: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Loss of what cells show, how many shapes are right, and [N,g*g] the share of the largest thing in each cell.

        Args:
            image: [N,C,g,g], the detector's last map.
        """
        shares = functional.avg_pool2d(batch.masks.float(), batch.masks.shape[-1] // GRID) / 9
        share, owner = (shares * batch.there[..., None, None]).flatten(2).max(1)
        cells = image.flatten(2).transpose(1, 2)
        thing, boxes = self._boxed(cells).float().split((1, 4), -1)
        loss = functional.binary_cross_entropy_with_logits(thing[..., 0], (share > 0.5).float())
        inside = (share > 0.3).float()
        count = inside.sum().clamp(min=1)
        rows = torch.arange(len(owner), device=owner.device)[:, None]
        truth = batch.attributes[rows, owner]
        said = self._kinds(cells).float().split(_KINDS, -1)
        for number, logits in enumerate(said):
            each = functional.cross_entropy(logits.flatten(0, 1), truth[..., number].flatten(), reduction="none")
            loss = loss + (each * inside.flatten()).sum() / count
        right = (said[0].argmax(-1) == truth[..., 0]) * inside
        corners = self._middles + functional.softplus(boxes) * 0.1 * self._outward
        generous, _ = generous_overlap(corners, batch.boxes[rows, owner])
        return loss + _BOXES * ((1 - generous) * inside).sum() / count, right.sum() / count, share

    def named(self, text: Tensor, batch: Batch) -> Tensor:
        """Loss of what texts name: some word of a text stands for each attribute that it names, and none for others.

        Args:
            text: [B,32,C].
        """
        padding = batch.token_mask.flatten(0, 1)[..., None] == 0
        said = self._kinds(text).float().masked_fill(padding, -1e4).amax(1)
        truth, told = batch.named.flatten(0, 1), batch.described.flatten().float()
        wanted = [
            truth[:, number, None] == torch.arange(kinds, device=truth.device) for number, kinds in enumerate(_KINDS)
        ]
        target = torch.cat(wanted, 1).float()
        each = functional.binary_cross_entropy_with_logits(said, target, reduction="none").sum(1)
        return _NAMED * (each * told).sum() / told.sum().clamp(min=1)
