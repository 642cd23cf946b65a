"""Numbering, bounds and cancelling of requests, against a server in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.fake_server import FakeAsyncTransport, point_of
from triton_sam.client.dispatch import Dispatcher, Outputs, Send
from triton_sam.client.wire import IMAGE_HEADER, Call, click_inputs
from triton_sam.errors import Cancelled, DeadlineExceeded, InternalError, InvalidInput, Unavailable


def click(x: float, model: str = "sam2") -> Call:
    return Call(model, click_inputs("key", {"objects": [{"points": [[x, 0]]}]}), ("low_res_logits",))


def x_of(outputs: Outputs) -> float:
    return float(outputs["low_res_logits"][0, 0, 0, 0])


async def until(semaphore: threading.Semaphore, count: int) -> None:
    """Waits for things that happen on this very loop."""
    for _ in range(count):
        while not semaphore.acquire(blocking=False):
            await asyncio.sleep(0)


def run(test: Callable[[Dispatcher, FakeAsyncTransport], Coroutine[Any, Any, None]], **options: Any) -> None:
    """A test on a loop, with a dispatcher that must have nothing left at the end."""
    max_in_flight = options.pop("max_in_flight", 64)

    async def body() -> None:
        before = asyncio.all_tasks()
        transport = FakeAsyncTransport(**options)
        dispatcher = Dispatcher(transport, asyncio.get_running_loop(), max_in_flight=max_in_flight)
        await test(dispatcher, transport)
        await dispatcher.close()
        assert transport.closed
        assert asyncio.all_tasks() <= before, "a task is left pending"
        assert not dispatcher._book

    asyncio.run(asyncio.wait_for(body(), 20))


def test_a_call_comes_back_with_its_own_answer_and_carries_its_number() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        answers = await asyncio.gather(*(dispatcher.infer(click(x), "s") for x in range(5)))
        assert [x_of(answer) for answer in answers] == [0, 1, 2, 3, 4]
        numbers = [call.parameters["sequence"] for call in transport.calls]
        assert numbers == sorted(numbers)
        (session,) = {call.parameters["session_id"] for call in transport.calls}
        assert session == dispatcher.server_session("s")
        assert session != "s", "another program's session of that name is another session"

    run(test)


def test_cancelling_drops_all_but_the_newest_and_tells_the_server_once() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        tickets = [dispatcher.submit(click(x), "s") for x in range(50)]
        other = dispatcher.submit(click(99), "other")
        await until(transport.arrived, 51)
        assert dispatcher.cancel("s", keep_latest=True) == 49
        assert dispatcher.cancel("s", keep_latest=True) == 0
        assert all(isinstance(ticket.future.exception(0), Cancelled) for ticket in tickets[:-1]), "at once"
        assert dispatcher.pending("s") == 1
        await until(transport.told, 1)
        transport.open_gate()
        assert x_of(await dispatcher.wait(tickets[-1])) == 49
        assert x_of(await dispatcher.wait(other)) == 99
        (told,) = transport.cancels
        assert told["before"] == tickets[-1].sequence

    run(test, held=True)


def test_cancelling_everything() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        tickets = [dispatcher.submit(click(x), "s") for x in range(3)]
        await until(transport.arrived, 3)
        assert dispatcher.cancel("s") == 3
        for ticket in tickets:
            with pytest.raises(Cancelled):
                await dispatcher.wait(ticket)
        assert dispatcher.cancel("unknown") == 0

    run(test, held=True)


def test_the_newest_counts_even_where_it_is_answered_already() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        slow = asyncio.Event()

        async def wait_first(send: Send) -> Outputs:
            await slow.wait()
            return await send(click(1))

        older = dispatcher.start(wait_first, "s")
        await dispatcher.infer(click(2), "s")
        assert dispatcher.cancel("s", keep_latest=True) == 1
        assert isinstance(older.future.exception(0), Cancelled)
        assert [point_of(call) for call in transport.calls] == [2]

    run(test)


def test_what_waits_here_is_cancelled_for_free() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        tickets = [dispatcher.submit(click(x), "s") for x in range(20)]
        await until(transport.arrived, 2)
        assert dispatcher.cancel("s", keep_latest=True) == 19
        transport.open_gate()
        assert x_of(await dispatcher.wait(tickets[-1])) == 19
        assert [point_of(call) for call in transport.calls] == [0, 1, 19]
        assert transport.most_in_flight == 2

    run(test, held=True, max_in_flight=2)


def test_latest_wins_and_never_more_than_three_in_flight() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        tickets = []
        for x in range(100):
            tickets.append(dispatcher.submit(click(x), "s", latest_wins=True))
            if x % 7 == 0:
                await until(transport.arrived, 1)
        await until(transport.arrived, 1)
        transport.open_gate()
        assert x_of(await dispatcher.wait(tickets[-1])) == 99
        for ticket in tickets[:-1]:
            with pytest.raises(Cancelled):
                await dispatcher.wait(ticket)
        assert transport.most_in_flight <= 3

    run(test, held=True)


def test_a_superseded_request_that_the_server_computes_anyway_is_answered() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        transport.deaf = True  # it has begun the first one and cannot drop it
        first = dispatcher.submit(click(1), "s", latest_wins=True)
        await until(transport.arrived, 1)
        second = dispatcher.submit(click(2), "s", latest_wins=True)
        third = dispatcher.submit(click(3), "s", latest_wins=True)
        await until(transport.arrived, 1)
        transport.open_gate()
        assert x_of(await dispatcher.wait(first)) == 1
        with pytest.raises(Cancelled):
            await dispatcher.wait(second)  # it never left
        assert x_of(await dispatcher.wait(third)) == 3

    run(test, held=True)


def test_a_hover_on_another_image_cancels_the_older_ones_at_their_server() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        def on_image(x: float, image: str) -> Call:
            return replace(click(x), headers={IMAGE_HEADER: image})

        older = dispatcher.submit(on_image(1, "a"), "s", latest_wins=True)
        await until(transport.arrived, 1)
        newer = dispatcher.submit(on_image(2, "b"), "s", latest_wins=True)
        other = dispatcher.submit(on_image(3, "c"), "another session", latest_wins=True)
        await until(transport.arrived, 2)
        await until(transport.told, 1)
        assert transport.cancel_headers == [{IMAGE_HEADER: "a"}]
        assert [cancel["before"] for cancel in transport.cancels] == [newer.sequence]
        transport.open_gate()
        assert x_of(await dispatcher.wait(newer)) == 2
        assert x_of(await dispatcher.wait(other)) == 3
        with pytest.raises(Cancelled):
            await dispatcher.wait(older)

    run(test, held=True)


def test_a_caller_that_goes_withdraws_its_request_only() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        gone = asyncio.create_task(dispatcher.infer(click(1), "s"))
        stays = asyncio.create_task(dispatcher.infer(click(2), "s"))
        await until(transport.arrived, 2)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await until(transport.told, 1)
        assert transport.cancels[0]["only"] == transport.calls[0].parameters["sequence"]
        transport.open_gate()
        assert x_of(await stays) == 2
        assert transport.natively_cancelled == 0, "that would end an older server"

    run(test, held=True)


def test_native_cancelling_in_addition_where_the_server_survives_it() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        transport.deaf = True  # to our own word, so that only the native one is left
        gone = asyncio.create_task(dispatcher.infer(click(1), "s"))
        await until(transport.arrived, 1)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await until(transport.told, 1)
        while dispatcher._running:  # only the native cancel ends it
            await asyncio.sleep(0)
        assert transport.natively_cancelled == 1

    run(test, held=True, native=True)


def test_losing_the_server_answers_everybody_at_once() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        waiting = [asyncio.create_task(dispatcher.infer(click(x), f"s{x}")) for x in range(8)]
        await until(transport.arrived, 8)
        assert dispatcher.abort(Unavailable("the server is being restarted")) == 8
        for task in waiting:
            with pytest.raises(Unavailable, match="restarted"):
                await task

    run(test, held=True)


def test_errors_are_raised_also_those_that_nobody_knows() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        transport.failure = InvalidInput("this is wrong")
        with pytest.raises(InvalidInput, match="this is wrong"):
            await dispatcher.infer(click(1))

        def broken(send: Send) -> Awaitable[Outputs]:
            raise ZeroDivisionError

        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await dispatcher.wait(dispatcher.start(broken, "s"))

    run(test)


def test_what_should_follow_a_cancelled_call_is_left_out() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        async def twice(send: Send) -> Outputs:
            await send(click(1))
            return await send(click(2))

        ticket = dispatcher.start(twice, "s")
        await until(transport.arrived, 1)
        dispatcher.cancel("s")
        transport.open_gate()
        with pytest.raises(Cancelled):
            await dispatcher.wait(ticket)
        await dispatcher.infer(click(3), "later")
        assert [point_of(call) for call in transport.calls] == [1, 3]

    run(test, held=True)


def test_from_many_threads() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        def hover(session: str) -> float:
            tickets = [dispatcher.submit(click(x), session, latest_wins=True) for x in range(50)]
            return x_of(tickets[-1].future.result(timeout=10))

        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(*(loop.run_in_executor(None, hover, f"s{n}") for n in range(4)))
        assert answers == [49] * 4

    run(test)


def test_losing_the_server_spares_what_is_begun_afterwards_and_other_models() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        lost = asyncio.create_task(dispatcher.infer(click(1, "sam1"), "a"))
        other = asyncio.create_task(dispatcher.infer(click(2, "sam2"), "b"))
        await until(transport.arrived, 2)
        assert dispatcher.abort(Unavailable("sam1 is gone"), ["sam1"]) == 1
        later = dispatcher.submit(click(3, "sam1"), "a")
        with pytest.raises(Unavailable):
            await lost
        transport.open_gate()
        assert x_of(await other) == 2
        assert x_of(await dispatcher.wait(later)) == 3

    run(test, held=True)


def test_a_hover_passes_plain_requests_of_its_session() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        plain = [dispatcher.submit(click(x), "s") for x in range(5)]
        await until(transport.arrived, 5)
        newest = dispatcher.submit(click(9), "s", latest_wins=True)
        await until(transport.arrived, 1)
        transport.open_gate()
        assert x_of(await dispatcher.wait(newest)) == 9
        for ticket in plain:
            with pytest.raises(Cancelled):
                await dispatcher.wait(ticket)

    run(test, held=True)


def test_sessions_take_turns_in_the_client_too() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        greedy = [dispatcher.submit(click(x), "greedy") for x in range(50)]
        await until(transport.arrived, 1)
        modest = dispatcher.submit(click(99), "modest")
        transport.open_gate()
        await asyncio.gather(*(dispatcher.wait(ticket) for ticket in (*greedy, modest)))
        assert [point_of(call) for call in transport.calls].index(99) <= 3

    run(test, held=True, max_in_flight=1)


def test_the_server_is_told_of_a_request_that_took_too_long() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        transport.failure = DeadlineExceeded("no answer within the time limit")
        with pytest.raises(DeadlineExceeded):
            await dispatcher.infer(click(1), "s")
        await until(transport.told, 1)
        assert transport.cancels[0]["only"] == transport.calls[0].parameters["sequence"]

    run(test)


def test_after_the_end() -> None:
    async def test(dispatcher: Dispatcher, transport: FakeAsyncTransport) -> None:
        await dispatcher.close()
        with pytest.raises(InvalidInput, match="closed"):
            dispatcher.submit(click(1), "s")

    run(test)
