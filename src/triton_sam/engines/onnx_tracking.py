"""Tracks objects on ONNX Runtime, without torch.

Memories are kept in host memory, as bits of bfloat16. The sessions have a low priority, so that clicks pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image

from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.engines.base import Decoded, Embedding, FloatArray
from triton_sam.engines.inputs import model_points
from triton_sam.engines.onnx import OnnxEngine, open_session
from triton_sam.engines.onnx_values import DeviceEmbedding
from triton_sam.engines.priority import BESIDE_NICENESS, run_lowered
from triton_sam.engines.tracking import HostMemory, Remember, Tracked, TrackRow
from triton_sam.models.specs import (
    MEMORY_ATTENTION_FILE,
    MEMORY_ENCODER_FILE,
    MEMORY_FILE,
    VIDEO_DECODER_FILE,
    ModelSpec,
)

#: Rows of one run: more gain nothing on a CPU, and each needs memory for its attention.
_ROWS = 8
#: Ages and distances of slots that a row does not need.
_NO_MEMORY, _NO_POINTER = -1, -1e9
_POINTER = 256
#: Logits of pixels inside and outside a given mask, where its edges are hard, and where they are soft.
_HARD, _SOFT = 10.0, 1024.0
_Bits = npt.NDArray[np.uint16]


class OnnxTrackingEngine(OnnxEngine):
    """An :class:`~triton_sam.engines.onnx.OnnxEngine` that remembers: a
    :class:`~triton_sam.engines.tracking.TrackingEngine`."""

    def __init__(self, spec: ModelSpec, encoder: Path, decoder: Path, *, memory: Path, **options: Any) -> None:
        """
        Args:
            memory: the folder with the graphs of the memory.
            options: as those of :class:`~triton_sam.engines.onnx.OnnxEngine`.
        """
        super().__init__(spec, encoder, decoder, **options)
        assert spec.memory is not None
        self.capacity = replace(self.capacity, tracks=True)
        self.track_rows = _ROWS
        # Without spinning: the next frame's encoder works on the same cores.
        open_part = partial(open_session, threads=options.get("threads", 0))
        if self._device is not None:
            open_part = partial(open_part, providers=options["providers"])
        self._tracker = _Tracker(
            spec, spec.memory, memory, lambda file: run_lowered(lambda: open_part(file), BESIDE_NICENESS)
        )
        self.memory_bytes = 2 * int(np.prod(self._tracker.shape))

    def track(self, rows: Sequence[TrackRow]) -> list[Tracked]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`. Rows of a frame go through each graph at once."""
        results: list[Tracked | None] = [None] * len(rows)
        frames: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            frames.setdefault(id(row.embedding), []).append(index)
        for indices in frames.values():
            for start in range(0, len(indices), self.track_rows):
                batch = indices[start : start + self.track_rows]
                for index, tracked in zip(batch, self._tracker.track([rows[i] for i in batch]), strict=True):
                    results[index] = tracked
        return [result for result in results if result is not None]

    def memories_to_host(self, memories: Sequence[tuple[_Bits | None, FloatArray]]) -> list[HostMemory]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        return [HostMemory(*memory) for memory in memories]

    def memory_from_host(self, memory: HostMemory) -> tuple[_Bits | None, FloatArray]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        # Copies: they may be parts of what a client has sent.
        return None if memory.features is None else memory.features.copy(), memory.pointer.copy()

    def memory_shape(self) -> tuple[int, int, int]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        return self._tracker.shape


