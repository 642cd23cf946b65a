"""How a worker lets its model go: idle, asked to, and at the end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.vlm.worker_helpers import PATIENCE, FakeEngine, FakeMemory, ask, working
from triton_sam.backend.vlm_worker import VlmWorker
from triton_sam.errors import (
    Unavailable,
)
from triton_sam.settings import Settings


def test_idle_unloads_and_the_next_question_loads_again() -> None:
    memory, loads = FakeMemory(), []

    def load() -> FakeEngine:
        loads.append(1)
        return FakeEngine()

    with working(load, memory, vlm_idle_seconds=0.05) as worker:
        for _ in range(2):
            assert ask(worker, "a")[0].wait().said == ["a"]
            assert memory.left.wait(PATIENCE)
            memory.left.clear()
    assert len(loads) == 2


def test_an_unloaded_engine_is_gone_before_others_are_told_so() -> None:
    """Or the next model would be loaded into memory that is not free."""
    memory, alive = FakeMemory(), []
    engines: list[weakref.ref[FakeEngine]] = []

    def load() -> FakeEngine:
        engine = FakeEngine()
        engines.append(weakref.ref(engine))
        return engine

    memory.on_leave = lambda: alive.append(engines[-1]() is not None)
    with working(load, memory, vlm_idle_seconds=0.3) as worker:
        for name in "abc":
            ask(worker, name)[0].wait()
        assert memory.left.wait(PATIENCE)
        assert alive == [False]


def test_who_is_asked_to_leave_while_busy_leaves_when_idle() -> None:
    memory, begun, go = FakeMemory(), threading.Event(), threading.Event()

    def during(names: Sequence[Any]) -> None:
        begun.set()
        assert go.wait(PATIENCE)
        busy_at_leave.append(memory.left.is_set())

    busy_at_leave: list[bool] = []
    with working(lambda: FakeEngine(during=during), memory) as worker:
        asker = ask(worker, "a")[0]
        assert begun.wait(PATIENCE)
        memory.asked_to_leave = True
        assert not memory.left.wait(0.3)
        go.set()
        assert asker.wait().said == ["a"]
        assert memory.left.wait(PATIENCE)
    assert busy_at_leave == [False]


def test_who_left_for_another_loads_again_for_those_who_wait() -> None:
    memory, loads = FakeMemory(), []

    def load() -> FakeEngine:
        loads.append(1)
        return FakeEngine()

    with working(load, memory) as worker:
        ask(worker, "a")[0].wait()
        memory.asked_to_leave = True
        assert memory.left.wait(PATIENCE)
        assert ask(worker, "b")[0].wait().said == ["b"]
    assert len(loads) == 2


def test_close_finishes_what_is_answered_and_refuses_what_waits() -> None:
    begun, go = threading.Event(), threading.Event()

    def during(names: Sequence[Any]) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    with working(lambda: FakeEngine(batch=1, during=during), vlm_lanes=1) as worker:
        first, second = ask(worker, 1, 2)
        assert begun.wait(PATIENCE)
        closer = threading.Thread(target=worker.close)
        closer.start()
        assert isinstance(second.wait().error, Unavailable)
        go.set()
        assert first.wait().said == ["1"]
        closer.join(PATIENCE)
        with pytest.raises(Unavailable, match="stopping"):
            ask(worker, 3)


def test_close_while_loading_leaves_no_engine_behind() -> None:
    memory, begun, go = FakeMemory(), threading.Event(), threading.Event()
    engines: list[weakref.ref[FakeEngine]] = []
    loader: list[threading.Thread] = []

    def load() -> FakeEngine:
        loader.append(threading.current_thread())
        begun.set()
        assert go.wait(PATIENCE)
        engine = FakeEngine()
        engines.append(weakref.ref(engine))
        return engine

    worker = VlmWorker("fake", load, memory, Settings())
    asker = ask(worker, 1)[0]
    assert begun.wait(PATIENCE)
    closer = threading.Thread(target=worker.close)
    closer.start()
    assert isinstance(asker.wait().error, Unavailable)
    closer.join(0.5)  # either it waits for the loader, or the loader has to tidy up by itself
    go.set()
    closer.join(PATIENCE)
    loader[0].join(PATIENCE)
    assert engines[0]() is None
    assert memory.left.is_set()
