"""Clients that use videos wrongly, or mean harm: each is told in one sentence, and a video beside them goes on."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.test_video import served
from tests.server_readings import counters, server_bytes
from tests.video_serving import RawFilm, frame, refusal
from triton_sam import SAM2VideoClient
from triton_sam.client.async_transport import connect_async
from triton_sam.client.video_state import VideoMasks
from triton_sam.client.wire import Address, Call, text_tensor
from triton_sam.errors import (
    InvalidInput,
    QueueFull,
    SessionExpired,
    TooLarge,
    TooManyObjects,
    TritonSamError,
    Unavailable,
)
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
#: Of one remembered frame of the small network: its memory, its mask and its pointer.
FRAME_BYTES = 64 * 8 * 8 * 2 + 32 * 32 * 4 + 1200
SESSION_FRAMES, ALL_FRAMES = 20, 60
LIMITS = {
    "video_session_bytes": str(SESSION_FRAMES * FRAME_BYTES),
    "video_bytes": str(ALL_FRAMES * FRAME_BYTES),
    "video_gap_seconds": "1",
    "video_objects": "12",
    "video_sessions": "30",
    "max_image_pixels": "60000",
    "max_answer_pixels": "60000",
}
FAR_AHEAD = 1000
#: Frames of the video beside them: one for each test, and some more.
CHECKS = 32
MIB = 1024 * 1024
HEAD = struct.Struct("<8sHII")


@pytest.fixture(scope="module")
def running(
    video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with served(video_repository, tmp_path_factory.mktemp("home"), **LIMITS) as running:
        yield running


class Witness:
    """A video of somebody else, which has to go on as if nothing had happened."""

    def __init__(self, client: SAM2VideoClient) -> None:
        self._expected = list(self._tracked(client))
        self._frames = self._tracked(client)

    def check(self) -> None:
        """Tracks its next frame."""
        index, masks = next(self._frames)
        assert (masks == self._expected[index][1]).all()

    @staticmethod
    def _tracked(client: SAM2VideoClient) -> Iterator[tuple[int, VideoMasks]]:
        state = client.init_state([frame(number) for number in range(CHECKS)])
        client.add_new_points_or_box(state, 0, 1, [[60, 50]], [1])
        for index, _, masks in client.propagate_in_video(state):
            yield index, masks
        client.close_state(state)


@pytest.fixture(scope="module")
def witness(running: RunningServer) -> Iterator[Witness]:
    with SAM2VideoClient(running.urls["HTTP"], in_flight=1, state_every=5) as client:
        yield Witness(client)


@pytest.fixture(autouse=True)
def unharmed(witness: Witness) -> Iterator[None]:
    yield
    witness.check()


@pytest.fixture
def film(running: RunningServer, request: pytest.FixtureRequest) -> Iterator[RawFilm]:
    with RawFilm(running.urls["HTTP"], request.node.name[:150]) as made:
        yield made


@pytest.fixture(scope="module")
def state(running: RunningServer) -> bytes:
    """Of a session with one object, behind its first frame."""
    with RawFilm(running.urls["HTTP"], "donor") as donor:
        donor.open(length=20)
        donor.prompt(0)
        found = donor.track(0, state=True).result().state
        donor.do("close")
    assert found is not None
    return found


def with_header(state: bytes, **fields: Any) -> bytes:
    """The state with other values in its header, and the right checksum."""
    _, _, _, length = HEAD.unpack_from(state)
    header, arrays = json.loads(state[HEAD.size : HEAD.size + length]), state[HEAD.size + length :]
    body = json.dumps(header | fields).encode()
    return HEAD.pack(b"TSAMVID\n", 1, zlib.crc32(body + arrays), len(body)) + body + arrays


def told(error: TritonSamError, kind: type[TritonSamError], text: str) -> None:
    assert type(error) is kind, repr(error)
    assert text in str(error)
    assert "\n" not in str(error)


STATES: dict[str, tuple[Callable[[bytes], Any], type[TritonSamError], str]] = {
    "of another model": (
        lambda state: with_header(state, model="sam2.1:large"),
        InvalidInput,
        "video_state belongs to the model 'sam2.1:large' and not to sam2.1:tiny",
    ),
    "of another image size": (lambda state: with_header(state, memory=[64, 64, 64]), InvalidInput, "same image size"),
    "of frames of 9 gigapixels": (lambda state: with_header(state, size=[90000, 99999]), TooLarge, "60,000 pixels"),
    "cut off": (lambda state: state[:-100], InvalidInput, "video_state is damaged (its checksum is wrong)"),
    "empty": (lambda state: b"", InvalidInput, "video_state"),
    "something else": (lambda state: b"PK\3\4" * 100, InvalidInput, "video_state was not written by triton-sam"),
    "of numbers": (lambda state: np.zeros(len(state), np.float32), InvalidInput, "video_state"),
    "in two dimensions": (lambda state: np.zeros((2, len(state)), np.uint8), InvalidInput, "video_state"),
    "of more than a session may have": (lambda state: bytes(20 * MIB), TooLarge, "TRITON_SAM_VIDEO_SESSION_BYTES"),
    "of more than a request may have": (lambda state: bytes(150 * MIB), TooLarge, "TRITON_SAM_VIDEO_SESSION_BYTES"),
}


@pytest.mark.parametrize("which", STATES)
def test_a_state(film: RawFilm, state: bytes, which: str) -> None:
    change, kind, text = STATES[which]
    told(refusal(lambda: film.open(restore=change(state))), kind, text)
    told(refusal(lambda: film.do("track", step=1, frame=1)), SessionExpired, "open it again with its newest state")


def test_frames_without_a_session(film: RawFilm) -> None:
    told(refusal(lambda: film.do("track", frame=0)), SessionExpired, "is unknown here or has expired")


REQUESTS: dict[str, tuple[dict[str, Any], type[TritonSamError], str]] = {
    "a frame beyond the limit": ({"do": "track", "frame": 1, "image": frame(1, (400, 300))}, TooLarge, "pixels"),
    "a frame of another size": ({"do": "track", "frame": 1, "image": frame(1, (120, 160))}, InvalidInput, "120 x 160"),
    "a frame that is no image": ({"do": "track", "frame": 1, "image": b"\xff\xd8 no"}, InvalidInput, "image"),
    "a frame behind the end": ({"do": "track", "frame": 20}, InvalidInput, "the video has 20 frames"),
    "a frame far behind the end": ({"do": "track", "frame": 2**31}, InvalidInput, "frame of video is a whole number"),
    "a point outside": (
        {"do": "prompt", "frame": 1, "object": 1, "points": [[999, 1]], "labels": [1]},
        InvalidInput,
        "999",
    ),
    "an unknown object": ({"do": "remove", "object": 9}, InvalidInput, "there is no object 9"),
    "a state in the middle": ({"do": "track", "frame": 1, "restore": b"state"}, InvalidInput, 'with "do": "open"'),
    "a second session of its name": ({"do": "open", "step": 2}, InvalidInput, "is open already: choose another name"),
    "an unknown verb": ({"do": "explode"}, InvalidInput, "do of video cannot be"),
}


@pytest.mark.parametrize("which", REQUESTS)
def test_a_request(film: RawFilm, which: str) -> None:
    """What is refused does not count: the same step is taken when it is right."""
    fields, kind, text = REQUESTS[which]
    film.open(length=20)
    film.prompt(0)
    told(refusal(lambda: film.do(**({"step": 2} | fields))), kind, text)
    assert film.do("track", step=2, frame=0).masks


def test_frames_of_more_pixels_than_a_side_may_have(film: RawFilm) -> None:
    told(refusal(lambda: film.do("open", width=200_000, height=1)), InvalidInput, "100,000 a side are allowed")


def test_masks_beyond_what_a_response_may_have(film: RawFilm) -> None:
    film.open()
    for name in range(3):
        film.prompt(0, name)
    told(
        refusal(lambda: film.prompt(0, 3)), TooManyObjects, "4 masks of 160 x 120 pixels are too much for one response"
    )


def test_a_session_beyond_its_bytes(film: RawFilm) -> None:
    """It keeps less history; objects beyond that are refused until some are removed."""
    film.open(length=20)
    for name in range(3):
        film.prompt(0, name)
    error = refusal(lambda: [film.track(number).result() for number in range(20)])
    told(error, TooLarge, "remove some, or raise TRITON_SAM_VIDEO_SESSION_BYTES")


def test_sessions_beyond_the_bytes_of_all(running: RunningServer) -> None:
    """Those that nobody uses go, the least recently used first, and are told so when they come back."""
    url, expired = running.urls["HTTP"], counters(running, "sam2")["video_expired_total"]
    many = [RawFilm(url, f"many {number}", threads=1) for number in range(8)]
    for one in many:
        one.open()
        one.prompt(0)
        for number in range(8):
            one.track(number).result()
    after = counters(running, "sam2")
    assert after["video_bytes"] <= ALL_FRAMES * FRAME_BYTES
    assert after["video_expired_total"] - expired >= 2
    told(refusal(many[0].track(8).result), SessionExpired, "open it again with its newest state")
    assert many[-1].track(8).result().masks
    for one in many:
        one.close()


def test_more_sessions_than_there_may_be(running: RunningServer) -> None:
    films = [RawFilm(running.urls["HTTP"], f"small {number}", threads=1) for number in range(40)]
    for one in films:
        one.open()
    assert counters(running, "sam2")["video_sessions"] == int(LIMITS["video_sessions"])
    for one in films:
        one.close()


def test_a_thousand_steps_far_ahead(running: RunningServer, film: RawFilm, witness: Witness) -> None:
    """They are refused at once, or wait for the missing one as long as others do; none of them is lost."""
    film.open()
    film.prompt(0)
    image, before = np.frombuffer(frame(1), np.uint8), server_bytes(running)

    async def flood() -> list[Any]:
        transport = connect_async(Address.parse(running.urls["gRPC"]), 60.0, {})

        async def send(step: int) -> Any:
            video = {"session": film.name, "step": step, "do": "track", "frame": 1}
            inputs = {"prompt_json": text_tensor(json.dumps({"video": video})), "image": image}
            return await transport.infer(Call("sam2", inputs, ("result_json",), {"session_id": film.name}))

        under_way = [asyncio.ensure_future(send(1_000_000 + number)) for number in range(FAR_AHEAD)]
        await asyncio.to_thread(witness.check)
        outcomes = await asyncio.gather(*under_way, return_exceptions=True)
        await transport.close()
        return outcomes

    outcomes = asyncio.run(flood())
    refused = [error for error in outcomes if type(error) is QueueFull]
    waited = [error for error in outcomes if type(error) is Unavailable]
    assert len(refused) + len(waited) == FAR_AHEAD, Counter(map(repr, outcomes)).most_common(3)
    assert all("wait for an answer first" in str(error) for error in refused)
    assert all("because step 2 before it did not come within 1 s" in str(error) for error in waited)
    assert 0 < len(waited) <= FAR_AHEAD - len(refused)
    assert film.do("track", step=2, frame=0).masks, "the session itself goes on"
    assert server_bytes(running) - before < 40 * MIB
