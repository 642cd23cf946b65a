"""The state of a session comes back from its bytes; other bytes give one sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_sam.core.video.state import FrameState, ObjectState, SessionState
from triton_sam.core.video.state_bytes import StateLimits, pack_state, unpack_state
from triton_sam.errors import InvalidInput, TooLarge

LIMITS = StateLimits("sam2.1:tiny", (4, 2, 2), (8, 8), 64, 1_000_000, 8, 4, 10_000)
HEAD = struct.Struct("<8sHII")


def frame_state(number: int, *, conditions: bool = False, pending: bool = False, whole: bool = True) -> FrameState:
    values = np.random.default_rng(number)
    prompted = conditions or pending
    return FrameState(
        number,
        conditions,
        pending,
        values.integers(0, 0x7F80, (4, 2, 2)).astype(np.uint16) if whole or prompted else None,
        values.normal(size=256).astype(np.float32),
        values.normal(size=(8, 8)).astype(np.float16) if prompted else None,
        1.5,
        0.75,
    )


def session_state() -> SessionState:
    first = (frame_state(3, conditions=True), frame_state(9), frame_state(8, whole=False))
    second = (frame_state(9, conditions=True, pending=True),)
    objects = (ObjectState(1, first, ((0, 4, True), (5, 9, False))), ObjectState(7, second, ()))
    return SessionState("sam2.1:tiny", 12, (80, 60), 9, objects)


def comparable(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: comparable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    return [comparable(entry) for entry in value] if isinstance(value, tuple) else value


def with_header(change: Callable[[dict[str, Any]], Any], data: bytes | None = None) -> bytes:
    """A hostile client's file: another header, and a right checksum."""
    data = data or pack_state(session_state())
    length = HEAD.unpack_from(data)[3]
    header = json.loads(data[HEAD.size : HEAD.size + length])
    changed = change(header)
    text = changed if isinstance(changed, bytes) else json.dumps(header).encode()
    return sealed(text, data[HEAD.size + length :])


def sealed(header: bytes, arrays: bytes) -> bytes:
    return HEAD.pack(b"TSAMVID\n", 1, zlib.crc32(header + arrays), len(header)) + header + arrays


def test_a_state_comes_back() -> None:
    state = session_state()
    assert comparable(unpack_state(pack_state(state), LIMITS)) == comparable(state)
    empty = SessionState("sam2.1:tiny", None, None, None)
    assert comparable(unpack_state(pack_state(empty), LIMITS)) == comparable(empty)


@settings(max_examples=200)
@given(st.data())
def test_damage_gives_a_sentence(data: st.DataObject) -> None:
    good = pack_state(session_state())
    kind = data.draw(st.sampled_from(["cut", "flip", "foreign", "longer"]))
    at = data.draw(st.integers(0, len(good) - 1))
    flipped = good[at] ^ data.draw(st.integers(1, 255))
    bad = {
        "cut": good[:at],
        "flip": good[:at] + bytes([flipped]) + good[at + 1 :],
        "foreign": data.draw(st.binary(max_size=200)),
        "longer": good + b"0",
    }[kind]
    with pytest.raises(InvalidInput) as caught:
        unpack_state(bad, LIMITS)
    assert len(str(caught.value)) < 400


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**33) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["object", "frames"]), inner),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a JSON document can be changed."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, entry in inner for found in ((*path, key), *places(entry, (*path, key)))]


