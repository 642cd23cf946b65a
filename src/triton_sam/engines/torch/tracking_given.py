"""Masks that a person gives: as prompts for the decoder, and as logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.core.video.memory_traits import MemoryTraits

#: Logits of pixels inside and outside the mask, where its edges are hard, and where they are soft.
_HARD, _SOFT = 10.0, 1024.0


class GivenMasks:
    """Turns [H,W] masks in original pixels into what :class:`~.tracking_step.TrackStep` takes."""

    def __init__(self, downsample: nn.Conv2d, traits: MemoryTraits, mask_side: int, device: torch.device) -> None:
        """
        Args:
            downsample: the network's ``mask_downsample``, to a quarter of the side.
            mask_side: of logits.
        """
        self._weight = downsample.weight.detach().to(device, torch.float32).clone()
        self._bias = None if downsample.bias is None else downsample.bias.detach().to(device, torch.float32).clone()
        self._soft = traits.soft_masks
        self._side = mask_side
        self._device = device

    def prepare(self, mask: npt.NDArray[np.bool_]) -> tuple[Tensor, Tensor, bool]:
        """[1,h,w] logits as a prompt, [h,w] logits as the result, both float32, and whether the mask has pixels.

        It waits for the device.
        """
        given = torch.from_numpy(np.ascontiguousarray(mask)).to(self._device)[None, None].float()
        large = 4 * self._side
        resized = given if given.shape[-2:] == (large, large) else _resized(given, large)
        if not self._soft:
            resized = (resized >= 0.5).float()
        prompt = functional.conv2d(resized, self._weight, self._bias, stride=4)
        source = torch.where(given > 0.5, _SOFT, -_SOFT) if self._soft else resized * (2 * _HARD) - _HARD
        return prompt[0], _resized(source, self._side)[0, 0], bool((resized > 0).any())


def _resized(maps: Tensor, side: int) -> Tensor:
    return functional.interpolate(maps, (side, side), mode="bilinear", align_corners=False, antialias=True)
