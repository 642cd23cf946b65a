"""What a video request brings along through the scheduler, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from triton_sam.backend.video.session_state import StateNotes
from triton_sam.core.geometry import Frame
from triton_sam.core.video.request import VideoRequest
from triton_sam.core.video.state_bytes import pack_state


@dataclass(frozen=True, slots=True, eq=False)
class VideoOutcome:
    """The result of a step besides its masks.

    Attributes:
        geometry: of the video's frames; None as long as no frame has told their size.
        objects: number of the object of each mask.
        appearance: its score of being there, for each mask; above 0 it is.
        known: all objects of the session.
        forgotten: object -> frames that it would have attended to if their memories were still kept.
        dropped: object -> conditioning frames that were dropped because there were too many.
        state: of the session, as bytes or still as notes; None if it was not requested.
    """

    geometry: Frame | None = None
    objects: tuple[int, ...] = ()
    appearance: tuple[float, ...] = ()
    known: tuple[int, ...] = ()
    forgotten: Mapping[int, list[int]] = field(default_factory=dict)
    dropped: Mapping[int, list[int]] = field(default_factory=dict)
    state: StateNotes | bytes | None = None

    def state_bytes(self) -> bytes | None:
        """The state as a client gets it. Many objects have a hundred megabytes, so the video thread leaves it alone."""
        return pack_state(self.state.state()) if isinstance(self.state, StateNotes) else self.state


@dataclass(eq=False, slots=True)
class VideoJob:
    """The part of a job that is only there for videos.

    Attributes:
        state: the bytes from which a session is restored.
    """

    request: VideoRequest
    state: bytes | None = None
    outcome: VideoOutcome | None = None
