"""AsyncSAM2VideoClient: SAM2VideoClient for asyncio, on the same core."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import numpy.typing as npt

from triton_sam.client import flows, video_flows
from triton_sam.client.flows import Pause
from triton_sam.client.video_client import ask_server
from triton_sam.client.video_flows import FrameMasks, Propagation
from triton_sam.client.video_log import Checkpoint
from triton_sam.client.video_servers import VideoServer, video_servers
from triton_sam.client.video_state import VideoState, masks_of
from triton_sam.client.video_states import checked_options, new_state
from triton_sam.client.video_steps import AskServer, Collect, NextFrame, ReadFrame, Start, Ticket, VideoFlow
from triton_sam.client.wire import Outputs
from triton_sam.errors import DeadlineExceeded, InvalidInput, ServerUnreachable
from triton_sam.video.ahead import NotYet
from triton_sam.video.found import VideoFrame
from triton_sam.video.opening import open_clip

T = TypeVar("T")


class AsyncSAM2VideoClient:
    """As :class:`~triton_sam.client.video_client.SAM2VideoClient`, with methods to await; for one event loop.

    Files are read and frames decoded on threads. A video may also be an asynchronous iterator of images.
    """

    # Many parameters: options that users set one by one, and the network's replacement for tests.
    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        model_type: str = "sam2",
        *,
        token: str | None = None,
        timeout: float = 120.0,
        retries: int = 30,
        state_every: int = 30,
        in_flight: int = 4,
        headers: Mapping[str, str] | None = None,
        servers: Sequence[VideoServer] | None = None,
    ) -> None:
        """The arguments are those of ``SAM2VideoClient``."""
        self._options = checked_options(window=in_flight, state_every=state_every, retries=retries)
        self.model_type = model_type
        self._routed = "x-image-key" not in {name.lower() for name in headers or {}}
        self._servers = servers or video_servers(url, model_type, timeout=timeout, headers=headers, token=token)
        self._under_way: dict[Ticket, asyncio.Task[Outputs]] = {}
        self._states: weakref.WeakSet[VideoState] = weakref.WeakSet()
        self._closed = False

    async def init_state(
        self,
        video: Any,
        *,
        axis: str | None = None,
        at: Mapping[str, int] | None = None,
        contrast: Sequence[float] | None = None,
        axes: str | None = None,
        checkpoint: Checkpoint | None = None,
        obj_ids: Sequence[int] = (),
    ) -> VideoState:
        """As ``SAM2VideoClient.init_state``; ``video`` may also be an asynchronous iterator of images."""
        self._check_open()
        if isinstance(video, AsyncIterable):
            video = _pulled(video, asyncio.get_running_loop())
        opened = partial(open_clip, video, axis=axis, at=at, contrast=contrast, axes=axes)
        clip = await asyncio.to_thread(opened)
        await asyncio.to_thread(getattr, clip, "contrast")  # reads parts of a stack
        cores = [server.core for server in self._servers]
        state = new_state(clip, cores, self._options, asyncio.Lock(), checkpoint, obj_ids, routed=self._routed)
        self._states.add(state)
        return state

    # Many parameters: a prompt as Meta's predictor takes it.
    async def add_new_points_or_box(
        self,
        state: VideoState,
        frame_idx: int,
        obj_id: int,
        points: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        box: npt.ArrayLike | None = None,
        clear_old_points: bool = True,
        normalize_coords: bool = True,
    ) -> FrameMasks:
        """As ``SAM2VideoClient.add_new_points_or_box``."""
        flow = video_flows.add_points(
            state,
            frame_idx,
            obj_id,
            points,
            labels,
            box,
            clear_old_points=clear_old_points,
            normalize_coords=normalize_coords,
        )
        return await self._run(state, flow)

    async def add_new_mask(self, state: VideoState, frame_idx: int, obj_id: int, mask: npt.ArrayLike) -> FrameMasks:
        """As ``SAM2VideoClient.add_new_mask``."""
        return await self._run(state, video_flows.add_mask(state, frame_idx, obj_id, mask))

    async def propagate_in_video(
        self,
        state: VideoState,
        start_frame_idx: int | None = None,
        max_frame_num_to_track: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[FrameMasks]:
        """As ``SAM2VideoClient.propagate_in_video``."""
        walk = self._frames(state, start_frame_idx, max_frame_num_to_track, reverse=reverse, as_meta=True)
        async with aclosing(walk):
            async for found in walk:
                yield found.index, list(state.obj_ids), masks_of(found, state.obj_ids)

    async def track_frames(
        self,
        state: VideoState,
        start_frame_idx: int | None = None,
        max_frame_num_to_track: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[VideoFrame]:
        """As ``SAM2VideoClient.track_frames``."""
        async with aclosing(self._frames(state, start_frame_idx, max_frame_num_to_track, reverse=reverse)) as walk:
            async for found in walk:
                yield found

    async def clear_all_prompts_in_frame(
        self, state: VideoState, frame_idx: int, obj_id: int, need_output: bool = True
    ) -> FrameMasks | None:
        """As ``SAM2VideoClient.clear_all_prompts_in_frame``."""
        found = await self._run(state, video_flows.clear_prompts(state, frame_idx, obj_id))
        return found if need_output else None

    async def remove_object(self, state: VideoState, obj_id: int, strict: bool = False) -> list[int]:
        """As ``SAM2VideoClient.remove_object``."""
        return await self._run(state, video_flows.remove(state, obj_id, strict=strict))

    async def reset_state(self, state: VideoState) -> None:
        """As ``SAM2VideoClient.reset_state``."""
        await self._run(state, video_flows.reset(state))

    async def close_state(self, state: VideoState) -> None:
        """As ``SAM2VideoClient.close_state``."""
        if not state.is_closed:
            try:
                await self._run(state, state.session.close())
            finally:
                state.is_closed = True
                self._states.discard(state)
                state.clip.close()

    async def close(self) -> None:
        """As ``SAM2VideoClient.close``."""
        if self._closed:
            return
        for state in list(self._states):
            await self.close_state(state)
        self._closed = True
        for task in list(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        for server in self._servers:
            await server.async_transport.close()
            server.transport.close()

    async def __aenter__(self) -> AsyncSAM2VideoClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("the client is closed: make a new one")

    async def _frames(
        self, state: VideoState, first: int | None, most: int | None, *, reverse: bool, as_meta: bool = False
    ) -> AsyncGenerator[VideoFrame, None]:
        self._check_open()
        window = self._options.window
        walk = Propagation(state, first, most, reverse=reverse, window=window, as_meta=as_meta)
        try:
            while (found := await self._run(state, walk.next())) is not None:
                yield found
        finally:
            walk.withdraw()  # not on the thread, while another task may use the session
            await asyncio.to_thread(walk.close)

    async def _run(self, state: VideoState, flow: VideoFlow[T]) -> T:
        self._check_open()
        async with state.lock:
            return await flows.run_async(flow, self._perform)

    async def _perform(self, step: Any) -> Any:
        match step:
            case Start(ticket, server, call):
                task = asyncio.ensure_future(_as_coroutine(self._servers[server].async_transport.infer(call)))
                task.add_done_callback(_look_at)
                self._under_way[ticket] = task
                return None
            case Collect(ticket, seconds):
                return await self._collect(ticket, seconds)
            case AskServer(server, question):
                return await asyncio.to_thread(ask_server, self._servers[server], question)
            case NextFrame(walk, wait):
                found = walk.get(wait=False)
                return await asyncio.to_thread(walk.get) if wait and isinstance(found, NotYet) else found
            case ReadFrame(clip, index):
                return await asyncio.to_thread(clip.frame, index)
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None

    async def _collect(self, ticket: Ticket, seconds: float | None) -> Outputs:
        task = self._under_way.get(ticket)
        if task is None:
            raise ServerUnreachable("the request was interrupted before it was sent")
        try:
            # If the caller is cancelled, the answer stays for whoever goes on.
            return await asyncio.wait_for(asyncio.shield(task), seconds)
        except asyncio.TimeoutError:
            raise DeadlineExceeded("no response from the server in time") from None
        finally:
            if task.done():
                self._under_way.pop(ticket, None)


async def _as_coroutine(work: Any) -> Outputs:
    outputs: Outputs = await work
    return outputs


def _look_at(task: asyncio.Task[Outputs]) -> None:
    """Keeps asyncio from reporting errors that nobody collects."""
    if not task.cancelled():
        task.exception()


def _pulled(frames: AsyncIterable[Any], loop: asyncio.AbstractEventLoop) -> Iterator[Any]:
    """The items of an asynchronous iterator, for a thread."""
    source = aiter(frames)

    async def pull() -> tuple[bool, Any]:
        try:
            return True, await anext(source)
        except StopAsyncIteration:
            return False, None

    while True:
        work: Coroutine[Any, Any, tuple[bool, Any]] = pull()
        there, item = asyncio.run_coroutine_threadsafe(work, loop).result()
        if not there:
            return
        yield item
