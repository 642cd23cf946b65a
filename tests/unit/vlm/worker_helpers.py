"""Fakes for tests of the worker: an engine, a memory ledger and replies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from triton_sam.backend.vlm_worker import VlmJob, VlmWorker
from triton_sam.engines.vlm.base import Ending
from triton_sam.settings import Settings

PATIENCE = 20.0
END = Ending("stop", 1, 1)


class Asker:
    """A reply that records the response; its question is its name."""

    def __init__(self, name: Any = "", gone: bool = False) -> None:
        self.name = name
        self.gone = gone
        self.said: list[str] = []
        self.error: Exception | None = None
        self.ended = False
        self.done = threading.Event()

    def piece(self, text: str) -> None:
        self.said.append(text)

    def end(self, ending: Ending) -> None:
        self._finish(None)

    def fail(self, error: Exception) -> None:
        if not self.ended:
            self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        self.error, self.ended = error, True
        self.done.set()

    def is_gone(self) -> bool:
        return self.gone

    def job(self) -> VlmJob:
        return VlmJob(lambda: self.name, self)

    def wait(self) -> Asker:
        assert self.done.wait(PATIENCE), "no answer came"
        return self


class FakeEngine:
    """Answers with the question; ``during`` is called in the middle of a batch."""

    nbytes = 1

    def __init__(self, batch: int = 4, concurrent: bool = True, during: Callable[[Any], None] | None = None) -> None:
        self.batch, self.concurrent = batch, concurrent
        self.during = during or (lambda names: None)
        self.batches: list[list[Any]] = []

    def prepare(self, question: Any) -> Any:
        if isinstance(question, Exception):
            raise question
        return question

    def answer(self, prepared: Sequence[Any], listeners: Sequence[Any]) -> None:
        self.batches.append(list(prepared))
        self.during(prepared)
        for name, listener in zip(prepared, listeners, strict=True):
            if name != "silent":
                listener.piece(str(name))
                listener.end(END)


class FakeMemory:
    def __init__(self) -> None:
        self.asked_to_leave = False
        self.left = threading.Event()
        self.on_leave: Callable[[], None] = lambda: None

    def touch(self, *, busy: bool) -> None:
        pass

    def leave(self) -> None:
        self.on_leave()
        self.asked_to_leave = False
        self.left.set()


@contextmanager
def working(load: Callable[[], Any], memory: Any = None, count: Any = None, **settings: Any) -> Iterator[VlmWorker]:
    options = {"vlm_gather_ms": 0, **settings}
    before = set(threading.enumerate())
    worker = VlmWorker("fake", load, memory or FakeMemory(), Settings(**options), *([count] if count else []))
    try:
        yield worker
    finally:
        worker.close()
    left = [thread.name for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    assert left == [], "threads are left after close"


def ask(worker: VlmWorker, *names: Any) -> list[Asker]:
    askers = [Asker(name) for name in names]
    for asker in askers:
        worker.submit(asker.job())
    return askers
