"""Masks of the candidates that were chosen; the others' are never made."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from triton_sam.core.concepts.selection import Selection
from triton_sam.core.geometry import Frame
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Decoded, Row
from triton_sam.engines.concepts import ConceptRow
from triton_sam.engines.torch.fetching import DeviceMasks, Fetcher

_NO_PROMPT = ObjectPrompt(np.zeros((0, 2), np.float32), np.zeros(0, np.int32))


class ConceptMasks:
    """Starts masks on the current stream. Results are valid after it is synchronised."""

    def __init__(self, fetcher: Fetcher, side: int) -> None:
        """
        Args:
            side: h and w of low-resolution masks.
        """
        self._fetcher, self._side = fetcher, side

    def decoded(self, row: ConceptRow, chosen: Selection, weights: Tensor, pixels: Tensor) -> Decoded:
        """
        Args:
            weights, pixels: [Q,C+1] and [h*w,C], see
                :meth:`~triton_sam.engines.torch.concept_detector.DetectStep.forward`.
        """
        count = len(chosen.queries)
        if not count:
            return self._none(row, row.embedding.frame, chosen)
        sent = self._fetcher.host(count, dtype=torch.int64)
        sent.numpy()[:] = chosen.queries
        made_with = weights.index_select(0, sent.to(self._fetcher.device, non_blocking=True))
        # In float32: a logit near zero decides about a pixel.
        found = made_with[:, :-1] @ pixels.float().T + made_with[:, -1:]
        masks = found.view(1, count, self._side, self._side)
        both = DeviceMasks(masks, masks)
        asked = [Row(row.embedding, _NO_PROMPT, True, row.logits, row.pixels, row.columns)]
        (packed,), (columns,) = self._fetcher.pixels(both, asked)
        (logits,) = self._fetcher.logits(both, asked)
        return Decoded(chosen.scores, logits, packed, columns)

    def _none(self, row: ConceptRow, frame: Frame, chosen: Selection) -> Decoded:
        return Decoded(
            chosen.scores,
            np.zeros((0, self._side, self._side), np.float32) if row.logits else None,
            np.zeros((0, frame.height, -(-frame.width // 8)), np.uint8) if row.pixels else None,
            np.zeros((0, frame.width, -(-frame.height // 8)), np.uint8) if row.columns else None,
        )
