"""The operations of both video clients, as flows of steps. Each refers to one video state."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client.user_input import checked
from triton_sam.client.video_log import Entry
from triton_sam.client.video_state import (
    Prompts,
    VideoMasks,
    VideoState,
    checked_frame,
    checked_most,
    checked_object,
    masks_of,
    read_frame,
)
from triton_sam.client.video_steps import NextFrame, ReadFrame, VideoFlow
from triton_sam.core.rle import rle
from triton_sam.errors import InvalidInput
from triton_sam.video.ahead import FramesAhead, NotYet
from triton_sam.video.clip import ClipFrame
from triton_sam.video.found import VideoFrame

#: What Meta's predictor returns about a frame: (frame_idx, obj_ids, masks [O,1,H,W]).
FrameMasks = tuple[int, list[int], VideoMasks]


# Many parameters: a prompt as Meta's predictor takes it.
def add_points(
    state: VideoState,
    frame_idx: Any,
    obj_id: Any,
    points: npt.ArrayLike | None,
    labels: npt.ArrayLike | None,
    box: npt.ArrayLike | None,
    *,
    clear_old_points: bool,
    normalize_coords: bool,
) -> VideoFlow[FrameMasks]:
    """As :meth:`SAM2VideoClient.add_new_points_or_box`."""
    found = yield from prompt_points(
        state,
        frame_idx,
        obj_id,
        points,
        labels,
        box,
        clear_old_points=clear_old_points,
        normalize_coords=normalize_coords,
    )
    return _as_meta(state, found)


# Many parameters: a prompt as Meta's predictor takes it.
def prompt_points(
    state: VideoState,
    frame_idx: Any,
    obj_id: Any,
    points: npt.ArrayLike | None,
    labels: npt.ArrayLike | None,
    box: npt.ArrayLike | None,
    *,
    clear_old_points: bool,
    normalize_coords: bool = True,
) -> VideoFlow[VideoFrame]:
    """As :func:`add_points`, with masks as run lengths."""
    frame, name = checked_frame(frame_idx), checked_object(obj_id)
    if box is not None and not clear_old_points:
        raise InvalidInput("a box replaces the points before it: leave clear_old_points on, or give the box first")
    if not normalize_coords:  # Meta's: they are shares of the frame already
        scale = np.array(state.clip.size, np.float64)
        points = None if points is None else np.asarray(points, np.float64) * scale
        box = None if box is None else np.asarray(box, np.float64) * np.tile(scale, 2)
    found = checked(points, labels, box)
    known = None if clear_old_points else state.prompts.get(name, {}).get(frame)
    prompts = Prompts() if known is None else copy.deepcopy(known)
    prompts.points += found.points.tolist()
    prompts.labels += found.labels.tolist()
    if found.box is not None:
        prompts.box = found.box.tolist()
    return (yield from _prompt(state, frame, name, prompts, prompts.fields()))


def add_mask(state: VideoState, frame_idx: Any, obj_id: Any, mask: npt.ArrayLike) -> VideoFlow[FrameMasks]:
    """As :meth:`SAM2VideoClient.add_new_mask`."""
    return _as_meta(state, (yield from prompt_mask(state, frame_idx, obj_id, mask)))


def prompt_mask(state: VideoState, frame_idx: Any, obj_id: Any, mask: npt.ArrayLike) -> VideoFlow[VideoFrame]:
    """As :func:`add_mask`, with masks as run lengths."""
    frame, name = checked_frame(frame_idx), checked_object(obj_id)
    array = np.asarray(mask)
    array = array[0] if array.ndim == 3 and len(array) == 1 else array
    width, height = state.clip.size
    if array.shape != (height, width) or array.dtype.kind not in "buif":
        raise InvalidInput(
            f"a mask must be [H,W] of the video's size, [{height},{width}], not {array.dtype} {list(array.shape)}"
        )
    return (yield from _prompt(state, frame, name, None, {"mask": rle(np.ascontiguousarray(array != 0))}))


def clear_prompts(state: VideoState, frame_idx: Any, obj_id: Any) -> VideoFlow[FrameMasks]:
    """As :meth:`SAM2VideoClient.clear_all_prompts_in_frame`."""
    return _as_meta(state, (yield from clear_frame(state, frame_idx, obj_id)))


def clear_frame(state: VideoState, frame_idx: Any, obj_id: Any) -> VideoFlow[VideoFrame]:
    """As :func:`clear_prompts`, with masks as run lengths."""
    frame, name = checked_frame(frame_idx), checked_object(obj_id)
    _check_known(state, name)
    outputs = yield from state.session.answer(state.session.submit("clear", frame=frame, object=name))
    state.prompts.get(name, {}).pop(frame, None)
    return read_frame(outputs, state.clip, frame)


def remove(state: VideoState, obj_id: Any, *, strict: bool) -> VideoFlow[list[int]]:
    """As :meth:`SAM2VideoClient.remove_object`."""
    name = checked_object(obj_id)
    state.check_open()
    if name in state.obj_ids or strict:
        _check_known(state, name)
        entry = state.session.submit("remove", object=name)
        yield from state.session.answer(entry)
        state.forget([name], entry.step)
    return list(state.obj_ids)


def reset(state: VideoState) -> VideoFlow[None]:
    """As :meth:`SAM2VideoClient.reset_state`."""
    state.check_open()
    if state.obj_ids:
        entry = state.session.submit("reset")
        yield from state.session.answer(entry)
        state.forget(state.obj_ids, entry.step)
    state.prompts.clear()


def _prompt(
    state: VideoState, frame: int, name: int, prompts: Prompts | None, fields: dict[str, Any]
) -> VideoFlow[VideoFrame]:
    state.check_open()
    picture: ClipFrame = yield ReadFrame(state.clip, frame)
    entry = state.session.submit("prompt", picture.data, frame=frame, object=name, **fields)
    outputs = yield from state.session.answer(entry)
    state.note_prompt(name, frame, prompts)
    return read_frame(outputs, state.clip, frame, picture.seconds)


def _as_meta(state: VideoState, found: VideoFrame) -> FrameMasks:
    return found.index, list(state.obj_ids), masks_of(found, state.obj_ids)


def _check_known(state: VideoState, name: int) -> None:
    state.check_open()
    if name not in state.obj_ids:
        known = ", ".join(map(str, state.obj_ids)) or "none"
        raise InvalidInput(f"there is no object {name} in this video: known are {known}")


class Propagation:
    """One way through the frames of a video, forward or backward, with several requests under way."""

    def __init__(
        self,
        state: VideoState,
        start_frame_idx: int | None,
        max_frame_num_to_track: int | None,
        *,
        reverse: bool,
        window: int,
        as_meta: bool = False,
    ) -> None:
        """InvalidInput if there is nothing to track. The arguments are those of ``propagate_in_video``.

        Args:
            window: frames that are under way at once.
            as_meta: whether nothing is tracked backward from frame 0, as by Meta's predictor.
        """
        state.check_open()
        first_prompted = state.first_prompted()
        first = first_prompted if start_frame_idx is None else checked_frame(start_frame_idx)
        most = checked_most(max_frame_num_to_track)
        self._state = state
        self._reverse = reverse
        self._window = window
        self._waiting: deque[tuple[ClipFrame, Entry]] = deque()
        self._walk: FramesAhead | None = None
        if reverse:
            if first > 0 or not as_meta:
                last: int | None = 0 if most is None else max(0, first - most)
                self._walk = FramesAhead(state.clip, first, last, reverse=True)
        else:
            last = None if most is None else first + most
            self._walk = FramesAhead(state.clip, first, last)

    def next(self) -> VideoFlow[VideoFrame | None]:
        """The next frame's result; None at the end.

        Frames are sent ahead of the one that is waited for, but a frame that is not there yet holds nobody up.
        """
        self._state.check_open()
        session = self._state.session
        while self._walk is not None and len(self._waiting) < self._window:
            try:
                frame: ClipFrame | NotYet | None = yield NextFrame(self._walk, wait=not self._waiting)
            except Exception:
                if not self._waiting:
                    raise
                break  # the frames before it come first; then it is raised again
            if frame is None:
                self._walk.close()
                self._walk = None
                self._state.tell()
            elif isinstance(frame, NotYet):
                break
            else:
                entry = session.submit("track", frame.data, frame=frame.index, reverse=self._reverse)
                self._waiting.append((frame, entry))
                yield from session.send()
        if not self._waiting:
            return None
        frame, entry = self._waiting.popleft()
        outputs = yield from session.answer(entry)
        found = read_frame(outputs, self._state.clip, frame.index, frame.seconds)
        return self._state.without_removed(found, entry.step)

    def withdraw(self) -> None:
        """Takes back what was not sent."""
        self._state.session.withdraw([entry for _, entry in self._waiting])
        self._waiting.clear()

    def close(self) -> None:
        """Ends it, also in the middle, and waits for the thread that reads frames.

        Frames that were sent already are tracked all the same.
        """
        self.withdraw()
        if self._walk is not None:
            self._walk.close()
            self._walk = None
