"""Composes clips to train on, on the GPU: cut-outs that move over photographs, each with its true masks.

A clip has four objects, of which some look alike, and something that passes in front of one of them. Everything moves,
turns, grows or shrinks, bends a little, and leaves the picture at times; the light changes, and pictures blur.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from training.memory.network import MASK_SIDE, SIDE

#: Sizes of photographs [3,h,w] and cut-outs [4,s,s], and how many shapes are drawn for each thing that was cut out.
PHOTOGRAPH = (512, 768)
CUT = 160
_DRAWN_SHARE = 0.8
OBJECTS = 4
_LAYERS = OBJECTS + 1
#: Least visible share of the picture of an object that is prompted.
_LEAST_SHARE = 0.002
_LOOK_ALIKE, _COVERED, _GREY, _LEAVES, _TEXTURED = 0.45, 0.6, 0.15, 0.3, 0.7


class Scene(NamedTuple):
    """K clips of T frames, and what there is to follow in them.

    Attributes:
        frames: [K,T,3,512,512] in [0,1].
        masks: [K,4,T,128,128], visible shares of pixels.
        first: [K,4,512,512], visible in the first frame, 0 or 1.
        prompted: [R,2], numbers of the clips and objects that can be prompted in the first frame.
    """

    frames: Tensor
    masks: Tensor
    first: Tensor
    prompted: Tensor


@dataclass(frozen=True, slots=True)
class Bank:
    """What clips are made of: [M,3,512,768] photographs and [N,4,160,160] cut-outs, both uint8."""

    photographs: Tensor
    cuts: Tensor


def make_bank(
    photographs: Sequence[Image.Image], numbers: Sequence[int], masks: npt.NDArray[np.bool_], seed: int, device: str
) -> Bank:
    """
    Args:
        numbers, masks: the photograph and the mask [512,512] of each thing, see :mod:`training.memory.cutouts`.
    """
    rng = np.random.default_rng(seed)
    high, wide = PHOTOGRAPH
    grounds = [np.asarray(one.resize((wide, high), Image.Resampling.LANCZOS)) for one in photographs]
    cuts = [_cut(photographs[number], mask) for number, mask in zip(numbers, masks, strict=True)]
    cuts += [_drawn(rng, grounds) for _ in range(int(_DRAWN_SHARE * len(cuts)))]
    both = (np.ascontiguousarray(np.stack(arrays).transpose(0, 3, 1, 2)) for arrays in (grounds, cuts))
    return Bank(*(torch.from_numpy(array).to(device) for array in both))


def _cut(photograph: Image.Image, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """[160,160,4], as large as fits, with its own aspect."""
    alpha = Image.fromarray(mask.astype(np.uint8) * 255).resize(photograph.size, Image.Resampling.BILINEAR)
    whole = photograph.copy()
    whole.putalpha(alpha)
    return _fitted(whole.crop(alpha.getbbox()))


def _fitted(cut: Image.Image) -> npt.NDArray[np.uint8]:
    scale = (CUT - 8) / max(cut.size)
    small = cut.resize((max(1, round(scale * cut.width)), max(1, round(scale * cut.height))), Image.Resampling.LANCZOS)
    placed = Image.new("RGBA", (CUT, CUT))
    placed.paste(small, ((CUT - small.width) // 2, (CUT - small.height) // 2))
    return np.asarray(placed)


def _drawn(rng: np.random.Generator, grounds: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """A shape of smooth waves or straight sides, filled with a part of a photograph or with colours."""
    y, x = (np.mgrid[:CUT, :CUT] - CUT / 2) / (CUT / 2)
    angle, radius = np.arctan2(y, x), np.hypot(x * rng.uniform(1, 2.5), y)
    if rng.random() < 0.6:
        edge = np.full_like(angle, 0.65)
        for order in range(1, 7):
            edge += rng.normal(0, 0.16 / order) * np.cos(order * angle + rng.uniform(0, 2 * math.pi))
    else:
        sector = 2 * math.pi / int(rng.integers(3, 8))
        edge = 0.85 * math.cos(sector / 2) / np.cos((angle + rng.uniform(0, 6)) % sector - sector / 2)
    alpha = np.clip((np.clip(edge, 0.15, 0.95) - radius) * CUT / 4 + 0.5, 0, 1)
    if rng.random() < 0.15:  # a ring
        alpha *= np.clip((radius - 0.5 * edge) * CUT / 4 + 0.5, 0, 1)
    if rng.random() < _TEXTURED:
        ground = grounds[int(rng.integers(len(grounds)))]
        top, left = (int(rng.integers(size - CUT)) for size in ground.shape[:2])
        colours = ground[top : top + CUT, left : left + CUT].astype(np.float64)
        colours = colours * rng.uniform(0.7, 1.3, 3) + rng.uniform(-40, 40, 3)
    else:
        first, second = rng.uniform(0, 255, (2, 3))
        waves = np.sin((x * rng.normal() + y * rng.normal()) * rng.uniform(1, 25))[..., None]
        colours = first + (second - first) * (0.5 + 0.5 * waves)
    return np.dstack([np.clip(colours, 0, 255), 255 * alpha]).astype(np.uint8)


class Composer:
    """Makes scenes without an end."""

    def __init__(self, bank: Bank, seed: int) -> None:
        self._bank = bank
        self._device = bank.cuts.device
        self._dtype = torch.float16 if self._device.type == "cuda" else torch.float32
        self._random = torch.Generator(self._device).manual_seed(seed)

    @torch.no_grad()
    def scene(self, clips: int, frames: int) -> Scene:
        """Draws one."""
        numbers = torch.randint(len(self._bank.cuts), (clips, _LAYERS), generator=self._random, device=self._device)
        alike = self._uniform(clips) < _LOOK_ALIKE
        numbers[:, 1] = torch.where(alike, numbers[:, 0], numbers[:, 1])
        centres, sizes, turned = self._paths(clips, frames)
        self._cover(centres, sizes)
        picture = self._background(clips, frames)
        visible: list[Tensor] = []
        for layer in range(_LAYERS):
            colours, alpha = self._layer(numbers[:, layer], centres[:, layer], sizes[:, layer], turned[:, layer])
            if layer == OBJECTS:  # nothing is there in most clips
                alpha = alpha * (self._uniform(clips) < _COVERED)[:, None, None, None, None]
            picture = picture + alpha * (colours - picture)
            visible = [seen * (1 - alpha) for seen in visible] + [alpha]
        objects = torch.stack(visible[:OBJECTS], 1)[:, :, :, 0]  # [K,4,T,512,512]
        hard = (objects > 0.5).float()
        pooled = functional.avg_pool2d(hard.flatten(0, 2)[:, None], SIDE // MASK_SIDE)
        masks = pooled.reshape(clips, OBJECTS, frames, MASK_SIDE, MASK_SIDE)
        prompted = (hard[:, :, 0].mean((2, 3)) > _LEAST_SHARE).nonzero()
        return Scene(self._photographed(picture), masks, hard[:, :, 0], prompted)

    # -- motion ----------------------------------------------------------------------------------------------

    def _uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.rand(shape, generator=self._random, device=self._device) * (high - low) + low

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random, device=self._device)

    def _paths(self, clips: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
        """Centres [K,L,T,2] between -1 and 1, half of the sizes [K,L,T,2], and angles [K,L,T]."""
        layers = clips, _LAYERS
        times = torch.arange(frames, device=self._device).float()
        speed = torch.exp(self._uniform(*layers, low=math.log(0.004), high=math.log(0.11)))[..., None]
        heading = self._uniform(*layers, high=2 * math.pi)[..., None] + 0.15 * self._normal(*layers)[..., None] * times
        steps = torch.stack([heading.cos(), heading.sin()], -1) * speed[..., None]
        centres = self._uniform(*layers, 1, 2, low=-0.85, high=0.85) + steps.cumsum(2) - steps[:, :, :1]
        # They turn round at the border, or beyond it.
        reach = torch.where(self._uniform(*layers) < _LEAVES, 1.4, 0.9)[..., None, None]
        centres = reach - ((centres + reach) % (4 * reach) - 2 * reach).abs()
        growth = 1 + 0.03 * self._normal(*layers)[..., None] * times
        longest = torch.exp(self._uniform(*layers, low=math.log(0.09), high=math.log(0.5)))[..., None]
        aspect = torch.exp(self._uniform(*layers, low=-0.5, high=0.3))[..., None]
        size = longest * growth.clamp(0.5, 2)
        turned = self._uniform(*layers, low=-math.pi, high=math.pi)[..., None]
        turned = turned + 0.06 * self._normal(*layers)[..., None] * times
        return centres, torch.stack([size * aspect.sqrt(), size / aspect.sqrt()], -1), turned

    def _cover(self, centres: Tensor, sizes: Tensor) -> None:
        """Lets the last layer pass in front of an object and stay with it for some frames."""
        clips, frames = centres.shape[0], centres.shape[2]
        rows = torch.arange(clips, device=self._device)
        chosen = torch.randint(OBJECTS, (clips,), generator=self._random, device=self._device)
        times = torch.arange(frames, device=self._device).float()
        middle, stays = self._uniform(clips, 1, low=1, high=frames), self._uniform(clips, 1, high=4)
        away = ((times - middle).abs() - stays).clamp(min=0) * (times - middle).sign()
        angle = self._uniform(clips, 1, high=2 * math.pi)
        largest = sizes[rows, chosen].amax((1, 2))[:, None]
        distance = away * largest * self._uniform(clips, 1, low=0.3, high=1.2) + largest * 0.4 * self._normal(clips, 1)
        offset = torch.stack([angle.cos(), angle.sin()], -1) * distance[..., None]
        centres[:, OBJECTS] = centres[rows, chosen] + offset
        sizes[:, OBJECTS] = sizes[rows, chosen].amax(2, keepdim=True) * self._uniform(clips, 1, 1, low=0.8, high=2.2)

    # -- pictures --------------------------------------------------------------------------------------------

    def _layer(self, numbers: Tensor, centres: Tensor, sizes: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        """Colours [K,T,3,512,512] and alpha [K,T,1,512,512] of a layer of all clips."""
        clips, frames = turned.shape
        cuts = self._bank.cuts[numbers].to(self._dtype) / 255
        cuts = torch.where((self._uniform(clips) < 0.5)[:, None, None, None], cuts.flip(3), cuts)
        tint = self._uniform(clips, 3, 1, 1, low=0.75, high=1.25).to(self._dtype)
        cuts = torch.cat([(cuts[:, :3] * tint).clamp(0, 1), cuts[:, 3:]], 1)
        cos, sin = turned.cos(), turned.sin()
        rows = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], -2) / sizes[..., None]
        shift = -(rows @ centres[..., None])
        grid = functional.affine_grid(
            torch.cat([rows, shift], -1).flatten(0, 1).to(self._dtype),
            [clips * frames, 4, SIDE, SIDE],
            align_corners=False,
        )
        grid = grid + self._bend(clips, frames, grid)
        several = cuts[:, None].expand(-1, frames, -1, -1, -1).flatten(0, 1)
        drawn = functional.grid_sample(several, grid, align_corners=False)
        drawn = drawn.reshape(clips, frames, 4, SIDE, SIDE)
        return drawn[:, :, :3], drawn[:, :, 3:]

    def _bend(self, clips: int, frames: int, grid: Tensor) -> Tensor:
        """A wave through an object that changes with time."""
        strength = self._uniform(clips, 1, low=-0.08, high=0.08)
        phase = self._uniform(clips, 1, high=2 * math.pi) + torch.arange(frames, device=self._device) * 0.4
        strength, phase = (one.expand(-1, frames).flatten()[:, None, None].to(grid.dtype) for one in (strength, phase))
        return torch.stack(
            [strength * (3 * grid[..., 1] + phase).sin(), strength * (2.5 * grid[..., 0] + phase).sin()], -1
        )

    def _background(self, clips: int, frames: int) -> Tensor:
        """[K,T,3,512,512], a part of a photograph that moves."""
        numbers = torch.randint(len(self._bank.photographs), (clips,), generator=self._random, device=self._device)
        times = torch.arange(frames, device=self._device).float() - frames / 2
        zoom = self._uniform(clips, 1, low=0.35, high=0.75) * (1 + 0.01 * self._normal(clips, 1) * times)
        angle = self._uniform(clips, 1, low=-0.3, high=0.3) + 0.01 * self._normal(clips, 1) * times
        shift = self._uniform(clips, 1, 2, low=-0.2, high=0.2) + 0.015 * self._normal(clips, 1, 2) * times[:, None]
        cos, sin = angle.cos() * zoom, angle.sin() * zoom
        rows = torch.stack([torch.stack([0.8 * cos, 0.8 * sin], -1), torch.stack([-sin, cos], -1)], -2)
        theta = torch.cat([rows, shift[..., None]], -1).flatten(0, 1)
        grid = functional.affine_grid(theta, [clips * frames, 3, SIDE, SIDE], align_corners=False).to(self._dtype)
        grounds = self._bank.photographs[numbers].to(self._dtype) / 255
        several = grounds[:, None].expand(-1, frames, -1, -1, -1).flatten(0, 1)
        drawn = functional.grid_sample(several, grid, padding_mode="reflection", align_corners=False)
        return drawn.reshape(clips, frames, 3, SIDE, SIDE)

    def _photographed(self, picture: Tensor) -> Tensor:
        """Light that changes, blur, noise, and some clips without colours."""
        clips, frames = picture.shape[:2]
        times = torch.arange(frames, device=self._device).float()
        light = 1 + 0.2 * (0.2 * times + self._uniform(clips, 1, high=6)).sin() + 0.1 * self._normal(clips, 1)
        picture = picture * light.to(self._dtype)[..., None, None, None]
        grey = picture.mean(2, keepdim=True)
        picture = torch.where((self._uniform(clips) < _GREY)[:, None, None, None, None], grey, picture)
        smooth = functional.avg_pool2d(picture.flatten(0, 1), 3, 1, 1).reshape(picture.shape)
        picture = torch.lerp(picture, smooth, self._uniform(clips, frames).to(self._dtype)[..., None, None, None])
        noise = torch.randn(picture.shape, generator=self._random, device=self._device, dtype=picture.dtype)
        picture = picture + noise * (self._uniform(clips) * 0.03).to(self._dtype)[:, None, None, None, None]
        return picture.clamp(0, 1).float()
