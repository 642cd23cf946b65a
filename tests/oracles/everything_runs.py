"""Runs everything on a real engine, by the package and by the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from tests.oracles import everything as oracle
from triton_sam.core.everything.candidates import Candidates, Place
from triton_sam.core.everything.driver import Find, find_with, run
from triton_sam.core.everything.options import everything_from
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Embedding, Engine, Row
from triton_sam.engines.inputs import preprocess

CropBox = tuple[int, int, int, int]


class Runner:
    """Everything in one picture.

    Attributes:
        engine: decodes for the package; reference: for the oracle. If they are the same, each point is decoded once.
    """

    def __init__(self, picture: Image.Image, engine: Engine, reference: Engine) -> None:
        self.picture, self.engine, self.reference = picture, engine, reference
        self._embeddings: dict[CropBox, Embedding] = {}
        self._decoded: dict[Any, tuple[np.ndarray, np.ndarray]] = {}

    def embedding(self, crop: CropBox) -> Embedding:
        """Encoded once, for both: that engines encode alike is another test's matter."""
        if crop not in self._embeddings:
            picture, spec = self.picture.crop(crop), self.engine.spec
            frame = Frame(*picture.size, spec.side, spec.resize)
            self._embeddings[crop] = self.engine.encode([(frame, preprocess(picture, frame, spec))])[0]
        return self._embeddings[crop]

    def fast(self, **options: Any) -> Candidates:
        """By the package."""
        parsed = everything_from(options)
        assert parsed is not None
        if parsed.pred_iou_thresh is None:
            parsed = replace(parsed, pred_iou_thresh=self.engine.spec.pred_iou_thresh)
        width, height = self.picture.size
        rows = self.engine.capacity.rows

        def open_crop(crop: CropBox) -> Find:
            decode = self._decoder(crop)
            return find_with(decode, self.embedding(crop).frame, Place(crop, width, height), parsed, rows)

        for progress in run(parsed, width, height, open_crop, most_rows=rows):
            found = progress.found
        return found

    def _decoder(self, crop: CropBox) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
        def decode(
            points: np.ndarray, *, multimask: bool, mask_input: np.ndarray | None = None
        ) -> tuple[np.ndarray, np.ndarray]:
            masks = [None] * len(points) if mask_input is None else list(mask_input)
            rows = [self._row(crop, *pair, multimask) for pair in zip(points, masks, strict=True)]
            decoded = self.engine.decode(rows)
            answers = [(one.logits, one.scores) for one in decoded]
            if self.engine is self.reference and mask_input is None:
                self._decoded |= {(crop, *point.tolist()): pair for point, pair in zip(points, answers, strict=True)}
            return np.stack([logits for logits, _ in answers]), np.stack([scores for _, scores in answers])

        return decode

    def oracle(self, **options: Any) -> list[oracle.Found]:
        """By the oracle."""
        spec = self.engine.spec
        side = spec.side if spec.resize is ResizePolicy.PAD else None
        options = {"pred_iou_thresh": spec.pred_iou_thresh} | options

        def open_crop(crop: CropBox) -> oracle.Decode:
            def decode(point: np.ndarray, multimask: bool, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
                point = point.astype(np.float32)
                known = self._decoded.get((crop, *point.tolist())) if mask is None else None
                if known is not None:
                    return known
                decoded = self.reference.decode([self._row(crop, point, mask, multimask)])[0]
                return decoded.logits, decoded.scores

            return decode

        return oracle.everything(*self.picture.size, open_crop, padded_side=side, **options)

    def _row(self, crop: CropBox, point: np.ndarray, mask: np.ndarray | None, multimask: bool) -> Row:
        prompt = ObjectPrompt(point.reshape(1, 2), np.ones(1, np.int32), mask_input=mask)
        return Row(self.embedding(crop), prompt, multimask)


def compare(found: Candidates, expected: list[oracle.Found]) -> oracle.Agreement:
    return oracle.agreement([mask.pixels() for mask in found.masks], [one.mask for one in expected])


def looks_like_a_coin(mask: np.ndarray) -> bool:
    """[H,W] bool: round, and of a coin's size in the photograph of 24 coins."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return False
    height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    is_round = 0.75 < width / height < 1.33 and 0.68 < mask.sum() / (width * height) < 0.88
    return bool(is_round and 0.006 < mask.mean() < 0.08)
