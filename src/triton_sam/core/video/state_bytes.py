"""A session's state as bytes that a client keeps: written by one server, read by another that must not trust it.

``magic, version, checksum, length of the header, header (JSON), arrays``: for each remembered frame its memory as bits
of bfloat16, its pointer as float32 and its logits as float16, where it has them; all little-endian. Everything is
checked before an array is made, and nothing is made beyond the session's budget.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from triton_sam.core.json_values import short
from triton_sam.core.video.state import FrameState, ObjectState, SessionState
from triton_sam.errors import InvalidInput, TooLarge

_MAGIC = b"TSAMVID\n"
_VERSION = 1
_HEAD = struct.Struct("<8sHII")
_MOST_HEADER = 4 * 1024 * 1024
#: Ranges of tracked frames in one state; a video that was tracked once has one for each object.
_MOST_RANGES = 16_384
_MOST_NUMBER = 2**31 - 1
_POINTER = 256
#: Frames that are remembered around each prompted frame, and around the newest one: 15 on each side.
_MOST_AROUND = 31
#: What a remembered frame takes besides its arrays, and its pointer.
_FRAME_BYTES = 1200
_CONDITIONS, _PENDING, _FEATURES, _LOGITS = 1, 2, 4, 8
#: The exponent of a bfloat16 that is infinite or not a number.
_NOT_FINITE = 0x7F80


@dataclass(frozen=True, slots=True)
class StateLimits:
    """What a state must be to be taken.

    Attributes:
        memory_shape: (C, h, w) of a memory; mask_shape: (h, w) of logits.
        memory_bytes: of a memory in the engine's own form.
        most_bytes: of the session in memory.
        objects: number of objects.
        conditioning: number of conditioning frames of an object.
        pixels: of a frame.
    """

    model_id: str
    memory_shape: tuple[int, int, int]
    mask_shape: tuple[int, int]
    memory_bytes: int
    most_bytes: int
    objects: int
    conditioning: int
    pixels: int


def pack_state(state: SessionState) -> bytes:
    """The bytes of a state."""
    arrays: list[npt.NDArray[Any]] = []
    objects = []
    for one in state.objects:
        frames = []
        for frame in one.frames:
            flags = _CONDITIONS * frame.conditions | _PENDING * frame.pending
            if frame.features is not None:
                flags |= _FEATURES
                arrays.append(frame.features.astype("<u2", copy=False))
            arrays.append(frame.pointer.astype("<f4", copy=False))
            if frame.logits is not None:
                flags |= _LOGITS
                arrays.append(frame.logits.astype("<f2", copy=False))
            frames.append([frame.frame, flags, frame.appearance, frame.score])
        tracked = _nearest(one.tracked, state.newest, _MOST_RANGES // len(state.objects))
        objects.append({"object": one.name, "frames": frames, "tracked": tracked})
    header = json.dumps(
        {
            "model": state.model_id,
            "length": state.length,
            "size": state.size,
            "newest": state.newest,
            "memory": _shape_of([frame.features for one in state.objects for frame in one.frames]),
            "mask": _shape_of([frame.logits for one in state.objects for frame in one.frames]),
            "objects": objects,
        },
        separators=(",", ":"),
    ).encode()
    # Many objects have a hundred megabytes: each is copied once.
    parts = [np.ascontiguousarray(array).data.cast("B") for array in arrays]
    checksum = zlib.crc32(header)
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join((_HEAD.pack(_MAGIC, _VERSION, checksum, len(header)), header, *parts))


def unpack_state(data: bytes | memoryview, limits: StateLimits) -> SessionState:
    """The state in the bytes of :func:`pack_state`.

    Raises:
        InvalidInput: they are something else, or of another model.
        TooLarge: the session would need more memory than it may have.
    """
    data = memoryview(data)
    if len(data) < _HEAD.size or bytes(data[: len(_MAGIC)]) != _MAGIC:
        raise InvalidInput("video_state was not written by triton-sam: send the state of an earlier response")
    _, version, checksum, header_bytes = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise InvalidInput(
            f"video_state has version {version} and this server reads version {_VERSION}: begin a session without it"
        )
    body = data[_HEAD.size :]
    if header_bytes > min(len(body), _MOST_HEADER) or zlib.crc32(body) != checksum:
        _damaged("its checksum is wrong")
    try:
        header = json.loads(bytes(body[:header_bytes]))
    except (ValueError, RecursionError):
        _damaged("its header is not JSON")
    plan = _Plan(header, limits)
    plan.check_bytes(len(body) - header_bytes)
    return plan.build(body[header_bytes:])


class _Plan:
    """The header, checked."""

    def __init__(self, header: Any, limits: StateLimits) -> None:
        self._limits = limits
        document = _mapping(header, "the header", {"model", "length", "size", "newest", "memory", "mask", "objects"})
        if document["model"] != limits.model_id:
            raise InvalidInput(
                f"video_state belongs to the model {short(document['model'])} and not to {limits.model_id}: "
                "restore it there, or begin a session without it"
            )
        for name, wanted in (("memory", limits.memory_shape), ("mask", limits.mask_shape)):
            if document[name] is not None and document[name] != list(wanted):
                raise InvalidInput(
                    f"video_state has a {name} of shape {short(document[name])} and this server's model "
                    f"{list(wanted)}: restore it with the same image size, or begin a session without it"
                )
        self.length = None if document["length"] is None else _number(document["length"], "length", 1)
        self.size = None if document["size"] is None else self._read_size(document["size"])
        most = _MOST_NUMBER if self.length is None else self.length - 1
        self.newest = None if document["newest"] is None else _number(document["newest"], "newest", 0, most)
        listed = document["objects"]
        if not isinstance(listed, list) or len(listed) > limits.objects:
            _damaged(f"it has no list of at most {limits.objects} objects")
        self.objects = [self._read_object(entry, most) for entry in listed]
        if len({name for name, _, _ in self.objects}) != len(self.objects):
            _damaged("it has an object twice")
        if self.objects and self.size is None:
            _damaged("it has objects and no size of frames")
        if sum(len(ranges) for _, _, ranges in self.objects) > _MOST_RANGES:
            _damaged(f"it has more than {_MOST_RANGES} ranges of tracked frames")

    def check_bytes(self, given: int) -> None:
        """Raises TooLarge or InvalidInput if the arrays are more than the budget, or not as many as announced."""
        limits = self._limits
        flags = [frame[1] for _, frames, _ in self.objects for frame in frames]
        memories = sum(bool(flag & _FEATURES) for flag in flags)
        masks = sum(bool(flag & _LOGITS) for flag in flags)
        pixels = math.prod(limits.mask_shape)
        needed = memories * limits.memory_bytes + masks * pixels * 4 + len(flags) * _FRAME_BYTES
        if needed > limits.most_bytes:
            raise TooLarge(
                f"video_state needs {needed:,} bytes of memory and a session may have {limits.most_bytes:,}: "
                "raise TRITON_SAM_VIDEO_SESSION_BYTES, or begin a session with fewer objects"
            )
        announced = memories * math.prod(limits.memory_shape) * 2 + masks * pixels * 2 + len(flags) * _POINTER * 4
        if given != announced:
            _damaged(f"it has {given:,} bytes of arrays instead of {announced:,}")

    def build(self, data: memoryview) -> SessionState:
        """The state; ``data`` has been checked by :meth:`check_bytes`."""
        reader = _Reader(data)
        objects = []
        for name, frames, tracked in self.objects:
            built = []
            for number, flags, appearance, score in frames:
                features = logits = None
                if flags & _FEATURES:
                    features = reader.take("<u2", self._limits.memory_shape)
                pointer = reader.take("<f4", (_POINTER,))
                if flags & _LOGITS:
                    logits = reader.take("<f2", self._limits.mask_shape)
                is_finite = np.isfinite(pointer).all() and (logits is None or np.isfinite(logits).all())
                if not is_finite or (features is not None and (features & _NOT_FINITE == _NOT_FINITE).any()):
                    _damaged(f"object {name} has a value that is not finite in frame {number}")
                conditions, pending = bool(flags & _CONDITIONS), bool(flags & _PENDING)
                built.append(FrameState(number, conditions, pending, features, pointer, logits, appearance, score))
            objects.append(ObjectState(name, tuple(built), tracked))
        return SessionState(self._limits.model_id, self.length, self.size, self.newest, tuple(objects))

    def _read_size(self, value: Any) -> tuple[int, int]:
        if not isinstance(value, list) or len(value) != 2:
            _damaged("size is not [width, height]")
        width, height = (_number(side, "size", 1) for side in value)
        if width * height > self._limits.pixels:
            raise TooLarge(
                f"video_state has frames of {width} x {height} pixels, and {self._limits.pixels:,} pixels are allowed"
            )
        return width, height

    def _read_object(
        self, value: Any, most: int
    ) -> tuple[int, list[tuple[int, int, float, float]], tuple[tuple[int, int, bool], ...]]:
        entry = _mapping(value, "an object", {"object", "frames", "tracked"})
        name = _number(entry["object"], "object", -_MOST_NUMBER)
        if not isinstance(entry["frames"], list) or not isinstance(entry["tracked"], list):
            _damaged(f"object {name} has no list of frames")
        frames = [_frame(row, most) for row in entry["frames"]]
        if len({(frame, flags & _PENDING) for frame, flags, _, _ in frames}) != len(frames):
            _damaged(f"object {name} has a frame twice")
        kept = [flags for _, flags, _, _ in frames if not flags & _PENDING]
        conditioning = sum(flags & _CONDITIONS for flags in kept)
        if conditioning > self._limits.conditioning:
            raise TooLarge(
                f"object {name} of video_state has {conditioning} prompted frames and {self._limits.conditioning} are "
                "allowed: raise TRITON_SAM_VIDEO_CONDITIONING, or begin a session without it"
            )
        if len(kept) > _MOST_AROUND * (conditioning + 2):
            _damaged(f"object {name} has more frames than any frame could need")
        return name, frames, _ranges(entry["tracked"], name)


def _frame(row: Any, most: int) -> tuple[int, int, float, float]:
    if not isinstance(row, list) or len(row) != 4:
        _damaged("a frame is not a list of four numbers")
    frame, flags = _number(row[0], "frame", 0, most), _number(row[1], "flags", 0, 15)
    if flags & (_CONDITIONS | _PENDING) and not (flags & _FEATURES and flags & _LOGITS):
        _damaged(f"frame {frame} has a prompt and no memory")
    if not all(isinstance(value, float) and math.isfinite(value) for value in row[2:]):
        _damaged(f"frame {frame} has a score that is not finite")
    return frame, flags, row[2], row[3]


def _ranges(rows: list[Any], name: int) -> tuple[tuple[int, int, bool], ...]:
    ranges: list[tuple[int, int, bool]] = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[2], bool):
            _damaged(f"object {name} has a range that is not [first, last, backward]")
        first, last = _number(row[0], "first"), _number(row[1], "last")
        if first > last or (ranges and first <= ranges[-1][1]):
            _damaged(f"object {name} has ranges that are not in order")
        ranges.append((first, last, row[2]))
    return tuple(ranges)


class _Reader:
    """Takes copies of one array after the other, so that no part keeps all bytes alive."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The next array, in the machine's own byte order."""
        kind, count = np.dtype(dtype), math.prod(shape)
        array = np.frombuffer(self._data, kind, count, self._at).reshape(shape)
        self._at += array.nbytes
        return array.astype(kind.newbyteorder("="))


def _nearest(ranges: Sequence[tuple[int, int, bool]], newest: int | None, most: int) -> list[tuple[int, int, bool]]:
    """At most so many ranges, those next to the newest frame, in order."""
    if len(ranges) <= most:
        return list(ranges)
    near = sorted(ranges, key=lambda one: min(abs(one[0] - (newest or 0)), abs(one[1] - (newest or 0))))
    return sorted(near[:most])


def _shape_of(arrays: Sequence[npt.NDArray[Any] | None]) -> list[int] | None:
    return next((list(array.shape) for array in arrays if array is not None), None)


def _mapping(value: Any, what: str, keys: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != keys:
        _damaged(f"{what} has not the keys {', '.join(sorted(keys))}")
    return value


def _number(value: Any, name: str, least: int = 0, most: int = _MOST_NUMBER) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        _damaged(f"{name} cannot be {short(value)}")
    return value


def _damaged(why: str) -> NoReturn:
    raise InvalidInput(f"video_state is damaged ({why}): send the state of another response, or begin without it")
