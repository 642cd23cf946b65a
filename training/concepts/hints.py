"""Help that only training has: what each cell of an image shows, and what each text names, told at once.

Without it, a detector learns nothing for a long time: it would have to find out together what a star looks like, what
"star" means, and where boxes go.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.concepts.losses import generous_overlap, whole_loss
from training.concepts.network import GRID, SIZES
from training.concepts.scenes import Batch
from training.concepts.words import COLOURS, SHAPES, TEXTURES
from training.concepts.words import SIZES as THING_SIZES

_KINDS = tuple(len(names) for names in (SHAPES, COLOURS, THING_SIZES, TEXTURES))
_COVERED, _ATTRIBUTES, _BOXES, _NAMED = 0.5, 1.0, 2.0, 0.5


class Hints(nn.Module):
    """Linear layers on the cells of the detector's map, on the same cells as the words see them, and on the words."""

    def __init__(self) -> None:
        super().__init__()
        self._covered = nn.Linear(SIZES.neck, 1)
        self._shown = nn.Linear(SIZES.neck, 1 + sum(_KINDS) + 4)
        self._named = nn.Linear(SIZES.neck, sum(_KINDS) + len(_KINDS))
        # Made here, because a CUDA graph cannot bring numbers to the device.
        places = (torch.arange(GRID) + 0.5) / GRID
        middles = torch.stack([places.repeat(GRID), places.repeat_interleave(GRID)] * 2, -1)
        self.register_buffer("_middles", middles, persistent=False)  # [g*g,4]
        self.register_buffer("_outward", torch.tensor([-1.0, -1.0, 1.0, 1.0]), persistent=False)

    def covered(self, fused: Tensor, whole: Tensor) -> Tensor:
        """Whether the concept is in a cell.

        Args:
            fused: [B,g*g,C], the image as the words see it.
            whole: [B,4g,4g], shares of the concept.
        """
        coarse = functional.avg_pool2d(whole, whole.shape[-1] // GRID)
        return _COVERED * whole_loss(self._covered(fused)[..., 0], coarse.flatten(1))

    def shown(self, image: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss of what cells show: whether a thing, its attributes and its box; and how many shapes are right.

        Args:
            image: [N,C,g,g], the detector's last map.
        """
        shares = functional.avg_pool2d(batch.masks.float(), batch.masks.shape[-1] // GRID) / 9
        share, owner = (shares * batch.there[..., None, None]).flatten(2).max(1)  # [N,g*g]
        said = self._shown(image.flatten(2).transpose(1, 2)).float()
        covered, attributes, boxes = said.split((1, sum(_KINDS), 4), -1)
        thing = functional.binary_cross_entropy_with_logits(covered[..., 0], (share > 0.5).float())
        inside = (share > 0.3).float()
        count = inside.sum().clamp(min=1)
        rows = torch.arange(len(owner), device=owner.device)[:, None]
        truth = batch.attributes[rows, owner]
        loss = thing
        for number, logits in enumerate(attributes.split(_KINDS, -1)):
            each = functional.cross_entropy(logits.flatten(0, 1), truth[..., number].flatten(), reduction="none")
            loss = loss + _ATTRIBUTES * (each * inside.flatten()).sum() / count
        right = (attributes[..., : _KINDS[0]].argmax(-1) == truth[..., 0]) * inside
        corners = self._middles + functional.softplus(boxes) * 0.1 * self._outward
        generous, _ = generous_overlap(corners, batch.boxes[rows, owner])
        return loss + _BOXES * ((1 - generous) * inside).sum() / count, right.sum() / count

    def named(self, text: Tensor, batch: Batch) -> Tensor:
        """Loss of what texts name; the last class of each attribute is that it is not named.

        Args:
            text: [B,32,C].
        """
        mask = batch.token_mask.flatten(0, 1)[..., None].to(text.dtype)
        said = self._named((text * mask).sum(1) / mask.sum(1)).float()
        truth = batch.named.flatten(0, 1)
        told = batch.described.flatten().float()
        loss = said.new_zeros(())
        for number, logits in enumerate(said.split([kinds + 1 for kinds in _KINDS], -1)):
            target = torch.where(truth[:, number] < 0, _KINDS[number], truth[:, number])
            each = functional.cross_entropy(logits, target, reduction="none")
            loss = loss + (each * told).sum() / told.sum().clamp(min=1)
        return _NAMED * loss
