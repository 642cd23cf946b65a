"""A job that is killed with -9, or whose disk is full: the same command ends it as if nothing had been."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, settings, strategies
from hypothesis import given as examples

from tests.unit.batch.killed_job import NAMES
from tests.unit.batch.state_helpers import BOXES, DEFINITION, FakeExecutor, check_complete, given, opened, run
from tests.unit.batch.test_job_folder import mounted
from triton_sam.batch.state.opening import open_job
from triton_sam.batch.state.results import ResultFiles
from triton_sam.errors import JobStopped


def run_and_kill(moments: Sequence[tuple[Path, int]]) -> list[bool]:
    """For each whether it came to its end."""
    words = [word for folder, at in moments for word in (str(folder), str(at))]
    done = subprocess.run([sys.executable, "-m", "tests.unit.batch.killed_job", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ended: list[bool] = json.loads(done.stdout)
    return ended


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "results").rglob("*.json")}


@settings(max_examples=2)
@examples(strategies.lists(strategies.integers(20, 620), min_size=1, max_size=4))
@example([410, 150, 150, 150])  # the job is set up after 380 steps, and has ended after 750
@example([620, 60, 250])
def test_any_kills_give_the_results_of_a_run_without(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int]
) -> None:
    folder, untouched = tmp_path_factory.mktemp("killed"), tmp_path_factory.mktemp("untouched")
    ended = run_and_kill([(folder, at) for at in kills])
    assert not ended[0]
    with opened(folder, given(NAMES, prompts=BOXES)) as store:
        run(store)
        check_complete(store)
    with opened(untouched, given(NAMES, prompts=BOXES)) as store:
        run(store)
    assert contents(folder) == contents(untouched)


def test_a_kill_at_each_step_of_setting_up_starts_afresh(tmp_path: Path) -> None:
    folders = {at: tmp_path / str(at) for at in (1, 4, 9, 14, 40, 75, 110)}
    for folder in folders.values():
        folder.mkdir()
    assert not any(run_and_kill([(folder, at) for at, folder in folders.items()]))
    for folder in folders.values():
        with opened(folder, given(NAMES, prompts=BOXES)) as store:
            assert store.counts().of == len(NAMES)
            works = store.waiting(len(NAMES))
            assert [len(work.prompts) for work in works] == [3 * (number % 2 == 0) for number in range(len(NAMES))]


def test_a_full_disk(tmp_path: Path) -> None:
    """Filled while the job runs; with room again it goes on. Whatever is recorded has its result."""
    names = [f"{number}.png" for number in range(600)]
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=8m", "tmpfs"):
        ballast = disk / "ballast"
        folder = disk / "job"
        folder.mkdir()

        def fill(executor: FakeExecutor) -> None:
            if store.counts().done and not ballast.exists():
                free = os.statvfs(disk)
                ballast.write_bytes(b"\0" * (free.f_bavail * free.f_frsize - 20 * free.f_frsize))

        with opened(folder, given(names)) as store:
            with pytest.raises(JobStopped, match=r"/job is full: make room, then the same command goes on"):
                run(store, FakeExecutor(on_finished=fill))
            files = ResultFiles(folder)
            recorded = [files.read(item).item.index for item in store.done()]
            assert 0 < len(recorded) < len(names)
        assert not list(folder.rglob("*.unfinished"))
        # Full to the last byte: what begins then ends with the same sentence, and harms nothing.
        with contextlib.suppress(OSError), (disk / "rest").open("wb", buffering=0) as rest:
            while rest.write(b"\0" * 1024):
                pass
        with pytest.raises(JobStopped, match="is full"), opened(folder, given(names)) as store:
            run(store)
        ballast.unlink()
        (disk / "rest").unlink()
        with opened(folder, given(names)) as store:
            assert {item.index for item in store.done()} >= set(recorded)
            run(store)
            check_complete(store)


def test_a_disk_that_is_full_while_the_job_is_set_up(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=256k", "tmpfs"):
        with pytest.raises(JobStopped, match="is full: make room"):
            open_job(disk, DEFINITION, given([f"folder/{number}.png" for number in range(3_000)]))
        with opened(disk, given(["a.png"])) as store:
            run(store)
            check_complete(store)
