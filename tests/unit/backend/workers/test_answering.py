"""Answers that a Triton process builds of what its worker has found: clicks do not wait, and a cancel stops them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, cast

import numpy as np
import pytest

from tests.unit.backend.concept_helpers import PICTURE, Mail, asked, colour_embedding, find
from tests.unit.backend.scheduler_helpers import Inbox, embedding, prompt
from tests.waiting import eventually
from triton_sam.backend import concept_replies, replies
from triton_sam.backend.concept_queue import MOST_ROWS
from triton_sam.backend.core import LocalCore, Source
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.replies import ModelInfo
from triton_sam.backend.workers import device_link
from triton_sam.backend.workers.answering import Withdrawn
from triton_sam.backend.workers.channel import Message, connect
from triton_sam.backend.workers.device_link import DeviceLink, LinkEvents
from triton_sam.backend.workers.links import Links
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.remote_core import WorkerCore
from triton_sam.backend.workers.wire import pack_result
from triton_sam.engines.base import Decoded
from triton_sam.errors import Cancelled, QueueFull

#: Sixteen instances.
MANY = {"text": "red", "score_threshold": 0}


class Masks:
    """Counts the masks that are made, and holds all from the second one on."""

    def __init__(self) -> None:
        self.made = 0
        self.arrived, self.gate = threading.Event(), threading.Event()
        self._rle = replies._rle

    def __call__(self, *what: Any) -> dict[str, Any]:
        self.made += 1
        if self.made == 2:
            self.arrived.set()
        assert self.made < 2 or self.gate.wait(10)
        return self._rle(*what)


class Worker:
    """The worker's end of a link, which is the test."""

    def __init__(self) -> None:
        options = WorkerOptions(os.getppid(), "fake", "1", "sam2:tiny", "", 0, "cpu")
        self.link = DeviceLink(options, 0, LinkEvents(*[lambda *_: None] * 3))
        self.link._channel = cast("Any", self)
        self.sent: list[dict[str, Any]] = []
        self.released = 0

    def send(self, header: dict[str, Any], parts: object = ()) -> None:
        self.sent.append(header)

    def close(self) -> None:
        """Nothing to close."""

    def say(self, header: dict[str, Any], body: bytes = b"") -> None:
        self.link._take(Message(header, body, self._release))

    def _release(self) -> None:
        self.released += 1

    def concepts(self, **fields: Any) -> Mail:
        """Sends a request for concepts, and its result back at once."""
        job = asked(MANY, **fields)
        self.link.submit(job, Source(), shared=False)
        done = asked(MANY, colour_embedding(PICTURE))
        done.instances = [find(row) for row in done.concept_rows()]
        self._result(done, [instances.decoded for instances in done.instances])
        return cast("Mail", job.reply)

    def click(self) -> Inbox:
        inbox = Inbox()
        self.link.submit(SegmentJob(inbox, prompt(), "key"), Source(), shared=False)
        done = SegmentJob(Inbox(), prompt(), "key", embedding=embedding())
        self._result(done, [Decoded(np.ones(1, np.float32), np.ones((1, 2, 2), np.float32))])
        return inbox

    def _result(self, done: SegmentJob, decoded: list[Decoded]) -> None:
        header, parts = pack_result(done, decoded, None)
        self.say({"is": "result", "number": self.sent[-1]["number"], "result": header}, b"".join(parts))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Masks:
    held = Masks()
    monkeypatch.setattr(replies, "_rle", held)
    monkeypatch.setattr(concept_replies, "ASK_SECONDS", -1.0)
    return held


@pytest.fixture
def worker(held: Masks) -> Iterator[Worker]:
    worker = Worker()
    yield worker
    held.gate.set()
    worker.link.close()


def core_of(worker: Worker) -> WorkerCore:
    core = WorkerCore.__new__(WorkerCore)
    core._links = [worker.link]
    return core


def test_a_click_does_not_wait_for_concepts(worker: Worker, held: Masks) -> None:
    waiting = [worker.concepts() for _ in range(device_link._FINISHERS + 1)]
    assert held.arrived.wait(10)
    assert isinstance(worker.click().get(), list)
    assert held.made == 2, "they are built one after the other"
    held.gate.set()
    for mail in waiting:
        assert len(mail.answer["json"]["masks"]) == 16
    eventually(lambda: worker.released == len(waiting) + 1, "the memory of all")


