"""The service as several processes: real ones, before a Triton that is not real."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.integration.test_service_secured import throw_away_certificate
from tests.unit.service.fake_triton import FakeTriton, fake_triton
from tests.unit.service.helpers import CLICK, TIMEOUT, refusal
from tests.unit.service.hover_helpers import hear, hovering, say
from tests.unit.service.pool_helpers import MANY, Pool, service_pool
from tests.waiting import eventually
from triton_sam.errors import ServerError
from triton_sam.scratch import scratch_folder
from triton_sam.server.host import process_alive, process_known
from triton_sam.service import process_pool
from triton_sam.service.service_process import listening_socket
from triton_sam.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
FREE, LIMITED = "a-long-word-for-alice", "a-long-word-for-bob"
PLACES, SOCKETS, BURST = 4, 2, 5


@pytest.fixture(scope="module")
def triton() -> Iterator[FakeTriton]:
    with fake_triton() as found:
        yield found


@pytest.fixture(scope="module")
def pool(triton: FakeTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("pool")
    tokens = folder / "tokens"
    tokens.write_text(f"alice {FREE}\nbob {LIMITED} 0.001 {BURST}\n")
    tokens.chmod(0o600)
    limits = {"service_requests": PLACES, "service_sockets": SOCKETS, "tokens_file": tokens}
    with service_pool(triton, folder, **limits) as found:
        found.headers["Authorization"] = f"Bearer {FREE}"
        yield found


def test_every_process_serves(pool: Pool) -> None:
    assert len(pool.processes.pids) == 3
    assert set(pool.statuses("/new_session_id")) == {200}
    name = 'triton_sam_service_requests_total{method="GET",route="/new_session_id",status="200"}'
    assert {pool.metric(name) for _ in range(MANY)} == {float(MANY)}, "each has the sum"
    assert pool.ask("GET", "/models").json()[0]["name"] == "sam2"
    assert pool.click().json()["score"] == 0.9


def test_a_rate_is_one_for_all_processes(pool: Pool) -> None:
    found = pool.statuses("/v1/limits", headers={"Authorization": f"Bearer {LIMITED}"})
    assert sorted(found) == [200] * BURST + [429] * (MANY - BURST)
    assert pool.metric('triton_sam_service_callers_total{caller="bob",kind="request",outcome="taken"}') == BURST


def test_requests_about_videos_reach_the_process_that_would_have_them(pool: Pool) -> None:
    assert set(pool.statuses("/v1/videos")) == {200}
    assert set(pool.statuses("/v1/videos", headers={"Authorization": "Bearer another-long-word"})) == {401}
    for process in (0, 1, 2, 9):
        answer = pool.ask("GET", f"/v1/videos/{process}-{'0' * 32}", headers={"X-Peer-Caller": "bob"})
        assert "there is no such video" in refusal(answer, 404, "not_found")
        assert answer.headers["x-request-id"]
    made = pool.ask("POST", "/v1/videos", json={"width": 8, "height": 8})
    assert "no model that remembers videos" in refusal(made, 501, "not_served")


def test_tokens_are_those_of_the_file(pool: Pool) -> None:
    assert set(pool.statuses("/v1/limits", headers={"Authorization": "Bearer another-long-word"})) == {401}


def test_places_are_one_number_for_all_processes(pool: Pool) -> None:
    with ThreadPoolExecutor(PLACES) as threads, pool.triton.held():
        held = []
        for count in range(PLACES):  # one after the other: two that reach for the last place may both miss it
            held.append(threads.submit(pool.click))
            pool.triton.wait_for(count + 1)
        assert pool.metric("triton_sam_service_in_progress") >= PLACES
        refused = [pool.click() for _ in range(MANY)]
        assert {answer.status_code for answer in refused} == {429}
        pool.triton.open.set()
        assert [click.result().status_code for click in held] == [200] * PLACES
    assert pool.click().status_code == 200


def test_sockets_are_one_number_and_hover_as_usual(pool: Pool) -> None:
    headers = {"Authorization": f"Bearer {FREE}"}
    with contextlib.ExitStack() as stack:
        for number in range(SOCKETS):
            socket = stack.enter_context(hovering(pool.port, additional_headers=headers))
            say(socket, id=number, **CLICK)
            assert hear(socket)["result"]["score"] == 0.9
        assert pool.metric("triton_sam_service_websockets") == SOCKETS
        for _ in range(6):
            with hovering(pool.port, additional_headers=headers) as more, pytest.raises(ConnectionClosed, match="1013"):
                more.recv(timeout=TIMEOUT)
    eventually(lambda: pool.metric("triton_sam_service_websockets") == 0, "the sockets are closed")


def test_a_session_may_reach_any_process(pool: Pool) -> None:
    with ThreadPoolExecutor(PLACES) as threads, pool.triton.held():
        held = []
        for count in range(PLACES - 1):
            held.append(threads.submit(pool.click, session_id="mine", latest_wins=True))
            pool.triton.wait_for(count + 1)
        arrived = list(pool.triton.requests)
        assert len({request["session_id"] for request in arrived}) == 1, "the model sees one session"
        numbers = [request["sequence"] for request in arrived]
        assert numbers == sorted(set(numbers)), "and its order"
        answer = pool.ask("POST", "/cancel_pending", data={"session_id": "mine"})
        assert answer.json() == {"session_id": "mine", "cancelled": PLACES - 1}
        assert [click.result().status_code for click in held] == [499] * (PLACES - 1)


def test_the_state_of_the_server_is_told_by_every_process(pool: Pool) -> None:
    pool.supervisor.status |= {"state": "recovering", "reason": "a test"}
    try:
        eventually(lambda: set(pool.statuses("/health")) == {503}, "every process has heard it")
        assert pool.metric("triton_sam_supervisor_ready") == 0
        assert "recovering" in refusal(pool.click(), 503, "unavailable")
    finally:
        pool.supervisor.status |= {"state": "ready", "reason": ""}
    eventually(lambda: set(pool.statuses("/health")) == {200}, "and the end of it")


def test_a_lost_server_ends_the_requests_of_every_process(triton: FakeTriton, tmp_path: Path) -> None:
    with service_pool(triton, tmp_path, 2) as pool, ThreadPoolExecutor(8) as threads, triton.held():
        held = [threads.submit(pool.click) for _ in range(8)]
        triton.wait_for(8)
        pool.supervisor.lose("a test")
        for click in held:
            assert "being restarted (a test)" in refusal(click.result(), 503, "unavailable")


def test_a_process_that_is_killed_is_replaced(triton: FakeTriton, tmp_path: Path) -> None:
    with service_pool(triton, tmp_path, 2, service_requests=8) as pool, ThreadPoolExecutor(8) as threads:
        spare = spare_pid(pool)
        with triton.held():
            held = [threads.submit(pool.click) for _ in range(8)]
            triton.wait_for(8)
            victim, other = pool.processes.pids
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: not process_known(victim), "it has ended, with all its threads")
            assert set(pool.statuses("/health")) == {200}, "others answer in its place"
            eventually(lambda: len(pool.processes.pids) == 2 and victim not in pool.processes.pids, "a new process")
            triton.open.set()
            ends = [click.exception() or click.result().status_code for click in held]
        assert set(pool.processes.pids) == {other, spare}, "the one that was waiting"
        assert all(end == 200 or isinstance(end, httpx.TransportError) for end in ends)
        assert pool.metric('triton_sam_service_requests_total{method="GET",route="/health",status="200"}') == MANY
        assert pool.metric("triton_sam_service_in_progress") == 1, "its gauges are not: this is /metrics itself"
        with triton.held():
            held = []
            for count in range(8):
                held.append(threads.submit(pool.click))
                triton.wait_for(count + 1)  # all places are free again


def spare_pid(pool: Pool) -> int:
    eventually(lambda: pool.processes._spare is not None, "a spare process")
    assert pool.processes._spare is not None
    return pool.processes._spare.popen.pid


def test_a_spare_process_that_is_killed_changes_nothing(triton: FakeTriton, tmp_path: Path) -> None:
    with service_pool(triton, tmp_path, 2) as pool:
        pids = pool.processes.pids
        os.kill(spare_pid(pool), signal.SIGKILL)
        eventually(lambda: pool.processes._spare is None, "it is noticed")
        assert pool.processes.pids == pids
        os.kill(pids[0], signal.SIGKILL)
        eventually(lambda: len(pool.processes.pids) == 2 and pids[0] not in pool.processes.pids, "a new process")
        assert set(pool.statuses("/health")) == {200}


def test_a_stop_lets_every_process_finish(triton: FakeTriton, tmp_path: Path) -> None:
    with ThreadPoolExecutor(9) as threads, triton.held():
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(service_pool(triton, tmp_path, 2))
            pids = pool.processes.pids
            held = [threads.submit(pool.click) for _ in range(8)]
            triton.wait_for(8)
            stopped = threads.submit(stack.pop_all().close)
            eventually(lambda: not listens(pool.port), "nothing new is accepted")
            assert not stopped.done()
            triton.open.set()
            assert [click.result().status_code for click in held] == [200] * 8
            stopped.result()
        assert not any(process_alive(pid) for pid in pids)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT).close()
    except OSError:
        return False
    return True


def test_tls(triton: FakeTriton, tmp_path: Path) -> None:
    certificate, key = throw_away_certificate(tmp_path)
    with service_pool(triton, tmp_path, 2, tls_certificate=certificate, tls_key=key) as pool:
        trust = ssl.create_default_context(cafile=str(certificate))
        for _ in range(10):
            with httpx.Client(verify=trust, trust_env=False, timeout=TIMEOUT) as client:
                assert client.get(f"https://127.0.0.1:{pool.port}/health").json()["state"] == "ready"


def test_every_process_logs_its_requests(triton: FakeTriton, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ids = [f"request-{number}" for number in range(20)]
    with service_pool(triton, tmp_path, 2, log_format="json") as pool:
        for request_id in ids:
            pool.ask("GET", "/v1/limits", headers={"X-Request-ID": request_id})
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert sorted(line["request_id"] for line in lines if line.get("route") == "/v1/limits") == sorted(ids)


def test_a_port_that_is_taken(triton: FakeTriton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.service import pool_helpers

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(pool_helpers, "free_port", lambda: port)
        expected = pytest.raises(ServerError, match=f"cannot listen on 127.0.0.1 port {port}")
        with expected, service_pool(triton, tmp_path, 2):
            pytest.fail("entered")


def test_a_process_that_cannot_start(triton: FakeTriton, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alice short\n")
    expected = pytest.raises(ServerError, match=r"TRITON_SAM_TOKENS_FILE .* line 1")
    with expected, service_pool(triton, tmp_path, 2, tokens_file=tokens):
        pytest.fail("entered")


_PARENT = """
import json, sys, threading
from pathlib import Path
from tests.unit.service.fake_triton import FakeTriton
from tests.unit.service.pool_helpers import service_pool
with service_pool(FakeTriton(port=9), Path(sys.argv[1]), 2) as pool:
    print(json.dumps([pool.processes.pids, pool.processes._service.folder]), flush=True)
    threading.Event().wait()
"""


def test_processes_end_with_their_parent_and_the_next_start_cleans_up(triton: FakeTriton, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids, folder = json.loads(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not any(process_alive(pid) for pid in pids), "the processes have ended")
    assert Path(folder).exists()
    with scratch_folder(process_pool.FOLDER_PREFIX) as mine:
        assert not Path(folder).exists()
        with scratch_folder(process_pool.FOLDER_PREFIX):
            assert mine.exists(), "that of a running process is left alone"
    assert not mine.exists()


@pytest.mark.parametrize(("cores", "wanted", "count"), [(2, 0, 1), (7, 0, 1), (8, 0, 2), (64, 0, 4), (2, 3, 3)])
def test_how_many(cores: int, wanted: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert process_pool.process_count(Settings(service_processes=wanted)) == count


def test_a_small_response_does_not_wait_for_an_acknowledgement() -> None:
    """asyncio sets this option only if the listening socket names its protocol; a body would wait 40 ms."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            found.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listening_socket("127.0.0.1", 0) as listener:
            async with await asyncio.start_server(connected, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname())
                try:
                    return await found
                finally:
                    writer.close()
                    await writer.wait_closed()

    assert asyncio.run(option())
