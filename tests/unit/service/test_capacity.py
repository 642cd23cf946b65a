from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from triton_sam.errors import QueueFull
from triton_sam.service.admission.capacity import DecodingSlots, LocalTally, ServiceCapacity, Tally
from triton_sam.service.admission.connections import ConnectionLimit
from triton_sam.service.routes.embedding_models import SharedEmbeddingModels
from triton_sam.service.shared_limits import SharedLimits

CHAT = "/chat"


@pytest.fixture(params=["one process", "several"])
def tally(request: pytest.FixtureRequest, tmp_path: Path) -> Tally:
    return LocalTally() if request.param == "one process" else SharedLimits(tmp_path / "limits", 2).tally(1)


def test_a_refused_request_leaves_nothing_behind(tally: Tally) -> None:
    capacity = ServiceCapacity(2, {CHAT: 1}, max_bytes=10, tally=tally)
    capacity.add(CHAT, arriving=1)
    capacity.add(CHAT, working=1, arriving=-1)
    with pytest.raises(QueueFull, match="1 requests to /chat"):
        capacity.check(CHAT)
    capacity.add(CHAT, arriving=1)
    with pytest.raises(QueueFull, match="1 requests to /chat"):
        capacity.add(CHAT, working=1, arriving=-1)
    assert (tally.total("arriving"), tally.total("working"), tally.total("part 0")) == (1, 1, 1)
    capacity.add(CHAT, arriving=-1)
    capacity.add("/", working=1)
    assert capacity.is_full
    for path in ("/", CHAT):
        with pytest.raises(QueueFull):
            capacity.add(path, working=1)
    capacity.add(CHAT, working=-1)
    capacity.add("/", working=-1)
    assert (tally.total("arriving"), tally.total("working"), tally.total("part 0")) == (0, 0, 0)


def test_no_slot_of_a_path_is_taken_while_all_are(tally: Tally) -> None:
    capacity = ServiceCapacity(1, {CHAT: 1}, max_bytes=10, tally=tally)
    capacity.add("/", working=1)
    with pytest.raises(QueueFull, match="1 requests are already in progress"):
        capacity.add(CHAT, working=1)
    assert tally.total("part 0") == 0


def test_bodies_and_arriving_requests(tally: Tally) -> None:
    capacity = ServiceCapacity(1, {}, max_bytes=10, tally=tally)
    capacity.hold_bytes(8)
    with pytest.raises(QueueFull, match="use 8 of 10 bytes"):
        capacity.hold_bytes(3)
    capacity.release_bytes(8)
    assert capacity.bytes_held == 0
    for _ in range(4):
        capacity.add("/", arriving=1)
    with pytest.raises(QueueFull, match="4 requests are already being received"):
        capacity.add("/", arriving=1)
    assert tally.total("arriving") == 4


def test_sockets(tally: Tally) -> None:
    capacity = ServiceCapacity(1, {}, max_bytes=1, max_sockets=1, tally=tally)
    capacity.open_socket()
    with pytest.raises(QueueFull, match="too many hover WebSockets"):
        capacity.open_socket()
    capacity.close_socket()
    capacity.open_socket()


def test_connections_of_a_process_and_of_all(tmp_path: Path) -> None:
    limits = SharedLimits(tmp_path / "limits", 2)
    one, two = (ConnectionLimit(3, 4, limits.tally(row)) for row in (0, 1))
    assert not any((one.count(1), one.count(2), one.count(3), two.count(1)))
    assert two.count(2), "five of four"
    assert not two.count(1)
    assert one.count(4), "four of three"
    assert not one.count(0)
    assert not two.count(3)
    assert limits.tally(0).total("connections") == 3


def test_images_are_decoded_by_so_many_processes_at_a_time(tmp_path: Path) -> None:
    limits = SharedLimits(tmp_path / "limits", 2)

    async def run() -> None:
        here, there = DecodingSlots(1, limits.tally(0)), DecodingSlots(1, limits.tally(1))
        async with here:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(there.__aenter__(), 0.1)
        async with there:
            assert limits.tally(0).total("decoding") == 1
        assert limits.tally(0).total("decoding") == 0

    asyncio.run(run())


def test_the_models_of_embeddings_are_known_to_all_processes(tmp_path: Path) -> None:
    here, there = SharedEmbeddingModels(tmp_path), SharedEmbeddingModels(tmp_path)
    for index in range(600):
        here.remember(f"{index:064x}", "sam2")
    assert there.model_of(f"{599:064x}") == "sam2"
    assert there.model_of(f"{0:064x}") is None
    assert len(list(tmp_path.iterdir())) == 512
    there.remember(f"{599:064x}", "sam1")
    assert here.model_of(f"{599:064x}") == "sam1"
    SharedEmbeddingModels(tmp_path / "missing").remember("a" * 64, "sam2")


def test_background_requests_leave_half_for_people(tally: Tally) -> None:
    capacity = ServiceCapacity(8, {CHAT: 4}, max_bytes=100, tally=tally)
    for number in range(4):
        capacity.add(CHAT if number < 2 else "/", working=1)
        capacity.check_background("/")
    capacity.check_background(CHAT)
    capacity.hold_bytes(51)
    with pytest.raises(QueueFull, match="bodies of 4 requests use 51 bytes"):
        capacity.check_background("/")
    capacity.release_bytes(1)
    capacity.check_background("/")
    capacity.add(CHAT, working=1)
    with pytest.raises(QueueFull, match="half of the slots are left for people"):
        capacity.check_background("/")
    capacity.add("/", working=-1)
    with pytest.raises(QueueFull, match="half of the 4 slots of /chat"):
        capacity.check_background(CHAT)


def test_one_background_request_is_taken_in_the_end(tally: Tally) -> None:
    """However few places and however large its body."""
    capacity = ServiceCapacity(1, {CHAT: 1}, max_bytes=10, tally=tally)
    capacity.add(CHAT, working=1)
    capacity.hold_bytes(10)
    capacity.check_background(CHAT)
