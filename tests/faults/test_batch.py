"""Batch jobs through kills of the job and of the server, and a full disk: the same results as without faults."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.batch_data import Results, batch_command, leftovers, results_of, run_batch, write_pictures
from tests.faults.figures import record
from tests.faults.serve_command import serve_command, wait_until_serving
from triton_sam.server.host import free_port

pytestmark = [pytest.mark.triton, pytest.mark.part("batch"), pytest.mark.timeout(1800)]
IMAGES = 2000
JOB_KILLS, SERVER_KILLS = 5, 2
#: A small disk, which some hundred results fill.
DISK_BYTES = 1_500_000


@dataclass(frozen=True)
class Data:
    """Pictures with boxes, and what a job without faults finds in them."""

    pictures: Path
    boxes: Path
    expected: Results


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def data(repository: Path, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("data")
    boxes = write_pictures(folder / "pictures", IMAGES)
    out = folder / "without faults"
    port = free_port()
    with serving_at(repository, home, port):
        code, output = run_batch(folder / "pictures", "--coco", boxes, "--out", out, *at(port), home=home, seconds=900)
    assert code == 0, output
    expected = results_of(out)
    assert len(expected) == IMAGES
    return Data(folder / "pictures", boxes, expected)


@contextlib.contextmanager
def serving_at(repository: Path, home: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    with serve_command(repository, home, http=port) as process:
        wait_until_serving(process)
        yield process


def at(port: int) -> tuple[str, str]:
    return "--url", f"127.0.0.1:{port}"


def results_so_far(out: Path) -> int:
    return sum(1 for _ in out.glob("results/*/*.json"))


def wait_for_results(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Until so many results are there, or the job has ended."""
    deadline = time.monotonic() + 600
    while results_so_far(out) < count and process.poll() is None:
        assert time.monotonic() < deadline, f"{results_so_far(out)} results, {count} expected"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)


def test_killed_again_and_again(repository: Path, home: Path, data: Data, tmp_path: Path) -> None:
    """The job five times, the server twice, at random moments."""
    out, port, chance = tmp_path / "out", free_port(), random.Random(4)
    words = (data.pictures, "--coco", data.boxes, "--out", out, *at(port))
    moments = sorted(chance.sample(range(20, IMAGES - 100), JOB_KILLS + SERVER_KILLS))
    servers = set(chance.sample(moments, SERVER_KILLS))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving_at(repository, home, port))
        job = stack.enter_context(batch_command(*words, home=home))
        for moment in moments:
            wait_for_results(out, moment, job)
            assert job.poll() is None, job.stdout.read() if job.stdout else ""
            if moment in servers:
                server.kill()
                server.wait(60)
                server = stack.enter_context(serving_at(repository, home, port))
            else:
                job.send_signal(signal.SIGKILL)
                job.communicate(timeout=60)
                job = stack.enter_context(batch_command(*words, home=home))
        output, _ = job.communicate(timeout=900)
    assert job.returncode == 0, output
    assert results_of(out) == data.expected
    assert not leftovers(out)
    figures = {
        "images": (IMAGES, ""),
        "kills of the job, of the server": (f"{JOB_KILLS}, {SERVER_KILLS}", ""),
        "images with other masks than without faults": (0, "0"),
    }
    record("batch-kills", "kill -9 of a batch job and of the whole server, at random moments", figures)


def test_a_full_disk(repository: Path, home: Path, data: Data, tmp_path: Path) -> None:
    """The job stops with one sentence; with room again the same command goes on."""
    disk, port = tmp_path / "disk", free_port()
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("a disk of a chosen size needs root")
    try:
        words = (data.pictures, "--coco", data.boxes, "--out", disk / "out", *at(port))
        with serving_at(repository, home, port):
            code, output = run_batch(*words, home=home)
            assert code == 1, output
            assert "is full: make room" in output, output
            assert len(output.strip().splitlines()[-1]) < 400
            before = results_so_far(disk / "out")
            assert 0 < before < IMAGES
            subprocess.run(["mount", "-o", "remount,size=500m", disk], check=True)
            code, output = run_batch(*words, home=home, seconds=900)
        assert code == 0, output
        assert results_of(disk / "out") == data.expected
        assert not leftovers(disk / "out")
    finally:
        subprocess.run(["umount", disk], check=False)
