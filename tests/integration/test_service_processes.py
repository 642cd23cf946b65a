"""The service as three processes before a real Triton, with the analytic model."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets.sync.client
from PIL import Image

from tests.analytic import slow_picture
from tests.waiting import eventually
from triton_sam.models.specs import ModelSpec
from triton_sam.server.host import process_known
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = pytest.mark.triton
PROCESSES = 3
#: So many new connections reach every process, but for once in a billion times.
MANY = 60
ALICE, BOB = "a-long-word-for-alice", "a-long-word-for-bob"
BURST = 5
#: A client makes a context with all authorities otherwise, which takes longer than the request.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def service_pids() -> set[int]:
    """The processes of this process's service, and the spare one."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"service_process" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


def serve(repository: Path, spec: ModelSpec, folder: Path, **settings: Any) -> Any:
    found = Settings(home=folder, service_processes=PROCESSES, **settings)
    return serving(ServingOptions(repository, {"sam2": spec}, found, ports=Ports(0, 0, 0, 0)))


@pytest.fixture(scope="module")
def running(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("home")
    tokens = folder / "tokens"
    tokens.write_text(f"alice {ALICE}\nbob {BOB} 0.001 {BURST}\n")
    tokens.chmod(0o600)
    with serve(repository, spec, folder, tokens_file=tokens) as server:
        yield server


def ask(running: RunningServer, method: str, path: str, token: str = ALICE, **request: Any) -> httpx.Response:
    """One request on a connection of its own, which any process may get."""
    headers = {"Authorization": f"Bearer {token}"}
    options: Any = {"timeout": 120, "trust_env": False, "verify": _NO_TLS}
    with httpx.Client(base_url=running.urls["service"], headers=headers, **options) as client:
        return client.request(method, path, **request)


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), "red").save(buffer, "PNG")
    return buffer.getvalue()


def encode(running: RunningServer, image: bytes) -> str:
    answer = ask(running, "POST", "/v1/images", files={"image": image})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["image_key"])


def metric(running: RunningServer, name: str) -> float:
    lines = ask(running, "GET", "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def test_an_image_is_known_to_every_process(running: RunningServer) -> None:
    eventually(lambda: len(service_pids()) == PROCESSES + 1, "and a spare one")
    click = {"image_key": encode(running, picture()), "points": [[30, 20]], "format": "rle"}
    answers = [ask(running, "POST", "/v1/segment", json=click).json() for _ in range(MANY)]
    assert all(answer["mask"] == answers[0]["mask"] for answer in answers)
    name = 'triton_sam_service_requests_total{method="POST",route="/v1/segment",status="200"}'
    assert {metric(running, name) for _ in range(20)} == {float(MANY)}, "each process has the sum"


def test_a_rate_is_one_for_all_processes(running: RunningServer) -> None:
    statuses = [ask(running, "GET", "/models", BOB).status_code for _ in range(MANY)]
    assert sorted(statuses) == [200] * BURST + [429] * (MANY - BURST)


def test_hovers(running: RunningServer) -> None:
    click = {"image_key": encode(running, picture()), "points": [[30, 20]]}
    address = running.urls["service"].replace("http", "ws")
    headers = {"Authorization": f"Bearer {ALICE}"}
    for _ in range(8):
        with websockets.sync.client.connect(f"{address}/v1/hover", additional_headers=headers, proxy=None) as socket:
            for number in range(5):
                socket.send(json.dumps(click | {"id": number}))
            ends = [json.loads(socket.recv(timeout=60)) for _ in range(5)]
            assert "result" in next(end for end in ends if end["id"] == 4), "the newest one is answered"


def test_the_newest_request_of_a_session_wins_wherever_it_arrives(running: RunningServer) -> None:
    key = encode(running, slow_picture(1))
    click = {"image_key": key, "points": [[30, 20]], "session_id": "mine", "latest_wins": True}
    with ThreadPoolExecutor(12) as threads:
        asked = [threads.submit(ask, running, "POST", "/v1/segment", json=click) for _ in range(12)]
        ends = [one.result().status_code for one in asked]
    assert set(ends) <= {200, 499}
    assert 200 in ends


def test_a_process_that_is_killed_is_replaced(running: RunningServer) -> None:
    victim = min(service_pids())
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: not process_known(victim), "it has ended, with all its threads")
    assert {ask(running, "GET", "/health").status_code for _ in range(MANY)} == {200}, "the others answer"
    eventually(lambda: len(service_pids()) == PROCESSES + 1 and victim not in service_pids(), "a new process")
    assert running.supervisor.status["restarts"] == 0
    assert metric(running, "triton_sam_service_in_progress") == 1


def test_a_restart_of_triton_is_told_by_every_process(running: RunningServer) -> None:
    key = encode(running, slow_picture(2))
    click = {"image_key": key, "points": [[30, 20]]}
    with ThreadPoolExecutor(24) as threads:
        asked = [threads.submit(ask, running, "POST", "/v1/segment", json=click) for _ in range(24)]
        os.kill(running.supervisor.process.process.pid, signal.SIGKILL)
        ends = [one.result().status_code for one in asked]
        assert set(ends) <= {200, 404, 503}, "everybody is answered"
    eventually(lambda: running.supervisor.status["restarts"] == 1, "Triton runs again")
    eventually(
        lambda: all(ask(running, "GET", "/health").json()["restarts"] == 1 for _ in range(MANY)), "every process knows"
    )
    assert metric(running, "triton_sam_supervisor_restarts_total") == 1
    assert ask(running, "POST", "/v1/images", files={"image": picture()}).status_code == 200


def test_a_stop_finishes_the_requests_of_every_process(repository: Path, spec: ModelSpec, tmp_path: Path) -> None:
    before = service_pids()  # of the other tests' server
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(serve(repository, spec, tmp_path))
        # Of three images, each encoded once: a stop waits for 10 s at most, on any machine.
        pictures = [{"image": slow_picture(number % 3)} for number in range(9)]
        with ThreadPoolExecutor(len(pictures)) as threads:
            asked = [threads.submit(ask, running, "POST", "/v1/images", files=file) for file in pictures]
            eventually(lambda: metric(running, "triton_sam_service_in_progress") > len(pictures), "all are in flight")
            stack.close()
            assert [one.result().status_code for one in asked] == [200] * len(pictures)
    assert service_pids() == before
