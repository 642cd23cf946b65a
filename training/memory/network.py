"""The network in training: the published encoder and decoder, which stay as they are, and the memory that learns.

It computes what :mod:`triton_sam.networks.memory_steps` does, from weights that change; a test compares both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.export.wrappers import Decoder, Encoder
from triton_sam.models.catalog import get_spec
from triton_sam.networks.memory_layers import MEMORY_NAMES
from triton_sam.networks.memory_steps import turns, waves
from triton_sam.networks.segmenters import build

SIDE, GRID = 512, 32
MASK_SIDE = 4 * GRID
TRAITS = MemoryTraits()
#: Of the published decoder, without which no object is ever lost.
APPEARANCE = "mask_decoder.pred_obj_score_head."
_WIDTH, _PARTS = 256, 4
#: Logits inside and outside a given mask.
_GIVEN = 10.0
_NOT_THERE = -1024.0


class Frame(NamedTuple):
    """What the encoder gives of frames: [N,256,32,32] with the no-memory embedding, [N,32,128,128], [N,64,64,64]."""

    coarse: Tensor
    finest: Tensor
    finer: Tensor

    def of(self, rows: Tensor) -> Frame:
        """Those of some numbers [B]."""
        return Frame(*(part[rows] for part in self))


class Found(NamedTuple):
    """What the decoder finds of B objects.

    Attributes:
        masks, scores: [B,3,128,128] logits and [B,3] predicted IoU of the masks to choose from.
        best: [B], the number of the one with the highest score.
        appearance: [B], above 0 if the object is there.
        token: [B,256], of the best mask.
    """

    masks: Tensor
    scores: Tensor
    best: Tensor
    appearance: Tensor
    token: Tensor

    @property
    def logits(self) -> Tensor:
        """[B,128,128] of the best mask."""
        rows = torch.arange(len(self.best), device=self.best.device)
        return self.masks[rows, self.best]


class Memory(NamedTuple):
    """What is remembered of B objects in one frame: [B,64,32,32] and [B,256]."""

    features: Tensor
    pointer: Tensor


class MemoryModel(nn.Module):
    """See the module."""

    cosines: Tensor
    sines: Tensor
    places: Tensor
    image_places: Tensor
    frequencies: Tensor

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """
        Args:
            weights: the published image part, under transformers' names, and maybe a memory, which else is random.
        """
        super().__init__()
        architecture = get_spec("sam2:tiny").architecture
        self.network = build(architecture, SIDE, TRAITS)
        self._start()
        lacking = self.network.load_state_dict({name: one.float() for name, one in weights.items()}, strict=False)
        unknown = [name for name in lacking.missing_keys if not is_memory(name)]
        if unknown or lacking.unexpected_keys:
            raise ValueError(f"these weights do not fit: {[*unknown, *lacking.unexpected_keys][:5]}")
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(learns(name))
        # They keep tables that are made of the weights.
        self.encoder = Encoder(self.network, architecture)
        self.decoder = Decoder(self.network, architecture)
        cosines, sines = turns(GRID)
        buffers = {
            "cosines": cosines,
            "sines": sines,
            "places": waves(GRID, TRAITS.width),
            "image_places": 0.1 * waves(GRID, _WIDTH),
            "frequencies": 10_000.0 ** -(torch.arange(_WIDTH // 2) // 2 * 2 / (_WIDTH // 2)),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)

    def _start(self) -> None:
        """Layers that add something begin by adding nothing, so that it starts as the image model."""
        network = self.network
        for layer in network.memory_attention.layers:
            for last in (layer.self_attn.o_proj, layer.cross_attn_image.o_proj, layer.linear2):
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)
        for block in network.memory_encoder.memory_fuser.layers:
            nn.init.constant_(block.scale, 0.1)
        for drawn in (
            network.memory_temporal_positional_encoding,
            network.no_object_pointer,
            network.occlusion_spatial_embedding_parameter,
        ):
            nn.init.trunc_normal_(drawn, std=0.02)
        # A given mask becomes logits of +-10 with the shares of its pixels between them.
        nn.init.constant_(network.mask_downsample.weight, 2 * _GIVEN / 16)
        nn.init.constant_(network.mask_downsample.bias, -_GIVEN)

    def fit_norm(self, frame: Frame) -> None:
        """Gives the last norm the scales with which embeddings come out of it most nearly as they went in."""
        state = self._image(frame.coarse).flatten(0, 1).float()
        normed = functional.layer_norm(state, (_WIDTH,))
        target = frame.coarse.flatten(2).transpose(1, 2).flatten(0, 1).float()
        mean, wanted = normed.mean(0), target.mean(0)
        slope = ((normed - mean) * (target - wanted)).mean(0) / (normed - mean).square().mean(0).clamp(min=1e-6)
        norm = self.network.memory_attention.layer_norm
        with torch.no_grad():
            norm.weight.copy_(slope)
            norm.bias.copy_(wanted - slope * mean)

    # -- steps -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Frame:
        """[N,3,512,512] in [0,1]."""
        return Frame(*self.encoder(frames))

    def click(self, frame: Frame, points: Tensor, labels: Tensor) -> Found:
        """[B,P,2] model pixels and [B,P] labels on B frames."""
        return self._decode(frame.coarse, frame, points, labels, None)

    def given(self, frame: Frame, masks: Tensor) -> Tensor:
        """[B,1,512,512] masks, 0 or 1 -> [B,256], the token of a given mask."""
        prompt = self.network.mask_downsample(masks)
        points = masks.new_zeros((len(masks), 0, 2)), masks.new_zeros((len(masks), 0))
        _, _, tokens = self.decoder.candidates(
            (frame.coarse - self._no_memory, frame.finest, frame.finer), *points, prompt, masks.new_ones(len(masks))
        )
        return tokens[:, self.decoder.first_mask_token]

    def track(
        self,
        frame: Frame,
        memories: Sequence[Memory],
        ages: Sequence[int],
        distances: Tensor,
        pointers: Sequence[Memory],
    ) -> Found:
        """
        Args:
            memories, ages: conditioning ones have age 0, others so many frames.
            distances: [B,P], of the pointers, as shares of the span.
            pointers: P of them.
        """
        seen = self._attend(frame.coarse, memories, ages, distances, pointers)
        nothing = seen.new_zeros((len(seen), 0, 2)), seen.new_zeros((len(seen), 0))
        return self._decode(seen, frame, *nothing, None)

    def remember(self, frame: Frame, logits: Tensor, *, hard: bool, there: Tensor) -> Tensor:
        """[B,128,128] logits and [B] whether the object is there -> [B,64,32,32]."""
        large = functional.interpolate(logits[:, None].float(), (SIDE, SIDE), mode="bilinear", align_corners=False)
        shares = (large > 0).float() if hard else large.sigmoid()
        encoder = self.network.memory_encoder
        mixed = encoder.feature_projection(frame.coarse - self._no_memory) + self._small(20.0 * shares - 10.0)
        kept = encoder.projection(encoder.memory_fuser(mixed))
        away = (~there).to(kept.dtype).reshape(-1, 1, 1, 1)
        return kept + away * self.network.occlusion_spatial_embedding_parameter.reshape(1, -1, 1, 1)

    def point(self, token: Tensor, there: Tensor) -> Tensor:
        """[B,256] object pointers."""
        return torch.where(there[:, None], self.network.object_pointer_proj(token), self.network.no_object_pointer)

    # -- inside ----------------------------------------------------------------------------------------------

    @property
    def _no_memory(self) -> Tensor:
        found: Tensor = self.network.no_memory_embedding.reshape(1, _WIDTH, 1, 1)
        return found

    def _small(self, masks: Tensor) -> Tensor:
        """[B,1,512,512] -> [B,256,32,32]; torch's own norm takes ten times longer for so few channels."""
        downsampler = self.network.memory_encoder.mask_downsampler
        state = masks
        for layer in downsampler.layers:
            state = layer.conv(state).float()
            norm = layer.layer_norm
            variance, mean = torch.var_mean(state, 1, correction=0, keepdim=True)
            scale, shift = norm.weight[:, None, None], norm.bias[:, None, None]
            state = functional.gelu((state - mean) * torch.rsqrt(variance + norm.eps) * scale + shift)
        small: Tensor = downsampler.final_conv(state)
        return small

    def _image(self, coarse: Tensor) -> Tensor:
        return (coarse - self._no_memory).flatten(2).transpose(1, 2) + self.image_places

    def _decode(self, seen: Tensor, frame: Frame, points: Tensor, labels: Tensor, masks: Tensor | None) -> Found:
        given = masks if masks is not None else seen.new_zeros((1, 1, MASK_SIDE, MASK_SIDE))
        flag = seen.new_full((len(given),), float(masks is not None))
        found, scores, tokens = self.decoder.candidates((seen, frame.finest, frame.finer), points, labels, given, flag)
        best = scores[:, 1:].argmax(1)
        rows = torch.arange(len(best), device=best.device)
        token = tokens[rows, self.decoder.first_mask_token + 1 + best]
        appearance = self.network.mask_decoder.pred_obj_score_head(tokens[:, 0])[:, 0]
        return Found(found[:, 1:], scores[:, 1:], best, appearance, token)

    def _attend(
        self,
        coarse: Tensor,
        memories: Sequence[Memory],
        ages: Sequence[int],
        pointers: Sequence[Memory],
        distances: Tensor,
    ) -> Tensor:
        times = self.network.memory_temporal_positional_encoding.reshape(-1, TRAITS.width).roll(1, 0)
        features = torch.stack([one.features for one in memories], 1).flatten(3).transpose(2, 3)  # [B,S,cells,C]
        keys = features + self.places + times[list(ages)][:, None]
        cut = torch.stack([one.pointer for one in pointers], 1).reshape(len(coarse), -1, TRAITS.width)
        angles = distances[..., None] * self.frequencies
        turned = self.network.temporal_positional_encoding_projection_layer(torch.cat([angles.sin(), angles.cos()], -1))
        named = cut + turned.repeat_interleave(_PARTS, dim=1)
        values = torch.cat([features.flatten(1, 2), cut.to(features.dtype)], 1)
        state = self._image(coarse)
        for layer in self.network.memory_attention.layers:
            state = self._layer(layer, state, keys, named, values)
        state = self.network.memory_attention.layer_norm(state)
        return state.transpose(1, 2).reshape(-1, _WIDTH, GRID, GRID)

    def _layer(self, layer: Any, state: Tensor, keys: Tensor, named: Tensor, values: Tensor) -> Tensor:
        own, cross = layer.self_attn, layer.cross_attn_image
        normed = layer.layer_norm1(state)
        query, key = (self._turned(_halved(one, normed)) for one in (own.q_proj, own.k_proj))
        state = state + own.o_proj(_attention(query, key, own.v_proj(normed)))
        query = self._turned(_halved(cross.q_proj, layer.layer_norm2(state)))
        key = torch.cat([self._turned(_halved(cross.k_proj, keys)).flatten(1, 2), _halved(cross.k_proj, named)], 1)
        state = state + cross.o_proj(_attention(query, key, cross.v_proj(values)))
        changed: Tensor = layer.linear2(functional.relu(layer.linear1(layer.layer_norm3(state))))
        return state + changed

    def _turned(self, channels: Tensor) -> Tensor:
        """[...,cells,256], the first of each pair of channels in the first half."""
        first, second = channels.chunk(2, -1)
        cosines, sines = self.cosines.to(channels.dtype), self.sines.to(channels.dtype)
        return torch.cat([first * cosines - second * sines, first * sines + second * cosines], -1)


