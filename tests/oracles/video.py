"""Objects through a video as published: one object after the other, one frame after the other, everything kept.

Written from the definition of Meta's video predictors, and independent of the package on purpose: nothing of
triton_sam is imported here, and nothing is clever. The arithmetic is that of transformers' modules, in float32; what
they are given and when follows Meta's predictors, which differ from transformers' own session. Sessions of all
generations are as SAM 2's predictor has them, where each object has frames and prompts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

ABSENT = -1024.0
MEMORIES, POINTERS = 7, 16


@dataclass(frozen=True)
class Definition:
    """How the published predictors differ.

    Attributes:
        pointer_positions: whether pointers have a position in time.
        marks_occlusion: whether the memory of a frame without the object has an embedding of its own.
        most_conditioning: conditioning frames that a frame attends to.
        clears_around_prompts: whether ordinary memories near a prompt are forgotten if there is one object.
        mask_after_sigmoid: whether a memory's mask is resized after its sigmoid to what the memory encoder takes.
        soft_masks: whether the edges of a given mask stay soft, with logits of 1024.
        corrections_condition: whether a corrected frame becomes a conditioning frame.
    """

    pointer_positions: bool = True
    marks_occlusion: bool = True
    most_conditioning: int | None = None
    clears_around_prompts: bool = False
    mask_after_sigmoid: bool = False
    soft_masks: bool = False
    corrections_condition: bool = True


SAM2 = Definition(pointer_positions=False, marks_occlusion=False)
SAM2_1 = Definition()
SAM3 = Definition(most_conditioning=4, clears_around_prompts=True, mask_after_sigmoid=True, soft_masks=True)


@dataclass
class Seen:
    """One object in one frame: [1,1,h,w] logits, [1,256] pointer, [1,1] appearance, [1,1] score, [1,64,g,g] memory."""

    logits: Tensor
    pointer: Tensor
    appearance: Tensor
    score: Tensor
    memory: Tensor | None = None
    positions: Tensor | None = None


@dataclass
class Record:
    """Everything known of one object, by frame."""

    points: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    masks: dict[int, Tensor] = field(default_factory=dict)
    conditioning: dict[int, Seen] = field(default_factory=dict)
    others: dict[int, Seen] = field(default_factory=dict)
    pending_conditioning: dict[int, Seen] = field(default_factory=dict)
    pending_others: dict[int, Seen] = field(default_factory=dict)
    tracked: dict[int, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Features:
    """A frame's features without the no-memory embedding, [1,C,h,w], and the coarse ones' positions."""

    coarse: Tensor
    fine: list[Tensor]
    positions: Tensor


class VideoOracle:
    """A video and its objects.

    Args:
        network: transformers' Sam2VideoModel or Sam3TrackerVideoModel in float32.
        pixels: [1,3,side,side] normalised, of each frame.
        width, height: of the frames, original pixels.
    """

    #: Of memories, as published.
    kept_in = torch.bfloat16

    def __init__(self, network: Any, definition: Definition, pixels: list[Tensor], width: int, height: int) -> None:
        self.network, self.definition = network, definition
        self.width, self.height, self.side = width, height, int(pixels[0].shape[-1])
        self.length = len(pixels)
        self.objects: dict[int, Record] = {}
        self.pixels = pixels
        self._features: dict[int, Features] = {}

    def again(self) -> VideoOracle:
        """The same video without objects; frames that were encoded are not encoded again."""
        other = VideoOracle(self.network, self.definition, self.pixels, self.width, self.height)
        other._features = self._features
        return other

    def add_points(
        self,
        frame: int,
        which: int,
        points: np.ndarray | None,
        labels: np.ndarray | None,
        box: np.ndarray | None = None,
        *,
        clear_old_points: bool = True,
    ) -> Seen:
        """[P,2] xy in original pixels, [P], and a box [4], which counts as two points."""
        record = self.objects.setdefault(which, Record())
        coords = torch.zeros(0, 2) if points is None else torch.as_tensor(points, dtype=torch.float32)
        kinds = torch.zeros(0, dtype=torch.int32) if labels is None else torch.as_tensor(labels, dtype=torch.int32)
        if box is not None:
            coords = torch.cat([torch.as_tensor(box, dtype=torch.float32).reshape(2, 2), coords])
            kinds = torch.cat([torch.tensor([2, 3], dtype=torch.int32), kinds])
        coords = coords / torch.tensor([self.width, self.height]) * self.side
        if not clear_old_points and frame in record.points:
            coords = torch.cat([record.points[frame][0], coords])
            kinds = torch.cat([record.points[frame][1], kinds])
        record.points[frame] = (coords, kinds)
        record.masks.pop(frame, None)
        first = frame not in record.tracked
        pending = record.pending_conditioning if self._conditions(first) else record.pending_others
        before = pending.get(frame) or record.conditioning.get(frame) or record.others.get(frame)
        previous = None if before is None else before.logits.clamp(-32, 32)
        features = self.features(frame)
        if first:
            seen_with = self._without_memory(features)
        else:
            seen_with = self._with_memory(record, frame, features, reverse=record.tracked[frame])
        seen = self._decode(seen_with, features.fine, (coords, kinds), previous, several=len(kinds) <= 1)
        pending[frame] = seen
        return seen

    def add_mask(self, frame: int, which: int, mask: np.ndarray) -> Seen:
        """[H,W] bool, original pixels."""
        record = self.objects.setdefault(which, Record())
        given = torch.as_tensor(mask)[None, None].float()
        side = 16 * self.features(frame).coarse.shape[-1]
        resized = _antialiased(given, side) if given.shape[-2:] != (side, side) else given
        if not self.definition.soft_masks:
            resized = (resized >= 0.5).float()
        record.masks[frame] = resized
        record.points.pop(frame, None)
        first = frame not in record.tracked
        pending = record.pending_conditioning if self._conditions(first) else record.pending_others
        seen = self._take_mask(self.features(frame), resized)
        if self.definition.soft_masks:
            seen.logits = _antialiased(torch.where(given > 0.5, -ABSENT, ABSENT), side // 4)
        pending[frame] = seen
        return seen

    def propagate(self, start: int, count: int | None = None, *, reverse: bool = False) -> Iterator[tuple[int, dict]]:
        """(frame, {object: Seen}) of the frames from ``start`` on, ``count`` further ones at most."""
        self._commit()
        count = self.length if count is None else count
        if reverse:
            order = range(start, max(start - count, 0) - 1, -1) if start > 0 else range(0)
        else:
            order = range(start, min(start + count, self.length - 1) + 1)
        for frame in order:
            found = {}
            for which, record in self.objects.items():
                if frame in record.conditioning:
                    seen = record.conditioning[frame]
                    self._clear_around(record, frame)
                else:
                    features = self.features(frame)
                    seen_with = self._with_memory(record, frame, features, reverse=reverse)
                    seen = self._decode(seen_with, features.fine, None, None, several=True)
                    self._remember(features, seen, hard=False)
                    record.others[frame] = seen
                record.tracked[frame] = reverse
                found[which] = seen
            yield frame, found

    def clear_prompts(self, frame: int, which: int) -> None:
        record = self.objects[which]
        record.points.pop(frame, None)
        record.masks.pop(frame, None)
        record.pending_conditioning.pop(frame, None)
        record.pending_others.pop(frame, None)
        seen = record.conditioning.pop(frame, None)
        if seen is not None:
            record.others[frame] = seen
            record.tracked.pop(frame, None)

    def remove_object(self, which: int) -> None:
        del self.objects[which]

    def reset(self) -> None:
        self.objects.clear()

    @torch.no_grad()
    def features(self, frame: int) -> Features:
        """Encoded once."""
        if frame not in self._features:
            found = self.network.get_image_features(self.pixels[frame], return_dict=True)
            grid = self.side // self.network.config.prompt_encoder_config.patch_size
            finest, fine, coarse = (
                part.permute(1, 2, 0).reshape(1, -1, grid * scale, grid * scale)
                for part, scale in zip(found.fpn_hidden_states, (4, 2, 1), strict=True)
            )
            self._features[frame] = Features(coarse, [finest, fine], found.fpn_position_encoding[2])
        return self._features[frame]

    def _conditions(self, first: bool) -> bool:
        return first or self.definition.corrections_condition

    def _commit(self) -> None:
        """Prompted frames get their memories."""
        for record in self.objects.values():
            for pending, kept in (
                (record.pending_others, record.others),
                (record.pending_conditioning, record.conditioning),
            ):
                for frame, seen in pending.items():
                    self._remember(self.features(frame), seen, hard=True)
                    kept[frame] = seen
                    self._clear_around(record, frame)
                pending.clear()
            for frame in record.conditioning:
                record.others.pop(frame, None)

    def _clear_around(self, record: Record, frame: int) -> None:
        if self.definition.clears_around_prompts and len(self.objects) == 1:
            for near in range(frame - MEMORIES, frame + MEMORIES + 1):
                record.others.pop(near, None)

    def _without_memory(self, features: Features) -> Tensor:
        return features.coarse + self.network.no_memory_embedding.reshape(1, -1, 1, 1)

    @torch.no_grad()
    def _with_memory(self, record: Record, frame: int, features: Features, *, reverse: bool) -> Tensor:
        network = self.network
        chosen, unchosen = self._closest(record.conditioning, frame)
        step = 1 if reverse else -1
        attended = [(0, seen) for seen in chosen.values()]
        for age in range(MEMORIES - 1, 0, -1):
            seen = record.others.get(frame + step * age, unchosen.get(frame + step * age))
            if seen is not None:
                attended.append((age, seen))
        memories, positions = [], []
        for age, seen in attended:
            assert seen.memory is not None
            assert seen.positions is not None
            memories.append(_flat(seen.memory.float()))
            # The last row is that of conditioning frames.
            positions.append(_flat(seen.positions) + network.memory_temporal_positional_encoding[age - 1])

        most = min(self.length, POINTERS)
        pointers = [
            (-step * (frame - other), seen.pointer)
            for other, seen in chosen.items()
            if (other >= frame if reverse else other <= frame)
        ]
        for age in range(1, most):
            other = frame + step * age
            if not 0 <= other < self.length:
                break
            seen = record.others.get(other, unchosen.get(other))
            if seen is not None:
                pointers.append((age, seen.pointer))
        tokens = 0
        if pointers:
            pieces = torch.cat([pointer for _, pointer in pointers]).reshape(-1, 1, 64)  # four tokens each
            if self.definition.pointer_positions:
                distances = torch.tensor([distance for distance, _ in pointers]) / (most - 1)
                places = network.temporal_positional_encoding_projection_layer(_sines(distances, 256))
                places = places.repeat_interleave(4, dim=0)[:, None]
            else:
                places = torch.zeros_like(pieces)
            memories.append(pieces)
            positions.append(places)
            tokens = len(pieces)

        conditioned = network.memory_attention(
            current_vision_features=_flat(features.coarse),
            current_vision_position_embeddings=features.positions,
            memory=torch.cat(memories),
            memory_posision_embeddings=torch.cat(positions),
            num_object_pointer_tokens=tokens,
        )
        return conditioned.reshape(1, -1, 256).transpose(1, 2).reshape(features.coarse.shape)

    def _closest(self, conditioning: dict[int, Seen], frame: int) -> tuple[dict[int, Seen], dict[int, Seen]]:
        most = self.definition.most_conditioning
        if most is None or len(conditioning) <= most:
            return conditioning, {}
        chosen: dict[int, Seen] = {}
        before = [other for other in conditioning if other < frame]
        after = [other for other in conditioning if other >= frame]
        if before:
            chosen[max(before)] = conditioning[max(before)]
        if after:
            chosen[min(after)] = conditioning[min(after)]
        rest = sorted((other for other in conditioning if other not in chosen), key=lambda other: abs(other - frame))
        for other in rest[: most - len(chosen)]:
            chosen[other] = conditioning[other]
        return chosen, {other: seen for other, seen in conditioning.items() if other not in chosen}

    @torch.no_grad()
    def _decode(
        self,
        image: Tensor,
        fine: list[Tensor],
        points: tuple[Tensor, Tensor] | None,
        previous: Tensor | None,
        *,
        several: bool,
    ) -> Seen:
        """The decoder's best mask, and what becomes of it if the object is not there."""
        network = self.network
        coords, kinds = points or (torch.zeros(1, 2), -torch.ones(1, dtype=torch.int32))
        sparse, dense = network.prompt_encoder(
            input_points=coords[None, None], input_labels=kinds[None, None], input_boxes=None, input_masks=previous
        )
        masks, scores, tokens, appearance = network.mask_decoder(
            image_embeddings=image,
            image_positional_embeddings=network.get_image_wide_positional_embeddings(),
            sparse_prompt_embeddings=sparse,
            dense_prompt_embeddings=dense,
            multimask_output=several,
            high_resolution_features=fine,
        )
        best = int(scores[0, 0].argmax()) if several else 0
        there = bool(appearance > 0)
        logits = masks[:, 0, best : best + 1] if there else torch.full_like(masks[:, 0, :1], ABSENT)
        pointer = network.object_pointer_proj(tokens[:, 0, best]) if there else network.no_object_pointer
        return Seen(logits, pointer, appearance.reshape(1, 1), scores[:, 0, best : best + 1])

    @torch.no_grad()
    def _take_mask(self, features: Features, mask: Tensor) -> Seen:
        """A given mask is its own result; the decoder only makes a pointer of it, from features without a memory."""
        network = self.network
        prompt = network.mask_downsample(mask)
        there = bool((mask > 0).any())
        pointer = self._decode(features.coarse, features.fine, None, prompt, several=False).pointer
        if not there:
            pointer = network.no_object_pointer
        logits = _antialiased(mask * 20 - 10, mask.shape[-1] // 4)
        return Seen(logits, pointer, torch.full((1, 1), 10.0 if there else -10.0), torch.ones(1, 1))

    @torch.no_grad()
    def _remember(self, features: Features, seen: Seen, *, hard: bool) -> None:
        if seen.memory is not None:
            return
        network = self.network
        mask = functional.interpolate(seen.logits, (self.side, self.side), mode="bilinear", align_corners=False)
        wanted = 16 * features.coarse.shape[-1]
        if not self.definition.mask_after_sigmoid:
            mask = _resized(mask, wanted)
        mask = ((mask > 0).float() if hard else mask.sigmoid()) * 20 - 10
        mask = _resized(mask, wanted)
        memory, positions = network.memory_encoder(features.coarse, mask)
        if self.definition.marks_occlusion and not bool(seen.appearance > 0):
            memory = memory + network.occlusion_spatial_embedding_parameter[..., None, None]
        seen.memory, seen.positions = memory.to(self.kept_in), positions


def _flat(maps: Tensor) -> Tensor:
    """[1,C,h,w] -> [h*w,1,C]."""
    return maps.flatten(2).permute(2, 0, 1)


def _antialiased(maps: Tensor, side: int) -> Tensor:
    return functional.interpolate(maps, (side, side), mode="bilinear", align_corners=False, antialias=True)


def _resized(maps: Tensor, side: int) -> Tensor:
    return maps if maps.shape[-1] == side else _antialiased(maps, side)


def _sines(values: Tensor, width: int) -> Tensor:
    """[N] -> [N,width]: sines of half as many frequencies, then their cosines."""
    places = torch.arange(width // 2)
    frequencies = 10000 ** (2 * torch.div(places, 2, rounding_mode="floor") / (width // 2))
    angles = values[:, None] / frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
