"""Large masks through memory: what a client offers, what a server writes, and what both do when it cannot."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.backend.masks_memory import handed_over, place_of
from triton_sam.client.masks_memory import LocalMasks, MasksMemory
from triton_sam.client.wire import Address, Call, Outputs
from triton_sam.core.masks_memory import LEAST_BYTES, PARAMETER, Place, receipt, received_shape
from triton_sam.errors import DeadlineExceeded, ImageExpired, InternalError, InvalidInput, QueueFull, TritonSamError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's, as the server is")

HERE = Address.parse("127.0.0.1:8000")
CALL = Call("sam3", {}, ("result_json", "masks"), {"session_id": "one"})
TOKEN = "0123456789abcdef" * 2


def some_masks(count: int, seed: int = 0, height: int = 512, row: int = 64) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, height, row), np.uint8)


LARGE, LARGER = some_masks(9, seed=1), some_masks(40, seed=2)


class Server:
    """Answers a call as the model's process does; ``here`` is False for one that cannot open the memory."""

    def __init__(self, *, here: bool = True) -> None:
        self.here = here
        self.masks: Any = LARGE
        self.failure: Exception | None = None
        #: What went through the connection.
        self.sent: list[tuple[int, ...]] = []
        self.places: list[Place | None] = []

    def answer(self, call: Call) -> Outputs:
        place = place_of(dict(call.parameters))
        self.places.append(place)
        if self.failure is not None:
            raise self.failure
        masks = self.masks if place is None or not self.here else handed_over(self.masks, place)
        self.sent.append(masks.shape)
        return {"masks": masks, "result_json": np.array([b"{}"], dtype=object)}


def open_files() -> list[str]:
    """This process's files in memory."""
    links = Path("/proc/self/fd").iterdir()
    return sorted(target for target in map(os.path.realpath, links) if "memfd:triton-sam" in target)


@pytest.fixture
def client() -> Iterator[LocalMasks]:
    client = LocalMasks(HERE)
    yield client
    client.close()


@pytest.fixture
def memory() -> Iterator[MasksMemory]:
    memory = MasksMemory(LARGE.nbytes)
    yield memory
    memory.close()


def test_the_first_large_answer_is_sent_and_the_next_ones_come_in_memory(client: LocalMasks) -> None:
    server = Server()
    for seed in range(4):
        server.masks = some_masks(9, seed)
        found = client.infer(CALL, server.answer)
        assert np.array_equal(found["masks"], server.masks)
        assert found["result_json"][0] == b"{}"
    assert server.sent == [LARGE.shape, *[(1, 1, 40)] * 3]


def test_answers_stay_as_they_are_when_the_memory_is_used_again(client: LocalMasks) -> None:
    server = Server()
    found = []
    for seed in range(3):
        server.masks = some_masks(9, seed)
        found.append(client.infer(CALL, server.answer)["masks"])
    assert all(np.array_equal(masks, some_masks(9, seed)) for seed, masks in enumerate(found))


def test_small_masks_are_sent(client: LocalMasks) -> None:
    server = Server()
    client.infer(CALL, server.answer)
    for count in (0, 1):
        server.masks = some_masks(count)
        assert server.masks.nbytes < LEAST_BYTES
        assert np.array_equal(client.infer(CALL, server.answer)["masks"], server.masks)
    assert server.sent[1:] == [(0, 512, 64), (1, 512, 64)]


def test_a_client_with_small_answers_offers_nothing(client: LocalMasks) -> None:
    server = Server()
    server.masks = some_masks(1)
    for _ in range(3):
        client.infer(CALL, server.answer)
    assert server.places == [None, None, None]


def test_the_memory_grows_with_the_answers(client: LocalMasks) -> None:
    server = Server()
    for masks in (LARGE, LARGER, LARGER, LARGE):
        server.masks = masks
        assert np.array_equal(client.infer(CALL, server.answer)["masks"], masks)
    assert server.sent == [LARGE.shape, LARGER.shape, (1, 1, 40), (1, 1, 40)]


