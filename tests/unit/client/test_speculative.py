"""The asyncio client against a server in memory."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.fake_server import FakeAsyncTransport, FakeTransport, point_of
from triton_sam import SpeculativeSAM2Client, queue_multiple_requests, wait_for_latest_result
from triton_sam.client.core import ClickRequest, Prediction
from triton_sam.errors import Cancelled, ImageExpired, InvalidInput, ServerUnreachable, Unavailable

PICTURE = b"picture"
Body = Callable[[SpeculativeSAM2Client, FakeAsyncTransport, FakeTransport], Coroutine[Any, Any, None]]


def run(body: Body, *, held: bool = False, **options: Any) -> None:
    """A test in an event loop of its own, with a client that has a picture."""

    async def whole() -> None:
        before = asyncio.all_tasks()
        asynchronous, blocking = FakeAsyncTransport(held=held), FakeTransport()
        client = SpeculativeSAM2Client(transport=blocking, async_transport=asynchronous, **options)
        client.set_image(PICTURE)
        try:
            await body(client, asynchronous, blocking)
        finally:
            blocking.gate.set()
            await client.aclose()
        assert asyncio.all_tasks() <= before, "a task is left pending"

    asyncio.run(asyncio.wait_for(whole(), 20))


async def arrived(semaphore: threading.Semaphore, count: int = 1) -> None:
    """Waits for things that happen on the client's own thread."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        assert await loop.run_in_executor(None, lambda: semaphore.acquire(timeout=10))


def x_of(prediction: Prediction | None) -> float:
    assert prediction is not None
    return float(prediction[0][0, 0, 0, 0])


def test_a_prediction() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        found = await client.predict_async(np.array([[7, 3]]), np.array([1]), "s")
        assert found is not None
        masks, iou = found
        assert masks.shape == (1, 1, 256, 256)
        assert masks.dtype == np.float32
        assert masks.flags.writeable
        assert iou.tolist() == [[0.5]]
        assert x_of(found) == 7
        assert server.calls[0].inputs["image_key"][0] == b"picture 1"

    run(body)


def test_the_story_of_the_read_me() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        coords = [np.array([[x, 0]]) for x in range(50)]
        tasks = await queue_multiple_requests(client, coords, [np.array([1])] * 50, "user_session_1")
        await arrived(server.arrived, 50)
        assert client.get_session_status("user_session_1").pending == 50
        assert client.cancel_session_requests("user_session_1") == 49
        server.open_gate()
        assert x_of(await wait_for_latest_result(tasks, client, "user_session_1")) == 49
        assert [await task for task in tasks[:-1]] == [None] * 49
        status = client.get_session_status("user_session_1")
        assert (status.requested, status.completed, status.cancelled, status.failed, status.pending) == (
            50,
            1,
            49,
            0,
            0,
        )
        assert client.cleanup_session("user_session_1") == 0
        assert client.get_session_status("user_session_1").requested == 0

    run(body, held=True)


def test_none_where_everything_was_cancelled() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        tasks = await queue_multiple_requests(client, [[[1, 1]]] * 5, [[1]] * 5, "s")
        await arrived(server.arrived, 5)
        assert client.cancel_session_requests("s", keep_latest=False) == 5
        assert await wait_for_latest_result(tasks, client, "s") is None

    run(body, held=True)


def test_without_a_cancel_the_newest_is_awaited_and_the_rest_is_dropped_then() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        tasks = await queue_multiple_requests(client, [[[x, 1]] for x in range(5)], [[1]] * 5, "s")
        await arrived(server.arrived, 5)
        server.open_gate()
        assert x_of(await wait_for_latest_result(tasks, client, "s")) == 4
        assert all(task.done() for task in tasks)
        assert await wait_for_latest_result([], client, "s") is None

    run(body, held=True)


def test_sessions_are_independent() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        first = await queue_multiple_requests(client, [[[1, 1]], [[2, 1]]], [[1]] * 2, "a")
        second = await queue_multiple_requests(client, [[[3, 1]], [[4, 1]]], [[1]] * 2, "b")
        await arrived(server.arrived, 4)
        assert client.cancel_session_requests("a") == 1
        server.open_gate()
        assert await first[0] is None
        assert [x_of(await task) for task in (first[1], *second)] == [2, 3, 4]

    run(body, held=True)


def test_latest_wins_is_an_option_of_a_session() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        client.configure_session("hover", latest_wins=True)
        hovers = await queue_multiple_requests(client, [[[x, 1]] for x in range(9)], [[1]] * 9, "hover")
        clicks = await queue_multiple_requests(client, [[[x, 1]] for x in range(3)], [[1]] * 3, "clicks")
        await client.image_ready()
        await arrived(server.arrived, 4)
        server.open_gate()
        assert [await task for task in hovers[:-1]] == [None] * 8
        assert x_of(await hovers[-1]) == 8
        assert [x_of(await task) for task in clicks] == [0, 1, 2]
        assert client.get_session_status("hover").latest_wins

    run(body, held=True)


