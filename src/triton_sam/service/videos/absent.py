"""What is answered about videos that are not there."""

from __future__ import annotations

from triton_sam.errors import NotFound


def no_video() -> NotFound:
    """The same for all that are not there, and for those of others."""
    return NotFound("there is no such video: it was deleted, or nobody has used it for too long; send it again")
