"""Which models are in memory: processes agree through a folder, and whoever is used least leaves first."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from triton_sam.backend import vlm_memory
from triton_sam.backend.vlm_memory import MemoryLedger, free_memory
from triton_sam.errors import Unavailable

PATIENCE = 30.0
CONTEXT = multiprocessing.get_context("spawn")


def ledger(folder: Path, name: str = "mine", budget: int = 100, evicts: bool = True, free: int = 0) -> MemoryLedger:
    return MemoryLedger(folder, name, budget=budget, evicts=evicts, free=lambda device: free)


@pytest.fixture
def neighbour() -> Any:
    """Writes the entry of another process: this test's parent, which is alive, or a made-up one."""

    def write(
        folder: Path,
        name: str,
        nbytes: int,
        used: float,
        device: str = "cpu",
        pid: int | None = None,
        started: int | None = None,
    ) -> Path:
        pid = os.getppid() if pid is None else pid
        entry = folder / f"{name}.{pid}.json"
        started = vlm_memory._started(pid) if started is None else started
        document = {"name": name, "pid": pid, "started": started, "device": device, "nbytes": nbytes, "used": used}
        entry.write_text(json.dumps(document))
        return entry

    return write


def test_a_budget_is_shared(tmp_path: Path, neighbour: Any) -> None:
    mine = ledger(tmp_path)
    neighbour(tmp_path, "other", 70, 1.0)
    neighbour(tmp_path, "elsewhere", 90, 1.0, device="cuda")
    assert mine.available("cpu") == 100
    assert ledger(tmp_path, "third", evicts=False).available("cpu") == 30
    assert mine.make_room("cpu", 30) == []


def test_without_a_budget_it_is_what_is_free(tmp_path: Path, neighbour: Any) -> None:
    neighbour(tmp_path, "other", 70, 1.0)
    assert ledger(tmp_path, budget=0, free=40).available("cpu") == 110
    refuses = ledger(tmp_path, budget=0, free=40, evicts=False)
    assert refuses.available("cpu") == 40
    assert refuses.make_room("cpu", 40) == []
    with pytest.raises(Unavailable):
        refuses.make_room("cpu", 41)


def test_its_own_entry_does_not_count(tmp_path: Path) -> None:
    mine = ledger(tmp_path)
    mine.arrive("cpu", 80)
    assert mine.others() == []
    assert mine.make_room("cpu", 100) == []
    mine.leave()
    mine.leave()
    assert [path.name for path in tmp_path.iterdir()] == []


def test_refusing_says_who_is_there_and_the_mend(tmp_path: Path, neighbour: Any) -> None:
    neighbour(tmp_path, "other", 70, 1.0)
    with pytest.raises(Unavailable, match=r"mine needs .* \(loaded: other\): set TRITON_SAM_VLM_WHEN_FULL=evict"):
        ledger(tmp_path, evicts=False).make_room("cpu", 31)


def test_alone_and_too_large(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no other model\): stop other programs"):
        ledger(tmp_path).make_room("cpu", 101)


def test_those_who_answer_are_not_asked(tmp_path: Path, neighbour: Any) -> None:
    neighbour(tmp_path, "busy", 70, float("inf"))
    with pytest.raises(Unavailable, match="these models are busy, so try again in a moment"):
        ledger(tmp_path).make_room("cpu", 31)
    assert not list(tmp_path.glob("*.leave"))


def test_a_killed_process_is_swept(tmp_path: Path, neighbour: Any) -> None:
    child = CONTEXT.Process(target=time.time)
    child.start()
    child.join(PATIENCE)
    entry = neighbour(tmp_path, "dead", 70, 1.0, pid=child.pid)
    assert ledger(tmp_path).make_room("cpu", 100) == []
    assert not entry.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "x"}', '{"name": "x", "what": 1}'])
