"""What a video may have in the service, and what a process that reads one may take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from triton_sam.settings import Settings


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """Limits, by the settings whose names begin with TRITON_SAM_VIDEO_.

    Attributes:
        frame_bytes: of one image file.
        clip_bytes: of all frames of a video, and again of its results.
        seconds: of a process that reads or exports a video; it may use as much of ``cores`` processors.
        memory_bytes: of that process.
    """

    upload_bytes: int
    frame_bytes: int
    frame_pixels: int
    frames: int
    clip_bytes: int
    seconds: float
    memory_bytes: int
    cores: int = 4

    @classmethod
    def of(cls, settings: Settings) -> VideoLimits:
        return cls(
            upload_bytes=settings.video_upload_bytes,
            frame_bytes=settings.max_image_bytes,
            frame_pixels=min(settings.video_frame_pixels, settings.max_image_pixels),
            frames=settings.video_frames,
            clip_bytes=settings.video_clip_bytes,
            seconds=settings.video_decode_seconds,
            memory_bytes=settings.video_decode_bytes,
        )

    def document(self) -> dict[str, Any]:
        """As JSON, for a process."""
        return asdict(self)
