"""Speculative requests on the real server: what is cancelled is not computed, by the server's own counters.

``pixi run test-speculative`` runs this: mouse movement, patterns of cancelling, sessions side by side.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.analytic import expected_logits, png, slow_picture, slowed
from tests.conftest import ServerFactory
from tests.server_readings import counters, counters_so_far, own_bytes, server_bytes
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client, queue_multiple_requests, wait_for_latest_result
from triton_sam.bench.hover import HoverLoad, hover
from triton_sam.client.speculative import Prediction
from triton_sam.errors import InvalidInput
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
PROTOCOLS = ("HTTP", "gRPC", "service")
SPOON = [365, 290]
HOVERS = 40
#: Of a request that keeps the decoder busy.
PROMPTS = 60
ATTEMPTS = 4
CANCELS = int(os.environ.get("TRITON_SAM_TEST_CANCELS", "400"))


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, start_server: ServerFactory, processes: int) -> Iterator[RunningServer]:
    if processes == 1:
        yield request.getfixturevalue("server")
        return
    with start_server(processes=str(processes)) as several:
        yield several


@pytest.fixture(scope="module")
def picture(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that takes as long as with a real network."""
    path = tmp_path_factory.mktemp("pictures") / "coffee.png"
    path.write_bytes(png(slowed(Image.open(photographs / "coffee.png"))))
    return path


@pytest.fixture(scope="module")
def expected(picture: Path) -> np.ndarray[Any, Any]:
    """[1,1,256,256]: the spoon's logits."""
    return expected_logits(Image.open(picture), points=[SPOON])[None, None]


def assert_same(result: Prediction | None, expected: np.ndarray[Any, Any]) -> None:
    """The spoon's mask; prompts that are decoded together differ by rounding from one alone."""
    assert result is not None
    np.testing.assert_allclose(result[0], expected, atol=1e-3)


@asynccontextmanager
async def speculative(running: RunningServer, protocol: str, picture: Path) -> AsyncIterator[SpeculativeSAM2Client]:
    async with SpeculativeSAM2Client(running.urls[protocol]) as client:
        client.set_image(picture)
        await client.image_ready()
        yield client


