"""Video sessions on the real server: order, doubled and missing steps, state, cancels, metrics, clicks beside them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path

import pytest

from tests.integration.serve_folder import serve_folder
from tests.server_readings import counters
from tests.video_serving import SIZE, RawFilm, frame, refusal, same
from tests.waiting import eventually
from triton_sam import SAM2TritonClient, SAM2VideoClient
from triton_sam.errors import Cancelled, InvalidInput, SessionExpired, Unavailable
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
MakeFilm = Callable[[str], RawFilm]


@pytest.fixture(scope="module")
def running(
    video_repository: Path,
    processes: int,
    embedded_server: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningServer]:
    settings = {"threads": "1", "video_gap_seconds": "2"}
    if processes > 1:
        settings |= {"processes": str(processes), "devices": "cpu,cpu"}
    with serve_folder(video_repository, tmp_path_factory.mktemp("home"), **settings) as started:
        yield started


@pytest.fixture
def film(running: RunningServer, request: pytest.FixtureRequest) -> Iterator[MakeFilm]:
    made: list[RawFilm] = []

    def build(name: str) -> RawFilm:
        made.append(RawFilm(running.urls["HTTP"], f"{request.node.name} {name}"))
        return made[-1]

    yield build
    for each in made:
        each.close()


def test_two_objects_are_tracked_whatever_order_the_frames_arrive_in(film: MakeFilm) -> None:
    straight, shuffled = film("straight"), film("shuffled")
    for each in (straight, shuffled):
        each.open(length=12)
        prompted = each.prompt(0, 3)
        assert prompted.masks[3].shape == (SIZE[1], SIZE[0])
        each.prompt(0, 5, box=[90, 20, 150, 90])
    expected = [straight.track(number).result() for number in range(12)]
    assert [answer.video["frame"] for answer in expected] == list(range(12))
    assert all(answer.video["objects"] == [3, 5] and len(answer.video["appearance"]) == 2 for answer in expected)
    assert any(answer.masks[3].any() for answer in expected)
    order = list(range(12))
    random.Random(1).shuffle(order)
    first = shuffled.next
    sent = {number: shuffled.send("track", step=first + number, frame=number) for number in order}
    assert all(same(sent[number].result(), expected[number]) for number in range(12))


def test_a_session_goes_on_from_its_state_anywhere(film: MakeFilm) -> None:
    one, two = film("one"), film("two")
    one.open()
    one.prompt(0, 3)
    one.prompt(0, 5, box=[90, 20, 150, 90])
    for number in range(9):
        one.track(number).result()
    state = one.track(9, state=True).result().state
    assert state is not None
    two.next = 40
    assert two.open(restore=state).video["known"] == [3, 5]
    assert all(same(one.track(number).result(), two.track(number).result()) for number in range(10, 18))
    damaged = bytearray(state)
    damaged[len(state) // 2] ^= 255
    error = refusal(lambda: film("three").open(restore=bytes(damaged)))
    assert isinstance(error, InvalidInput)
    assert "video_state is damaged" in str(error)


def test_doubled_and_missing_steps_are_named(film: MakeFilm) -> None:
    one = film("one")
    one.open()
    one.prompt(0)
    one.track(1).result()
    doubled = refusal(lambda: one.do("track", step=2, frame=1))
    assert isinstance(doubled, InvalidInput)
    assert "step 2 (frame 1) was taken already" in str(doubled)
    missing = refusal(lambda: one.do("track", step=4, frame=3))
    assert isinstance(missing, Unavailable)
    assert "because step 3 before it did not come" in str(missing)
    unknown = refusal(lambda: film("nobody").do("track", step=1, frame=1))
    assert isinstance(unknown, SessionExpired)
    wrong, behind = one.track(2, image=frame(2, (64, 48))), one.track(3)
    error = refusal(wrong.result)
    assert isinstance(error, InvalidInput)
    assert "frame 2 has 64 x 48 pixels and the frames before it 160 x 120" in str(error)
    assert "step 3 (frame 2) before it failed" in str(refusal(behind.result))
    assert one.do("track", step=3, frame=2).video["frame"] == 2


def test_a_cancel_reaches_the_session(film: MakeFilm) -> None:
    one = film("one")
    one.open()
    waiting = one.send("track", step=7, frame=7)
    eventually(lambda: one.cancel() == 1, "the step that waits is cancelled")
    assert isinstance(refusal(waiting.result), Cancelled)
    assert one.prompt(0).masks


def test_a_cancel_in_the_middle_of_a_track(film: MakeFilm) -> None:
    """What waits is cancelled or told; the session goes on with the first step that was not taken."""
    one = film("one")
    one.open()
    one.prompt(0)
    first = one.next
    under_way = [one.track(number) for number in range(14)]
    under_way[0].result()
    one.cancel()
    errors = [answer.exception() for answer in under_way]
    taken = sum(error is None for error in errors)
    assert 0 < taken < 14
    assert not any(errors[:taken]), "those that are answered come first"
    assert any(isinstance(error, Cancelled) for error in errors[taken:])
    assert all(isinstance(error, Cancelled | Unavailable) for error in errors[taken:])
    assert one.do("track", step=first + taken, frame=taken).video["frame"] == taken


def test_a_client_is_not_stopped_by_cancels(running: RunningServer) -> None:
    frames = [frame(number) for number in range(12)]

    def follow(*, cancelled: bool) -> list[tuple[int, bytes]]:
        with SAM2VideoClient(running.urls["HTTP"]) as client:
            state = client.init_state(frames)
            client.add_new_points_or_box(state, 0, 1, [[60, 50]], [1])
            found = []
            for index, _, masks in client.propagate_in_video(state):
                found.append((index, masks.tobytes()))
                if cancelled and index in (2, 7):
                    with RawFilm(running.urls["HTTP"], state.session.name) as film:
                        film.cancel()
            return found

    assert follow(cancelled=True) == follow(cancelled=False)


def test_metrics_of_videos(film: MakeFilm, running: RunningServer) -> None:
    def now() -> dict[str, float]:
        return {name: value for name, value in counters(running, "sam2").items() if name.startswith("video_")}

    documented = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    before = now()
    assert set(before) == {
        "video_sessions",
        "video_bytes",
        "video_frames_total",
        "video_rows_total",
        "video_expired_total",
    }
    assert all(f"`triton_sam_{name}`" in documented for name in before)
    one = film("one")
    one.open()
    one.prompt(0, 1)
    one.prompt(0, 2)
    for number in range(5):
        one.track(number).result()
    within, kept = now(), 2 * 5 * 64 * 8 * 8 * 2
    assert within["video_sessions"] - before["video_sessions"] == 1
    assert kept < within["video_bytes"] - before["video_bytes"] < 2 * kept
    assert within["video_frames_total"] - before["video_frames_total"] == 5
    assert within["video_rows_total"] - before["video_rows_total"] == 2 + 2 * 4, "what was prompted is not tracked"
    one.do("close")
    after = now()
    assert (after["video_sessions"], after["video_bytes"]) == (before["video_sessions"], before["video_bytes"])


def test_clicks_pass_while_a_video_is_tracked(film: MakeFilm, running: RunningServer) -> None:
    one = film("one")
    one.open()
    one.prompt(0)
    with SAM2TritonClient(running.urls["HTTP"]) as client:
        client.set_image(frame(500))
        under_way = [one.track(number) for number in range(1, 60)]
        wait(under_way, return_when=FIRST_COMPLETED)
        for _ in range(5):
            client.segment(points=[[50, 50]], labels=[1])
        assert sum(not answer.done() for answer in under_way) > 10
    assert [answer.result().video["frame"] for answer in under_way] == list(range(1, 60))
