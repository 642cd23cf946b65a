"""Video clients whose servers fail, and videos that fail, are slow or have no end."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.video_runs import LENGTH, VIDEO, client_of, same, tracked
from tests.unit.client.video_server import FakeVideoServer
from triton_sam.client import video_log, video_session
from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    ServerUnreachable,
    SessionExpired,
    TritonSamError,
    Unavailable,
    Unsupported,
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_session, "retry_pause", lambda attempt: 0.0)


# faults


FAULTS = ["unreachable", "killed", "expired", "lost", "busy"]


def fault_of(name: str) -> str | TritonSamError:
    return Unavailable("busy") if name == "busy" else name


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", [1, 2, 9, 12])
def test_one_fault_is_not_seen(fault: str, at: int) -> None:
    expected = tracked(FakeVideoServer())
    same(tracked(FakeVideoServer({at: fault_of(fault)})), expected)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.integers(1, 40), st.sampled_from(FAULTS), max_size=5), st.integers(1, 5), st.integers(1, 6))
def test_no_frame_is_missing_or_doubled_whatever_happens(faults: dict[int, str], window: int, every: int) -> None:
    server = FakeVideoServer({number: fault_of(fault) for number, fault in faults.items()})
    options = {"length": 14, "in_flight": window, "state_every": every}
    same(tracked(server, **options), tracked(FakeVideoServer(), **options))


def test_a_second_server_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_log, "_HISTORY", 0)
    first, second = FakeVideoServer(), FakeVideoServer()
    expected = tracked(FakeVideoServer())
    with client_of(first, second) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        found = []
        for one in client.propagate_in_video(state):
            found.append(one)
            if one[0] == 11:
                first.down = True
    same(found, expected)
    (opened,) = second.done("open")
    assert opened["step"] > 5
    assert second.done("track")[0]["step"] == opened["step"] + 1


def test_a_server_that_stays_away_is_told_after_bounded_tries() -> None:
    server = FakeVideoServer()
    with client_of(server, retries=5) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        server.down = True
        before = len(server.calls)
        with pytest.raises(ServerUnreachable):
            list(client.propagate_in_video(state))
        assert len(server.calls) - before < 12
        server.down = False
        assert len(list(client.propagate_in_video(state))) == LENGTH


def test_a_server_that_was_never_there_is_told_at_once() -> None:
    first, second = FakeVideoServer(), FakeVideoServer()
    first.down = second.down = True
    with client_of(first, second) as client, pytest.raises(ServerUnreachable):
        client.add_new_points_or_box(client.init_state(VIDEO), 0, 1, [[1, 2]], [1])
    assert (len(first.calls), len(second.calls)) == (1, 1)


@pytest.mark.parametrize(
    ("error", "attempts"), [(InternalError("a fault"), 4), (DeadlineExceeded("late"), 4), (Unsupported("no"), 1)]
)
def test_a_frame_that_always_fails_gives_up(error: TritonSamError, attempts: int) -> None:
    class Broken(FakeVideoServer):
        def _take(self, session: Any, call: Any, video: Any) -> Any:
            if video.get("frame") == 8 and video["do"] == "track":
                raise error
            return super()._take(session, call, video)

    server = Broken()
    with client_of(server) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        seen: list[int] = []
        with pytest.raises(type(error)):
            seen.extend(index for index, _, _ in client.propagate_in_video(state))
        assert seen == list(range(8))
        assert sum(video["frame"] == 8 for video in server.done("track")) == attempts
        assert [index for index, _, _ in client.propagate_in_video(state, 9)] == list(range(9, LENGTH))


def test_a_cancelled_step_is_sent_again() -> None:
    same(tracked(FakeVideoServer({6: Cancelled("drained")})), tracked(FakeVideoServer()))


def test_ctrl_c_after_a_failure_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests behind one that has failed may have been taken, and nobody has seen their answers."""
    with client_of(FakeVideoServer({6: "lost"})) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        collect = client._collect
        failed: list[TritonSamError] = []
        presses = [KeyboardInterrupt()]

        def interrupted(*given: Any) -> Any:
            if failed and presses:
                raise presses.pop()
            try:
                return collect(*given)
            except TritonSamError as error:
                failed.append(error)
                raise

        monkeypatch.setattr(client, "_collect", interrupted)
        seen: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            seen.extend(index for index, _, _ in client.propagate_in_video(state))
        assert not presses
        rest = [index for index, _, _ in client.propagate_in_video(state, 4)]
        assert rest == list(range(4, LENGTH))


def test_a_checkpoint_goes_on_in_another_process() -> None:
    expected = tracked(FakeVideoServer(), in_flight=1)
    with client_of(FakeVideoServer(), in_flight=1) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        for index, _, _ in client.propagate_in_video(state):
            if index == 12:
                break
        kept, ids = state.checkpoint, state.obj_ids
    assert kept is not None
    with client_of(FakeVideoServer(), in_flight=1) as client:
        state = client.init_state(VIDEO, checkpoint=kept, obj_ids=ids)
        frame = kept.step - 2  # after open and one prompt
        same(list(client.propagate_in_video(state, frame + 1)), expected[frame + 1 :])


