"""A Triton process's connection to a worker that answers, computes for long, or hangs."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from triton_sam.backend.core import Source
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.workers import hang_watcher
from triton_sam.backend.workers.device_link import DeviceLink, LinkEvents
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.spare import SpareKeeper
from triton_sam.engines.base import Decoded
from triton_sam.errors import TritonSamError, Unavailable
from triton_sam.server.worker_processes import SPARE

#: More than a worker can be silent for on a busy machine, and less than a request of the fake worker takes.
ASK_SECONDS, ROUNDS = 0.02, 100


class FakeOptions(WorkerOptions):
    """Starts ``fake_worker.py``."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("fake_worker.py")), self.address.removeprefix("\0")]

    @property
    def spare_command(self) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("fake_worker.py")), SPARE, str(self.server)]


class Reply:
    """Keeps the error that a request gets."""

    def __init__(self) -> None:
        self.errors: list[TritonSamError] = []
        self.answered = threading.Event()

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        raise AssertionError("a fake worker has no masks")

    def flush(self) -> None: ...

    def fail(self, error: TritonSamError) -> None:
        self.errors.append(error)
        self.answered.set()

    def is_cancelled(self) -> bool:
        return False

    @property
    def text(self) -> str:
        """The only answer."""
        assert self.answered.wait(60)
        (error,) = self.errors
        return f"{type(error).__name__}: {error}"


class Device:
    """A link, and what it has reported."""

    def __init__(self, spare: SpareKeeper | None = None) -> None:
        self.changes: list[bool] = []
        options = FakeOptions(os.getppid(), f"fake-{secrets.token_hex(8)}", "1", "sam2:tiny", "", 0, "cpu")
        events = LinkEvents(lambda *_: None, lambda *_: None, lambda _, ready: self.changes.append(ready))
        self.link = DeviceLink(options, 0, events, spare)

    def send(self, key: str, image: bytes | None = None) -> Reply:
        reply = Reply()
        self.link.submit(SegmentJob(reply, None, key), Source(image), shared=False)
        return reply

    @property
    def worker(self) -> int:
        """The pid of its worker."""
        return int(self.send("answer").text.removeprefix("InvalidInput: worker "))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setattr(hang_watcher, "_ASK_SECONDS", ASK_SECONDS)
    monkeypatch.setattr(hang_watcher, "_ROUNDS", ROUNDS)
    device = Device()
    device.link.start()
    device.link.wait_ready(60)
    yield device
    child = device.link._connector._child
    device.link.close()
    assert child is not None
    child.wait(60)


def test_a_worker_that_hangs_is_killed_and_its_requests_are_told(device: Device) -> None:
    before = device.worker
    os.kill(before, signal.SIGSTOP)
    told: list[object] = []
    device.link.ask({"is": "has", "name": "f" * 40}, told.append)
    replies = [device.send("answer") for _ in range(3)]
    assert device.link.load == 3, "new images go to other devices meanwhile"
    for reply in replies:
        assert reply.text.startswith("Unavailable:")
        assert "again" in reply.text
    eventually(lambda: told == [None], "the answer to the question")
    eventually(lambda: device.link.ready, "a new worker")
    assert device.worker != before
    assert device.changes == [True, False, True]
    assert device.link.load == 0


def test_a_worker_that_computes_for_long_is_left_alone(device: Device) -> None:
    before = device.worker
    assert device.send("compute").text == f"InvalidInput: worker {before}"
    assert device.worker == before
    assert device.changes == [True]


def test_a_thread_that_blocks_on_a_worker_that_hangs_goes_on(device: Device) -> None:
    """Bodies go through the socket once no shared memory is left; with nobody who reads, it is full soon."""
    before = device.worker
    os.kill(before, signal.SIGSTOP)
    replies: list[Reply] = []
    with contextlib.suppress(Unavailable):
        while device.changes == [True]:
            replies.append(device.send("keep", bytes(100_000)))
    assert {reply.text.partition(":")[0] for reply in replies} == {"Unavailable"}
    eventually(lambda: device.link.ready, "a new worker")
    assert device.worker != before


def test_a_worker_that_owes_nothing_may_be_silent(device: Device) -> None:
    before = device.worker
    os.kill(before, signal.SIGSTOP)
    watcher = device.link._hang_watcher
    rounds = threading.Semaphore(0)
    owing = watcher._owing
    watcher._owing = lambda: (rounds.release(), owing())[1]  # type: ignore[func-returns-value]
    for _ in range(ROUNDS + 20):
        assert rounds.acquire(timeout=60)
    os.kill(before, signal.SIGCONT)
    assert device.worker == before