class _Tracker:
    """The three graphs of a memory, opened when they are first needed."""

    def __init__(self, spec: ModelSpec, traits: MemoryTraits, folder: Path, open_part: Callable[[Path], Any]) -> None:
        self._folder, self._open = folder, open_part
        self._clip = spec.decoder.mask_clip
        self._grid = spec.decoder.mask_side // 4
        self.shape = traits.width, self._grid, self._grid
        self._own = spec.encoder.embedding
        fine = [name for name, _ in spec.encoder.outputs if name != self._own]
        self._fine = dict(zip(("high_res_feats_0", "high_res_feats_1"), fine, strict=True))
        numbers: dict[str, Any] = json.loads((folder / MEMORY_FILE).read_text())
        self._given = _GivenMasks(numbers, traits, spec.decoder.mask_side)
        self._no_pointer = np.array(numbers["no_object_pointer"], np.float32)
        self._no_memory = np.array(numbers["no_memory_embedding"], np.float32).reshape(1, -1, 1, 1)

    @cached_property
    def _attention(self) -> Any:
        return self._open(self._folder / MEMORY_ATTENTION_FILE)

    @cached_property
    def _decoder(self) -> Any:
        return self._open(self._folder / VIDEO_DECODER_FILE)

    @cached_property
    def _encoder(self) -> Any:
        return self._open(self._folder / MEMORY_ENCODER_FILE)

    def track(self, rows: Sequence[TrackRow]) -> list[Tracked]:
        """Rows of one frame."""
        embedding = rows[0].embedding
        given = [None if row.mask is None else self._given.prepare(row.mask) for row in rows]
        images = self._images(rows, embedding)
        logits = np.empty((len(rows), 1, 4 * self._grid, 4 * self._grid), np.float32)
        scores, appearances = np.empty((2, len(rows), 1), np.float32)
        pointers = np.empty((len(rows), _POINTER), np.float32)
        points = [_points(row) for row in rows]
        for batch in _alike([len(labels) for _, labels in points]):
            found = self._decode(
                embedding,
                images(batch),
                [points[index] for index in batch],
                [rows[index] for index in batch],
                [given[index] for index in batch],
            )
            logits[batch], scores[batch], appearances[batch], pointers[batch] = found
        for index, mask in enumerate(given):
            if mask is not None:  # it is its own result
                logits[index, 0], scores[index] = mask.logits, 1.0
                appearances[index] = _HARD if mask.shown else -_HARD
                pointers[index] = pointers[index] if mask.shown else self._no_pointer
        hard = np.array([row.remember is Remember.HARD for row in rows], np.float32)
        feeds = {"masks": logits, "hard": hard, "object_scores": appearances}
        (memories,) = self._run(self._encoder, ["memories"], {"image_embeddings": self._own}, embedding, feeds)
        return [
            Tracked(Decoded(scores[index], logits[index]), float(appearances[index, 0]), bits, pointers[index].copy())
            for index, bits in enumerate(map(_bfloat16, memories))
        ]

    def _images(self, rows: Sequence[TrackRow], embedding: Embedding) -> Callable[[list[int]], FloatArray]:
        """From indices of rows to what the decoder sees of the frame: [N,256,g,g], N is their number or 1."""
        found: dict[int, FloatArray] = {}
        attending = [index for index, row in enumerate(rows) if row.attended is not None and row.mask is None]
        slots = {index: len(_attended(rows[index]).memories) for index in attending}
        whole: FloatArray | None = None
        for places in _alike(list(slots.values())):
            batch = [attending[place] for place in places]
            whole = self._attend(embedding, [rows[index] for index in batch])
            found |= dict(zip(batch, whole, strict=True))

        def images(batch: list[int]) -> FloatArray:
            if whole is not None and len(whole) == len(batch) == len(rows):
                return whole  # without a copy
            if len(batch) == 1 and rows[batch[0]].mask is None and batch[0] not in found:
                return embedding.array(self._own)
            for index in batch:
                if index not in found:
                    plain = embedding.array(self._own)
                    found[index] = (plain if rows[index].mask is None else plain - self._no_memory)[0]
            return np.stack([found[index] for index in batch])

        return images

    def _attend(self, embedding: Embedding, rows: Sequence[TrackRow]) -> FloatArray:
        """Rows with equally many memories -> [B,256,g,g]."""
        attended = [_attended(row) for row in rows]
        slots, most = len(attended[0].memories), max(len(one.pointers) for one in attended)
        memories = np.empty((len(rows), slots, *self.shape), np.uint32)
        ages = np.full((len(rows), slots), _NO_MEMORY, np.int64)
        pointers = np.zeros((len(rows), most, _POINTER), np.float32)
        distances = np.full((len(rows), most), _NO_POINTER, np.float32)
        for index, one in enumerate(attended):
            for slot, (features, age) in enumerate(one.memories):
                memories[index, slot], ages[index, slot] = features, age
            for slot, (pointer, distance) in enumerate(one.pointers):
                pointers[index, slot], distances[index, slot] = pointer, distance / one.span
        memories <<= 16
        feeds: dict[str, npt.NDArray[Any]] = {
            "memories": memories.view(np.float32),
            "memory_ages": ages,
            "pointers": pointers,
            "pointer_distances": distances,
        }
        names = {"image_embeddings": self._own}
        conditioned: FloatArray = self._run(self._attention, ["conditioned"], names, embedding, feeds)[0]
        return conditioned

    def _decode(
        self,
        embedding: Embedding,
        images: FloatArray,
        points: Sequence[tuple[FloatArray, FloatArray]],
        rows: Sequence[TrackRow],
        given: Sequence[_GivenMask | None],
    ) -> list[FloatArray]:
        """Logits, scores, appearances and pointers of rows with equally many points."""
        side = 4 * self._grid
        masked = [row.previous is not None or mask is not None for row, mask in zip(rows, given, strict=True)]
        masks = np.zeros((len(rows) if any(masked) else 1, 1, side, side), np.float32)
        for index, (row, mask) in enumerate(zip(rows, given, strict=True)):
            if mask is not None:
                masks[index, 0] = mask.prompt
            elif row.previous is not None:
                np.clip(row.previous, -self._clip, self._clip, out=masks[index, 0])
        coords, labels = zip(*points, strict=True)
        several = [row.mask is None and len(found) <= 1 for row, found in zip(rows, labels, strict=True)]
        feeds = {
            "image_embeddings": images,
            "point_coords": np.stack(coords),
            "point_labels": np.stack(labels),
            "mask_input": masks,
            "has_mask_input": np.array(masked if any(masked) else [False], np.float32),
            "multimask_output": np.array(several, np.float32),
        }
        wanted = ["masks", "iou_predictions", "object_scores", "pointers"]
        return self._run(self._decoder, wanted, self._fine, embedding, feeds)

    def _run(
        self,
        session: Any,
        wanted: list[str],
        names: Mapping[str, str],
        embedding: Embedding,
        feeds: Mapping[str, npt.NDArray[Any]],
    ) -> list[FloatArray]:
        """
        Args:
            names: from names of inputs to those of the embedding's parts.
        """
        if isinstance(embedding, DeviceEmbedding):
            sent = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
            parts = {name: embedding.values[part] for name, part in names.items()}
            return [answer.numpy() for answer in session.run_with_ort_values(wanted, {**parts, **sent})]
        arrays = {name: embedding.array(part) for name, part in names.items()}
        results: list[FloatArray] = session.run(wanted, {**arrays, **feeds})
        return results