def test_a_server_elsewhere_sends_the_masks(client: LocalMasks) -> None:
    server = Server(here=False)
    for _ in range(3):
        assert np.array_equal(client.infer(CALL, server.answer)["masks"], LARGE)
    assert server.sent == [LARGE.shape] * 3
    assert len({str(place) for place in server.places[1:]}) == 1  # the memory is not made again each time


@pytest.mark.parametrize("address", ["gpu.example:8000", "grpc://10.0.0.1:8001"])
def test_nothing_is_offered_to_another_machine(address: str) -> None:
    server = Server()
    client = LocalMasks(Address.parse(address))
    for _ in range(2):
        client.infer(CALL, server.answer)
    assert server.places == [None, None]


def test_clients_of_other_systems_need_nothing_of_linux() -> None:
    without = "import os, sys; sys.modules['fcntl'] = None; del os.memfd_create"
    script = f"{without}; from triton_sam.client.transport import connect; import triton_sam.client"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_nothing_is_offered_without_masks(client: LocalMasks) -> None:
    server = Server()
    client.infer(CALL, server.answer)
    client.infer(Call("sam3", {}, ("result_json",)), server.answer)
    assert server.places[-1] is None


def test_after_a_failure_the_old_memory_is_not_used(client: LocalMasks) -> None:
    """A server that is late may still write to it."""
    server = Server()
    for _ in range(2):
        client.infer(CALL, server.answer)
    server.failure = DeadlineExceeded("too slow")
    with pytest.raises(DeadlineExceeded):
        client.infer(CALL, server.answer)
    server.failure = None
    assert np.array_equal(client.infer(CALL, server.answer)["masks"], LARGE)
    client.infer(CALL, server.answer)
    late, none, new = server.places[2:]
    assert none is None
    assert late is not None
    assert new is not None
    assert new.token != late.token
    assert handed_over(LARGER, late) is LARGER  # it is gone


@pytest.mark.parametrize("failure", [InvalidInput("no"), QueueFull("full"), ImageExpired("gone")])
def test_after_an_answer_that_refuses_the_memory_is_kept(client: LocalMasks, failure: TritonSamError) -> None:
    server = Server()
    for _ in range(2):
        client.infer(CALL, server.answer)
    server.failure = failure
    with pytest.raises(type(failure)):
        client.infer(CALL, server.answer)
    server.failure = None
    client.infer(CALL, server.answer)
    assert len(set(server.places[1:])) == 1


def test_after_a_request_that_was_sent_again_the_old_memory_is_not_used(client: LocalMasks) -> None:
    server = Server()

    def twice(call: Call) -> Outputs:
        client.sent_again()
        return server.answer(call)

    client.infer(CALL, server.answer)
    assert np.array_equal(client.infer(CALL, twice)["masks"], LARGE)
    for _ in range(2):
        client.infer(CALL, server.answer)
    _, old, none, new = server.places
    assert none is None
    assert old is not None
    assert new is not None
    assert new.token != old.token


def test_each_thread_has_its_own(client: LocalMasks) -> None:
    server, places = Server(), []

    def ask() -> None:
        for _ in range(2):
            client.infer(CALL, server.answer)
        places.append(server.places[-1])

    before = open_files()
    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert len({place.token for place in places if place is not None}) == 2
    gc.collect()
    assert open_files() == before


