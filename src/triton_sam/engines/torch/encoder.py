"""Image encoders that return flat rows in the decoder's order. [B,3,S,S], normalised -> [B,length], and more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from triton_sam.engines.torch.hiera import HieraTrunk
from triton_sam.engines.torch.layout import Layout
from triton_sam.engines.torch.perception import PerceptionEncoder
from triton_sam.models.architecture import Backbone
from triton_sam.models.specs import ModelSpec


class RowEncoder(nn.Module):
    """The encoder of a network; its rows have the dtype of the cache."""

    def __init__(self, network: Any, spec: ModelSpec, layout: Layout, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.encoder: nn.Module
        if spec.architecture.backbone is Backbone.HIERA:
            self.encoder = HieraEncoder(network, layout)
        elif spec.architecture.backbone is Backbone.PERCEPTION:
            self.encoder = PerceptionEncoder(network, layout, keeps_features=spec.concepts is not None)
        else:
            self.encoder = PlainEncoder(network, layout)
        self._kept_in = dtype
        self.eval().requires_grad_(False)

    def cast(self, device: torch.device, dtype: torch.dtype, *, kernels: bool = True) -> RowEncoder:
        """Moves it to a device and a dtype; ``kernels`` as in :meth:`HieraTrunk.settle`.

        Buffers that are not in the checkpoint keep their dtype: they hold positions and angles (SAM 3's rotations), for
        which half precision is too coarse.
        """
        exact = [
            (module, name, buffer)
            for module in self.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if name in module._non_persistent_buffers_set
        ]
        self.to(device, dtype)
        for module, name, buffer in exact:
            module._buffers[name] = buffer.to(device)
        if isinstance(self.encoder, HieraEncoder):
            self.encoder.trunk.settle(device, dtype, kernels=kernels)
        return self

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Rows, [B] whether all values of each are finite, and of a model with a detector what that reads [B,n,C]."""
        rows, *features = self.encoder(pixels)
        rows = rows.to(self._kept_in)
        finite = torch.isfinite(rows).all(dim=1)
        for one in features:
            finite = finite & torch.isfinite(one).flatten(1).all(dim=1)
        return rows, finite, *features


class PlainEncoder(nn.Module):
    """transformers' own encoder, with one output."""

    def __init__(self, network: Any, layout: Layout) -> None:
        super().__init__()
        self.network = network
        self.layout = layout

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        ((name, _, _),) = self.layout.parts
        return (self.layout.flatten({name: self.network.vision_encoder(pixels).last_hidden_state}),)


class HieraEncoder(nn.Module):
    """Hiera and its neck on tokens with channels last.

    The two fine levels go through two 1x1 convolutions, one of the neck and one of the decoder, with nothing in
    between. Joined into one, they write only a fraction of the channels.
    """

    def __init__(self, network: Any, layout: Layout) -> None:
        super().__init__()
        neck, decoder = network.vision_encoder.neck, network.mask_decoder
        if tuple(neck.fpn_top_down_levels) != (2, 3):
            raise ValueError(f"this neck joins other levels than 2 and 3: {neck.fpn_top_down_levels}")
        self.layout = layout
        self.trunk = HieraTrunk(network.vision_encoder.backbone)
        coarsest, coarse, finer, finest = neck.convs
        self.coarsest, self.coarse = _pointwise(coarsest), _pointwise(coarse)
        self.finer = _joined(_pointwise(finer), _pointwise(decoder.conv_s1))
        self.finest = _joined(_pointwise(finest), _pointwise(decoder.conv_s0))
        self.no_memory = nn.Parameter(network.no_memory_embedding.detach().clone().reshape(-1), requires_grad=False)

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        fine0, fine1, middle, deep = self.trunk(pixels)
        above = self.coarsest(deep).repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)
        embedding = self.coarse(middle) + above + self.no_memory
        levels = (embedding, self.finer(fine1), self.finest(fine0))
        named = zip((name for name, _, _ in self.layout.parts), levels, strict=True)
        return (self.layout.flatten({name: level.permute(0, 3, 1, 2) for name, level in named}),)


def _pointwise(convolution: Any) -> nn.Linear:
    """A 1x1 convolution as a linear layer on channels-last tensors."""
    weight = convolution.weight.detach()[:, :, 0, 0]
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight.data, linear.bias.data = weight.clone(), convolution.bias.detach().clone()
    return linear


def _joined(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """One linear layer in place of two; multiplied in double precision, so that it is rounded only once."""
    joined = nn.Linear(first.in_features, second.out_features)
    weight = second.weight.double() @ first.weight.double()
    bias = second.weight.double() @ first.bias.double() + second.bias.double()
    joined.weight.data, joined.bias.data = weight.to(first.weight.dtype), bias.to(first.weight.dtype)
    return joined
