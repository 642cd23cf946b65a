"""The pixels of all masks of a concept, and what each candidate's mask is made with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.engines.torch.concept_parts import Attention
from triton_sam.engines.torch.perception import fixed


class Pixels(nn.Module):
    """The mask decoder. Its last projection of pixels is applied to the candidates instead, which are fewer."""

    def __init__(self, decoder: Any, grid: int, heads: int) -> None:
        super().__init__()
        self.grid = grid
        self.norm = decoder.prompt_cross_attn_norm
        self.to_prompt = Attention(decoder.prompt_cross_attn, heads)
        self.stages = nn.ModuleList(
            _Stage(convolution, norm)
            for convolution, norm in zip(decoder.pixel_decoder.conv_layers, decoder.pixel_decoder.norms, strict=True)
        )
        first, second, third = decoder.mask_embedder.layers
        self.embed = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)
        projection = decoder.instance_projection
        weight, bias = projection.weight.detach()[:, :, 0, 0], projection.bias.detach()
        self.turn = fixed(torch.cat([weight, bias[:, None]], dim=1))

    @property
    def halves(self) -> nn.Module:
        """What is half precision."""
        return nn.ModuleList([self.to_prompt, self.stages])

    # Many parameters: all that masks are made of.
    def forward(
        self, fine: Tensor, middle: Tensor, state: Tensor, queries: Tensor, keys: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            fine, middle: of :class:`~triton_sam.engines.torch.concept_image.ConceptImageStep`.
            state: [B,n,C] the image at the end of the encoder.
            queries: [B,Q,C] of the decoder.
            keys, hidden: [B,T,2C] keys and values of the prompt, and [B,1,1,T].

        Returns:
            See :meth:`~triton_sam.engines.torch.concept_detector.DetectStep.forward`.
        """
        state = state + self.to_prompt(self.norm(state), keys, hidden)
        pixels = state.to(self.to_prompt.query.weight.dtype).view(len(state), self.grid, self.grid, -1)
        for stage, skipped in zip(self.stages, (middle, fine), strict=True):
            pixels = stage(pixels, skipped)
        return self.embed(queries) @ self.turn, pixels.flatten(1, 2)


class _Stage(nn.Module):
    """Twice as many pixels, and what the pyramid has there. [B,S,S,C], [1,2S,2S,C] -> [B,2S,2S,C]."""

    def __init__(self, convolution: Any, norm: Any) -> None:
        super().__init__()
        weight = convolution.weight.detach().float().contiguous(memory_format=torch.channels_last)
        self.weight, self.bias = nn.Parameter(weight, requires_grad=False), fixed(convolution.bias)
        self.norm = norm

    def forward(self, pixels: Tensor, skipped: Tensor) -> Tensor:
        large = pixels.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2) + skipped
        state = functional.conv2d(large.permute(0, 3, 1, 2), self.weight, self.bias, padding=1).permute(0, 2, 3, 1)
        return functional.relu(self._normalised(state))

    def _normalised(self, state: Tensor) -> Tensor:
        """The group norm, which torch itself has for channels first."""
        groups = state.reshape(*state.shape[:3], self.norm.num_groups, -1)
        variance, mean = torch.var_mean(groups.float(), dim=(1, 2, 4), keepdim=True, correction=0)
        scale = (variance + self.norm.eps).rsqrt() * self.norm.weight.view(groups.shape[3:])
        shift = self.norm.bias.view(groups.shape[3:]) - mean * scale
        normalised: Tensor = (groups * scale + shift).flatten(3)
        return normalised.to(state.dtype)
