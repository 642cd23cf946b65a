"""SAM2VideoClient: objects through a video, with the verbs of Meta's predictor."""

from __future__ import annotations

import concurrent.futures
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import numpy.typing as npt

from triton_sam.client import flows, video_flows
from triton_sam.client.cleanup import Cleanup
from triton_sam.client.flows import ListServed, Pause, ReadParameters
from triton_sam.client.io_thread import IoThread
from triton_sam.client.video_flows import FrameMasks, Propagation
from triton_sam.client.video_log import Checkpoint
from triton_sam.client.video_servers import VideoServer, video_servers
from triton_sam.client.video_state import VideoState, masks_of
from triton_sam.client.video_states import checked_options, new_state
from triton_sam.client.video_steps import (
    AskServer,
    CheckTriton,
    Collect,
    NextFrame,
    ReadFrame,
    Start,
    Ticket,
    VideoFlow,
)
from triton_sam.client.wire import Outputs
from triton_sam.errors import DeadlineExceeded, InvalidInput, ServerUnreachable, TritonSamError
from triton_sam.video.found import VideoFrame
from triton_sam.video.opening import open_clip

T = TypeVar("T")


class SAM2VideoClient:
    """A client that tracks objects through videos on a Triton server.

    Threads may share it; each video (``state``) is used by one thread at a time. Frames are read, decoded and sent
    ahead of the one whose masks are returned. If the server or its worker is lost, the client goes on as soon as it,
    or another one of its addresses, answers: no frame is missing or doubled.
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
        """
        Args:
            url: Triton's ``localhost:8000`` (HTTP), ``https://host`` or ``grpc://host:8001``; not the service's.
                Several addresses are used one after the other, when one does not answer. Default TRITON_URL.
            model_type: Triton name of the segmenter, or a catalogue id (``sam2.1:tiny``).
            token: sent as ``Authorization: Bearer``, for a proxy.
            timeout: seconds for one request.
            retries: failures in a row, with growing pauses of 4 seconds at most, after which a video gives up.
            state_every: frames after which the server sends the video's state again, by which it goes on elsewhere. One
                of more than 15 MB, as of several objects, comes less often: after a frame for each half MB of it.
            in_flight: frames that are sent ahead. Those that are on their way are tracked even if
                :meth:`propagate_in_video` is left early; 1 tracks none that is not returned.
            headers: sent with every request.
            servers: replace the network, for tests.
        """
        self._options = checked_options(window=in_flight, state_every=state_every, retries=retries)
        self.model_type = model_type
        self._routed = "x-image-key" not in {name.lower() for name in headers or {}}
        self._servers = servers or video_servers(url, model_type, timeout=timeout, headers=headers, token=token)
        self._under_way: dict[Ticket, concurrent.futures.Future[Outputs]] = {}
        self._states: weakref.WeakSet[VideoState] = weakref.WeakSet()
        io = IoThread("triton-sam-video")
        self._io = io
        self._cleanup = Cleanup(self, partial(_shut_down, io, self._servers))
        self._closed = False

    def init_state(
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
        """Opens a video; the server learns of it with the first prompt.

        Args:
            video: a video file (needs PyAV), a folder of images, ``-`` for a stream on standard input, an array [T,H,W]
                or [T,H,W,3], a list of images, or an iterator of images, also one without an end. Image files are sent
                as they are, arrays as PNG, decoded frames as JPEG of quality 95. Or a stack: a TIFF, the folder of a
                Zarr array or OME-Zarr, or an array with one of the next four arguments.
            axis: what frames run along: ``z``, slices of a volume, or ``t``, times. Default: as a stack says, else t.
            at: of a stack: dimension -> the index at which it is held: ``{"c": 1, "t": 0}``.
            contrast: of a stack: (low, high), the values that become black and white. Default: 8 bits as they are, else
                percentiles of a sample, one range for the whole stack.
            axes: of a stack: a letter for each dimension (``TZCYX``), where the file does not name them.
            checkpoint, obj_ids: those of an earlier state of the same video, to go on behind it.
        """
        self._check_open()
        clip = open_clip(video, axis=axis, at=at, contrast=contrast, axes=axes)
        cores = [server.core for server in self._servers]
        state = new_state(clip, cores, self._options, threading.Lock(), checkpoint, obj_ids, routed=self._routed)
        self._states.add(state)
        return state

    # Many parameters: a prompt as Meta's predictor takes it.
    def add_new_points_or_box(
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
        """Prompts an object in a frame; in a frame that was tracked before, this corrects it.

        Args:
            obj_id: any whole number; one that is not known is a further object.
            points: [P,2] xy in pixels of the video; labels: [P], 1 object, 0 background.
            box: [4] x0, y0, x1, y1.
            clear_old_points: whether earlier points of this object in this frame are forgotten.
            normalize_coords: False if coordinates are shares of the frame already, from 0 to 1.

        Returns:
            (frame_idx, obj_ids, masks): all objects, and their masks in this frame, [O,1,H,W] bool, empty for an object
            that has none here. ``(masks > 0.0).cpu().numpy()`` works, as after Meta's predictor.
        """
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
        return self._run(state, flow)

    def add_new_mask(self, state: VideoState, frame_idx: int, obj_id: int, mask: npt.ArrayLike) -> FrameMasks:
        """As :meth:`add_new_points_or_box`, with a mask [H,W] of the video's size, not 0 where the object is."""
        return self._run(state, video_flows.add_mask(state, frame_idx, obj_id, mask))

    def propagate_in_video(
        self,
        state: VideoState,
        start_frame_idx: int | None = None,
        max_frame_num_to_track: int | None = None,
        reverse: bool = False,
    ) -> Iterator[FrameMasks]:
        """Tracks all objects through the video; yields (frame_idx, obj_ids, masks [O,1,H,W]) for each frame.

        Args:
            start_frame_idx: the first frame; default the earliest one with a prompt.
            max_frame_num_to_track: how many frames to go beyond the first; default to the end.
            reverse: backward, to the first frame of the video. There is nothing backward from that frame itself.
        """
        for found in self._frames(state, start_frame_idx, max_frame_num_to_track, reverse=reverse, as_meta=True):
            yield found.index, list(state.obj_ids), masks_of(found, state.obj_ids)

    def track_frames(
        self,
        state: VideoState,
        start_frame_idx: int | None = None,
        max_frame_num_to_track: int | None = None,
        reverse: bool = False,
    ) -> Iterator[VideoFrame]:
        """As :meth:`propagate_in_video`, with masks as run lengths, scores and times, and nothing decoded.

        Backward from the first frame of the video is that frame.
        """
        yield from self._frames(state, start_frame_idx, max_frame_num_to_track, reverse=reverse)

    def clear_all_prompts_in_frame(
        self, state: VideoState, frame_idx: int, obj_id: int, need_output: bool = True
    ) -> FrameMasks | None:
        """Takes an object's prompts in a frame away; returns what :meth:`add_new_points_or_box` does."""
        found = self._run(state, video_flows.clear_prompts(state, frame_idx, obj_id))
        return found if need_output else None

    def remove_object(self, state: VideoState, obj_id: int, strict: bool = False) -> list[int]:
        """Forgets an object; returns those that are left. An unknown one is an error if ``strict``."""
        return self._run(state, video_flows.remove(state, obj_id, strict=strict))

    def reset_state(self, state: VideoState) -> None:
        """Forgets all objects and prompts; the video stays open."""
        self._run(state, video_flows.reset(state))

    def close_state(self, state: VideoState) -> None:
        """Ends a video: the server forgets it at once, and not only after a while."""
        if not state.is_closed:
            try:
                self._run(state, state.session.close())
            finally:
                state.is_closed = True
                self._states.discard(state)
                state.clip.close()

    def close(self) -> None:
        """Ends all videos and closes the connections; the client cannot be used any more."""
        if not self._closed:
            for state in list(self._states):
                self.close_state(state)
            self._closed = True
        self._cleanup()

    def __enter__(self) -> SAM2VideoClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("the client is closed: make a new one")

    def _frames(
        self, state: VideoState, first: int | None, most: int | None, *, reverse: bool, as_meta: bool = False
    ) -> Iterator[VideoFrame]:
        self._check_open()
        window = self._options.window
        walk = Propagation(state, first, most, reverse=reverse, window=window, as_meta=as_meta)
        try:
            while (found := self._run(state, walk.next())) is not None:
                yield found
        finally:
            walk.close()

    def _run(self, state: VideoState, flow: VideoFlow[T]) -> T:
        self._check_open()
        with state.lock:
            return flows.run(flow, self._perform)

    def _perform(self, step: Any) -> Any:
        match step:
            case Start(ticket, server, call):
                self._under_way[ticket] = self._io.submit(_infer(self._servers[server], call))
                return None
            case Collect(ticket, seconds):
                return self._collect(ticket, seconds)
            case AskServer(server, question):
                return ask_server(self._servers[server], question)
            case NextFrame(walk, wait):
                return walk.get(wait=wait)
            case ReadFrame(clip, index):
                return clip.frame(index)
            case Pause(seconds):
                time.sleep(seconds)
        return None

    def _collect(self, ticket: Ticket, seconds: float | None) -> Outputs:
        future = self._under_way.get(ticket)
        if future is None:
            raise ServerUnreachable("the request was interrupted before it was sent")
        outputs = None
        try:
            outputs = future.result(seconds)
        except concurrent.futures.TimeoutError:
            raise DeadlineExceeded("no response from the server in time") from None
        finally:
            if future.done():  # not after Ctrl-C, which leaves the answer for whoever goes on
                self._under_way.pop(ticket, None)
        return outputs


async def _infer(server: VideoServer, call: Any) -> Outputs:
    return await server.async_transport.infer(call)


def ask_server(server: VideoServer, question: ReadParameters | ListServed | CheckTriton) -> Any:
    """The answer to a question, blocking."""
    match question:
        case ReadParameters(model):
            return server.transport.parameters(model)
        case CheckTriton():
            return server.check()
        case ListServed():
            try:
                return server.transport.served()
            except TritonSamError:
                return []


def _shut_down(io: IoThread, servers: Sequence[VideoServer]) -> None:
    async def close() -> None:
        for server in servers:
            await server.async_transport.close()

    try:
        io.submit(close()).result()
    finally:
        io.close()
        for server in servers:
            server.transport.close()
