"""What a video client keeps about one video, and what it returns about a frame."""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client import wire
from triton_sam.client.video_log import Checkpoint
from triton_sam.client.video_session import VideoSession
from triton_sam.client.wire import Outputs
from triton_sam.errors import InternalError, InvalidInput
from triton_sam.video.clip import Clip
from triton_sam.video.found import FoundObject, VideoFrame

log = logging.getLogger(__name__)


class VideoMasks(npt.NDArray[np.bool_]):
    """[O,1,H,W] bool: a numpy array with which code for Meta's predictor works as it is.

    Meta's predictor returns logits as a tensor, and ``(masks[i] > 0.0).cpu().numpy()`` is what follows.
    """

    def cpu(self) -> VideoMasks:
        """Itself."""
        return self

    def numpy(self) -> npt.NDArray[Any]:
        """A plain array."""
        return np.asarray(self)


def masks_of(frame: VideoFrame, obj_ids: Sequence[int]) -> VideoMasks:
    """[O,1,H,W] of these objects; empty for those without a mask in the frame."""
    return frame.masks(obj_ids).view(VideoMasks)


@dataclass(eq=False, slots=True)
class Prompts:
    """All that was clicked on one object in one frame; a mask stands alone.

    Attributes:
        points: [x, y] of each, in pixels of the video; labels: 1 object, 0 background.
        box: [x0, y0, x1, y1].
    """

    points: list[list[float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    box: list[float] | None = None

    def fields(self) -> dict[str, Any]:
        """As they are sent."""
        sent: dict[str, Any] = {"points": self.points, "labels": self.labels} if self.points else {}
        return sent if self.box is None else sent | {"box": self.box}


class VideoState:
    """One video on its way through a server: made by ``init_state``, given to all other calls.

    Attributes:
        clip: the frames.
        obj_ids: the objects, in the order in which they came.
        prompts: by object and frame; None for a mask.
        removed: by object the step that has removed it last; answers of earlier steps may come after that.
    """

    def __init__(self, clip: Clip, session: VideoSession, lock: Any, *, obj_ids: Sequence[int] = ()) -> None:
        """
        Args:
            lock: held while an operation runs.
            obj_ids: those of a checkpoint.
        """
        self.clip = clip
        self.session = session
        self.lock = lock
        self.obj_ids: list[int] = list(obj_ids)
        self.prompts: dict[int, dict[int, Prompts | None]] = {}
        self.removed: dict[int, int] = {}
        self.is_closed = False
        self._told: set[str] = set()

    def tell(self) -> None:
        """Logs what a user should know about the clip, once; that something is wrong with it as a warning."""
        for notice in self.clip.notices:
            if notice not in self._told:
                self._told.add(notice)
                log.warning("%s", notice)
        contrast = self.clip.contrast
        for note in [*self.clip.notes, *([contrast.note] if contrast is not None else [])]:
            if note not in self._told:
                self._told.add(note)
                log.info("%s", note)

    @property
    def num_frames(self) -> int | None:
        """None until the end of the video is known."""
        return self.clip.length

    @property
    def video_width(self) -> int:
        return self.clip.size[0]

    @property
    def video_height(self) -> int:
        return self.clip.size[1]

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest state that the server has given; ``init_state`` goes on from it."""
        return self.session.checkpoint

    def check_open(self) -> None:
        """InvalidInput if the state was closed."""
        if self.is_closed:
            raise InvalidInput("this video state is closed: call init_state again")

    def first_prompted(self) -> int:
        """The earliest frame with a prompt; InvalidInput if an object has none."""
        if not self.obj_ids:
            raise InvalidInput("there is nothing to track: call add_new_points_or_box or add_new_mask first")
        bare = [obj_id for obj_id in self.obj_ids if obj_id in self.prompts and not self.prompts[obj_id]]
        if bare:
            raise InvalidInput(f"object {bare[0]} has no prompt left: prompt it again, or remove it")
        return min((frame for frames in self.prompts.values() for frame in frames), default=0)

    def forget(self, names: Sequence[int], step: int) -> None:
        """Notes objects that the server has removed."""
        for name in list(names):
            self.removed[name] = step
            self.obj_ids.remove(name)
            self.prompts.pop(name, None)

    def without_removed(self, found: VideoFrame, step: int) -> VideoFrame:
        """What a step has found, without objects that were removed since."""
        gone = [name for name in found.objects if self.removed.get(name, -1) > step]
        if not gone:
            return found
        left = {name: one for name, one in found.objects.items() if name not in gone}
        return VideoFrame(found.index, found.seconds, left, found.size)

    def note_prompt(self, obj_id: int, frame: int, prompts: Prompts | None) -> None:
        """Notes a prompt that the server has taken."""
        if obj_id not in self.obj_ids:
            self.obj_ids.append(obj_id)
        self.prompts.setdefault(obj_id, {})[frame] = prompts


def read_frame(outputs: Outputs, clip: Clip, index: int, seconds: float | None = None) -> VideoFrame:
    """A server's answer about a frame. What the server had to drop goes to the log."""
    try:
        result = json.loads(wire.text_of(outputs, "result_json"))
        about = result.get("video") or {}
        appearance = dict(zip(about.get("objects", []), about.get("appearance", []), strict=False))
        objects = {
            int(entry["object"]): FoundObject(
                entry["data"], float(entry["score"]), float(appearance.get(entry["object"], 0.0))
            )
            for entry in result.get("masks", [])
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InternalError(f"the server's response cannot be read ({type(error).__name__}: {error})") from None
    for obj_id, frames in (about.get("dropped") or {}).items():
        log.warning("object %s has too many prompted frames: those of frames %s do not count any more", obj_id, frames)
    for obj_id, frames in (about.get("forgotten") or {}).items():
        log.warning("frame %d: the server has forgotten what object %s looked like in %s", index, obj_id, frames)
    return VideoFrame(index, seconds, objects, clip.size)


def checked_object(obj_id: Any) -> int:
    """An object's number; InvalidInput if it is none."""
    return _whole(obj_id, "obj_id")


def checked_frame(frame_idx: Any) -> int:
    """A frame's index; InvalidInput if it is none."""
    frame = _whole(frame_idx, "frame_idx")
    if frame < 0:
        raise InvalidInput(f"frame {frame} does not exist: frames of a video count from 0")
    return frame


def checked_most(max_frame_num_to_track: Any) -> int | None:
    """A number of frames; InvalidInput if it is none. None is no limit."""
    if max_frame_num_to_track is None:
        return None
    most = _whole(max_frame_num_to_track, "max_frame_num_to_track")
    if most < 0:
        raise InvalidInput(f"max_frame_num_to_track must be at least 0, not {most}")
    return most


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool | np.bool_):
        raise InvalidInput(f"{name} must be a whole number, not {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInput(f"{name} must be a whole number, not {type(value).__name__}") from None