def test_errors_are_raised() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        with pytest.raises(InvalidInput, match="the prompt is empty"):
            await client.predict_async()
        with pytest.raises(InvalidInput, match="2 entries of coordinates and 1 of labels"):
            await queue_multiple_requests(client, [[[1, 1]]] * 2, [[1]])
        server.failure = InvalidInput("the server does not like this")
        tasks = await queue_multiple_requests(client, [[[1, 1]]], [[1]], "s")
        with pytest.raises(InvalidInput, match="does not like"):
            await wait_for_latest_result(tasks, client, "s")
        assert client.get_session_status("s").failed == 1
        server.failure = None
        assert x_of(await client.predict_async([[3, 3]], [1], "s")) == 3

    run(body)


def test_a_busy_server_is_asked_again() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        server.failure, server.failures_left = Unavailable("busy"), 1
        assert x_of(await client.predict_async([[3, 3]], [1], "s")) == 3
        assert len({call.parameters["sequence"] for call in server.calls}) == 1, "it stays the same request"
        server.failures_left = 10

        async def impatient() -> None:
            assert await client.predict_async([[4, 4]], [1], "s") is None

        task = asyncio.create_task(impatient())
        await arrived(server.arrived, 2)
        client.cancel_session_requests("s", keep_latest=False)  # in the middle of a pause
        await task

    run(body)


def test_no_image() -> None:
    async def body() -> None:
        client = SpeculativeSAM2Client(transport=FakeTransport(), async_transport=FakeAsyncTransport())
        with pytest.raises(InvalidInput, match="call set_image first"):
            await client.predict_async([[1, 1]], [1])
        await client.aclose()
        await client.aclose()
        for action in (lambda: client.set_image(PICTURE), lambda: client._start(ClickRequest({}, ()), "s")):
            with pytest.raises(InvalidInput, match="closed"):
                action()

    asyncio.run(body())


def test_set_image_in_a_loop_returns_at_once_and_predictions_wait_for_it() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        await client.image_ready()
        blocking.gate.clear()
        started = time.perf_counter()
        client.set_image(b"slow")
        assert time.perf_counter() - started < 1.0
        task = asyncio.create_task(client.predict_async([[1, 1]], [1], "s"))
        dropped = asyncio.create_task(client.predict_async([[2, 1]], [1], "t"))
        await asyncio.sleep(0)
        assert client.cancel_session_requests("t", keep_latest=False) == 1
        assert await dropped is None
        assert not server.calls
        blocking.gate.set()
        assert x_of(await task) == 1
        assert server.calls[0].inputs["image_key"][0] == b"slow 2"

    run(body)


def test_what_is_wrong_with_an_image_is_raised_by_its_predictions() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        client.set_image("/nowhere/at/all.png")
        with pytest.raises(InvalidInput, match="cannot read the image"):
            await client.predict_async([[1, 1]], [1])
        with pytest.raises(InvalidInput, match="cannot read the image"):
            await client.image_ready()

    run(body)


def test_outside_of_a_loop_set_image_waits_and_raises(tmp_path: Path) -> None:
    blocking = FakeTransport()
    client = SpeculativeSAM2Client(transport=blocking, async_transport=FakeAsyncTransport())
    client.set_image(PICTURE)
    assert len(blocking.encodes) == 1
    with pytest.raises(InvalidInput, match="cannot read"):
        client.set_image(tmp_path / "missing.png")
    assert x_of(asyncio.run(client.predict_async([[5, 5]], [1]))) == 5, "the image before is still there"
    assert x_of(asyncio.run(client.predict_async([[6, 5]], [1]))) == 6, "from another event loop"
    client.close()


def test_an_encode_that_is_superseded_and_waited_for_by_nobody_is_dropped() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        await client.image_ready()
        blocking.gate.clear()
        client.set_image(b"second")
        wanted = asyncio.create_task(client.predict_async([[1, 1]], [1], "s"))
        await asyncio.sleep(0)
        client.set_image(b"third")
        while len(blocking.encodes) < 3:  # until the server has it
            await asyncio.sleep(0.001)
        client.set_image(b"fourth")
        await arrived(server.told)
        assert [told["before"] for told in server.cancels] == [2]
        blocking.gate.set()
        assert x_of(await wanted) == 1
        await client.image_ready()
        sessions = {call.inputs["image"].tobytes(): call.parameters["session_id"] for call in blocking.encodes}
        assert server.cancels[0]["session_id"] == sessions[b"third"]

    run(body)