def _halved(projection: nn.Linear, state: Tensor) -> Tensor:
    """A projection with the first of each pair of channels in the first half."""
    weight = projection.weight.reshape(-1, 2, projection.in_features).transpose(0, 1).flatten(0, 1)
    return functional.linear(state, weight, projection.bias.reshape(-1, 2).T.flatten())


def is_memory(name: str) -> bool:
    """Whether a weight of this name is part of the memory."""
    return name.partition(".")[0] in MEMORY_NAMES or name.startswith(APPEARANCE)


def learns(name: str) -> bool:
    """Whether a weight of this name is trained: how a given mask becomes a prompt is known without that."""
    return is_memory(name) and not name.startswith("mask_downsample.")


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One head."""
    parts = (part[:, None].contiguous() for part in (query, key, value))
    return functional.scaled_dot_product_attention(*parts)[:, 0]


def given_logits(masks: Tensor) -> Tensor:
    """[B,1,512,512] masks, 0 or 1 -> [B,128,128] logits, as those of a mask that a person gives."""
    large = masks * (2 * _GIVEN) - _GIVEN
    resized = functional.interpolate(
        large, (MASK_SIDE, MASK_SIDE), mode="bilinear", align_corners=False, antialias=True
    )
    return resized[:, 0]


def lost(logits: Tensor, there: Tensor) -> Tensor:
    """[B,128,128] logits, -1024 of objects that are not there."""
    return torch.where(there[:, None, None], logits, _NOT_THERE)
