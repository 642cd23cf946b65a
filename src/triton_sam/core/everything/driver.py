"""Runs everything: chunk by chunk, so that other work fits in between.

:func:`run` is a generator. Each step makes one call of the decoder at most, so whoever drives it may serve clicks
between two steps, and cancels by not asking for the next one (``close``). Decoders are functions:

- :data:`Decode` of a crop: points -> logits and predicted IoUs; measured and filtered here, on the CPU;
- :data:`Find` of a crop: points -> :class:`~triton_sam.core.everything.candidates.Candidates`, for an engine that
  measures and filters by itself.

With ``use_m2m`` a decoder is called again for each mask of the chunk, with ``mask_input``: the masks' own logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from triton_sam.core.everything.boxes import suppress
from triton_sam.core.everything.candidates import NONE, Candidates, Place, joined
from triton_sam.core.everything.filtering import candidates_of_logits
from triton_sam.core.everything.grids import Chunk, CropBox, Points, plan
from triton_sam.core.everything.held import encode_held
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.everything.selection import best_of_cleaned, best_of_crop, best_of_crops, without_small_regions
from triton_sam.core.geometry import Frame

Floats = npt.NDArray[np.float32]
#: Masks are held as logits, which costs no time, up to this many bytes in all; further ones as run lengths.
_HELD_BYTES = 64 * 2**20
#: Masks whose run lengths are made, or which are cleaned, in one step.
_AT_A_TIME = 8


class Decode(Protocol):
    """A decoder on the embedding of one crop."""

    def __call__(self, points: Floats, *, multimask: bool, mask_input: Floats | None = None) -> tuple[Floats, Floats]:
        """[P,2] xy in pixels of the crop, one foreground point a row -> ([P,M,h,w] logits, [P,M] predicted IoUs).

        Args:
            multimask: all masks of the model; else M is 1.
            mask_input: [P,h,w] low-resolution logits, one mask prompt a row.
        """


#: [P,2] xy in original pixels of the whole image -> what is found there; each step is one call of the decoder.
Find = Callable[[Points], Iterator[Candidates]]
#: A crop of the image -> its decoder. It may encode the crop, which takes as long as a new image.
Open = Callable[[CropBox], Find]


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """Where a run stands.

    Attributes:
        done, of: points. Those count whose masks are still to be refined.
        found: masks kept so far. Better ones may still take the place of some; the last step's are the answer.
        added: those of them that this step brought.
    """

    done: int
    of: int
    found: Candidates
    added: Candidates = NONE

    @property
    def masks(self) -> int:
        return len(self.found)


def find_with(decode: Decode, frame: Frame, place: Place, options: EverythingOptions, most_rows: int) -> Find:
    """A decoder that gives logits -> :data:`Find`.

    Args:
        frame: of the crop at ``place``.
        most_rows: the most rows in one call, for the second decode of ``use_m2m``.
    """
    corner = np.array(place.crop[:2], np.float64)

    def find(points: Points) -> Iterator[Candidates]:
        rows = (points - corner).astype(np.float32)
        logits, ious = decode(rows, multimask=options.multimask_output)
        if not options.use_m2m:
            yield candidates_of_logits(logits, ious, points, frame, place, options)
            return
        # Each mask of a point is a row of its own now.
        count = logits.shape[1]
        masks, rows, points = logits.reshape(-1, *logits.shape[2:]), rows.repeat(count, 0), points.repeat(count, 0)
        yield NONE
        for start in range(0, len(rows), most_rows):
            part = slice(start, start + most_rows)
            logits, ious = decode(rows[part], multimask=False, mask_input=masks[part])
            yield candidates_of_logits(logits, ious, points[part], frame, place, options)

    return find


def run(
    options: EverythingOptions, width: int, height: int, open_crop: Open, *, most_rows: int | None = None
) -> Iterator[Progress]:
    """Yields :class:`Progress` after each call of a decoder, and now and then while the answer is put together.

    Args:
        options: with the model's ``pred_iou_thresh`` in place.
        width, height: of the image, original pixels.
        open_crop: called once for each crop, when its first points are due.
        most_rows: the most points of a call, if that is fewer than ``points_per_batch``.
    """
    chunks = plan(options, width, height, most_rows)
    total = sum(len(chunk.points) for chunk in chunks)
    finished = NONE
    done = 0
    crops = list(_by_crop(chunks))
    for crop, of_crop in crops:
        hold = _Hold(options)
        find = open_crop(crop)
        for chunk in of_crop:
            for number, step in enumerate(find(chunk.points)):
                done += 0 if number else len(chunk.points)
                added = hold.add(step)
                yield Progress(done, total, joined([finished, hold.shown]), added)
        kept = best_of_crop(joined(hold.parts), options)
        encode_held(kept.masks)  # all at once, which takes a device few milliseconds
        for part in [kept] if kept.has_run_lengths else _in_parts(kept):
            yield Progress(done, total, joined([finished, hold.shown]))
            finished = joined([finished, part.settled()])
    if len(crops) > 1:
        finished = best_of_crops(finished, options)
    if options.min_mask_region_area:
        cleaned, same = [], []
        for part in _in_parts(finished):
            yield Progress(done, total, finished)
            masks, is_same = without_small_regions(part, options)
            cleaned.append(masks)
            same.append(is_same)
        if same:
            finished = best_of_cleaned(joined(cleaned), np.concatenate(same), options)
    yield Progress(done, total, finished)


class _Hold:
    """The candidates of one crop so far."""

    def __init__(self, options: EverythingOptions) -> None:
        self.parts: list[Candidates] = []
        self.shown = NONE
        self._options = options
        self._bytes = 0

    def add(self, found: Candidates) -> Candidates:
        """Holds further ones; those of them that are shown."""
        if not len(found):
            return NONE
        part = found if self._bytes + found.nbytes <= _HELD_BYTES else found.settled()
        self._bytes += part.nbytes
        self.parts.append(part)
        # Only for show: what this drops may be wanted again when a better mask drops the one that did it.
        known = len(self.shown)
        both = joined([self.shown, part])
        stays = suppress(both.boxes, both.predicted_ious, self._options.box_nms_thresh)
        self.shown = both.take(stays)
        return both.take(stays[stays >= known])


def _in_parts(found: Candidates) -> Iterator[Candidates]:
    """Few enough at a time for other work to fit in between: a mask of a large image takes milliseconds."""
    for start in range(0, len(found), _AT_A_TIME):
        yield found.take(np.arange(start, min(start + _AT_A_TIME, len(found))))


def _by_crop(chunks: Sequence[Chunk]) -> Iterator[tuple[CropBox, list[Chunk]]]:
    """Chunks of each crop, in order."""
    start = 0
    for end in range(1, len(chunks) + 1):
        if end == len(chunks) or chunks[end].crop != chunks[start].crop:
            yield chunks[start].crop, list(chunks[start:end])
            start = end