@dataclass(frozen=True, slots=True, eq=False)
class _GivenMask:
    """A mask that a person gives: [h,w] logits as a prompt and as the result, and whether any pixel is inside."""

    prompt: FloatArray
    logits: FloatArray
    shown: bool


class _GivenMasks:
    """Turns masks in original pixels into what the decoder and the memory encoder take."""

    def __init__(self, numbers: Mapping[str, Any], traits: MemoryTraits, side: int) -> None:
        """
        Args:
            numbers: of the file beside the graphs.
            side: of logits.
        """
        self._weight = np.array(numbers["mask_downsample_weight"], np.float32).reshape(4, 4)
        self._bias = np.float32(numbers["mask_downsample_bias"][0])
        self._soft, self._side = traits.soft_masks, side

    def prepare(self, mask: npt.NDArray[np.bool_]) -> _GivenMask:
        """[H,W] in original pixels."""
        side = self._side
        resized = _resized(mask.astype(np.float32), 4 * side)
        if not self._soft:
            resized = (resized >= 0.5).astype(np.float32)
        # A convolution of 4 x 4 pixels in steps of 4.
        prompt = np.einsum("yaxb,ab->yx", resized.reshape(side, 4, side, 4), self._weight) + self._bias
        if self._soft:
            logits = _resized(np.where(mask, np.float32(_SOFT), np.float32(-_SOFT)), side)
        else:
            logits = _resized(resized * (2 * _HARD) - _HARD, side)
        return _GivenMask(prompt.astype(np.float32), logits, bool((resized > 0).any()))


def _resized(plane: FloatArray, side: int) -> FloatArray:
    """[H,W] -> [side,side], bilinear and antialiased."""
    if plane.shape == (side, side):
        return plane
    image = Image.fromarray(np.ascontiguousarray(plane))  # of 32-bit numbers: nothing is rounded
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR))


def _points(row: TrackRow) -> tuple[FloatArray, FloatArray]:
    """([P,2] model pixels, [P] labels); a box counts as two points."""
    if row.prompt is None or row.mask is not None:
        return np.zeros((0, 2), np.float32), np.zeros(0, np.float32)
    return model_points(row.prompt, row.embedding.frame)


def _attended(row: TrackRow) -> Any:
    assert row.attended is not None
    return row.attended


def _alike(sizes: Sequence[int]) -> list[list[int]]:
    """Indices of equal sizes, together."""
    groups: dict[int, list[int]] = {}
    for index, size in enumerate(sizes):
        groups.setdefault(size, []).append(index)
    return list(groups.values())


def _bfloat16(array: FloatArray) -> _Bits:
    """The nearest numbers of bfloat16, ties to even, as bits: [...] of any shape."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