@settings(max_examples=300)
@given(st.data())
def test_a_hostile_header_gives_a_state_or_a_sentence(data: st.DataObject) -> None:
    def change(header: dict[str, Any]) -> None:
        *path, last = data.draw(st.sampled_from(places(header)))
        within: Any = header
        for key in path:
            within = within[key]
        within[last] = data.draw(JSON_VALUES)

    with contextlib.suppress(InvalidInput):
        unpack_state(with_header(change), LIMITS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda header: header.update(model="sam3"), "belongs to the model 'sam3'"),
        (lambda header: header.update(memory=[4, 2, 3]), "memory of shape"),
        (lambda header: header.update(size=[10**6, 10**6]), "pixels are allowed"),
        (lambda header: header["objects"][0]["frames"][0].__setitem__(0, 12), "frame cannot be 12"),
        (lambda header: header["objects"][0]["frames"][0].__setitem__(1, 5), "a prompt and no memory"),
        (lambda header: header["objects"][0]["frames"][0].__setitem__(2, float("nan")), "not finite"),
        (lambda header: header["objects"][0].update(object=7), "an object twice"),
        (lambda header: header["objects"][0]["frames"][1].__setitem__(0, 3), "a frame twice"),
        (lambda header: header["objects"][0].update(tracked=[[5, 9, True], [0, 4, True]]), "not in order"),
        (lambda header: header.update(size=None), "objects and no size"),
        (
            lambda header: header["objects"][0].update(tracked=[[n, n, False] for n in range(20_000)]),
            "more than 16384 ranges",
        ),
        (lambda header: b"[" * 100_000, "not JSON"),
        (lambda header: b"[]", "the header has not the keys"),
    ],
)
def test_a_hostile_header_is_refused_in_a_sentence(change: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        unpack_state(with_header(change), LIMITS)


def test_values_that_are_not_finite_are_refused() -> None:
    good = pack_state(session_state())
    for bits in (b"\x80\x7f", b"\xff\xff"):  # of the last memory: infinity, and no number
        memory = len(good) - 128 - 1024 - 32
        body = good[HEAD.size : memory] + bits + good[memory + 2 :]
        length = HEAD.unpack_from(good)[3]
        with pytest.raises(InvalidInput, match="object 7 has a value that is not finite in frame 9"):
            unpack_state(sealed(body[:length], body[length:]), LIMITS)


def test_a_state_beyond_the_budget_is_refused_before_anything_is_made() -> None:
    frames = tuple(frame_state(number) for number in range(60))
    objects = tuple(ObjectState(name, frames, ()) for name in range(8))
    data = pack_state(SessionState("sam2.1:tiny", None, (80, 60), 9, objects))
    tight = dataclasses.replace(LIMITS, most_bytes=500_000)
    assert unpack_state(data, LIMITS).objects[7].frames[59].frame == 59
    tracemalloc.start()
    with pytest.raises(TooLarge, match="TRITON_SAM_VIDEO_SESSION_BYTES"):
        unpack_state(data, tight)
    assert tracemalloc.get_traced_memory()[1] < 500_000
    tracemalloc.stop()


def test_more_frames_than_a_session_keeps_are_refused() -> None:
    def state(*frames: FrameState) -> bytes:
        return pack_state(SessionState("sam2.1:tiny", None, (80, 60), 9, (ObjectState(1, frames, ()),)))

    prompted = [frame_state(number, conditions=True) for number in range(5)]
    assert unpack_state(state(*prompted[:4]), LIMITS)
    with pytest.raises(TooLarge, match="5 prompted frames and 4 are allowed: raise TRITON_SAM_VIDEO_CONDITIONING"):
        unpack_state(state(*prompted), LIMITS)
    with pytest.raises(InvalidInput, match="more frames than any frame could need"):
        unpack_state(state(prompted[0], *(frame_state(number, whole=False) for number in range(5, 105))), LIMITS)


def test_a_video_that_was_tracked_to_and_fro_keeps_the_ranges_next_to_its_newest_frame() -> None:
    ranges = tuple((2 * number, 2 * number, bool(number % 2)) for number in range(20_000))
    objects = (ObjectState(1, (frame_state(3, conditions=True),), ranges),)
    back = unpack_state(pack_state(SessionState("sam2.1:tiny", None, (80, 60), 39_998, objects)), LIMITS)
    assert back.objects[0].tracked == ranges[-len(back.objects[0].tracked) :]
    assert len(back.objects[0].tracked) > 10_000
