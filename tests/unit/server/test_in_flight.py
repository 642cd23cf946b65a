from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from triton_sam.server.in_flight import IN_FLIGHT_DIR_VARIABLE, InFlightCounter, requests_in_flight


def test_the_count_can_be_read_from_outside(tmp_path: Path) -> None:
    counter = InFlightCounter("sam2", str(tmp_path))
    assert requests_in_flight(tmp_path, "sam2") == 0
    counter.add(3)
    assert requests_in_flight(tmp_path, "sam2") == 3
    counter.add(-1)
    assert requests_in_flight(tmp_path, "sam2") == 2


def test_the_folder_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IN_FLIGHT_DIR_VARIABLE, str(tmp_path))
    InFlightCounter("sam2").add(5)
    assert requests_in_flight(tmp_path, "sam2") == 5


def test_models_are_counted_apart(tmp_path: Path) -> None:
    InFlightCounter("sam1", str(tmp_path)).add(1)
    InFlightCounter("sam2", str(tmp_path)).add(2)
    assert requests_in_flight(tmp_path, "sam1") == 1
    assert requests_in_flight(tmp_path, "sam2") == 2


def test_names_that_begin_alike_are_counted_apart(tmp_path: Path) -> None:
    InFlightCounter("sam2.1_large", str(tmp_path)).add(3)
    InFlightCounter("sam2", str(tmp_path)).add(2)
    assert requests_in_flight(tmp_path, "sam2") == 2
    assert requests_in_flight(tmp_path, "sam2.1_large") == 3


def test_two_processes_of_one_model_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = InFlightCounter("sam2", str(tmp_path))
    old.add(7)
    mine = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    new = InFlightCounter("sam2", str(tmp_path))
    new.add(2)
    assert requests_in_flight(tmp_path, "sam2", mine) == 7
    assert requests_in_flight(tmp_path, "sam2", 4711) == 2
    assert requests_in_flight(tmp_path, "sam2", 4712) is None
    assert requests_in_flight(tmp_path, "sam2") == 9


def test_an_end_in_order_leaves_no_count(tmp_path: Path) -> None:
    counter = InFlightCounter("sam2", str(tmp_path))
    counter.add(1)
    counter.close()
    assert requests_in_flight(tmp_path, "sam2") == 1, "an unanswered request is never forgotten"
    counter.add(-1)
    counter.close()
    assert requests_in_flight(tmp_path, "sam2") is None
    counter.add(1)  # too late to count, and no harm


def test_a_new_process_starts_at_zero(tmp_path: Path) -> None:
    InFlightCounter("sam2", str(tmp_path)).add(7)
    InFlightCounter("sam2", str(tmp_path))
    assert requests_in_flight(tmp_path, "sam2") == 0


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(IN_FLIGHT_DIR_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    InFlightCounter("sam2").add(1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"", b"\1\2\3", b"\0" * 9])
def test_no_count_is_none_and_not_zero(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "sam2.7").write_bytes(content)
    assert requests_in_flight(tmp_path, "sam2") is None
    assert requests_in_flight(tmp_path, "sam2", 7) is None


def test_threads_do_not_lose_counts(tmp_path: Path) -> None:
    counter = InFlightCounter("sam2", str(tmp_path))

    def work() -> None:
        for _ in range(2000):
            counter.add(2)
            counter.add(-1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert requests_in_flight(tmp_path, "sam2") == 4 * 2000


def test_the_count_outlives_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import sys; from triton_sam.server.in_flight import InFlightCounter; "
        "counter = InFlightCounter('sam2', sys.argv[1]); "
        "counter.add(3); sys.stdout.write('counted'); sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.read(len("counted")) == b"counted"
        child.kill()
        assert child.wait() == -9
    assert requests_in_flight(tmp_path, "sam2") == 3
