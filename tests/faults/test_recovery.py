"""Processes killed while they serve: masks come back, right ones, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ServerFactory
from tests.faults.helpers import PATIENCE, POINT, children_of, held_by, stub_of
from tests.waiting import eventually
from triton_sam import SAM2TritonClient
from triton_sam.errors import ServerUnreachable, TritonSamError, Unavailable
from triton_sam.host import SHARED_MEMORY, free_port, process_alive
from triton_sam.serving import Running
from triton_sam.supervisor import PingPolicy

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def running(start_server: ServerFactory) -> Iterator[Running]:
    with start_server() as running:
        yield running


@pytest.fixture
def coffee(photographs: Path) -> bytes:
    return (photographs / "coffee.png").read_bytes()


@pytest.fixture
def expected(running: Running, coffee: bytes) -> np.ndarray:
    with SAM2TritonClient(running.urls["HTTP"]) as client:
        client.set_image(coffee)
        return client.segment([POINT]).masks.masks


def expect_recovery(
    running: Running, client: SAM2TritonClient, expected: np.ndarray, counter: str, before: int
) -> None:
    """The supervisor has counted its mend, and the client that was there before gets the same mask as before."""
    eventually(lambda: running.supervisor.status[counter] == before + 1, f"{counter} after the fault")
    assert running.supervisor.status["state"] == "ready"
    np.testing.assert_array_equal(client.segment([POINT]).masks.masks, expected)


@pytest.mark.usefixtures("patient_reaping")
def test_a_model_killed_idle_is_loaded_again(running: Running, coffee: bytes, expected: np.ndarray) -> None:
    before = running.supervisor.status
    server_pid = running.supervisor.process.process.pid
    with SAM2TritonClient(running.urls["HTTP"]) as client:
        client.set_image(coffee)
        eventually(lambda: held_by(running) == 0, "the end of all requests")  # an answer is out before it is counted
        os.kill(stub_of(running), signal.SIGKILL)
        expect_recovery(running, client, expected, "reloads", int(str(before["reloads"])))
    assert running.supervisor.process.process.pid == server_pid, "an idle death needs no restart of the server"


def test_a_model_killed_in_flight_tells_its_clients_at_once(
    running: Running, coffee: bytes, photographs: Path, expected: np.ndarray
) -> None:
    restarts = int(str(running.supervisor.status["restarts"]))
    with (
        SAM2TritonClient(running.urls["HTTP"]) as client,
        SAM2TritonClient(running.urls["HTTP"], timeout=PATIENCE) as encoding,
        ThreadPoolExecutor(1) as pool,
    ):
        client.set_image(coffee)
        waiting = pool.submit(encoding.set_image, photographs / "chelsea.png")
        eventually(lambda: held_by(running), "the request in flight")
        os.kill(stub_of(running), signal.SIGKILL)
        error = waiting.exception(timeout=PATIENCE / 2)
        assert isinstance(error, ServerUnreachable), repr(error)
        expect_recovery(running, client, expected, "restarts", restarts)


def test_a_killed_server_is_back_with_right_masks(running: Running, coffee: bytes, expected: np.ndarray) -> None:
    restarts = int(str(running.supervisor.status["restarts"]))
    with SAM2TritonClient(running.urls["HTTP"]) as http, SAM2TritonClient(running.urls["gRPC"]) as grpc:
        http.set_image(coffee)
        grpc.set_image(coffee)
        os.kill(running.supervisor.process.process.pid, signal.SIGKILL)
        expect_recovery(running, http, expected, "restarts", restarts)

        def grpc_is_back() -> bool:
            # A channel waits a little before it connects again, and says so.
            with contextlib.suppress(ServerUnreachable, Unavailable):
                return bool((grpc.segment([POINT]).masks.masks == expected).all())
            return False

        eventually(grpc_is_back, "masks over the old gRPC channel")


def test_a_hung_model_is_noticed(start_server: ServerFactory, coffee: bytes, expected: np.ndarray) -> None:
    with (
        start_server(ping_policy=PingPolicy(every=0.5, timeout=5.0, missed=2)) as hurried,
        SAM2TritonClient(hurried.urls["HTTP"]) as client,
    ):
        client.set_image(coffee)
        restarts = int(str(hurried.supervisor.status["restarts"]))
        os.kill(stub_of(hurried), signal.SIGSTOP)  # alive, and silent
        expect_recovery(hurried, client, expected, "restarts", restarts)


def test_health_tells_the_truth_while_the_server_is_gone(running: Running) -> None:
    restarts = running.supervisor.status["restarts"]
    os.kill(running.supervisor.process.process.pid, signal.SIGKILL)
    eventually(lambda: running.supervisor.status["state"] != "ready", "noticing")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{running.urls['service']}/health", timeout=5)
    refused.value.close()
    assert refused.value.code == 503
    eventually(lambda: running.supervisor.status["restarts"] != restarts, "the restart")
    with urllib.request.urlopen(f"{running.urls['service']}/health", timeout=5) as healthy:
        assert healthy.status == 200


def test_stopping_finishes_what_is_in_flight(start_server: ServerFactory, coffee: bytes) -> None:
    with ThreadPoolExecutor(1) as pool:
        with start_server() as stopping, SAM2TritonClient(stopping.urls["HTTP"]) as client:
            waiting = pool.submit(client.set_image, coffee)
            eventually(lambda: held_by(stopping), "the request in flight")
            process = stopping.supervisor.process
            prefix = process.shm_prefix
        assert len(waiting.result(timeout=PATIENCE)) == 40
    assert not process.alive
    assert not list(SHARED_MEMORY.glob(f"{prefix}*"))
    assert stopping.supervisor.status["state"] == "stopped"


@contextlib.contextmanager
def serve_command(
    repository: Path, home: Path, variables: dict[str, str] | None = None, **ports: int
) -> Iterator[subprocess.Popen[str]]:
    options = [f"--{name}-port={ports.get(name, 0)}" for name in ("http", "grpc", "metrics", "service")]
    command = [sys.executable, "-m", "triton_sam.cli", "serve", f"--model-repository={repository}", *options]
    environment = os.environ | {"TRITON_SAM_HOME": str(home)} | (variables or {})
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_serving(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if "serving until" in line:
            return
    pytest.fail("serve ended before it was ready")


def test_the_server_ends_with_its_killed_parent(repository: Path, tmp_path: Path) -> None:
    with serve_command(repository, tmp_path) as process:
        wait_until_serving(process)
        servers = children_of(process.pid)
        everything = servers + [stub for server in servers for stub in children_of(server)]
        assert len(everything) >= 2
        process.kill()
        eventually(lambda: not any(process_alive(pid) for pid in everything), "the end of the orphans")
        left = list(SHARED_MEMORY.glob(f"triton_sam_{process.pid}_*"))
    with serve_command(repository, tmp_path) as process:
        wait_until_serving(process)
        assert not [region for region in left if region.exists()], "a start sweeps what a killed server left"
        assert [path.name.partition("_")[0] for path in (tmp_path / "run").iterdir()] == [str(process.pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_polite_kill_drain_and_stop_all(
    repository: Path, tmp_path: Path, coffee: bytes, number: signal.Signals
) -> None:
    port = free_port()
    with (
        serve_command(repository, tmp_path, http=port) as process,
        SAM2TritonClient(f"127.0.0.1:{port}") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        wait_until_serving(process)
        servers = children_of(process.pid)
        waiting = pool.submit(client.set_image, coffee)
        (flight,) = tmp_path.glob("run/*/flight/sam2.*")
        eventually(lambda: int.from_bytes(flight.read_bytes(), "little") > 0, "the request in flight")
        process.send_signal(number)
        assert len(waiting.result(timeout=PATIENCE)) == 40
        assert process.wait(timeout=PATIENCE) == 0
        assert not any(process_alive(pid) for pid in servers)
        assert not list((tmp_path / "run").iterdir())


def test_a_proxy_for_the_world_is_not_for_our_own_server(repository: Path, tmp_path: Path, coffee: bytes) -> None:
    dead_proxy = f"http://127.0.0.1:{free_port()}"
    ports = {"http": free_port(), "grpc": free_port()}
    with serve_command(repository, tmp_path, {"http_proxy": dead_proxy, "https_proxy": dead_proxy}, **ports) as process:
        wait_until_serving(process)
        script = "import sys, triton_sam as t; [t.SAM2TritonClient(u).set_image(sys.argv[1]) for u in sys.argv[2:]]"
        picture = tmp_path / "coffee.png"
        picture.write_bytes(coffee)
        urls = [f"http://127.0.0.1:{ports['http']}", f"grpc://127.0.0.1:{ports['grpc']}"]
        done = subprocess.run(
            [sys.executable, "-c", script, str(picture), *urls],
            env=os.environ | {"http_proxy": dead_proxy, "https_proxy": dead_proxy},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr


def test_a_busy_port_is_one_sentence_before_anything_starts(running: Running, repository: Path, tmp_path: Path) -> None:
    with serve_command(repository, tmp_path, http=running.ports.http) as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert f"http port {running.ports.http}" in output
    assert "Traceback" not in output
    assert not (tmp_path / "logs").exists()


def test_nobody_at_the_address_is_one_sentence(coffee: bytes) -> None:
    for scheme in ("http", "grpc"):
        with pytest.raises(ServerUnreachable, match="triton-sam serve"):
            SAM2TritonClient(f"{scheme}://127.0.0.1:{free_port()}", retries=0).set_image(coffee)


def test_a_broken_model_says_why_and_leaves_nothing_running(
    start_server: ServerFactory, repository: Path, tmp_path: Path
) -> None:
    broken = repository / "sam2" / "1" / "decoder_cpu.onnx"
    kept = tmp_path / broken.name
    kept.hardlink_to(broken)
    broken.unlink()
    broken.write_bytes(b"no graph")
    try:
        with pytest.raises(TritonSamError, match="sam2 does not load"), start_server():
            pass
    finally:
        broken.unlink()
        kept.replace(broken)
