"""SAM 3's image encoder: transformers' own backbone, and feature pyramids on tokens with channels last.

A level of a pyramid is a chain of convolutions with little in between. Those with nothing in between are joined into
one: a 1x1 convolution with the transposed one before it or with the 3x3 one before it, which then writes only as many
channels as its reader takes. Joined weights are multiplied in double precision, so that they are rounded only once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.engines.torch.layout import Layout


class PerceptionEncoder(nn.Module):
    """The backbone and the pyramid that clicks read. [B,3,S,S] -> [B,length]; and [B,cells,C], what the detector reads.

    Args:
        keeps_features: whether the second output is wanted.
    """

    def __init__(self, network: Any, layout: Layout, *, keeps_features: bool) -> None:
        super().__init__()
        encoder, decoder = network.vision_encoder, network.mask_decoder
        self.layout, self._keeps_features = layout, keeps_features
        self.backbone = encoder.backbone
        fine, middle, coarse = encoder.neck.fpn_layers[:3]
        self.levels = nn.ModuleList(
            [
                PyramidLevel(coarse, added=network.no_memory_embedding),
                PyramidLevel(middle, then=decoder.conv_s1),
                PyramidLevel(fine, then=decoder.conv_s0),
            ]
        )

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        features = self.backbone(pixels).last_hidden_state
        grid = features.unflatten(1, (self.layout.grid, self.layout.grid))
        names = [name for name, _, _ in self.layout.parts]
        levels = {name: level(grid).permute(0, 3, 1, 2) for name, level in zip(names, self.levels, strict=True)}
        rows = self.layout.flatten(levels)
        return (rows, features) if self._keeps_features else (rows,)


class PyramidLevel(nn.Module):
    """One level of a pyramid. [B,g,g,C] -> [B,S,S,D]; S is the grid, twice or four times it."""

    def __init__(self, layer: Any, then: Any = None, added: Tensor | None = None) -> None:
        """
        Args:
            layer: transformers' ``Sam3FPNLayer``, with a scale of 1, 2 or 4.
            then: a 1x1 convolution of its result; None: none.
            added: [...,D], to its result.
        """
        super().__init__()
        enlarging = [one for one in layer.scale_layers if isinstance(one, nn.ConvTranspose2d)]
        self.first = Enlarge(enlarging[0]) if len(enlarging) == 2 else None
        self.last = Enlarge(enlarging[-1], layer.proj1) if enlarging else _pointwise(layer.proj1)
        weight, bias = layer.proj2.weight.detach().double(), layer.proj2.bias.detach().double()
        if then is not None:
            outer = then.weight.detach().double()[:, :, 0, 0]
            weight, bias = torch.einsum("oi,ickl->ockl", outer, weight), outer @ bias + then.bias.detach().double()
        if added is not None:
            bias = bias + added.detach().double().flatten()
        weight = weight.float().contiguous(memory_format=torch.channels_last)
        self.weight, self.bias = nn.Parameter(weight, requires_grad=False), fixed(bias)

    def forward(self, grid: Tensor) -> Tensor:
        if self.first is not None:
            grid = functional.gelu(self.first(grid))
        state = self.last(grid).permute(0, 3, 1, 2)
        return functional.conv2d(state, self.weight, self.bias, padding=1).permute(0, 2, 3, 1)


class Enlarge(nn.Module):
    """A transposed convolution of kernel and stride 2. [B,g,g,C] -> [B,2g,2g,D]."""

    def __init__(self, convolution: Any, then: Any = None) -> None:
        """
        Args:
            then: a 1x1 convolution of its result; None: none.
        """
        super().__init__()
        weight = convolution.weight.detach().double().permute(2, 3, 1, 0).flatten(0, 1)  # [4,D,C]
        bias = convolution.bias.detach().double()
        if then is not None:
            outer = then.weight.detach().double()[:, :, 0, 0]
            weight, bias = outer @ weight, outer @ bias + then.bias.detach().double()
        self.width = len(bias)
        self.weight, self.bias = fixed(weight.flatten(0, 1)), fixed(bias.repeat(4))

    def forward(self, grid: Tensor) -> Tensor:
        rows, height, width = grid.shape[:3]
        cells = functional.linear(grid, self.weight, self.bias).view(rows, height, width, 2, 2, self.width)
        return cells.permute(0, 1, 3, 2, 4, 5).reshape(rows, 2 * height, 2 * width, self.width)


def fixed(tensor: Tensor) -> nn.Parameter:
    """A float32 copy as a parameter that is not trained."""
    return nn.Parameter(tensor.detach().to(torch.float32, copy=True).contiguous(), requires_grad=False)


def _pointwise(convolution: Any) -> nn.Linear:
    """A 1x1 convolution as a linear layer on channels-last tensors."""
    weight = convolution.weight.detach()[:, :, 0, 0]
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight, linear.bias = fixed(weight), fixed(convolution.bias)
    return linear
