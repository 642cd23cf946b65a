"""What is answered about videos that are not there, and for which there is no place."""

from __future__ import annotations

from triton_sam.errors import NotFound, Unavailable


def no_video() -> NotFound:
    """The same for all that are not there, and for those of others."""
    return NotFound("there is no such video: it was deleted, or nobody has used it for too long; send it again")


def no_space() -> Unavailable:
    """For a disk that takes no more."""
    return Unavailable("there is no disk space for videos: delete one that you do not need, or try again later")