def test_expired_sessions_are_restored_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_session, "retry_pause", lambda attempt: pytest.fail("there was a pause"))
    server = FakeVideoServer({8: "expired"})
    assert len(tracked(server)) == LENGTH
    assert len(server.done("open")) == 2
    assert issubclass(SessionExpired, TritonSamError)


# a server without room for states


class Roomless(FakeVideoServer):
    """Leaves the state out of its answers while it has no room."""

    has_room = False

    def _outputs(self, *given: Any) -> Any:
        outputs = super()._outputs(*given)
        return outputs if self.has_room else {"result_json": outputs["result_json"]}


@pytest.fixture
def short_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_log, "_MOST_REQUESTS", 12)


@pytest.mark.parametrize("most", ["_MOST_REQUESTS", "_MOST_BYTES"])
def test_states_that_never_come_do_not_fill_the_memory(
    most: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(video_log, most, {"_MOST_REQUESTS": 12, "_MOST_BYTES": 1000}[most])
    with client_of(Roomless(), state_every=5) as client:
        state = client.init_state(np.repeat(VIDEO, 3, axis=0))
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        log = state.session._log.entries
        kept = [(len(log), sum(len(one.image or b"") for one in log)) for _ in client.propagate_in_video(state)]
    assert len(kept) == 3 * LENGTH
    counts, sizes = zip(*kept, strict=True)
    assert max(counts) <= 12 + 3 if most == "_MOST_REQUESTS" else max(sizes) < 3000
    (told,) = [record.getMessage() for record in caplog.records if "state out" in record.getMessage()]
    assert "give the server more room in /dev/shm" in told


def test_a_session_with_dropped_requests_is_not_brought_back_wrongly(short_log: None) -> None:
    server = Roomless({22: "killed"})
    with client_of(server) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        for _ in range(2):
            with pytest.raises(SessionExpired, match="more room in /dev/shm, and begin the video again"):
                list(client.propagate_in_video(state))
    assert len(server.done("open")) == 1


def test_few_states_that_do_not_come_are_not_missed(short_log: None) -> None:
    same(tracked(Roomless({9: "killed"})), tracked(FakeVideoServer()))


def test_a_state_that_comes_again_brings_the_session_back(short_log: None) -> None:
    expected = tracked(FakeVideoServer())
    server = Roomless()
    found = []
    with client_of(server) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        for one in client.propagate_in_video(state):
            found.append(one)
            if one[0] == 14:
                assert state.session._log.has_gap
                server.has_room = True
            if one[0] == 19:
                assert not state.session._log.has_gap
                server.kill()
    same(found, expected)
    assert [opened["step"] > 0 for opened in server.done("open")] == [False, True]


# endless and slow


def frames_without_end() -> Iterator[Any]:
    for number in itertools.count():
        yield np.full((40, 60, 3), number % 251, np.uint8)


def test_an_endless_iterator_in_flat_memory() -> None:
    server = FakeVideoServer(draw=lambda image, name, memory, size: np.zeros(size[::-1], np.bool_))
    with client_of(server, state_every=10) as client:
        state = client.init_state(frames_without_end())
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        tracemalloc.start()
        try:
            for index, _, _ in client.propagate_in_video(state):
                if index % 50 == 0:
                    server.calls.clear()
                    for session in server.sessions.values():
                        session.frames.clear()
                if index == 200:
                    before = tracemalloc.get_traced_memory()[0]
                if index == 700:
                    break
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 200_000
        with pytest.raises(InvalidInput, match="frame 3 of the iterator of frames is gone"):
            client.add_new_points_or_box(state, 3, 1, [[1, 2]], [1])
        client.add_new_points_or_box(state, 690, 1, [[1, 2]], [1])


def test_a_slow_iterator_holds_no_answer_up() -> None:
    """The answer to a frame comes before the next frame does."""
    more = threading.Semaphore(2)

    def slow() -> Iterator[Any]:
        for frame in VIDEO:
            assert more.acquire(timeout=20)
            yield frame

    with client_of(FakeVideoServer()) as client:
        state = client.init_state(slow())
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        for index, _, _ in client.propagate_in_video(state, max_frame_num_to_track=9):
            assert index < LENGTH
            more.release()


def test_an_iterators_own_error_comes_through_after_the_frames_before_it() -> None:
    def broken() -> Iterator[Any]:
        yield from VIDEO[:4]
        raise OSError("the camera is gone")

    with client_of(FakeVideoServer()) as client:
        state = client.init_state(broken())
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        found = []
        with pytest.raises(OSError, match="the camera is gone"):
            found.extend(index for index, _, _ in client.propagate_in_video(state))
        assert found == [0, 1, 2, 3]