def run(body: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        before = asyncio.all_tasks()
        await body
        assert asyncio.all_tasks() <= before, "a task is left pending"

    asyncio.run(asyncio.wait_for(whole(), 250))


def growth(running: RunningServer, before: dict[str, float]) -> dict[str, float]:
    after = counters(running, "sam2")
    return {name: after[name] - before[name] for name in after}


@asynccontextmanager
async def busy_decoder(running: RunningServer, picture: Path, requests: int) -> AsyncIterator[asyncio.Future[Any]]:
    """A decoder that has seconds to do for somebody else; yields that work."""
    objects = [{"points": [[20 + 9 * number, 200]]} for number in range(PROMPTS)]
    with SAM2TritonClient(running.urls["HTTP"]) as other:
        other.set_image(picture)
        decodes = counters(running, "sam2")["cache_hits_total"]
        busy = asyncio.gather(
            *(asyncio.to_thread(other.segment, objects=objects, format="rle") for _ in range(requests))
        )
        while counters_so_far(running, "sam2")["cache_hits_total"] < decodes + requests:  # until all are let in
            await asyncio.sleep(0.005)
        yield busy
        await busy


async def until_in_time(attempt: Callable[[int], Awaitable[bool]]) -> None:
    """Repeats ``attempt(requests that keep the decoder busy)`` with more of them, until it says that it came in time.

    On some machines requests take longer to arrive than the decoder has to do.
    """
    for requests in range(1, ATTEMPTS + 1):
        if await attempt(requests):
            return
    pytest.fail("the requests never arrived while the decoder was busy")


# Not through the service: fifty connections may take longer than the model is busy. There is a unit test for that.
@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_fifty_requests_behind_a_busy_model_and_one_is_wanted(
    running: RunningServer, protocol: str, picture: Path, expected: np.ndarray[Any, Any]
) -> None:
    async def attempt(requests: int) -> bool:
        async with speculative(running, protocol, picture) as client, busy_decoder(running, picture, requests) as busy:
            before = counters_so_far(running, "sam2")
            coords = [np.array([[100 + number, 200]]) for number in range(49)] + [np.array([SPOON])]
            tasks = await queue_multiple_requests(client, coords, [np.array([1])] * 50, "user_session_1")
            while counters_so_far(running, "sam2")["cache_hits_total"] - before["cache_hits_total"] < 50:
                await asyncio.sleep(0.01)  # until all fifty are in the server's queue
            if busy.done():
                client.cancel_session_requests("user_session_1", keep_latest=False)
                return False
            assert client.cancel_session_requests("user_session_1") == 49
            result = await wait_for_latest_result(tasks, client, "user_session_1")
            assert_same(result, expected)
            status = client.get_session_status("user_session_1")
            assert (status.completed, status.cancelled, status.pending) == (1, 49, 0)
        grown = growth(running, before)
        print(f"{grown['decodes_total'] - requests * PROMPTS:.0f} of 50 decoded over {protocol}")  # noqa: T201
        assert grown["decodes_total"] <= 2 + requests * PROMPTS
        assert grown["cancelled_total"] >= 48
        return True

    run(until_in_time(attempt))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_computed_where_everything_is_cancelled(
    running: RunningServer, protocol: str, picture: Path
) -> None:
    async def attempt(requests: int) -> bool:
        async with speculative(running, protocol, picture) as client, busy_decoder(running, picture, requests) as busy:
            before = counters(running, "sam2")
            tasks = await queue_multiple_requests(client, [[SPOON]] * 20, [[1]] * 20, "s")
            assert client.cancel_session_requests("s", keep_latest=False) == 20
            assert await wait_for_latest_result(tasks, client, "s") is None
            in_time = not busy.done()
        computed = growth(running, before)["decodes_total"]
        # What arrives before its cancel waits behind the busy decoder, unless that was done by then.
        assert computed <= requests * PROMPTS or not in_time
        return in_time

    run(until_in_time(attempt))


@pytest.mark.parametrize("protocol", ["HTTP", "service"])
def test_an_encode_that_nobody_waits_for_is_not_computed(running: RunningServer, protocol: str) -> None:
    async def body() -> None:
        async with SpeculativeSAM2Client(running.urls[protocol]) as client:
            before = counters(running, "sam2")
            for number in range(10, 18):  # somebody who leafs through a stack of slices
                client.set_image(slow_picture(number))
                await asyncio.sleep(0.05)
            result = await client.predict_async([[20, 20]], [1])
            assert result is not None
            grown = growth(running, before)
            assert grown["encodes_total"] <= 3, "the first, perhaps one that had begun, and the last"

    run(body())


async def mouse(client: SpeculativeSAM2Client, session: str, y: float) -> list[Prediction | None]:
    """Moves along a line, 60 hovers a second, each superseding the one before; returns all predictions."""
    client.configure_session(session, latest_wins=True)
    tasks = []
    for step in range(HOVERS):
        tasks.append(asyncio.create_task(client.predict_async([[20 + 14 * step, y]], [1], session)))
        await asyncio.sleep(1 / 60)
    return await asyncio.wait_for(asyncio.gather(*tasks), 60)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_mice_that_move_faster_than_the_server_decodes(running: RunningServer, protocol: str, picture: Path) -> None:
    async def body() -> None:
        async with speculative(running, protocol, picture) as client:
            before = counters(running, "sam2")
            mice = await asyncio.gather(*(mouse(client, f"mouse {number}", y=60 + 50 * number) for number in range(6)))
            grown = growth(running, before)
            assert all(predictions[-1] is not None for predictions in mice), "every session's last hover is answered"
            answered = sum(prediction is not None for predictions in mice for prediction in predictions)
            if protocol == "service":  # it may drop a mask that was computed for a newer one, before it sends it
                assert answered <= grown["decodes_total"]
            else:
                assert grown["decodes_total"] == answered, "what is computed is shown"
            assert grown["decodes_total"] < 6 * HOVERS / 2

    run(body())


@pytest.mark.part("devices")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_newest_hover_of_twenty_mice_is_answered(running: RunningServer, protocol: str, picture: Path) -> None:
    """As ``triton-sam bench hover``: twenty sessions, a hundred hovers each."""

    async def body() -> None:
        async with speculative(running, protocol, picture) as client:
            before = counters(running, "sam2")
            with Image.open(picture) as opened:
                load = HoverLoad(size=opened.size)
            outcome = await hover(client, load)
            executed, last = growth(running, before)["decodes_total"], sorted(outcome.last_seconds)
            figures = f"{executed:.0f} of {outcome.requested} executed, {outcome.pending} pending"
            print(f"hovers over {protocol}: {len(last)} newest answered, {figures}, last {last[-1]:.2f} s")  # noqa: T201
            assert (len(last), outcome.pending) == (load.sessions, 0)

    run(body())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sessions_side_by_side_with_habits_of_their_own(
    running: RunningServer, protocol: str, picture: Path, expected: np.ndarray[Any, Any]
) -> None:
    """One queues and keeps the newest, one hovers, one cancels everything, one only clicks: nobody disturbs another."""

    async def queues(client: SpeculativeSAM2Client) -> None:
        for _ in range(3):
            coords = [np.array([[100 + number, 200]]) for number in range(9)] + [np.array([SPOON])]
            tasks = await queue_multiple_requests(client, coords, [np.array([1])] * 10, "queues")
            client.cancel_session_requests("queues")
            result = await wait_for_latest_result(tasks, client, "queues")
            assert_same(result, expected)

    async def hovers(client: SpeculativeSAM2Client) -> None:
        client.configure_session("hovers", latest_wins=True)
        tasks = []
        for number in range(30):
            tasks.append(asyncio.create_task(client.predict_async([[100 + number, 200]], [1], "hovers")))
            await asyncio.sleep(0.01)
        assert await tasks[-1] is not None
        await asyncio.gather(*tasks)

    async def despairs(client: SpeculativeSAM2Client) -> None:
        for _ in range(5):
            tasks = await queue_multiple_requests(client, [[SPOON]] * 5, [[1]] * 5, "despairs")
            await asyncio.sleep(0.02)
            client.cleanup_session("despairs")
            await asyncio.gather(*tasks)
        assert client.get_session_status("despairs").pending == 0

    async def clicks(client: SpeculativeSAM2Client) -> None:
        for _ in range(4):
            result = await client.predict_async([SPOON], [1], "clicks")
            assert_same(result, expected)

    async def body() -> None:
        async with speculative(running, protocol, picture) as client:
            await asyncio.gather(*(habit(client) for habit in (queues, hovers, despairs, clicks)))

    run(body())


def test_two_clients_with_one_session_name_do_not_cancel_each_other(running: RunningServer, picture: Path) -> None:
    async def body() -> None:
        async with (
            speculative(running, "HTTP", picture) as one,
            speculative(running, "gRPC", picture) as other,
            busy_decoder(running, picture, requests=1),
        ):
            first = await queue_multiple_requests(one, [[SPOON]] * 3, [[1]] * 3, "user_session_1")
            second = await queue_multiple_requests(other, [[SPOON]] * 3, [[1]] * 3, "user_session_1")
            one.cancel_session_requests("user_session_1", keep_latest=False)
            assert [await task for task in first] == [None] * 3
            assert all([await task is not None for task in second])

    run(body())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_errors_come_from_the_server_and_are_raised(running: RunningServer, protocol: str, picture: Path) -> None:
    async def body() -> None:
        async with speculative(running, protocol, picture) as client:
            with pytest.raises(InvalidInput, match="outside the image of 600 x 400"):
                await client.predict_async([[5000, 1]], [1])

    run(body())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cancels_at_every_moment_of_a_request(running: RunningServer, protocol: str, photographs: Path) -> None:
    """Cancels spread over twice the latency of a click: the server lives and keeps its size.

    TRITON_SAM_TEST_CANCELS=20000 is the long form.
    """
    chance = random.Random(7)

    async def cancelled_click(client: SpeculativeSAM2Client, number: int, latency: float) -> None:
        session = f"s{number % 16}"
        task = asyncio.create_task(client.predict_async([SPOON], [1], session))
        await asyncio.sleep(chance.uniform(0.0, 2.0 * latency))
        if number % 2:
            client.cancel_session_requests(session, keep_latest=False)
            await task
        else:
            task.cancel()
            await asyncio.wait([task])

    async def some(client: SpeculativeSAM2Client, count: int, latency: float) -> None:
        async def lane(lane_number: int) -> None:
            for number in range(lane_number, count, 8):
                await cancelled_click(client, number, latency)

        await asyncio.gather(*(lane(number) for number in range(8)))

    async def body() -> None:
        async with speculative(running, protocol, photographs / "coffee.png") as client:
            started = time.perf_counter()
            for _ in range(5):
                await client.predict_async([SPOON], [1])
            latency = (time.perf_counter() - started) / 5
            await some(client, max(200, CANCELS // 20), latency)  # pools and arenas grow to their size
            server, own = server_bytes(running), own_bytes()
            half = CANCELS // len(PROTOCOLS)
            await some(client, half, latency)
            grown = (server_bytes(running) - server) / 1e6, (own_bytes() - own) / 1e6
            figures = f"click {latency * 1e3:.0f} ms, server {grown[0]:+.1f} MB, client {grown[1]:+.1f} MB"
            print(f"{half} cancels over {protocol}: {figures}")  # noqa: T201
            assert max(grown) < 50
            assert await client.predict_async([SPOON], [1]) is not None
            assert running.supervisor.status["restarts"] == 0

    if CANCELS <= 1000:
        run(body())
    else:
        asyncio.run(body())
