"""A worker that runs on torch, lost and replaced by the spare that has imported everything before."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.analytic import fresh_picture, png
from tests.server_readings import workers_of
from tests.waiting import eventually
from triton_sam import SAM2TritonClient
from triton_sam.errors import TritonSamError
from triton_sam.export.network_file import write_random_network
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import NETWORK_FILE, exported_graphs
from triton_sam.repository.segmenters import write_models
from triton_sam.server.host import process_alive
from triton_sam.server.worker_processes import worker_and_spare_pids, worker_pids
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600), pytest.mark.torch]
SIDE = 256
PROCESSES = 2


@pytest.fixture
def running(embedded_server: None, tmp_path: Path) -> Iterator[RunningServer]:
    """Random weights and a small image, on a CPU: its imports take as long as on a GPU."""
    spec = get_spec("sam2:tiny")
    spec = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, SIDE))
    weights = write_random_network(spec, tmp_path / NETWORK_FILE)
    write_models(spec, None, None, tmp_path / "models", name="sam2", extras={NETWORK_FILE: weights})
    environment = {
        "TRITON_SAM_PROCESSES": str(PROCESSES),
        "TRITON_SAM_DEVICES": "cpu",
        "TRITON_SAM_ENGINE": "torch",
        "TRITON_SAM_THREADS": "1",
    }
    options = ServingOptions(
        tmp_path / "models",
        {"sam2": spec},
        Settings(home=tmp_path / "home"),
        ports=Ports(0, 0, 0, 0),
        with_service=False,
        environment=environment,
    )
    with serving(options) as running:
        yield running


def spares_of(running: RunningServer) -> set[int]:
    server = running.supervisor.process.process.pid
    found = set(worker_and_spare_pids(server)) - set(worker_pids(server))
    return {pid for pid in found if process_alive(pid)}


def logits(running: RunningServer) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Of a click on an image that is sent again."""
    with SAM2TritonClient(running.urls["HTTP"]) as client:
        client.set_image(png(fresh_picture(970)))
        return client.predict([[20.0, 20.0]], [1])[0]


def kill_worker(running: RunningServer) -> int:
    """Kills the worker; returns the pid of the spare, which is the worker then."""
    eventually(lambda: len(spares_of(running)) == 1, "a spare")
    (spare,) = spares_of(running)
    (victim,) = workers_of(running)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: spare in workers_of(running), "the spare as the worker")
    return spare


def test_the_spare_replaces_a_killed_worker(running: RunningServer) -> None:
    before = logits(running)
    seen: set[int] = set(workers_of(running))

    def answers_again() -> bool:
        try:
            np.testing.assert_array_equal(logits(running), before)
        except TritonSamError:  # it loads
            return False
        return True

    for _ in range(2):
        spare = kill_worker(running)
        eventually(answers_again, "the same answer")
        eventually(lambda: len(workers_of(running)) == 1, "the end of those that lost the race")
        assert set(workers_of(running)) == {spare}
        seen.add(spare)
    assert len(seen) == 3
    assert running.supervisor.status["restarts"] == 0
    eventually(lambda: len(spares_of(running)) == 1, "the next spare")
    seen |= spares_of(running)
    running.supervisor.stop()
    eventually(lambda: not any(process_alive(pid) for pid in seen), "the end of all")