def test_a_forked_process_does_not_share_it(client: LocalMasks, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    for _ in range(2):
        client.infer(CALL, server.answer)
    assert server.places[-1] is not None
    monkeypatch.setattr(os, "getpid", lambda: 1)
    client.infer(CALL, server.answer)
    assert server.places[-1] is None


def test_all_is_given_back() -> None:
    before = open_files()
    client, server = LocalMasks(HERE), Server()
    for masks in (LARGE, LARGER, LARGE):
        server.masks = masks
        client.infer(CALL, server.answer)
    assert len(set(open_files()) - set(before)) == 1
    client.close()
    assert open_files() == before


# -- the server ----------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_such_memory_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / f"memfd:triton-sam-{TOKEN} (deleted)"
    file.write_bytes(b"mine" * 2**20)
    with file.open("r+b") as opened:
        assert handed_over(LARGE, Place(os.getpid(), opened.fileno(), TOKEN)) is LARGE
    assert file.read_bytes() == b"mine" * 2**20


def test_a_file_that_only_has_the_name_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another mount namespace can show any file of a disk under such a name."""
    file = tmp_path / "victim"
    file.write_bytes(b"mine" * 2**20)
    with file.open("r+b") as opened:
        place = Place(os.getpid(), opened.fileno(), TOKEN)
        monkeypatch.setattr(Path, "readlink", lambda path: Path(f"/memfd:{place.name} (deleted)"))
        assert handed_over(LARGE, place) is LARGE
    assert file.read_bytes() == b"mine" * 2**20


def test_nobody_can_cut_the_memory_off(memory: MasksMemory) -> None:
    with Path(memory.place.path).open("r+b") as opened, pytest.raises(PermissionError):
        opened.truncate(0)


def test_a_number_that_belongs_to_another_file_now_is_not_closed(tmp_path: Path) -> None:
    memory = MasksMemory(LARGE.nbytes)
    descriptor = memory.place.descriptor
    with (tmp_path / "other").open("wb") as other:
        os.dup2(other.fileno(), descriptor)  # as a program that closes all its files and opens others
    memory.close()
    assert os.fstat(descriptor).st_size == 0
    os.close(descriptor)
    memory.close()


def test_memory_of_another_name_is_left_as_it_is() -> None:
    descriptor = os.memfd_create("triton-sam-" + TOKEN[::-1])
    try:
        os.ftruncate(descriptor, LARGE.nbytes)
        assert handed_over(LARGE, Place(os.getpid(), descriptor, TOKEN)) is LARGE
        assert not any(os.pread(descriptor, LARGE.nbytes, 0))
    finally:
        os.close(descriptor)


def test_memory_that_is_too_small_is_not_written(memory: MasksMemory) -> None:
    assert handed_over(LARGER, memory.place) is LARGER
    assert not memory.masks(LARGE.shape).any()


@pytest.mark.parametrize("place", [Place(2**31 - 1, 3, TOKEN), Place(os.getpid(), 9_999_999, TOKEN)])
def test_a_process_or_file_that_does_not_exist(place: Place) -> None:
    assert handed_over(LARGE, place) is LARGE


def test_masks_that_are_not_in_one_piece(memory: MasksMemory) -> None:
    turned = LARGE.transpose(0, 2, 1)
    shape = received_shape(handed_over(turned, memory.place), memory.place)
    assert shape == turned.shape
    assert np.array_equal(memory.masks(shape), turned)


@pytest.mark.parametrize(
    "text", ["1", "1/2", f"0/3/{TOKEN}", f"1/3/{TOKEN}0", f"1/-3/{TOKEN}", f"../3/{TOKEN}", "1/3/" + "g" * 32]
)
def test_a_malformed_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"masks_memory is process/descriptor/token, not '"):
        place_of({PARAMETER: text})


@pytest.mark.parametrize("shape", [(10, 2**20, 64), (-1, -1, 64), (0, -5, 3)])
def test_sizes_that_cannot_be(shape: tuple[int, ...], memory: MasksMemory) -> None:
    with pytest.raises(InternalError, match="cannot be read"):
        memory.masks(shape)


# -- what both know ------------------------------------------------------------------------------------------------

PLACES = st.builds(
    Place, st.integers(1, 2**31 - 1), st.integers(0, 9_999_999), st.text("0123456789abcdef", min_size=32, max_size=32)
)


@given(PLACES)
def test_a_place_is_read_as_it_is_written(place: Place) -> None:
    assert Place.parse(str(place)) == place


@given(PLACES, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6)))
def test_a_receipt_is_read_as_it_is_written(place: Place, shape: tuple[int, int, int]) -> None:
    assert received_shape(receipt(place, shape), place) == shape


@given(PLACES, st.integers(0, 3), st.integers(0, 3), st.integers(0, 64))
def test_masks_are_no_receipt(place: Place, count: int, height: int, row: int) -> None:
    assert received_shape(some_masks(count, 0, height, row), place) is None
