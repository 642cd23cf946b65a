"""The video clients against a server that acts out the protocol: Meta's verbs, several frames under way."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from tests.unit.client.kserve import KServe
from tests.unit.client.video_runs import HEIGHT, LENGTH, VIDEO, WIDTH, client_of, same, tracked
from tests.unit.client.video_server import FakeVideoServer, reached
from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.client import video_log, video_session
from triton_sam.client.video_session import VideoSession
from triton_sam.core.rle import from_rle
from triton_sam.errors import (
    Cancelled,
    InvalidInput,
    Unsupported,
)
from triton_sam.video.ahead import FramesAhead


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_session, "retry_pause", lambda attempt: 0.0)


# the verbs


def test_a_whole_session_as_metas_users_write_it() -> None:
    server = FakeVideoServer()
    with client_of(server) as client:
        state = client.init_state(VIDEO)
        assert (state.num_frames, state.video_width, state.video_height) == (LENGTH, WIDTH, HEIGHT)
        assert not server.calls
        points = np.array([[1.0, 2.0]], np.float32)
        frame, ids, logits = client.add_new_points_or_box(
            state, frame_idx=3, obj_id=4, points=points, labels=np.array([1], np.int32)
        )
        assert (frame, ids, logits.shape) == (3, [4], (1, 1, HEIGHT, WIDTH))
        client.add_new_points_or_box(state, 3, 4, [[2, 2]], [0], clear_old_points=False)
        client.add_new_points_or_box(state, 3, 4, [[3, 3]], [1], box=[1, 1, 5, 4])
        _, ids, logits = client.add_new_mask(state, 5, 2, np.ones((HEIGHT, WIDTH)))
        assert ids == [4, 2]
        segments = {
            index: {obj: (logits[place] > 0.0).cpu().numpy() for place, obj in enumerate(ids)}
            for index, ids, logits in client.propagate_in_video(state)
        }
        assert list(segments) == list(range(3, LENGTH))
        assert segments[7][2].shape == (1, HEIGHT, WIDTH)
        assert type(segments[7][2]) is np.ndarray
        backward = [index for index, _, _ in client.propagate_in_video(state, reverse=True)]
        assert backward == [3, 2, 1, 0]
        assert [index for index, _, _ in client.propagate_in_video(state, 10, 2)] == [10, 11, 12]
        assert [index for index, _, _ in client.propagate_in_video(state, 10, 2, reverse=True)] == [10, 9, 8]
        assert list(client.propagate_in_video(state, 0, reverse=True)) == []
        assert [found.index for found in client.track_frames(state, 0, reverse=True)] == [0]
        cleared = client.clear_all_prompts_in_frame(state, 3, 4)
        assert cleared is not None
        assert not cleared[2].any()
        with pytest.raises(InvalidInput, match="object 4 has no prompt left"):
            next(client.propagate_in_video(state))
        assert client.remove_object(state, 4) == [2]
        assert client.remove_object(state, 4) == [2]
        with pytest.raises(InvalidInput, match="no object 4 in this video: known are 2"):
            client.remove_object(state, 4, strict=True)
        assert next(iter(client.propagate_in_video(state)))[0] == 5
        client.reset_state(state)
        with pytest.raises(InvalidInput, match="nothing to track"):
            next(client.propagate_in_video(state))
    prompts = server.done("prompt")
    assert [prompt.get("points") for prompt in prompts] == [[[1.0, 2.0]], [[1.0, 2.0], [2.0, 2.0]], [[3.0, 3.0]], None]
    assert prompts[1]["labels"] == [1, 0]
    assert prompts[2]["box"] == [1.0, 1.0, 5.0, 4.0]
    assert from_rle(prompts[3]["mask"]).all()
    assert len(server.done("close")) == 1


def test_steps_count_and_several_are_under_way() -> None:
    server = FakeVideoServer()
    tracked(server, in_flight=3)
    steps = [json.loads(call.inputs["prompt_json"][0])["video"]["step"] for call in server.calls]
    assert steps == list(range(len(steps)))
    assert server.most_in_flight == 3
    routes = {call.headers["x-image-key"] for call in server.calls}
    assert len(routes) == 1


def test_the_state_comes_every_so_many_requests() -> None:
    server = FakeVideoServer()
    with client_of(server, state_every=4) as client:
        state = client.init_state(VIDEO)
        for number in range(6):  # prompts alone do not pile up either
            client.add_new_points_or_box(state, 0, 1, [[number, 2]], [1])
        assert len(server.done("state")) == 1
        list(client.propagate_in_video(state))
    asked = [video["frame"] for video in server.done("track") if video["state"]]
    assert np.diff(asked).tolist() == [4] * (len(asked) - 1)


@pytest.mark.parametrize("every", [1, 7, 30, 50])
def test_what_is_kept_reaches_back_as_far_as_corrections_do_and_no_further(every: int) -> None:
    with client_of(FakeVideoServer(), state_every=every) as client:
        state = client.init_state(np.repeat(VIDEO, 12, axis=0))
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        for index, _, _ in client.propagate_in_video(state):
            session = state.session
            oldest, newest = session._log.checkpoints[0], session.checkpoint
            if oldest is not None and newest is not None:
                assert newest.step - oldest.step >= 32
                assert index + 2 - oldest.step <= 32 + 16 + 3 * every + 3
            assert len(session._log.checkpoints) <= 5


def test_a_state_is_kept_once() -> None:
    with client_of(FakeVideoServer()) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        for _ in client.propagate_in_video(state):
            assert not any("video_state" in (entry.answer or {}) for entry in state.session._log.entries)
        assert state.checkpoint is not None


def test_large_frames_are_not_kept_for_corrections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_log, "_MOST_BYTES", 1000)
    with client_of(FakeVideoServer(), state_every=50) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        sizes = [
            sum(len(entry.image or b"") for entry in state.session._log.entries)
            for _ in client.propagate_in_video(state)
        ]
    assert 2000 < max(sizes) < 4000


def test_another_object_and_a_correction_in_the_middle_of_a_propagation() -> None:
    server = FakeVideoServer()
    seen = []
    with client_of(server) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        for index, ids, masks in client.propagate_in_video(state):
            seen.append((index, ids))
            assert len(masks) == len(ids)
            if index == 5:
                client.add_new_points_or_box(state, 5, 2, [[3, 3]], [1])
    assert [index for index, _ in seen] == list(range(LENGTH))
    assert seen[5][1] == [1]
    assert seen[-1][1] == [1, 2]


def test_leaving_early_and_going_on() -> None:
    server = FakeVideoServer()
    with client_of(server) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        for index, _, _ in client.propagate_in_video(state):
            if index == 6:
                break
        assert len(server.done("track")) <= 7 + 3
        assert [index for index, _, _ in client.propagate_in_video(state, 7)] == list(range(7, LENGTH))


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("first_is_left", [True, False])
def test_one_of_two_walks_in_turns_is_left_early(turns: int, first_is_left: bool) -> None:
    server = FakeVideoServer()
    with client_of(server) as client:
        state = client.init_state(VIDEO)
        client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
        left, kept = client.track_frames(state), client.track_frames(state)
        found = []
        for _ in range(turns):
            if first_is_left:
                next(left)
            found.append(next(kept).index)
            if not first_is_left:
                next(left)
        left.close()
        assert found + [one.index for one in kept] == list(range(LENGTH))
        steps = [video["step"] for video in server.done("track")]
    assert steps == list(range(2, 2 + len(steps)))
    assert len(steps) <= LENGTH + turns + 3


def test_a_request_that_was_withdrawn_says_so() -> None:
    session = VideoSession([], {})
    own, other = session.submit("track", b"1", frame=1), session.submit("track", b"2", frame=2)
    session.withdraw([own])
    assert other.step == 1
    with pytest.raises(Cancelled, match="the request was withdrawn"):
        next(session.answer(own))


def test_a_refused_prompt_changes_nothing() -> None:
    server = FakeVideoServer()
    with client_of(server) as client:
        state = client.init_state(VIDEO)
        for name in (1, 2, 3):
            client.add_new_points_or_box(state, 0, name, [[1, 2]], [1])
        with pytest.raises(InvalidInput, match="3 objects already"):
            client.add_new_points_or_box(state, 0, 4, [[1, 2]], [1])
        assert state.obj_ids == [1, 2, 3]
        assert len(list(client.propagate_in_video(state))) == LENGTH
    assert len(server.done("open")) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"points": [[1, 2]], "labels": [1, 0]}, "labels"),
        ({}, "empty"),
        ({"points": [[1, 2]], "labels": [1], "frame_idx": -1}, "does not exist"),
        ({"points": [[1, 2]], "labels": [1], "frame_idx": 99}, "there is no frame 99 in the array: it has 24 frames"),
        ({"points": [[1, 2]], "labels": [1], "frame_idx": 1.5}, "frame_idx must be a whole number, not float"),
        ({"points": [[1, 2]], "labels": [1], "obj_id": "a"}, "obj_id must be a whole number, not str"),
        ({"box": [0, 0, 2, 2], "clear_old_points": False}, "a box replaces the points"),
    ],
)
def test_wrong_prompts_never_reach_the_server(arguments: dict[str, Any], told: str) -> None:
    server = FakeVideoServer()
    with client_of(server) as client, pytest.raises(InvalidInput, match=told):
        client.add_new_points_or_box(client.init_state(VIDEO), **{"frame_idx": 0, "obj_id": 1, **arguments})
    assert not server.calls


def test_wrong_masks_and_options() -> None:
    with client_of(FakeVideoServer()) as client:
        state = client.init_state(VIDEO)
        with pytest.raises(InvalidInput, match=r"a mask must be \[H,W\] of the video's size, \[6,9\]"):
            client.add_new_mask(state, 0, 1, np.ones((WIDTH, HEIGHT)))
        client.add_new_mask(state, 0, 1, np.ones((HEIGHT, WIDTH)))
        with pytest.raises(InvalidInput, match="max_frame_num_to_track must be at least 0, not -1"):
            next(client.propagate_in_video(state, max_frame_num_to_track=-1))
        client.close_state(state)
        with pytest.raises(InvalidInput, match="this video state is closed"):
            client.reset_state(state)
    with pytest.raises(InvalidInput, match="the client is closed"):
        client.init_state(VIDEO)
    with pytest.raises(InvalidInput, match="in_flight and state_every"):
        client_of(FakeVideoServer(), in_flight=0)


def test_relative_coordinates() -> None:
    server = FakeVideoServer()
    with client_of(server) as client:
        client.add_new_points_or_box(client.init_state(VIDEO), 0, 1, [[0.5, 0.5]], [1], normalize_coords=False)
    assert server.done("prompt")[0]["points"] == [[WIDTH / 2, HEIGHT / 2]]


def test_an_id_is_looked_up_on_the_server_that_answers() -> None:
    server = FakeVideoServer()
    client = SAM2VideoClient(servers=reached(server, model="sam2.1:tiny"), model_type="sam2.1:tiny")
    with client:
        client.add_new_points_or_box(client.init_state(VIDEO), 0, 1, [[1, 2]], [1])
    assert {call.model for call in server.calls} == {"sam2"}


# the async twin


def test_both_clients_have_the_same_methods_and_arguments() -> None:
    def described(cls: type) -> dict[str, list[str]]:
        found = {name: member for name, member in vars(cls).items() if inspect.isfunction(member)}
        own = {name: list(inspect.signature(member).parameters) for name, member in found.items()}
        return {name: names for name, names in own.items() if name == "__init__" or not name.startswith("_")}

    assert described(SAM2VideoClient) == described(AsyncSAM2VideoClient)


def test_the_async_client_gives_the_same() -> None:
    async def track(server: FakeVideoServer) -> list[Any]:
        async def camera() -> AsyncIterator[Any]:
            for frame in VIDEO:
                await asyncio.sleep(0)
                yield frame

        async with AsyncSAM2VideoClient(servers=reached(server), state_every=5, in_flight=3) as client:
            state = await client.init_state(camera())
            await client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
            return [one async for one in client.propagate_in_video(state)]

    same(asyncio.run(track(FakeVideoServer({7: "killed", 15: "lost"}))), tracked(FakeVideoServer()))


def test_leaving_early_does_not_hold_up_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    closed_on: list[threading.Thread] = []
    close = FramesAhead.close

    def closing(walk: FramesAhead) -> None:
        closed_on.append(threading.current_thread())
        close(walk)

    monkeypatch.setattr(FramesAhead, "close", closing)

    async def run() -> None:
        async with AsyncSAM2VideoClient(servers=reached(FakeVideoServer())) as client:
            state = await client.init_state(VIDEO)
            await client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
            for walk in (client.track_frames(state), client.propagate_in_video(state)):
                await anext(walk)
                await walk.aclose()
            assert len(closed_on) == 2

    asyncio.run(run())
    assert threading.main_thread() not in closed_on


def test_backward_from_frame_0_in_the_async_client() -> None:
    async def run() -> None:
        async with AsyncSAM2VideoClient(servers=reached(FakeVideoServer())) as client:
            state = await client.init_state(VIDEO)
            await client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
            assert [one async for one in client.propagate_in_video(state, 0, reverse=True)] == []
            assert [one.index async for one in client.track_frames(state, 0, reverse=True)] == [0]

    asyncio.run(run())


def test_a_cancelled_await_loses_nothing() -> None:
    async def run() -> None:
        server = FakeVideoServer()
        async with AsyncSAM2VideoClient(servers=reached(server), in_flight=2) as client:
            state = await client.init_state(VIDEO)
            await client.add_new_points_or_box(state, 0, 1, [[1, 2]], [1])
            task = asyncio.create_task(client.add_new_points_or_box(state, 1, 2, [[1, 2]], [1]))
            while len(server.done("prompt")) < 2:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [index async for index, _, _ in client.propagate_in_video(state)] == list(range(LENGTH))

    asyncio.run(run())


# addresses


def test_the_services_address_is_one_sentence(server: KServe) -> None:
    server.behaviour.status, server.behaviour.body = 404, b'{"error": {"code": "not_found", "message": "no such path"}}'
    with (
        SAM2VideoClient(f"http://{server.address.target}") as client,
        pytest.raises(Unsupported, match="is the triton-sam service, and videos need Triton itself"),
    ):
        client.add_new_points_or_box(client.init_state(VIDEO), 0, 1, [[1, 2]], [1])
