"""What is remembered of objects in a frame, for rows of any videos."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.core.video.memory_traits import MemoryTraits

#: Memories are made of masks between -10 and 10.
_SCALE, _SHIFT = 20.0, -10.0


class RowMemoryEncoder(nn.Module):
    """The memory encoder of a network, on images with channels last."""

    occlusion: Tensor

    def __init__(self, network: Any, traits: MemoryTraits, side: int, grid: int) -> None:
        """
        Args:
            network: with the layers of :mod:`triton_sam.networks.memory_layers`.
            side, grid: sides of the model's input, pixels, and of the embedding, cells.
        """
        super().__init__()
        encoder = copy.deepcopy(network.memory_encoder)
        self.side, self.mask_side, self.grid = side, 16 * grid, grid
        self.resizes_last = traits.mask_after_sigmoid
        self.downsampler, self.fuser = encoder.mask_downsampler, encoder.memory_fuser
        self.projection = _pointwise(encoder.projection)
        self.features = _pointwise(encoder.feature_projection)
        # Embeddings come with the no-memory embedding, which the encoder does not get.
        no_memory = network.no_memory_embedding.detach().double().reshape(-1)
        self.features.bias.data -= (self.features.weight.double() @ no_memory).to(self.features.bias.dtype)
        occlusion = torch.zeros(traits.width)
        if traits.marks_occlusion:
            occlusion = network.occlusion_spatial_embedding_parameter.detach().float().reshape(-1)
        self.occlusion = nn.Buffer(occlusion.clone())

    def cast(self, device: torch.device, dtype: torch.dtype) -> RowMemoryEncoder:
        """Moves it to a device and its weights to a dtype."""
        occlusion = self.occlusion
        self.to(device, dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.occlusion = nn.Buffer(occlusion.to(device))
        return self

    def forward(self, image: Tensor, logits: Tensor, hard: Tensor, there: Tensor) -> Tensor:
        """
        Args:
            image: [B,n,256] embeddings with the no-memory embedding.
            logits: [B,h,w] float32, low resolution.
            hard: [B] bool, whether only their signs count.
            there: [B] bool, whether the object is in the frame.

        Returns:
            [B,n,C] float32.
        """
        dtype = self.features.weight.dtype
        large = _resized(logits[:, None], self.side)
        shares = torch.where(hard[:, None, None, None], (large > 0).float(), large.sigmoid()) * _SCALE + _SHIFT
        if self.resizes_last:
            shares = _resized(shares, self.mask_side)
        # A single channel: its strides are those of both formats.
        masks = self.downsampler(shares.to(dtype))
        features = self.features(image.to(dtype)).unflatten(1, (self.grid, self.grid)).permute(0, 3, 1, 2)
        fused = self.fuser(features + masks)
        memories = self.projection(fused.permute(0, 2, 3, 1).flatten(1, 2)).float()
        result: Tensor = memories + torch.where(there[:, None, None], 0.0, self.occlusion)
        return result


def _resized(masks: Tensor, side: int) -> Tensor:
    return functional.interpolate(masks, size=(side, side), mode="bilinear", align_corners=False)


def _pointwise(convolution: Any) -> nn.Linear:
    """A 1x1 convolution as a linear layer on channels-last tensors."""
    weight = convolution.weight.detach()[:, :, 0, 0].clone()
    linear = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    linear.bias = nn.Parameter(convolution.bias.detach().clone(), requires_grad=False)
    return linear
