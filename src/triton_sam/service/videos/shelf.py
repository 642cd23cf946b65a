"""The states of a video's session with Triton, on the disk: nobody may come back to a video for half an hour."""

from __future__ import annotations

import asyncio
import logging
import mmap
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from triton_sam.client.video_log import Checkpoint
from triton_sam.client.video_session import VideoSession
from triton_sam.errors import QueueFull
from triton_sam.service.videos.spool import VideoFolder

log = logging.getLogger(__name__)

STATES = "states"
#: Fewer bytes may stay in memory.
_LEAST = 1024 * 1024


class StateShelf:
    """Takes states that have not changed since it was last asked to. Belongs to the event loop."""

    def __init__(self, folder: VideoFolder) -> None:
        self._folder = folder
        self._newest: int | None = None

    async def take(self, session: VideoSession) -> None:
        """Puts the session's states on the disk, where they count; they stay in memory if there is no room."""
        self._count(session)
        newest = None if session.checkpoint is None else session.checkpoint.step
        is_old, self._newest = newest == self._newest, newest
        loose = [state for state in session.states if isinstance(state.data, bytes)]
        size = sum(len(state.data) for state in loose)
        if not is_old or size < _LEAST:
            return
        try:
            self._folder.count(STATES, _shelved(session) + size)
            found = await asyncio.to_thread(_on_disk, self._folder.path, [state.data for state in loose])
            session.replace_states(Checkpoint(state.step, data) for state, data in zip(loose, found, strict=True))
        except (QueueFull, OSError) as error:
            log.info("the state of a video stays in memory: %s", error)
        finally:
            self._count(session)

    def _count(self, session: VideoSession) -> None:
        if self._folder.path.exists():  # else it was removed meanwhile
            self._folder.count(STATES, _shelved(session))


def _shelved(session: VideoSession) -> int:
    """Bytes on the disk."""
    return sum(len(state.data) for state in session.states if not isinstance(state.data, bytes))


def _on_disk(folder: Path, states: Sequence[bytes]) -> list[bytes]:
    """Views of a file that has no name, and is gone with the last of them."""
    with tempfile.TemporaryFile(dir=folder) as file:
        for state in states:
            file.write(state)
        file.flush()
        whole, start = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)), 0
    found = []
    for state in states:
        found.append(cast("bytes", whole[start : start + len(state)]))
        start += len(state)
    return found
