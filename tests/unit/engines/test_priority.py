from __future__ import annotations

import os
import threading

import pytest

from triton_sam.engines import priority
from triton_sam.engines.priority import CLICK_NICENESS, lower_this_thread, run_lowered


def own_niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


niceness = pytest.mark.skipif(
    not hasattr(os, "getpriority") or own_niceness() > 10,
    reason="this system has no niceness, or the tests run far behind already",
)


def test_the_answer_comes_back() -> None:
    assert run_lowered(lambda: "answer") == "answer"
    assert run_lowered(lambda: None) is None


def test_it_runs_on_another_thread_that_ends() -> None:
    ran_on = run_lowered(threading.current_thread)
    assert ran_on is not threading.current_thread()
    assert not ran_on.is_alive()


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)])
def test_what_it_raises_comes_back(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        run_lowered(fail)
    assert caught.value is error


@niceness
def test_only_that_thread_is_lowered() -> None:
    before = own_niceness()
    assert run_lowered(own_niceness) == 10
    assert own_niceness() == before


@niceness
def test_threads_that_it_starts_inherit() -> None:
    found: list[int] = []

    def start_another() -> None:
        thread = threading.Thread(target=lambda: found.append(own_niceness()))
        thread.start()
        thread.join()

    run_lowered(start_another)
    assert found == [10]


def test_a_system_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(*arguments: int) -> None:
        asked.append(arguments)
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse, raising=False)
    monkeypatch.setattr(os, "PRIO_PROCESS", 0, raising=False)
    lower_this_thread()
    assert asked == [(0, threading.get_native_id(), priority._BACKGROUND_NICENESS)]
    assert run_lowered(lambda: 5) == 5


def test_a_system_without_niceness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "setpriority", raising=False)
    lower_this_thread()
    assert run_lowered(lambda: 5) == 5


def test_clicks_stand_between_answers_and_encodes() -> None:
    assert 0 < CLICK_NICENESS < priority._BACKGROUND_NICENESS
