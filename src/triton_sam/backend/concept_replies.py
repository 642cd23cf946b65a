"""Checks requests for concepts, and builds the tensors and JSON of their responses. Pure: no Triton here."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.backend.jobs import ASK_SECONDS, SegmentJob
from triton_sam.backend.replies import (
    ModelInfo,
    mask_entries,
    mask_logits,
    masks_tensor,
    result_of,
    text_tensor,
    with_masks,
)
from triton_sam.core.concepts.request import ConceptRequest
from triton_sam.engines.base import Decoded
from triton_sam.engines.concepts import ConceptEngine
from triton_sam.errors import Cancelled, InternalError, InvalidInput

#: Low-resolution logits are kept as they are, 32 bits for one of a mask's.
_PIXELS_PER_LOGIT = 8


def bounded(
    asked: ConceptRequest, engine: ConceptEngine, size: tuple[int, int], most_pixels: int, *, logits: bool
) -> ConceptRequest:
    """The request with as many instances of each concept as fit into an answer.

    Args:
        size: (width, height) of the image.
        most_pixels: of all masks together.
        logits: whether the low-resolution logits leave the engine.

    Raises:
        InvalidInput: a text that the model cannot read, or so many concepts that not even one instance of each fits.
    """
    for concept in asked.concepts:
        engine.check_text(concept.words)
    width, height = size
    count = len(asked.concepts)
    each = width * height
    if logits:
        each = max(each, _PIXELS_PER_LOGIT * engine.spec.decoder.mask_side**2)
    room = most_pixels // (each * count)
    if not room:
        raise InvalidInput(
            f"masks of {width} x {height} pixels for {count} concepts are too much for one request: "
            f"{most_pixels:,} pixels in all are allowed, so send fewer concepts at a time"
        )
    return dataclasses.replace(asked, most=min(asked.most, room))


def build_concepts(
    job: SegmentJob, decoded: list[Decoded], info: ModelInfo, wanted: Set[str]
) -> dict[str, npt.NDArray[Any]]:
    """Output name -> array.

    ``scores`` [K,1] and ``low_res_logits`` [K,1,h,w] float32 for the K instances of all concepts, by concept and then
    by falling score; ``masks`` [K,H,ceil(W/8)] uint8, packed bits of the full-size masks; ``result_json`` and
    ``image_key`` [1] bytes. K may be 0.

    Raises:
        Cancelled: nobody waits for it any more, which is looked at before each mask: hundreds take seconds.
    """
    started = time.perf_counter()
    assert job.embedding is not None  # jobs without one have failed before
    assert job.prompt is not None
    assert job.prompt.concepts is not None
    frame = job.embedding.frame
    entries, packed = mask_entries(decoded, job.prompt, frame, wanted, _Interest(job).check)
    outputs: dict[str, npt.NDArray[Any]] = {}
    if "image_key" in wanted:
        outputs["image_key"] = text_tensor(job.image_key)
    if "scores" in wanted:
        outputs["scores"] = np.concatenate([answer.scores for answer in decoded])[:, None]
    if "low_res_logits" in wanted:
        outputs["low_res_logits"] = np.concatenate([mask_logits(answer) for answer in decoded])[:, None]
    if "masks" in wanted:
        nothing = np.zeros((0, frame.height, -(-frame.width // 8)), np.uint8)
        outputs["masks"] = masks_tensor(decoded, packed, job.prompt) if packed else nothing
    job.mark("answer", started)
    job.timings["total"] = (time.perf_counter() - job.received) * 1e3
    if "result_json" in wanted:
        boxes = [[round(side, 3) for side in box] for instances in job.instances for box in instances.boxes.tolist()]
        if not math.isfinite(sum(map(sum, boxes))):
            raise InternalError("the boxes that the model found are no numbers: set it up again from its checkpoint")
        # The text of finite numbers is JSON: to encode each alone takes longer than everything else here.
        listed = [
            f'{entry.mask[:-1]}, "score": {entry.score!r}, "box": {box!r}, "concept": {entry.object}}}'
            for entry, box in zip(entries, boxes, strict=True)
        ]
        head = {**result_of(job, info), "concepts": _concepts(job)}
        outputs["result_json"] = text_tensor(with_masks(json.dumps(head), entries, listed))
    return outputs


class _Interest:
    """Whether somebody waits for a response that is being built."""

    def __init__(self, job: SegmentJob) -> None:
        self._job = job
        # Most answers are built before the first question, which takes as long as their masks.
        self._asked = time.perf_counter()

    def check(self) -> None:
        """Raises Cancelled if the job has a response already, or if its client is gone."""
        gone, now = self._job.answered, time.perf_counter()
        if not gone and now - self._asked > ASK_SECONDS:
            self._asked = now
            gone = self._job.reply.is_cancelled()
        if gone:
            raise Cancelled("the request was cancelled while its answer was built")


def _concepts(job: SegmentJob) -> Sequence[dict[str, Any]]:
    """What the answer says of each concept."""
    assert job.prompt is not None
    assert job.prompt.concepts is not None
    return [
        {
            "text": concept.text,
            "presence": instances.presence,
            "found": instances.found,
            "returned": len(instances.boxes),
        }
        for concept, instances in zip(job.prompt.concepts.concepts, job.instances, strict=True)
    ]
