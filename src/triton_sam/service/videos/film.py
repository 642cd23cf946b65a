"""One video of the service: its frames, its session with Triton, and what was found so far."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from triton_sam.client.video_state import Prompts, VideoState
from triton_sam.errors import Conflict, NotFound, TooLarge, TritonSamError
from triton_sam.service.served_models import ServedSegmenter
from triton_sam.service.videos.absent import no_space, no_video
from triton_sam.service.videos.frame_store import FRAMES_FILE, FrameStore, StoredClip
from triton_sam.service.videos.limits import VideoLimits
from triton_sam.service.videos.results import RESULTS_FILE, StoredResults
from triton_sam.service.videos.sessions import ServiceVideoClient, end_within
from triton_sam.service.videos.shelf import StateShelf
from triton_sam.service.videos.spool import VideoFolder
from triton_sam.service.videos.tracking import Tracking
from triton_sam.video.found import VideoFrame

log = logging.getLogger(__name__)

T = TypeVar("T")
_CLOSE_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class FilmFacts:
    """What is known of a video when it is made.

    Attributes:
        fps: None if it has no times.
        axis: ``t`` or ``z``.
        contrast: how 16 bits became 8; None if nothing was scaled.
        form: what label volumes take over, of :class:`~triton_sam.video.stacks.scale.VolumeForm`.
        grows: whether frames come one by one.
    """

    id: str
    caller: str
    name: str
    size: tuple[int, int]
    fps: float | None = None
    axis: str = "t"
    contrast: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    form: Mapping[str, Any] = field(default_factory=dict)
    grows: bool = False


class Film:
    """Belongs to the event loop."""

    def __init__(
        self,
        facts: FilmFacts,
        model: ServedSegmenter,
        client: ServiceVideoClient,
        folder: VideoFolder,
        limits: VideoLimits,
    ) -> None:
        """Opens what the folder has: frames, or none yet."""
        self.facts, self.model, self.client = facts, model, client
        self.folder = folder
        self._limits = limits
        self.store = FrameStore(folder.path)
        self.results = StoredResults(folder.path, facts.size, limits.clip_bytes)
        self.clip = StoredClip(self.store, facts.size, name=facts.name, rate=facts.fps, grows=facts.grows)
        self._state: VideoState | None = None
        self._shelf = StateShelf(folder)
        self.tracking: Tracking | None = None
        self.is_exporting = False
        #: Called when it was removed.
        self.when_closed: Callable[[], object] = lambda: None
        self.is_closed = False
        self._users = 0
        self._used = time.monotonic()
        self._adding, self._storing = asyncio.Lock(), asyncio.Lock()
        #: How often objects were removed.
        self._removals: Counter[int] = Counter()

    @property
    def frames(self) -> int:
        return self.store.count

    @property
    def idle_seconds(self) -> float:
        """How long nobody has used it."""
        return 0.0 if self._users else time.monotonic() - self._used

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """It is not idle in this block."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._used = time.monotonic()

    async def state(self) -> VideoState:
        """Its session, which Triton learns of with the first prompt."""
        self.check_open()
        if self._state is None:
            made = await self.client.init_state(self.clip)
            self._state = self._state or made  # another request may have been faster
        return self._state

    def check_open(self) -> None:
        if self.is_closed:
            raise no_video()

    @contextlib.contextmanager
    def disk(self) -> Iterator[None]:
        """NotFound if the video's files are gone, Unavailable if the disk refuses them."""
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: a file was closed
            self.check_open()
            if not isinstance(error, OSError):
                raise
            log.error("a video cannot be stored: %s", error.strerror or type(error).__name__)
            raise no_space() from None

    def check_frame(self, index: int) -> None:
        """NotFound if there is no such frame."""
        if not 0 <= index < self.frames:
            frames = f"{self.frames} frame{'s' * (self.frames != 1)}"
            raise NotFound(f"there is no frame {index}: the video has {frames}, counted from 0")

    def prompts(self) -> dict[int, dict[int, Prompts | None]]:
        """Object -> frame -> what was clicked there; None for a mask."""
        prompts = {} if self._state is None else self._state.prompts
        return {name: prompts.get(name, {}) for name in self.objects}

    @property
    def objects(self) -> list[int]:
        return [] if self._state is None else list(self._state.obj_ids)

    # -- verbs -----------------------------------------------------------------------------------------------

    async def add_frame(self, number: int, data: bytes) -> int:
        """Adds a frame of a video that grows; returns how many there are."""
        async with self._adding:
            self.check_open()
            if not self.facts.grows:
                raise Conflict("the video was sent as a file, and its frames are complete: make another video")
            if number != self.frames:
                raise Conflict(f"frame {number} is not the next one: send frame {self.frames}")
            if number >= self._limits.frames:
                raise TooLarge(f"the video has {number:,} frames, and no more are allowed: begin another one")
            if self.store.size + len(data) > self._limits.clip_bytes:
                raise TooLarge(f"the frames of the video have {self._limits.clip_bytes:,} bytes: begin another one")
            self.folder.count(FRAMES_FILE, self.store.size + len(data))
            try:
                with self.disk():
                    await asyncio.to_thread(self.store.add, data)
            finally:
                if not self.is_closed:
                    self.folder.count(FRAMES_FILE, self.store.size)
            return self.frames

    async def prompt(
        self, frame: int, name: int, points: Any, labels: Any, box: Any, *, clear_old_points: bool
    ) -> VideoFrame:
        """All objects of a frame, after a prompt there."""
        state = await self.state()
        work = self.client.prompt(state, frame, name, points, labels, box, clear_old_points=clear_old_points)
        return await self._keep(work)

    async def prompt_mask(self, frame: int, name: int, mask: npt.NDArray[np.bool_]) -> VideoFrame:
        """The same for a mask [H,W]."""
        return await self._keep(self.client.prompt_mask(await self.state(), frame, name, mask))

    async def clear_prompts(self, frame: int, name: int) -> VideoFrame:
        """All objects of a frame, without the prompts of one of them there."""
        return await self._keep(self.client.clear(await self.state(), frame, name))

    async def remove_object(self, name: int) -> None:
        if name not in self.objects:
            known = ", ".join(map(str, self.objects)) or "none"
            raise NotFound(f"there is no object {name} in this video: known are {known}")
        await self._guarded(self.client.remove_object(await self.state(), name, strict=True))
        self._removals[name] += 1
        async with self._storing:
            with self.disk():
                await asyncio.to_thread(self.results.forget_object, name)

    async def reset(self) -> None:
        """Forgets objects, prompts and results."""
        if self.tracking is not None:
            await end_within(_CLOSE_SECONDS, self.tracking.stop())
        names = self.objects
        if self._state is not None:
            await self._guarded(self.client.reset_state(self._state))
        self._removals.update(names)
        async with self._storing:
            with self.disk():
                await asyncio.to_thread(self.results.clear)
        self.count_results()

    async def keep(self, found: VideoFrame, *, tracked: bool) -> None:
        """Stores a result, without objects that were removed meanwhile."""
        before = {name: self._removals[name] for name in found.objects if name in self.objects}
        async with self._storing:
            there = {
                name: one
                for name, one in found.objects.items()
                if name in self.objects and before.get(name) == self._removals[name]
            }
            if not there and found.objects:
                return
            kept = VideoFrame(found.index, found.seconds, there, found.size)
            with self.disk():
                await asyncio.to_thread(self.results.add, kept, tracked=tracked)
        self.count_results()

    def count_results(self) -> None:
        if not self.is_closed:
            self.folder.count(RESULTS_FILE, self.results.bytes)

    async def shelve(self) -> None:
        """Puts what is only needed after a loss of the server on the disk; to be called now and then."""
        if self._state is not None and not self.is_closed:
            await self._shelf.take(self._state.session)

    async def _keep(self, work: Awaitable[VideoFrame]) -> VideoFrame:
        found = await self._guarded(work)
        await self.keep(found, tracked=False)
        return found

    async def _guarded(self, work: Awaitable[T]) -> T:
        """A video that is deleted meanwhile is one that is not there."""
        try:
            return await work
        except TritonSamError:
            self.check_open()
            raise

    async def close(self) -> None:
        """Ends its work, its session with Triton, and removes its files."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.tracking is not None:
            await end_within(_CLOSE_SECONDS, self.tracking.stop())
        if self._state is not None:
            await end_within(_CLOSE_SECONDS, self.client.close_state(self._state))
        self.store.close()
        self.results.close()
        await asyncio.to_thread(self.folder.remove)
