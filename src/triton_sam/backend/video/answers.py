"""Builds the tensors and JSON of a video step's response."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.replies import (
    DEFAULT_OUTPUTS,
    MaskEntry,
    ModelInfo,
    mask_entries,
    mask_logits,
    masks_tensor,
    text_tensor,
)
from triton_sam.backend.video.outcome import VideoOutcome
from triton_sam.core.video.request import VideoRequest
from triton_sam.engines.base import Decoded

STATE_OUTPUT = "video_state"


def build_video(
    job: SegmentJob, decoded: Sequence[Decoded], info: ModelInfo, wanted: Set[str]
) -> dict[str, npt.NDArray[Any]]:
    """Output name -> array.

    ``scores`` [O,1] and ``low_res_logits`` [O,1,h,w] float32 for O objects; ``masks`` [O,H,ceil(W/8)] uint8, packed
    bits of the full-size masks; ``video_state`` [bytes] uint8 if it was requested; ``result_json`` [1] bytes.
    """
    started = time.perf_counter()
    assert job.video is not None
    assert job.prompt is not None
    outcome = job.video.outcome
    assert outcome is not None  # jobs without one have failed before
    outputs: dict[str, npt.NDArray[Any]] = {}
    entries: list[MaskEntry] = []
    if decoded:
        assert outcome.geometry is not None  # the frame has told it
        entries, packed = mask_entries(decoded, job.prompt, outcome.geometry, wanted)
        if "scores" in wanted:
            outputs["scores"] = np.stack([answer.scores for answer in decoded])
        if "low_res_logits" in wanted:
            outputs["low_res_logits"] = np.stack([mask_logits(answer) for answer in decoded])
        if packed:
            outputs["masks"] = masks_tensor(decoded, packed, job.prompt)
    if STATE_OUTPUT in wanted or wanted == DEFAULT_OUTPUTS:
        state = outcome.state_bytes()
        if state is not None:
            outputs[STATE_OUTPUT] = np.frombuffer(state, np.uint8)
    job.mark("answer", started)
    job.timings["total"] = (time.perf_counter() - job.received) * 1e3
    if "result_json" in wanted:
        head = json.dumps(_result(job, job.video.request, outcome, info))
        masks = ", ".join(entry.as_json(outcome.objects[entry.object]) for entry in entries)
        outputs["result_json"] = text_tensor(f'{head[:-1]}, "masks": [{masks}]}}')
    return outputs


def _result(job: SegmentJob, request: VideoRequest, outcome: VideoOutcome, info: ModelInfo) -> Mapping[str, Any]:
    """What ``result_json`` says besides the masks."""
    video: dict[str, Any] = {
        "session": request.session,
        "step": request.step,
        "frame": request.frame,
        "objects": outcome.objects,
        "appearance": [round(value, 4) for value in outcome.appearance],
        "known": outcome.known,
    }
    for name, frames in (("forgotten", outcome.forgotten), ("dropped", outcome.dropped)):
        if frames:
            video[name] = {str(number): listed for number, listed in frames.items()}
    result: dict[str, Any] = {
        "video": video,
        **info.as_json(),
        "timings_ms": {step: round(spent, 3) for step, spent in job.timings.items()},
    }
    if outcome.geometry is not None:
        result |= {"width": outcome.geometry.width, "height": outcome.geometry.height}
    return result
