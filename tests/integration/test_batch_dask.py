"""Batch jobs on Dask, with two servers: the same results as in one process, also if workers and servers are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.batch_data import Results, batch_command, results_of, run_batch, write_pictures
from tests.conftest import ServerFactory
from tests.faults.serve_command import serve_command, wait_until_serving
from tests.server_readings import counters
from tests.waiting import eventually
from triton_sam.server.host import free_port
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.part("batch"), pytest.mark.timeout(1200)]
IMAGES = 300


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("data") / "pictures", IMAGES)


@pytest.fixture(scope="module")
def other(start_server: ServerFactory) -> Iterator[RunningServer]:
    with start_server() as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: RunningServer, boxes: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Of a job in one process on one server."""
    out = tmp_path_factory.mktemp("plain")
    code, output = run_batch(*job(boxes, out / "out"), "--url", server.urls["HTTP"], home=out)
    assert code == 0, output
    return results_of(out / "out")


def job(boxes: Path, out: Path) -> tuple[object, ...]:
    return boxes.parent / "pictures", "--coco", boxes, "--out", out


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_and_two_servers(
    server: RunningServer, other: RunningServer, boxes: Path, expected: Results, tmp_path: Path, workers: int
) -> None:
    urls = ("--url", server.urls["HTTP"], "--url", other.urls["HTTP"])
    before = [encodes(one) for one in (server, other)]
    code, output = run_batch(*job(boxes, tmp_path / "out"), *urls, "--workers", workers, home=tmp_path, seconds=600)
    assert code == 0, output
    assert results_of(tmp_path / "out") == expected
    shares = [encodes(one) - count for one, count in zip((server, other), before, strict=True)]
    assert sum(shares) >= IMAGES - 2  # equal pictures are encoded once
    assert min(shares) > IMAGES / 10, f"both servers work: {shares}"
    print(output.strip().splitlines()[-1], "encodes of each server:", shares)  # noqa: T201 - the part's log has it


def encodes(running: RunningServer) -> int:
    return int(counters(running, "sam2")["encodes_total"])


def test_a_worker_and_a_server_are_killed(repository: Path, boxes: Path, expected: Results, tmp_path: Path) -> None:
    """Two workers that are found by what they run; one of two servers, for good."""
    ports = [free_port(), free_port()]
    out = tmp_path / "out"
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(serve_command(repository, tmp_path / f"home{number}", http=port))
            for number, port in enumerate(ports)
        ]
        for one in servers:
            wait_until_serving(one)
        urls = [word for port in ports for word in ("--url", f"127.0.0.1:{port}")]
        process = stack.enter_context(batch_command(*job(boxes, out), *urls, "--workers", 2, home=tmp_path))
        wait_for(out, IMAGES // 5, process)
        victim = dask_workers(process.pid)[0]
        os.kill(victim, signal.SIGKILL)
        wait_for(out, IMAGES // 2, process)
        servers[0].kill()
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert results_of(out) == expected


def dask_workers(pid: int) -> list[int]:
    """Processes that Dask's nanny has started: children that spawned Python, one for each worker."""
    commands = Counter[int]()
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                commands[child.pid] += 1
    assert commands
    return list(commands)


def wait_for(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    eventually(
        lambda: sum(1 for _ in out.glob("results/*/*.json")) >= count or process.poll() is not None,
        f"{count} results",
        patience=300.0,
        pause=0.05,
    )
    assert process.poll() is None, process.stdout.read() if process.stdout else ""
