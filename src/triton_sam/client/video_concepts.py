"""Words on video: what is found of concepts in some frames is handed to the tracker, which keeps its numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from triton_sam.client.video_client import SAM2VideoClient
from triton_sam.client.video_state import VideoState
from triton_sam.core.rle import from_rle, rle
from triton_sam.errors import InvalidInput, TooManyObjects
from triton_sam.video.clip import ClipFrame
from triton_sam.video.found import FoundObject, VideoFrame
from triton_sam.video.identities import FoundInstance, new_instances

log = logging.getLogger(__name__)

#: Finds the instances of all concepts in one frame.
Find = Callable[[ClipFrame], Sequence[FoundInstance]]
#: The appearance of an object where a mask of it is given.
_IS_THERE = 10.0


class ConceptTracker:
    """Tracks what words find in a video.

    Attributes:
        concepts: object -> the number of its concept.
    """

    def __init__(self, client: SAM2VideoClient, find: Find, *, first: int = 0, every: int | None = None) -> None:
        """
        Args:
            find: asks a model that takes text.
            first: the frame in which is looked first.
            every: frames from one look to the next; None looks once.
        """
        if every is not None and every < 1:
            raise InvalidInput(f"every must be a number of frames from 1 on, not {every}")
        self._client, self._find = client, find
        self._first, self._every = first, every
        self.concepts: dict[int, int] = {}
        #: Objects that the server tracks at most, once it has refused one.
        self._most: int | None = None

    def looks_in(self, frame: int) -> bool:
        """Whether new instances are looked for in a frame."""
        beyond = frame - self._first
        return beyond == 0 or (self._every is not None and beyond > 0 and beyond % self._every == 0)

    def track(self, state: VideoState, start: int | None = None) -> Iterator[VideoFrame]:
        """Goes forward through the video and yields each frame once.

        Args:
            state: of the video; objects that it has already are tracked on.
            start: the frame to go on with, if ``state`` and :attr:`concepts` are those of an earlier run.

        Raises:
            InvalidInput: nothing was found, and it is not looked for again.
        """
        at = self._first if start is None else start
        while True:
            if self.looks_in(at):
                found = self._look(state, at)
                if found is None:
                    return
                yield found
                at += 1
            last = None if self._every is None else self._next_look(at) - 1
            for found in self._between(state, at, last):
                yield found
                at = found.index + 1
            if last is None or at <= last:
                return

    def _next_look(self, frame: int) -> int:
        assert self._every is not None
        beyond = max(0, frame - self._first)
        return self._first + -(-beyond // self._every) * self._every

    def _between(self, state: VideoState, first: int, last: int | None) -> Iterator[VideoFrame]:
        """Frames without a look; fewer if the video ends before ``last``."""
        if last is not None and last < first:
            return
        if state.obj_ids:
            yield from self._client.track_frames(state, first, None if last is None else last - first)
            return
        for picture in state.clip.frames(first, last):
            yield VideoFrame(picture.index, picture.seconds, {}, state.clip.size)

    def _look(self, state: VideoState, at: int) -> VideoFrame | None:
        """A frame with what is new in it; None behind the end of the video."""
        picture = next(iter(state.clip.frames(at, at)), None)
        if picture is None:
            return None
        frame = VideoFrame(at, picture.seconds, {}, state.clip.size)
        if state.obj_ids:
            frame = next(self._client.track_frames(state, at, 0))
        if self._most is None or len(state.obj_ids) < self._most:
            frame = self._with_new(state, frame, self._find(picture))
        if not self.concepts and self._every is None:
            raise InvalidInput(
                f"nothing of that was found in frame {at}: look in another frame, look again every some frames, "
                "or lower the score threshold"
            )
        return frame

    def _with_new(self, state: VideoState, frame: VideoFrame, found: Sequence[FoundInstance]) -> VideoFrame:
        """The frame with what is new in it, by falling score, as far as the server tracks so many objects."""
        tracked = [(self.concepts.get(name), one.rle) for name, one in frame.objects.items()]
        new = new_instances(found, tracked, is_first=not self.concepts)
        for at, one in enumerate(new):
            name = max([0, *state.obj_ids, *self.concepts]) + 1
            try:
                _, names, masks = self._client.add_new_mask(state, frame.index, name, from_rle(one.rle))
            except TooManyObjects:
                self._tell_full(state, frame.index, len(new) - at)
                break
            mask = rle(masks[names.index(name), 0])
            frame = replace(frame, objects={**frame.objects, name: FoundObject(mask, one.score, _IS_THERE)})
            self.concepts[name] = one.concept
        return frame

    def _tell_full(self, state: VideoState, frame: int, left: int) -> None:
        if self._most is None:
            log.warning(
                "frame %d: the server tracks at most %d objects of this video, so %d of those found there %s left out, "
                "and nothing is looked for from here on",
                frame,
                len(state.obj_ids),
                left,
                "is" if left == 1 else "are",
            )
        self._most = len(state.obj_ids)