def test_a_cancel_stops_them_between_two_masks(worker: Worker, held: Masks) -> None:
    mine, other = worker.concepts(session="mine", sequence=4), worker.concepts(session="other")
    waiting = worker.concepts(session="mine", sequence=5)
    assert held.arrived.wait(10)
    counts: list[int] = []
    for which in ({"session": "mine", "before": 5, "only": None}, {"session": "mine", "before": None, "only": None}):
        core_of(worker).cancel(**which, done=counts.append)
        worker.say({"is": "done", "number": worker.sent[-1]["number"], "value": 1})
    assert counts == [2, 2], "one on the worker, and one here"
    for mail in (mine, waiting):
        assert isinstance(mail.error, Cancelled)
    held.gate.set()
    assert len(other.answer["json"]["masks"]) == 16
    assert held.made == 2 + 16
    eventually(lambda: worker.released == 3, "the memory of all")
    assert mine.outputs.empty()


def test_another_process_heard_the_cancel(worker: Worker, held: Masks) -> None:
    mail = worker.concepts(session="mine", sequence=4)
    assert held.arrived.wait(10)
    for only in (3, 4):
        worker.say({"is": "withdrawn", "session": "mine", "before": None, "only": only})
        assert mail.outputs.empty() is (only == 3)
    assert isinstance(mail.error, Cancelled)


def test_a_newer_request_of_the_session_replaces_them(worker: Worker, held: Masks) -> None:
    newest = worker.concepts(session="mine", latest_wins=True, sequence=9)
    assert held.arrived.wait(10)
    old, counted = worker.concepts(session="mine", sequence=3), worker.concepts(session="mine", sequence=7)
    worker.concepts(session="mine", latest_wins=True, sequence=5)
    assert isinstance(old.error, Cancelled)
    held.gate.set()
    assert newest.answer
    assert counted.answer


def test_nothing_is_built_for_somebody_who_is_gone(worker: Worker, held: Masks) -> None:
    mail = worker.concepts()
    assert held.arrived.wait(10)
    mail._gone = True
    held.gate.set()
    assert isinstance(mail.error, Cancelled)
    assert held.made == 2


def test_results_that_wait_for_their_answer_count(worker: Worker, held: Masks) -> None:
    waiting = [worker.concepts() for _ in range(MOST_ROWS)]
    with pytest.raises(QueueFull, match="128 concepts are waiting"):
        worker.concepts()
    assert isinstance(worker.click().get(), list)
    worker.link.answers.cancel(Withdrawn("nobody"))
    for mail in waiting:
        mail._gone = True
    held.gate.set()
    eventually(lambda: not worker.link.answers, "the end of all")
    assert worker.concepts().answer


def test_a_worker_passes_a_cancel_on_to_the_other_processes() -> None:
    class Core:
        info, unanswered = ModelInfo("fake", "1", "float32"), 0
        on_cpu = starts_slowly = takes_concepts = True
        crowded = False

        def cancel(self, session: str, before: int | None, only: int | None, done: Callable[[int], None]) -> None:
            done(1)

    options = WorkerOptions(os.getpid(), "passing on", "1", "sam2:tiny", "", 0, "cpu")
    links = Links(options)
    links.core = cast("LocalCore", Core())
    links._loaded.set()
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener, ExitStack() as open_ones:
        listener.bind(options.address)
        listener.listen()
        processes = []
        for _ in range(2):
            processes.append(open_ones.enter_context(closing(connect(options.address))))
            links.add(listener.accept()[0])
        arriving = [process.messages() for process in processes]
        assert [next(messages).header["is"] for messages in arriving] == ["hello", "hello"]
        eventually(lambda: links.count == 2, "both processes")
        which = {"session": "mine", "before": 7, "only": None}
        processes[0].send({"is": "cancel", "number": 1, **which})
        told = next(arriving[1]).header
        assert {name: told[name] for name in which} == which
        assert told["is"] == "withdrawn"
        answer = next(arriving[0]).header
        assert (answer["is"], answer["value"]) == ("done", 1)
