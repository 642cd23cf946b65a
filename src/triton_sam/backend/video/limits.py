"""The limits of video sessions on one device."""

from __future__ import annotations

from dataclasses import dataclass, field

from triton_sam.backend.video.track_session import Limits
from triton_sam.settings import Settings

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """See the settings that begin with ``video_``.

    Attributes:
        sessions: number of sessions.
        idle_seconds: after which an unused session ends.
        total_bytes: of all sessions, with the frames that wait.
        session_bytes: of one session.
        gap_seconds: for which a step waits for the steps before it.
        answer_pixels: number of masks times pixels of one response.
        pixels: of a frame.
        waiting: steps of one session that may wait.
        session: what one session may keep.
    """

    sessions: int = 256
    idle_seconds: float = 300.0
    total_bytes: int = 4096 * MIB
    session_bytes: int = 512 * MIB
    gap_seconds: float = 10.0
    answer_pixels: int = 500_000_000
    pixels: int = 100_000_000
    waiting: int = 256
    session: Limits = field(default_factory=Limits)

    @classmethod
    def of(cls, settings: Settings, room: int | None) -> VideoLimits:
        """The limits of the settings.

        Args:
            room: for memories in the engine's own memory; None if the engine sets no limit.
        """
        total = settings.video_bytes if room is None else min(room, settings.video_bytes)
        return cls(
            settings.video_sessions,
            settings.video_idle_seconds,
            total,
            # A session that alone filled everything would leave its own frames no room.
            min(settings.video_session_bytes, total * 3 // 4),
            settings.video_gap_seconds,
            settings.max_answer_pixels,
            settings.max_image_pixels,
            session=Limits(settings.video_history, settings.video_conditioning, settings.video_objects),
        )
