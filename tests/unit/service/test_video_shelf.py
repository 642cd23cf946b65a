"""States of videos leave the memory for the disk, and sessions come back from there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.client.video_server import by_memory
from tests.unit.service.video_helpers import CLICK, lines_of, make_empty, told, video_fake
from triton_sam.client.video_log import Checkpoint
from triton_sam.client.video_session import VideoSession
from triton_sam.service.videos import films, shelf
from triton_sam.service.videos.shelf import StateShelf
from triton_sam.service.videos.spool import DiskBudget, VideoFolder


def session_of(*states: Checkpoint) -> VideoSession:
    session = VideoSession([], {})
    session._log.checkpoints[:] = [None, *states]
    return session


def taken(shelf: StateShelf, session: VideoSession) -> None:
    asyncio.run(shelf.take(session))


def test_states_that_stay_are_put_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "_LEAST", 10)
    folder = VideoFolder(tmp_path / "film", DiskBudget(10_000), "mine")
    session, place = session_of(Checkpoint(1, b"a" * 1000), Checkpoint(9, b"b" * 2000)), StateShelf(folder)
    taken(place, session)
    assert folder.bytes == 0, "they may be replaced in a moment"
    taken(place, session)
    assert not any(isinstance(state.data, bytes) for state in session.states)
    assert [(state.step, bytes(state.data)) for state in session.states] == [(1, b"a" * 1000), (9, b"b" * 2000)]
    assert session._log.checkpoints[0] is None
    assert folder.bytes == 3000
    session._log.checkpoints[:2] = []
    taken(place, session)
    assert folder.bytes == 2000, "what is dropped counts no longer"
    session._log.checkpoints.append(Checkpoint(12, b"c" * 9000))
    taken(place, session)
    taken(place, session)
    assert isinstance(session.states[-1].data, bytes), "there is no room for it"
    assert folder.bytes == 2000
    folder.remove()
    taken(place, session)
    assert folder.bytes == 0


def test_a_session_comes_back_from_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "_LEAST", 1)
    monkeypatch.setattr(films, "_SWEEP_SECONDS", 0.01)
    shelved: list[int] = []
    on_disk = shelf._on_disk

    def noted(folder: Path, states: list[bytes]) -> list[bytes]:
        shelved.append(len(states))
        return on_disk(folder, states)

    monkeypatch.setattr(shelf, "_on_disk", noted)

    async def tracked(client: httpx.AsyncClient, fake: Any, *, is_lost: bool) -> list[dict[str, Any]]:
        where = f"/v1/videos/{await make_empty(client, 40)}"
        await client.post(f"{where}/prompts", json=CLICK)
        for _ in range(3):  # until the session's start is not needed any more
            await client.post(f"{where}/propagate", json={"max_frames": 36})
        if is_lost:
            while not shelved:
                await asyncio.sleep(0.001)
            fake.transport.kill()
        return lines_of((await client.post(f"{where}/propagate", json={"start_frame_index": 30})).text)

    async def story(client: httpx.AsyncClient) -> None:
        assert await tracked(client, fake, is_lost=True) == await tracked(client, fake, is_lost=False)
        opened = fake.transport.done("open")  # type: ignore[attr-defined]
        assert [video["step"] > 0 for video in opened] == [False, True, False]

    fake = video_fake(by_memory)
    told(story, fake)
