"""What others see of a job's folder: its results, its lock, its status."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies

from tests.unit.batch.state_helpers import DEFINITION, FakeExecutor, given, opened, run
from triton_sam.batch.progress import JobProgress
from triton_sam.batch.records import Item, ItemResult, MaskRecord
from triton_sam.batch.state.database import STATE_FILE
from triton_sam.batch.state.lock import LOCK_FILE, job_lock, running_job
from triton_sam.batch.state.opening import open_job
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.status import job_status
from triton_sam.batch.stopping import StopRequest
from triton_sam.errors import InvalidInput, NotFound

NAMES = [f"{number}.png" for number in range(60)]
#: Locks the folder that it is given, says so, and waits.
_HOLD = """
import sys
from pathlib import Path
from triton_sam.batch.state.lock import job_lock
with job_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""
numbers = strategies.floats(allow_nan=False, allow_infinity=False)
masks = strategies.builds(
    MaskRecord,
    strategies.fixed_dictionaries({"size": strategies.lists(strategies.integers(1, 9), min_size=2, max_size=2)}),
    strategies.integers(0, 2**40),
    strategies.tuples(numbers, numbers, numbers, numbers),
    numbers,
    strategies.none() | strategies.integers(),
    strategies.none() | strategies.integers(),
    strategies.dictionaries(strategies.text(), numbers),
)


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process
        finally:
            process.kill()


@examples(strategies.lists(masks, max_size=4), strategies.text(), strategies.integers(0, 10**6))
def test_results_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, found: list[MaskRecord], name: str, index: int
) -> None:
    folder = tmp_path_factory.mktemp("results")
    files = ResultFiles(folder)
    files.prepare()
    result = ItemResult(Item(index, name, Path("/x"), "x", 3, 7), 640, 480, found, "sam2:tiny", 0.5)
    assert files.write(result) == files.path(index).stat().st_size
    assert files.read(result.item) == result
    assert list(files.present()) == [(index - index % 1000, {index})]


def test_result_files(tmp_path: Path) -> None:
    files = ResultFiles(tmp_path)
    assert list(files.present()) == []
    files.prepare()
    item = Item(1_234_567, "a.png", Path("/a.png"), "a")
    assert files.path(item.index) == tmp_path / "results" / "001234" / "001234567.json"
    with pytest.raises(NotFound, match="is missing"):
        files.read(item)
    mask = MaskRecord({"size": [1, 1], "counts": "1"}, np.int64(3), (0, 0, 1, 1), np.float32(0.5))
    files.write(ItemResult(item, 1, 1, [mask]))
    assert files.read(item).masks[0].score == 0.5
    with pytest.raises(InvalidInput, match="of another image"):
        files.read(replace(item, name="b.png"))
    with pytest.raises(TypeError, match="bytes is not JSON"):
        files.write(ItemResult(item, 1, 1, [replace(mask, segmentation={"counts": b"1"})]))
    assert os.listdir(files.path(item.index).parent) == ["001234567.json"]  # noqa: PTH208  names alone
    files.path(item.index).write_text(json.dumps({"version": 2}))
    with pytest.raises(InvalidInput, match="newer version"):
        files.read(item)
    for damaged in ("", "[]", "{", '{"version": 1, "name": "a.png", "masks": [{}]}', "\0"):
        files.path(item.index).write_text(damaged)
        with pytest.raises(InvalidInput, match="is damaged"):
            files.read(item)


def test_one_job_a_folder(tmp_path: Path) -> None:
    assert running_job(tmp_path) is None
    with holding(tmp_path) as process:
        told = rf"running already in process {process.pid}: wait for it or end it, or give another --out"
        with pytest.raises(InvalidInput, match=told), job_lock(tmp_path):
            pass
        holder = running_job(tmp_path)
        assert holder is not None
        assert holder.pid == process.pid
        (tmp_path / LOCK_FILE).write_text("")
        with pytest.raises(InvalidInput, match="in another process"), job_lock(tmp_path):
            pass
        process.kill()  # -9
        process.wait()
        assert running_job(tmp_path) is None
        with job_lock(tmp_path):
            assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_status_of_no_job(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no job: give the folder of its --out"):
        job_status(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"something else" * 100)
    with pytest.raises(InvalidInput, match="is not the state of a job"):
        job_status(tmp_path)


def test_status_while_a_job_is_set_up_and_after(tmp_path: Path) -> None:
    def look(_count: int) -> None:
        status = job_status(tmp_path)
        assert (status.is_set_up, status.running, status.of) == (False, True, 0)
        assert status.pid == os.getpid()

    with job_lock(tmp_path):
        open_job(tmp_path, DEFINITION, replace(given(NAMES), on_found=look)).close()
    status = job_status(tmp_path)
    assert (status.is_set_up, status.running, status.of, status.waiting) == (True, False, 60, 60)
    assert status.rest_seconds is None


def test_status_while_a_job_runs_and_after(tmp_path: Path) -> None:
    stop = StopRequest()
    seen = []

    def look(step: JobProgress) -> None:
        if step.done > 20:
            seen.append((step, job_status(tmp_path)))
            stop.ask()

    def pause(executor: FakeExecutor) -> None:
        """Until what it gave is recorded."""
        ended = len(executor.submitted) - len(executor.held)
        executor.is_ready = ended < 30 or store.counts().waiting == len(NAMES) - ended

    with job_lock(tmp_path), opened(tmp_path, given(NAMES)) as store:
        run(store, FakeExecutor(30, on_finished=pause), on_progress=look, stop=stop)
    step, status = seen[0]
    assert status.running
    assert status.done >= step.done
    assert status.rate > 0
    assert status.rest_seconds is not None
    assert status.failures[0].reason == f"{status.failures[0].name} is no image"
    after = job_status(tmp_path)
    assert (after.running, after.rate, after.pid) == (False, 0, None)
    assert after.done + after.failed + after.waiting == 60


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """Something mounted at the folder; skips the test where that is not allowed."""
    folder.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    attempt = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if attempt.returncode:
        pytest.skip(f"nothing can be mounted here: {attempt.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("is_killed", [False, True])
def test_status_in_a_folder_that_cannot_be_written(tmp_path: Path, is_killed: bool) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    with opened(folder, given(NAMES)) as store:
        run(store)
        if is_killed:  # the write-ahead log stays, its index does not outlive a restart of the machine
            kept = {one.name: one.read_bytes() for one in folder.glob(f"{STATE_FILE}*")}
    if is_killed:
        for name, content in kept.items():
            if not name.endswith("-shm"):
                (folder / name).write_bytes(content)
    view = tmp_path / "view"
    with mounted(view, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(view)], check=True)
        status = job_status(view)
        assert (status.of, status.waiting, status.running) == (60, 0, False)
        assert status.done == sum(index % 7 != 3 for index in range(60))