def test_damaged_entries_do_no_harm(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.1.json").write_text(text)
    assert ledger(tmp_path).make_room("cpu", 100) == []


def test_an_old_notice_is_not_for_who_arrives_later(tmp_path: Path) -> None:
    mine = ledger(tmp_path)
    (tmp_path / f"mine.{os.getpid()}.leave").touch()
    assert mine.asked_to_leave
    mine.arrive("cpu", 1)
    assert not mine.asked_to_leave


def test_one_who_does_not_leave_is_not_waited_for_for_ever(
    tmp_path: Path, neighbour: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vlm_memory, "_LEAVE_SECONDS", 0.1)
    neighbour(tmp_path, "stubborn", 70, 1.0)
    with pytest.raises(Unavailable, match="stubborn did not free the memory that mine needs"):
        ledger(tmp_path).make_room("cpu", 31)


def test_nobody_leaves_for_what_would_not_fit_anyway(tmp_path: Path, neighbour: Any) -> None:
    neighbour(tmp_path, "small", 30, 1.0)
    with pytest.raises(Unavailable, match="stop other programs, or serve it on a machine with more memory"):
        ledger(tmp_path).make_room("cpu", 101)
    assert list(tmp_path.glob("*.leave")) == []


def test_who_gives_up_takes_the_notice_back(tmp_path: Path, neighbour: Any) -> None:
    neighbour(tmp_path, "stubborn", 70, 1.0)
    with pytest.raises(Unavailable):
        ledger(tmp_path).make_room("cpu", 31, should_stop=lambda: True)
    assert list(tmp_path.glob("*.leave")) == []


def test_waiting_ends_when_the_server_stops(tmp_path: Path, neighbour: Any) -> None:
    neighbour(tmp_path, "stubborn", 70, 1.0)
    with pytest.raises(Unavailable, match="did not free"):
        ledger(tmp_path).make_room("cpu", 31, should_stop=lambda: True)


def test_an_entry_of_a_number_that_another_program_has_now_is_swept(tmp_path: Path, neighbour: Any) -> None:
    """Numbers of processes come again; whoever has one now never hears that it should leave."""
    neighbour(tmp_path, "long-dead", 70, 1.0, started=1)
    assert ledger(tmp_path).others() == []


def test_the_least_used_leaves_first_and_no_more_than_needed(tmp_path: Path, neighbour: Any) -> None:
    """Others are threads here, with numbers of real processes."""
    children = [CONTEXT.Process(target=time.sleep, args=(60,)) for _ in range(3)]
    for child in children:
        child.start()
    try:
        entries = {}
        for child, name, used in zip(children, ("old", "new", "middle"), (1.0, 3.0, 2.0), strict=True):
            entries[name] = neighbour(tmp_path, name, 30, used, pid=child.pid)
        stop = threading.Event()

        def leave_when_asked() -> None:
            while not stop.wait(0.01):
                for entry in entries.values():
                    if entry.with_suffix(".leave").exists():
                        entry.unlink(missing_ok=True)

        helper = threading.Thread(target=leave_when_asked)
        helper.start()
        try:
            assert ledger(tmp_path).make_room("cpu", 60) == ["old", "middle"]
        finally:
            stop.set()
            helper.join()
        assert entries["new"].exists()
    finally:
        for child in children:
            child.kill()
            child.join()


def _resident(folder: str, arrived: Event, left: Event) -> None:
    """Another process: has a model in memory until it is asked to leave."""
    mine = MemoryLedger(Path(folder), "resident", budget=100, evicts=True, free=lambda device: 0)
    with mine.loading():
        mine.make_room("cpu", 80)
        mine.arrive("cpu", 80)
    mine.touch(busy=True)
    mine.touch(busy=False)
    arrived.set()
    deadline = time.monotonic() + PATIENCE
    while not mine.asked_to_leave and time.monotonic() < deadline:
        left.wait(0.01)
    left.set()
    mine.leave()


def test_two_processes(tmp_path: Path) -> None:
    arrived, left = CONTEXT.Event(), CONTEXT.Event()
    child = CONTEXT.Process(target=_resident, args=(str(tmp_path), arrived, left))
    child.start()
    try:
        assert arrived.wait(PATIENCE)
        mine = ledger(tmp_path)
        with mine.loading():
            assert mine.make_room("cpu", 50) == ["resident"]
            assert left.is_set()
            mine.arrive("cpu", 50)
        child.join(PATIENCE)
        assert child.exitcode == 0
        assert sorted(path.name for path in tmp_path.glob("*.json")) == [f"mine.{os.getpid()}.json"]
    finally:
        child.kill()
        child.join()


def test_one_loads_at_a_time(tmp_path: Path) -> None:
    inside, order = threading.Event(), []

    def second() -> None:
        inside.wait(PATIENCE)
        with ledger(tmp_path, "second").loading():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with ledger(tmp_path, "first").loading():
        inside.set()
        thread.join(0.1)  # it may not come in
        order.append("first")
    thread.join(PATIENCE)
    assert order == ["first", "second"]


def test_free_memory_of_this_machine() -> None:
    assert 0 < free_memory("cpu") < 2**60
