"""What a person does with a video, by the verbs of the video clients: on a server, or on an engine of this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from triton_sam import AsyncSAM2VideoClient
from triton_sam.backend.video.track_session import FrameMasks, Limits, TrackSession
from triton_sam.core import masks
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Embedding
from triton_sam.engines.tracking import TrackingEngine
from triton_sam.video.clip import Clip
from triton_sam.video.opening import open_clip

#: (frame, objects, masks [O,1,H,W]).
Found = tuple[int, list[int], npt.NDArray[np.bool_]]


class Verbs(Protocol):
    """What the clients and :class:`EngineVideo` have in common."""

    def init_state(self, video: Any) -> Any: ...

    def add_new_points_or_box(self, state: Any, frame_idx: int, obj_id: int, **prompt: Any) -> Any: ...

    def add_new_mask(self, state: Any, frame_idx: int, obj_id: int, mask: npt.NDArray[np.bool_]) -> Any: ...

    def propagate_in_video(
        self, state: Any, start_frame_idx: int, max_frame_num_to_track: int | None = None, reverse: bool = False
    ) -> Iterator[Any]: ...

    def clear_all_prompts_in_frame(self, state: Any, frame_idx: int, obj_id: int) -> Any: ...

    def remove_object(self, state: Any, obj_id: int) -> Any: ...

    def reset_state(self, state: Any) -> Any: ...


def everything(verbs: Verbs, video: Any) -> list[Found]:
    """Each verb at least once, on a video of 14 frames of 160 x 120 pixels."""
    state = verbs.init_state(video)
    mask = np.zeros((120, 160), bool)
    mask[40:80, 20:60] = True
    found = [
        verbs.add_new_points_or_box(state, 0, 1, points=[[60, 50]], labels=[1]),
        verbs.add_new_points_or_box(state, 0, 2, box=[90, 20, 150, 90]),
        *verbs.propagate_in_video(state, 0, 4),
        verbs.add_new_mask(state, 5, 3, mask),
        *verbs.propagate_in_video(state, 5, 3),
        # A correction in two clicks.
        verbs.add_new_points_or_box(state, 6, 1, points=[[110, 40]], labels=[0]),
        verbs.add_new_points_or_box(state, 6, 1, points=[[30, 90]], labels=[1], clear_old_points=False),
        *verbs.propagate_in_video(state, 6),
        *verbs.propagate_in_video(state, 7, 4, reverse=True),
        verbs.clear_all_prompts_in_frame(state, 6, 1),
    ]
    assert verbs.remove_object(state, 2) == [1, 3]
    found += verbs.propagate_in_video(state, 8, 3)
    verbs.reset_state(state)
    found.append(verbs.add_new_points_or_box(state, 4, 9, points=[[80, 60]], labels=[1]))
    found += verbs.propagate_in_video(state, 4, None, True)
    return found


def simple(verbs: Verbs, video: Any) -> list[Found]:
    """One object, on a video of any kind."""
    state = verbs.init_state(video)
    found = [verbs.add_new_points_or_box(state, 1, 1, points=[[60, 50]], labels=[1])]
    return [*found, *verbs.propagate_in_video(state, 1)]


def in_between(verbs: Verbs, video: Any) -> list[Found]:
    """An object that is added while frames are tracked; frames must not be tracked ahead of the one returned."""
    state = verbs.init_state(video)
    found = [verbs.add_new_points_or_box(state, 0, 1, points=[[60, 50]], labels=[1])]
    for one in verbs.propagate_in_video(state, 0):
        found.append(one)
        if one[0] == 3:
            found.append(verbs.add_new_points_or_box(state, 3, 2, box=[90, 20, 150, 90]))
    return found


def assert_equal(given: list[Found], wanted: list[Found]) -> None:
    assert [(frame, ids) for frame, ids, _ in given] == [(frame, ids) for frame, ids, _ in wanted]
    for (frame, _, one), (_, _, other) in zip(given, wanted, strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other)), f"frame {frame}"


@dataclass
class EngineState:
    """A video and its session; ``points`` are by object and frame."""

    clip: Clip
    session: TrackSession
    frames: dict[int, bytes] = field(default_factory=dict)
    embeddings: dict[int, Embedding] = field(default_factory=dict)
    points: dict[tuple[int, int], tuple[list[Any], list[int]]] = field(default_factory=dict)


class EngineVideo:
    """The verbs on an engine of this process: one frame after the other, with nothing in between."""

    def __init__(self, engine: TrackingEngine) -> None:
        self._engine = engine

    def init_state(self, video: Any) -> EngineState:
        assert self._engine.spec.memory is not None
        clip = open_clip(video)
        return EngineState(clip, TrackSession(self._engine.spec.memory, Limits(), clip.length))

    def add_new_points_or_box(
        self,
        state: EngineState,
        frame_idx: int,
        obj_id: int,
        points: Any = (),
        labels: Any = (),
        box: Any = None,
        clear_old_points: bool = True,
    ) -> Found:
        known = ([], []) if clear_old_points else state.points[obj_id, frame_idx]
        state.points[obj_id, frame_idx] = clicked = [*known[0], *points], [*known[1], *labels]
        prompt = ObjectPrompt(
            np.array(clicked[0], np.float32).reshape(-1, 2),
            np.array(clicked[1], np.int32),
            None if box is None else np.array(box, np.float32),
        )
        step = state.session.prompt(frame_idx, obj_id, self._embedding(state, frame_idx), prompt)
        return self._found(state, frame_idx, step.finish(self._engine.track(step.rows)))

    def add_new_mask(self, state: EngineState, frame_idx: int, obj_id: int, mask: npt.NDArray[np.bool_]) -> Found:
        step = state.session.prompt(frame_idx, obj_id, self._embedding(state, frame_idx), mask=mask)
        return self._found(state, frame_idx, step.finish(self._engine.track(step.rows)))

    def propagate_in_video(
        self,
        state: EngineState,
        start_frame_idx: int,
        max_frame_num_to_track: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Found]:
        frames = list(self._frames(state))
        end = start_frame_idx + (-1 if reverse else 1) * (max_frame_num_to_track or len(frames))
        order = range(start_frame_idx, max(end, 0) - 1, -1) if reverse else range(start_frame_idx, end + 1)
        for frame in order:
            if frame in frames:
                step = state.session.track(frame, self._embedding(state, frame), reverse=reverse)
                yield self._found(state, frame, step.finish(self._engine.track(step.rows) if step.rows else []))

    def clear_all_prompts_in_frame(self, state: EngineState, frame_idx: int, obj_id: int) -> Found:
        return self._found(state, frame_idx, state.session.clear(frame_idx, obj_id))

    def remove_object(self, state: EngineState, obj_id: int) -> list[int]:
        state.session.remove(obj_id)
        return state.session.objects

    def reset_state(self, state: EngineState) -> None:
        state.session.reset()

    def _frames(self, state: EngineState) -> dict[int, bytes]:
        if not state.frames:
            state.frames |= {frame.index: frame.data for frame in state.clip.frames()}
        return state.frames

    def _embedding(self, state: EngineState, frame: int) -> Embedding:
        if frame not in state.embeddings:
            image = EncodedImage(self._frames(state)[frame], max_bytes=2**20, max_pixels=2**20)
            state.embeddings[frame] = self._engine.encode([self._engine.prepare(image)])[0]
        return state.embeddings[frame]

    def _found(self, state: EngineState, frame: int, found: FrameMasks) -> Found:
        width, height = state.clip.size
        objects = state.session.objects
        planes = np.zeros((len(objects), 1, height, width), bool)
        for one in found.masks:
            assert one.decoded.logits is not None
            geometry = self._embedding(state, frame).frame
            planes[objects.index(one.name), 0] = masks.full_size(one.decoded.logits[0], geometry)
        return frame, objects, planes


class Blocking:
    """An AsyncSAM2VideoClient with verbs that block."""

    def __init__(self, client: AsyncSAM2VideoClient) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._client.close())
        self._run(self._loop.shutdown_default_executor())
        self._loop.close()

    def __getattr__(self, verb: str) -> Any:
        return lambda *given, **named: self._run(getattr(self._client, verb)(*given, **named))

    def propagate_in_video(self, *given: Any, **named: Any) -> Iterator[Found]:
        frames = self._client.propagate_in_video(*given, **named)
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield self._run(anext(frames))

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)