def test_an_expired_image_is_encoded_again_once_for_all() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        server.expired.add(await client.image_ready())
        found = await asyncio.gather(*(client.predict_async([[x, 1]], [1], f"s{x}") for x in range(5)))
        assert [x_of(one) for one in found] == [0, 1, 2, 3, 4]
        assert len(blocking.encodes) == 2
        assert x_of(await client.predict_async([[9, 1]], [1])) == 9
        assert len(blocking.encodes) == 2
        server.expired |= {"picture 2", "picture 3"}
        with pytest.raises(ImageExpired):
            await client.predict_async([[9, 1]], [1])

    run(body)


def test_a_renewal_that_failed_is_tried_again() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        server.expired.add(await client.image_ready())
        blocking.failure = ServerUnreachable("restarting")
        with pytest.raises(ServerUnreachable):
            await client.predict_async([[1, 1]], [1])
        blocking.failure = None
        assert x_of(await client.predict_async([[2, 1]], [1])) == 2

    run(body)


def test_images_that_were_replaced_before_they_were_sent_are_not_sent() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        await client.image_ready()
        blocking.gate.clear()
        for number in range(20):
            client.set_image(b"slice %d" % number)
        blocking.gate.set()
        assert x_of(await client.predict_async([[1, 1]], [1])) == 1
        sent = [call.inputs["image"].tobytes() for call in blocking.encodes]
        assert b"slice 19" in sent
        assert len(sent) <= 1 + 4 + 1, "the first, one on each thread, and the last"

    run(body)


def test_who_no_longer_waits_for_an_image_is_not_told_of_its_error() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        await client.image_ready()
        printed: list[dict[str, Any]] = []
        for loop in (asyncio.get_running_loop(), client._io.loop):
            loop.set_exception_handler(lambda _, context: printed.append(context))
        blocking.gate.clear()
        blocking.failure = ServerUnreachable("gone")
        client.set_image(b"doomed")
        ready = asyncio.create_task(client.image_ready())
        task = asyncio.create_task(client.predict_async([[1, 1]], [1], "s"))
        await asyncio.sleep(0)
        ready.cancel()
        client.cancel_session_requests("s", keep_latest=False)
        assert await task is None
        blocking.gate.set()
        with pytest.raises(ServerUnreachable):
            await client.image_ready()
        blocking.failure = None
        client.set_image(b"fine")  # lets go of the other one
        await client.image_ready()
        del ready, task
        gc.collect()
        assert printed == []

    run(body)


def test_an_error_that_many_meet_does_not_grow() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        client.set_image("/nowhere/at/all.png")
        depths = []
        for _ in range(20):
            with pytest.raises(InvalidInput) as caught:
                await client.predict_async([[1, 1]], [1])
            depths.append(len(caught.traceback))
        assert depths[0] == depths[-1]

    run(body)


def test_an_error_of_the_newest_ends_the_others() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        server.failure = InvalidInput("wrong")
        tasks = await queue_multiple_requests(client, [[[1, 1]]] * 4, [[1]] * 4, "s")
        with pytest.raises(InvalidInput):
            await wait_for_latest_result(tasks, client, "s")
        assert all(task.done() for task in tasks)

    run(body)


def test_a_cancelled_task_is_withdrawn_from_the_server() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        tasks = await queue_multiple_requests(client, [[[1, 1]], [[2, 1]]], [[1]] * 2, "s")
        await arrived(server.arrived, 2)
        tasks[1].cancel()
        await arrived(server.told)
        server.open_gate()
        assert x_of(await wait_for_latest_result(tasks, client, "s")) == 1
        assert client.get_session_status("s").cancelled == 1
        assert point_of(server.calls[1]) == 2
        assert server.cancels[0]["only"] == server.calls[1].parameters["sequence"]

    run(body, held=True)


def test_the_event_loop_is_never_blocked_for_long() -> None:
    """Judged by the median of many turns, because machines are noisy; a blocking call would be in every turn."""

    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        await client.predict_async([[1, 1]], [1])
        spent = []
        for x in range(50):
            started = time.perf_counter()
            client.set_image(np.zeros((2000, 2000, 3), np.uint8))
            task = asyncio.create_task(client.predict_async([[x, 1]], [1], "s"))
            await asyncio.sleep(0)
            client.cancel_session_requests("s", keep_latest=False)
            spent.append(time.perf_counter() - started)
            await task
        assert sorted(spent)[25] < 0.005

    run(body)


def test_cancelled_is_no_error_of_segment_async_either() -> None:
    async def body(client: SpeculativeSAM2Client, server: FakeAsyncTransport, blocking: FakeTransport) -> None:
        server.failure = Cancelled("superseded by another program")
        assert await client.segment_async([[1, 1]], [1]) is None

    run(body)


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"retries": -1}, {"max_in_flight": 0}])
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="max_in_flight at least 1"):
        SpeculativeSAM2Client(**wrong)
