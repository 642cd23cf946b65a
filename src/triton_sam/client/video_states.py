"""Makes the state of a video, for both video clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton_sam.client.core import ClientCore
from triton_sam.client.video_log import Checkpoint
from triton_sam.client.video_session import SessionOptions, VideoSession
from triton_sam.client.video_state import VideoState
from triton_sam.errors import InvalidInput
from triton_sam.video.clip import Clip


def checked_options(**options: int) -> SessionOptions:
    """InvalidInput for options that make no sense."""
    if options["window"] < 1 or options["state_every"] < 1 or options["retries"] < 0:
        raise InvalidInput("in_flight and state_every must be at least 1, and retries not below 0")
    return SessionOptions(**options)


def new_state(
    clip: Clip,
    servers: Sequence[ClientCore],
    options: SessionOptions,
    lock: Any,
    checkpoint: Checkpoint | None,
    obj_ids: Sequence[int],
    *,
    routed: bool,
) -> VideoState:
    """The state of a clip that was opened; see ``init_state``."""
    width, height = clip.size
    video = {"length": clip.length, "width": width, "height": height}
    session = VideoSession(servers, video, options, routed=routed, checkpoint=checkpoint)
    state = VideoState(clip, session, lock, obj_ids=obj_ids)
    state.tell()
    return state
