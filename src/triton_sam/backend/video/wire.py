"""A video step and its outcome as headers and bodies of messages between a Triton process and a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from triton_sam.backend.video.outcome import VideoJob, VideoOutcome
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.core.video.given_mask import GivenMask
from triton_sam.core.video.request import Do, VideoRequest

Header = dict[str, Any]


def pack_step(video: VideoJob) -> Header:
    """A step without its state."""
    request, prompt, mask = video.request, video.request.prompt, video.request.mask
    return {
        "session": request.session,
        "step": request.step,
        "do": request.do.value,
        "format": request.format,
        "frame": request.frame,
        "object": request.object,
        "prompt": None
        if prompt is None
        else [prompt.points.tolist(), prompt.labels.tolist(), None if prompt.box is None else prompt.box.tolist()],
        "mask": None if mask is None else [mask.height, mask.width, mask.counts],
        "reverse": request.reverse,
        "state": request.state,
        "length": request.length,
        "size": request.size,
    }


def unpack_step(header: Mapping[str, Any], state: bytes | None) -> VideoJob:
    """The step of :func:`pack_step`."""
    prompt, mask = None, None
    if header["prompt"] is not None:
        points, labels, box = header["prompt"]
        prompt = ObjectPrompt(
            np.array(points, np.float32).reshape(-1, 2),
            np.array(labels, np.int32),
            None if box is None else np.array(box, np.float32),
        )
    if header["mask"] is not None:
        mask = GivenMask(*header["mask"])
    rest = {key: value for key, value in header.items() if key not in ("do", "prompt", "mask")}
    return VideoJob(VideoRequest(do=Do(header["do"]), prompt=prompt, mask=mask, **rest), state)


def pack_outcome(outcome: VideoOutcome, state: bytes | None) -> Header:
    """An outcome without its state, of which only the length is told."""
    frame = outcome.geometry
    return {
        "frame": None if frame is None else [frame.width, frame.height, frame.side, frame.policy.value],
        "objects": outcome.objects,
        "appearance": outcome.appearance,
        "known": outcome.known,
        "forgotten": dict(outcome.forgotten),
        "dropped": dict(outcome.dropped),
        "state": None if state is None else len(state),
    }


def unpack_outcome(header: Mapping[str, Any], state: bytes | None) -> VideoOutcome:
    """The outcome of :func:`pack_outcome`."""
    geometry = None
    if header["frame"] is not None:
        width, height, side, policy = header["frame"]
        geometry = Frame(width, height, side, ResizePolicy(policy))
    return VideoOutcome(
        geometry,
        header["objects"],
        header["appearance"],
        header["known"],
        header["forgotten"],
        header["dropped"],
        state,
    )
