"""Messages and shared memory between a Triton process and a worker."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import eventually
from triton_sam.backend.core import Source
from triton_sam.backend.jobs import SegmentJob, SegmentReply
from triton_sam.backend.workers.channel import Channel, Message, accept, address_of, connect
from triton_sam.backend.workers.channel_reader import ChannelReader
from triton_sam.backend.workers.links import Link
from triton_sam.backend.workers.result_blocks import ResultBlocks
from triton_sam.backend.workers.shared_slots import SIZES, SharedSlots, new_memory
from triton_sam.backend.workers.wire import pack_job

LARGEST = SIZES[-1][0]
SLOTS = sum(count for _, count in SIZES)


def connected_ends() -> tuple[Channel, Channel]:
    """(the Triton process's end, the worker's end)."""
    address = address_of(os.getpid(), f"test-{threading.get_ident()}", "1", 0)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    near = connect(address)
    connection, _ = listener.accept()
    results = ResultBlocks()
    far = accept(connection, results.descriptor)
    os.close(results.descriptor)
    listener.close()
    return near, far


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    near, far = connected_ends()
    yield near, far
    near.close()
    far.close()


@given(st.lists(st.binary(max_size=5000), max_size=4))
def test_a_slot_returns_what_was_written(parts: list[bytes]) -> None:
    slots = SharedSlots(new_memory())
    slot = slots.write(parts)
    assert slot is not None
    whole = b"".join(parts)
    assert bytes(slots.view(slot, len(whole))) == whole
    slots.free(slot)
    assert slots.in_use == 0


def test_slots_of_both_processes_are_the_same_memory() -> None:
    descriptor = new_memory()
    reader, writer = SharedSlots(os.dup(descriptor)), SharedSlots(descriptor)
    slots = [writer.write([bytes([number]) * 100]) for number in range(SLOTS)]
    assert None not in slots
    assert len(set(slots)) == SLOTS
    assert writer.write([b"one too many"]) is None
    assert [reader.view(slot, 1)[0] for slot in slots if slot is not None] == list(range(SLOTS))
    assert slots[7] is not None
    reader.free(slots[7])
    assert writer.write([b"again"]) == slots[7]


@pytest.mark.parametrize("size", [0, 10, 100_000, SIZES[0][0], SIZES[0][0] + 1, LARGEST, LARGEST + 1])
def test_messages_of_all_sizes(ends: tuple[Channel, Channel], size: int) -> None:
    near, far = ends
    body = os.urandom(size)
    sender = threading.Thread(target=near.send, args=({"is": "work", "number": 3}, [body[:7], memoryview(body)[7:]]))
    sender.start()
    message = next(far.messages())
    sender.join()
    assert message.header == {"is": "work", "number": 3}
    assert bytes(message.body) == body
    message.release()


def test_many_messages_in_both_directions_stay_in_order_and_free_their_slots(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    count = 3 * SLOTS

    def echo() -> None:
        for message in far.messages():
            far.send(message.header, [bytes(message.body)])
            message.release()

    threading.Thread(target=echo, daemon=True).start()
    bodies = [bytes([number % 251]) * (20_000 + number) for number in range(count)]

    def send() -> None:
        for number, body in enumerate(bodies):
            near.send({"number": number}, [body])

    threading.Thread(target=send, daemon=True).start()
    answers = near.messages()
    for number in range(count):
        message = next(answers)
        assert message.header["number"] == number
        assert bytes(message.body) == bodies[number]
        message.release()
    eventually(lambda: near._outgoing.in_use == 0, "the other end frees the last slot")
    assert near._incoming.in_use == 0


def test_bodies_that_nobody_releases_go_through_the_socket_in_the_end(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    received = far.messages()
    kept = []
    for number in range(SLOTS + 20):
        near.send({"number": number}, [bytes([number % 251]) * 20_000])
        kept.append(next(received))
    assert [bytes(message.body[:1])[0] for message in kept] == [number % 251 for number in range(SLOTS + 20)]


def test_the_end_of_one_side_ends_the_other(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    near.close()
    assert list(far.messages()) == []
    with pytest.raises(BrokenPipeError):
        far.send({"is": "result"}, [b"x" * 1000])


def test_a_message_that_may_be_dropped_never_blocks(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    for _ in range(10_000):  # more than a socket holds
        near.send_if_free({"is": "alive"})
    near.end()
    arrived = [message.header for message in far.messages()]
    assert 0 < len(arrived) < 10_000
    assert all(header == {"is": "alive"} for header in arrived), "each one whole"


def test_the_end_of_a_connection_releases_a_sender(ends: tuple[Channel, Channel]) -> None:
    near, _ = ends
    refused: list[OSError] = []

    def send() -> None:
        try:
            near.send({"is": "work"}, [bytes(2 * LARGEST)])  # too large for a slot, and nobody reads
        except OSError as error:
            refused.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    eventually(near._send_lock.locked, "the sender")
    near.end()
    sender.join(60)
    assert len(refused) == 1


def test_a_worker_says_that_it_is_alive_while_it_computes(ends: tuple[Channel, Channel]) -> None:
    near, far = ends
    core: Any = SimpleNamespace(unanswered=2, submit=lambda job, source: None)  # two requests that are not done
    links: Any = None
    ChannelReader().add(far, Link(links, core, far).take, lambda: None)
    header, parts = pack_job(SegmentJob(cast("SegmentReply", None), None, "key"), Source(b"image"))
    near.send({"is": "work", "number": 1, "shared": False, "job": header}, parts)
    near.send_if_free({"is": "alive"})
    assert next(near.messages()).header == {"is": "alive", "load": 2}


def test_one_thread_reads_several_channels_until_they_end() -> None:
    reader = ChannelReader()
    pairs = [connected_ends() for _ in range(3)]
    taken: queue.Queue[tuple[int, Any]] = queue.Queue()
    for number, (_, far) in enumerate(pairs):

        def take(message: Message, number: int = number) -> None:
            if message.header["is"] == "bad":
                raise ValueError
            taken.put((number, message.header["value"]))

        reader.add(far, take, lambda number=number: taken.put((number, "ended")))  # type: ignore[misc]
    for number, (near, _) in enumerate(pairs):
        near.send({"is": "bad"})
        near.send({"is": "work", "value": number * 10})
        assert taken.get(timeout=60) == (number, number * 10), "an error costs one message only"
    pairs[1][0].close()
    assert taken.get(timeout=60) == (1, "ended")
    pairs[2][0].send({"is": "work", "value": 7})
    assert taken.get(timeout=60) == (2, 7)
    for near, far in pairs:
        near.close()
        far.close()


def test_a_stranger_is_refused() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"GET /")
        with pytest.raises(ConnectionError):
            accept(other, -1)
