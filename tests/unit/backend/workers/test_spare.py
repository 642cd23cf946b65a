"""A process that waits to become a worker: used once, never needed, never left behind."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.backend.workers.test_device_link import Device, FakeOptions
from tests.waiting import eventually
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.spare import SpareKeeper, gpus_in_use, listen
from triton_sam.server.host import process_alive
from triton_sam.server.worker_processes import worker_and_spare_pids, worker_devices


def some_options() -> FakeOptions:
    return FakeOptions(os.getpid(), f"fake-{secrets.token_hex(8)}", "1", "sam2:tiny", "", 3, "cpu")


@pytest.fixture
def keeper() -> Iterator[SpareKeeper]:
    keeper = SpareKeeper()
    yield keeper
    keeper.close()


@pytest.fixture
def device(keeper: SpareKeeper) -> Iterator[Device]:
    device = Device(keeper)
    device.link.start()
    device.link.wait_ready(60)
    eventually(lambda: keeper.pid is not None, "a spare")
    yield device
    child = device.link._connector._child
    device.link.close()
    keeper.close()
    assert child is not None
    child.wait(60)


def lose_worker(device: Device) -> None:
    """Kills the worker and waits for the next one."""
    changes = len(device.changes)
    os.kill(device.worker, signal.SIGKILL)
    eventually(lambda: len(device.changes) == changes + 2 and device.link.ready, "a new worker")


def test_the_spare_becomes_the_worker_and_another_one_is_kept(device: Device, keeper: SpareKeeper) -> None:
    for _ in range(3):
        spare = keeper.pid
        assert spare is not None
        lose_worker(device)
        assert device.worker == spare
        eventually(lambda: keeper.pid is not None, "the next spare")
        assert keeper.pid != spare


def test_a_spare_that_has_ended_is_no_loss(device: Device, keeper: SpareKeeper) -> None:
    spare = keeper.pid
    assert spare is not None
    os.kill(spare, signal.SIGKILL)
    eventually(lambda: keeper.pid is None, "its end")
    lose_worker(device)
    assert device.worker != spare
    eventually(lambda: keeper.pid is not None, "the next spare")


def test_a_worker_outlives_the_pipe_that_it_was_told_by(keeper: SpareKeeper) -> None:
    options = some_options()
    keeper.keep(options)
    child = keeper.use(options)
    assert child is not None
    assert keeper.pid is None
    keeper.close()
    try:
        eventually(lambda: "sam-worker-3" in Path(f"/proc/{child.pid}/comm").read_text(), "its name")
        assert child.poll() is None
        assert str(Path(f"/proc/{child.pid}/fd/0").readlink()) == os.devnull
    finally:
        child.kill()
        child.wait()


def test_a_spare_ends_if_another_worker_was_quicker(keeper: SpareKeeper) -> None:
    options = some_options()
    listener = listen(options)
    assert listener is not None
    with listener:
        assert listen(options) is None
        keeper.keep(options)
        child = keeper.use(options)
        assert child is not None
        assert child.wait(60) == 0


def test_nothing_is_kept_after_the_end(keeper: SpareKeeper) -> None:
    options = some_options()
    keeper.keep(options)
    pid = keeper.pid
    assert pid is not None
    keeper.keep(options)
    assert keeper.pid == pid, "one is enough"
    keeper.close()
    assert not process_alive(pid)
    keeper.keep(options)
    assert keeper.pid is None
    assert keeper.use(options) is None


def test_a_spare_ends_with_its_parent_however_that_ends() -> None:
    options = some_options()
    program = (
        "import json, signal, sys; from tests.unit.backend.workers.test_device_link import FakeOptions; "
        "from triton_sam.backend.workers.spare import SpareKeeper; keeper = SpareKeeper(); "
        "keeper.keep(FakeOptions(**json.loads(sys.argv[1]))); print(keeper.pid, flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", program, json.dumps(asdict(options))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        spare = int(parent.stdout.readline())
        assert process_alive(spare)
        parent.kill()
    eventually(lambda: not process_alive(spare), "the spare's end")


def test_a_spare_ends_with_the_server() -> None:
    options = some_options()
    with subprocess.Popen(["sleep", "600"]) as server:
        command = FakeOptions(**(asdict(options) | {"server": server.pid})).spare_command
        with subprocess.Popen(command, stdin=subprocess.PIPE) as spare:
            server.kill()
            server.wait()
            assert spare.wait(60) == 0


def test_a_spare_counts_as_a_worker_once_it_is_one() -> None:
    """By the words of the real command line, in a process that imports nothing."""
    options = WorkerOptions(**asdict(some_options()))
    program = (
        "import signal, sys; from triton_sam.backend.workers.spare import Orders; "
        "Orders(int(sys.argv[1])).wait(); signal.pause()"
    )
    command = [sys.executable, "-c", program, str(os.getpid()), *options.spare_command[2:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as spare:
        try:
            assert spare.stdin is not None
            eventually(lambda: spare.pid in worker_and_spare_pids(os.getpid()), "the spare")
            assert spare.pid not in dict(worker_devices(os.getpid()))
            spare.stdin.write(json.dumps(asdict(options)).encode() + b"\n")
            spare.stdin.flush()
            eventually(lambda: dict(worker_devices(os.getpid())).get(spare.pid) == 3, "a worker")
        finally:
            spare.kill()


def test_files_of_a_gpu_are_found(tmp_path: Path) -> None:
    for name, target in {"0": "/dev/null", "5": "/dev/nvidiactl", "6": "/dev/nvidia0"}.items():
        (tmp_path / name).symlink_to(target)
    assert gpus_in_use(tmp_path) == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert gpus_in_use() == []
