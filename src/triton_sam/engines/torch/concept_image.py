"""What the detector makes of an image before it knows what to look for: once for all concepts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from triton_sam.engines.torch.concept_parts import Attention, Projections, cast
from triton_sam.engines.torch.perception import PyramidLevel


class ConceptImageStep(nn.Module):
    """The detector's feature pyramid, and the first attention of the image to itself.

    They depend on the image alone, so that one run serves all concepts that are looked for in it.
    """

    def __init__(self, concepts: Any, grid: int, heads: int) -> None:
        """
        Args:
            concepts: the network's :class:`~triton_sam.networks.concept_layers.ConceptLayers`.
            grid: cells of an image along a side.
        """
        super().__init__()
        self.grid = grid
        #: Of the backbone's features.
        self.channels = int(concepts.neck.fpn_layers[-1].proj1.in_channels)
        self.fine, self.middle, self.coarse = (PyramidLevel(layer) for layer in concepts.neck.fpn_layers)
        self.own = SelfAttention(concepts.detr_encoder.layers[0], concepts.positions, heads)
        self.eval().requires_grad_(False)

    def cast(self, device: torch.device, dtype: torch.dtype) -> ConceptImageStep:
        cast(self, device, dtype, [self.fine, self.middle, self.coarse, self.own])
        return self

    @property
    def dtype(self) -> torch.dtype:
        return self.coarse.weight.dtype

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """
        Args:
            features: [1,n,C'] of the backbone.

        Returns:
            [1,4g,4g,C], [1,2g,2g,C] and [1,g,g,C], the pyramid; [1,n,C] float32, the image after its first attention.
        """
        grid = features.to(self.dtype).view(len(features), self.grid, self.grid, -1)
        coarse = self.coarse(grid)
        state = coarse.flatten(1, 2).float()
        return self.fine(grid), self.middle(grid), coarse, state + self.own(state)

    def inputs(self, device: torch.device) -> tuple[Tensor]:
        """Features of the backbone, zeros."""
        return (torch.zeros(1, self.grid**2, self.channels, dtype=self.dtype, device=device),)


class SelfAttention(nn.Module):
    """What an image's cells tell each other, of a layer that normalises before. [B,n,C] float32 -> [B,n,C]."""

    def __init__(self, layer: Any, positions: Tensor, heads: int) -> None:
        super().__init__()
        self.norm, own = layer.layer_norm1, layer.self_attn
        self.projections = Projections([own.q_proj, own.k_proj, own.v_proj], positions, (True, True, False))
        self.attention = Attention(own, heads)

    def forward(self, state: Tensor) -> Tensor:
        return self.attention.mixed(*self.projections(self.norm(state)).chunk(3, dim=2))
