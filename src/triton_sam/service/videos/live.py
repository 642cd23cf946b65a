"""Frames of a camera over a WebSocket: each is tracked as it comes, and nothing of it is kept.

There is no queue: the next message is read when the last one was answered. A client that sends faster finds its
connection full, and none of its frames is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton_sam.client.video_state import VideoState
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.service.json_bodies import by_size
from triton_sam.service.videos.bodies import PROMPT_FIELDS, PromptBody, checked_fields, parse, prompt_of
from triton_sam.service.videos.limits import VideoLimits
from triton_sam.service.videos.sessions import ServiceVideoClient
from triton_sam.settings import Settings
from triton_sam.video.clip import Clip, ClipFrame, ClipLimits, check_same_size, upright_size
from triton_sam.video.found import VideoFrame

_EXAMPLE = '{"prompt": {"object_id": 1, "points": [[420, 310]], "labels": [1]}}'
#: Bytes of JSON; a mask is the largest part of it.
MAX_TEXT = 8 * 1024 * 1024
#: Frames that are read again for prompts and for sending them.
_KEPT = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """What a message leads to: masks of a frame, or nothing yet."""

    found: VideoFrame | None = None


class NewestClip(Clip):
    """The last frames of a camera. Nothing waits for those to come."""

    is_live = True

    def __init__(self, limits: ClipLimits) -> None:
        self.name = "the socket"
        self._limits = limits
        self._kept: deque[ClipFrame] = deque(maxlen=_KEPT)

    def add(self, index: int, data: bytes) -> None:
        """Takes the next frame; InvalidInput for a file that cannot be one. Reads its header, so run it on a thread."""
        where = f"frame {index}"
        size = upright_size(data, self._limits, where)
        if index:
            check_same_size(where, size, self.size)
        self.size = size
        self._kept.append(ClipFrame(index, data))

    def frames(self, first: int = 0, last: int | None = None) -> Iterator[ClipFrame]:
        for frame in list(self._kept):
            if first <= frame.index and (last is None or frame.index <= last):
                yield frame


class LiveVideo:
    """One camera: its newest frames, its session with Triton, and prompts that wait for the next frame."""

    def __init__(self, client: ServiceVideoClient, limits: VideoLimits, settings: Settings) -> None:
        self._client, self._settings = client, settings
        self._clip = NewestClip(ClipLimits(limits.frame_pixels, limits.frame_bytes))
        self._state: VideoState | None = None
        #: (object, message) of prompts for the next frame: what they unpack to is not kept.
        self._waiting: list[tuple[int, bytes]] = []
        #: Frames so far.
        self.count = 0

    async def take_frame(self, data: bytes) -> Answer:
        """Tracks the next frame, after the prompts that wait for it; answers its masks."""
        index = self.count
        await asyncio.to_thread(self._clip.add, index, data)
        self.count += 1
        if self._state is None:
            self._state = await self._client.init_state(self._clip)
        waiting, self._waiting = self._waiting, []
        for _, message in waiting:
            await self._prompt(await self._parsed(message.decode(), index), index)
        found = await self._tracked(index) if self._state.obj_ids else None
        return Answer(found or VideoFrame(index, None, {}, self._clip.size))

    async def take_text(self, text: str) -> Answer:
        """A prompt: for the newest frame if it says so, else for the next one."""
        wanted = await self._parsed(text, self.count)
        if wanted.frame == self.count:
            # A prompt replaces those before it, unless it says otherwise.
            others = [one for one in self._waiting if one[0] != wanted.object or not wanted.clear_old_points]
            message = text.encode()
            if len(others) >= self._settings.video_objects:
                raise TooLarge("too many prompts wait for the next frame: send a frame")
            if sum(len(other) for _, other in others) + len(message) > MAX_TEXT:
                raise TooLarge(f"more than {MAX_TEXT:,} bytes of prompts wait for the next frame: send a frame")
            self._waiting = [*others, (wanted.object, message)]
            return Answer()
        if wanted.frame != self.count - 1:
            raise InvalidInput(
                f"frame {wanted.frame} cannot be prompted: prompt the newest one, {self.count - 1}, or the next one"
                if self.count
                else "there is no frame yet: leave frame_index out, and the prompt is for the first one"
            )
        return Answer(await self._prompt(wanted, wanted.frame))

    async def _parsed(self, text: str, frame: int) -> PromptBody:
        """The prompt of a message, which is for a frame unless it names another one."""

        def parsed() -> PromptBody:
            document = parse(text, self._settings, _EXAMPLE)
            if set(document) != {"prompt"} or not isinstance(document["prompt"], dict):
                raise InvalidInput(f"the message is none that is known here: send {_EXAMPLE}")
            return prompt_of(checked_fields(document["prompt"], PROMPT_FIELDS), self._settings, frame)

        return await by_size(len(text), parsed)

    async def close(self) -> None:
        """Triton forgets the video."""
        if self._state is not None:
            await self._client.close_state(self._state)

    async def _prompt(self, wanted: PromptBody, frame: int) -> VideoFrame:
        assert self._state is not None
        if wanted.mask is not None:
            wanted.mask.check_size(*self._clip.size)
            mask = await asyncio.to_thread(wanted.mask.pixels)
            return await self._client.prompt_mask(self._state, frame, wanted.object, mask)
        return await self._client.prompt(
            self._state,
            frame,
            wanted.object,
            wanted.points,
            wanted.labels,
            wanted.box,
            clear_old_points=wanted.clear_old_points,
        )

    async def _tracked(self, frame: int) -> VideoFrame | None:
        assert self._state is not None
        walk = self._client.tracked(self._state, frame, 0, reverse=False)
        try:
            return await anext(walk, None)
        finally:
            await walk.aclose()


def opening(document: Mapping[str, Any]) -> str | None:
    """The model of the first message, ``{"open": {"model": ...}}``; None for the default."""
    inner = document.get("open")
    if set(document) != {"open"} or not isinstance(inner, dict) or set(inner) - {"model"}:
        raise InvalidInput('the first message opens the video: send {"open": {}} or {"open": {"model": "..."}}')
    return inner.get("model")
