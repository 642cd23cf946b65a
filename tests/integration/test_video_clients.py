"""The video clients on the real server: each verb, and videos of each kind, equal to the engine in this process."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import video_story
from tests.integration.serve_folder import serve_folder
from tests.server_readings import counters, counters_so_far
from tests.video_serving import SIZE, RawFilm, frame
from tests.video_story import Blocking, EngineVideo, Found, Verbs, assert_equal
from tests.waiting import eventually
from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.engines.loading import load_engine
from triton_sam.errors import InvalidInput, Unsupported
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.serving import RunningServer
from triton_sam.settings import Settings

pytestmark = [pytest.mark.triton, pytest.mark.torch]
LENGTH = 14
FRAMES = [frame(number) for number in range(LENGTH)]


@pytest.fixture(scope="module")
def running(
    video_repository: Path, processes: int, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    settings = {"threads": "1"}
    if processes > 1:
        settings |= {"processes": str(processes), "devices": "cpu,cpu"}
    with serve_folder(video_repository, tmp_path_factory.mktemp("home"), **settings) as started:
        yield started


@pytest.fixture(scope="module")
def engine(video_repository: Path) -> Iterator[EngineVideo]:
    """What a server of these tests computes with."""
    spec = find_segmenters(video_repository)["sam2"]
    loaded: Any = load_engine(spec, video_repository / "sam2" / "1", Settings(threads=1, device="cpu"))
    yield EngineVideo(loaded)
    loaded.close()


@pytest.fixture(params=["blocking", "asyncio"])
def client(running: RunningServer, request: pytest.FixtureRequest) -> Iterator[Verbs]:
    """Both clients, with different numbers of frames under way and states."""
    if request.param == "blocking":
        with SAM2VideoClient(running.urls["HTTP"], in_flight=1, state_every=5) as blocking:
            yield blocking
    else:
        with Blocking(AsyncSAM2VideoClient(running.urls["gRPC"], in_flight=4, state_every=3)) as made:
            yield made


@pytest.fixture(scope="module")
def expected(engine: EngineVideo) -> list[Found]:
    return video_story.everything(engine, FRAMES)


def test_every_verb_gives_what_the_engine_gives(client: Verbs, expected: list[Found]) -> None:
    assert_equal(video_story.everything(client, FRAMES), expected)


def test_an_object_is_added_while_frames_are_tracked(running: RunningServer, engine: EngineVideo) -> None:
    with SAM2VideoClient(running.urls["HTTP"], in_flight=1) as blocking:
        given = video_story.in_between(blocking, FRAMES[:7])
    assert_equal(given, video_story.in_between(engine, FRAMES[:7]))


def film_file(folder: Path) -> str:
    import av

    path = folder / "film.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 25, width=SIZE[0], height=SIZE[1], pix_fmt="yuv420p")
        for number in range(6):
            picture = Image.fromarray(_pixels(number))
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode(None))
    return str(path)


def frames_in_folder(folder: Path) -> Path:
    for number in range(6):
        (folder / f"{number:05}.jpg").write_bytes(FRAMES[number])
    return folder


def _pixels(number: int) -> Any:
    return np.asarray(Image.open(io.BytesIO(FRAMES[number])))


KINDS: dict[str, Callable[[Path], Any]] = {
    "file": film_file,
    "folder": frames_in_folder,
    "array": lambda folder: np.stack([_pixels(number) for number in range(6)]),
    "iterator": lambda folder: iter(FRAMES[:6]),
}


@pytest.mark.part("video")
@pytest.mark.parametrize("kind", KINDS)
def test_a_video_of_each_kind(client: Verbs, engine: EngineVideo, kind: str, tmp_path: Path) -> None:
    given = video_story.simple(client, KINDS[kind](tmp_path))
    assert [index for index, _, _ in given] == [1, 1, 2, 3, 4, 5]
    assert any(found.any() for _, _, found in given)
    assert_equal(given, video_story.simple(engine, KINDS[kind](tmp_path)))


def test_an_asynchronous_iterator(running: RunningServer, engine: EngineVideo) -> None:
    async def camera() -> AsyncIterator[bytes]:
        for file in FRAMES[:6]:
            await asyncio.sleep(0)
            yield file

    with Blocking(AsyncSAM2VideoClient(running.urls["HTTP"])) as made:
        given = video_story.simple(made, camera())
    assert_equal(given, video_story.simple(engine, iter(FRAMES[:6])))


def test_a_checkpoint_goes_on_in_another_client(running: RunningServer) -> None:
    with SAM2VideoClient(running.urls["HTTP"], state_every=4) as one, SAM2VideoClient(running.urls["gRPC"]) as two:
        state = one.init_state(FRAMES)
        one.add_new_points_or_box(state, 0, 1, [[60, 50]], [1])
        tracked = list(one.propagate_in_video(state, 0, 5))
        assert state.checkpoint is not None
        assert state.checkpoint.step == 4  # the prompt and three frames
        again = two.init_state(FRAMES, checkpoint=state.checkpoint, obj_ids=state.obj_ids)
        assert_equal(list(two.propagate_in_video(again, 3, 2)), tracked[3:])


@pytest.mark.part("video")
def test_a_correction_after_a_loss_is_as_if_nothing_had_been_lost(running: RunningServer) -> None:
    """Of a frame before the newest state, which does not have what the correction needs."""

    def corrected(*, lost: bool) -> list[Found]:
        with SAM2VideoClient(running.urls["HTTP"], state_every=6) as client:
            state = client.init_state([frame(number) for number in range(30)])
            client.add_new_points_or_box(state, 0, 1, [[60, 50]], [1])
            list(client.propagate_in_video(state, 0, 24))
            if lost:
                with RawFilm(running.urls["HTTP"], state.session.name) as film:
                    film.do("close", step=state.session._log.next)
            found = client.add_new_points_or_box(state, 14, 1, [[30, 90], [110, 40]], [1, 0])
            return [found, *client.propagate_in_video(state, 14)]

    assert_equal(corrected(lost=True), corrected(lost=False))


def test_a_closed_client_leaves_no_session(running: RunningServer) -> None:
    with SAM2VideoClient(running.urls["HTTP"]) as one:
        state = one.init_state(FRAMES)
        before = counters(running, "sam2")["video_sessions"]
        one.add_new_points_or_box(state, 0, 1, [[60, 50]], [1])
        eventually(lambda: counters_so_far(running, "sam2")["video_sessions"] == before + 1, "the session")
    eventually(lambda: counters_so_far(running, "sam2")["video_sessions"] == before, "the end of the session")


def test_wrong_use_is_told(running: RunningServer) -> None:
    with SAM2VideoClient(running.urls["HTTP"]) as client:
        state = client.init_state(FRAMES)
        with pytest.raises(InvalidInput, match="there is nothing to track"):
            next(client.propagate_in_video(state))
        with pytest.raises(InvalidInput, match="outside"):
            client.add_new_points_or_box(state, 0, 1, [[600, 50]], [1])
        with pytest.raises(InvalidInput, match="there is no frame 14 in the list of frames"):
            client.add_new_points_or_box(state, LENGTH, 1, [[60, 50]], [1])
        assert client.add_new_points_or_box(state, 0, 1, [[60, 50]], [1])[1] == [1]
    with SAM2VideoClient(running.urls["service"]) as astray, pytest.raises(Unsupported, match="videos need Triton"):
        astray.add_new_points_or_box(astray.init_state(FRAMES), 0, 1, [[60, 50]], [1])
