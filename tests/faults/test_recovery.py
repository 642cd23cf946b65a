"""Processes killed while they serve: masks come back, right ones, nobody waits for ever, and no process is left."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from websockets.sync.client import connect

from tests.analytic import assert_mask, slow_picture, write_analytic
from tests.conftest import ServerFactory
from tests.faults.helpers import PATIENCE, POINT, expect_ended, held_by, processes_of, recoveries_of, stub_of
from tests.faults.shape import Shape, busiest_stub
from tests.integration.serve_folder import serve_folder
from tests.waiting import eventually
from triton_sam import SAM2TritonClient
from triton_sam.core.masks import decode
from triton_sam.errors import ServerUnreachable, TritonSamError, Unavailable
from triton_sam.server.host import SHARED_MEMORY, free_port
from triton_sam.server.pings import PingPolicy
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
#: Through the service; one more comes straight to Triton.
IN_FLIGHT = 8
#: What a page may be told while the server comes back.
CALM = ("unavailable", "image_expired")


@dataclass
class Coffee:
    """A photograph, and what every mask of it must be."""

    file: bytes
    picture: Image.Image

    def expect(self, client: SAM2TritonClient) -> None:
        """The mask of a client that has set the image before, whatever happened to the server since."""
        assert_mask(client.segment([POINT]).masks.best, self.picture, points=[POINT])


@pytest.fixture(scope="module")
def coffee(photographs: Path) -> Coffee:
    file = (photographs / "coffee.png").read_bytes()
    return Coffee(file, Image.open(io.BytesIO(file)))


@pytest.fixture(scope="module")
def running(start_server: ServerFactory) -> Iterator[RunningServer]:
    """A server that is killed by these tests; once it has been stopped nothing is left of it."""
    with start_server() as running:
        yield running
        everything, prefix = processes_of(running), running.supervisor.process.shm_prefix
        assert len(everything) >= 2
    expect_ended(everything)
    assert not list(SHARED_MEMORY.glob(f"{prefix}*"))
    assert running.supervisor.status["state"] == "stopped"


@pytest.fixture
def service(running: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.urls["service"], timeout=PATIENCE, trust_env=False) as client:
        yield client


def expect_repair(
    running: RunningServer, service: httpx.Client, before: tuple[object, object], *, restarts: int
) -> None:
    """The supervisor has mended it once, and health tells so."""
    eventually(lambda: recoveries_of(running) != before, "the mend")
    restarts_before, reloads_before = (int(str(count)) for count in before)
    assert recoveries_of(running) == (restarts_before + restarts, reloads_before + 1 - restarts)
    assert service.get("/health").status_code == 200


@pytest.mark.also_part("faults-processes")
@pytest.mark.usefixtures("patient_reaping")
def test_a_model_killed_idle_is_loaded_again(running: RunningServer, service: httpx.Client, coffee: Coffee) -> None:
    before, server_pid, stub = recoveries_of(running), running.supervisor.process.process.pid, stub_of(running)
    with SAM2TritonClient(running.urls["HTTP"]) as client:
        client.set_image(coffee.file)
        coffee.expect(client)
        eventually(lambda: held_by(running) == 0, "the end of all requests")  # an answer is out before it is counted
        os.kill(stub, signal.SIGKILL)
        expect_repair(running, service, before, restarts=0)
        coffee.expect(client)
    assert running.supervisor.process.process.pid == server_pid, "an idle death needs no restart of the server"
    expect_ended([stub])


@pytest.mark.also_part("faults-processes")
def test_a_model_killed_in_flight_tells_everybody(
    running: RunningServer, service: httpx.Client, coffee: Coffee
) -> None:
    before, everything = recoveries_of(running), processes_of(running)
    with (
        SAM2TritonClient(running.urls["HTTP"]) as client,
        SAM2TritonClient(running.urls["HTTP"], timeout=PATIENCE) as straight,
        ThreadPoolExecutor(IN_FLIGHT + 1) as pool,
    ):
        client.set_image(coffee.file)
        images = [{"image": slow_picture(number)} for number in range(IN_FLIGHT)]
        waiting = [pool.submit(service.post, "/v1/images", files=image) for image in images]
        cut_off = pool.submit(straight.set_image, slow_picture(IN_FLIGHT))
        eventually(lambda: held_by(running) == IN_FLIGHT + 1, "all requests in flight", pause=0.01)
        victim, held = busiest_stub(running)
        os.kill(victim, signal.SIGKILL)
        error = cut_off.exception(timeout=PATIENCE)
        assert isinstance(error, ServerUnreachable), repr(error)
        answers = [future.result(timeout=PATIENCE) for future in waiting]
        told = [answer for answer in answers if answer.status_code != 200]  # others may hold what is nearly done
        assert len(told) + 1 >= held
        assert told == answers or Shape.of(running).processes > 1
        for answer in told:
            assert answer.status_code == 503, answer.text
            assert answer.headers["Retry-After"].isdecimal()
            assert answer.json()["error"]["code"] == "unavailable"
            assert "try again" in answer.json()["error"]["message"]
        expect_repair(running, service, before, restarts=1)
        coffee.expect(client)
    expect_ended(everything)


@pytest.mark.also_part("faults-processes")
def test_a_killed_server_is_back_with_right_masks(
    running: RunningServer, service: httpx.Client, coffee: Coffee
) -> None:
    before, everything = recoveries_of(running), processes_of(running)
    address = running.urls["service"].replace("http", "ws", 1) + "/v1/hover"
    with (
        SAM2TritonClient(running.urls["HTTP"]) as http,
        SAM2TritonClient(running.urls["gRPC"]) as grpc,
        connect(address, proxy=None) as socket,
    ):

        def hover() -> dict[str, Any]:
            """What somebody with a page is told; the picture is sent again each time, as pages do."""
            sent = service.post("/v1/images", files={"image": coffee.file})
            assert sent.status_code in (200, 503), sent.text
            key = sent.json().get("image_key", "0" * 40)
            socket.send(json.dumps({"id": 1, "image_key": key, "points": [POINT], "format": "rle"}))
            answer: dict[str, Any] = json.loads(socket.recv(timeout=PATIENCE))
            assert "result" in answer or answer["error"]["code"] in CALM, answer
            return answer

        def hovers() -> bool:
            answer = hover()
            if "result" in answer:
                assert_mask(decode(answer["result"]["masks"][0]), coffee.picture, points=[POINT])
            return "result" in answer

        for client in (http, grpc):
            client.set_image(coffee.file)
            coffee.expect(client)
        assert hovers()
        os.kill(running.supervisor.process.process.pid, signal.SIGKILL)
        eventually(lambda: service.get("/health").status_code == 503, "health off", pause=0.005)
        eventually(hovers, "a mask over the old socket")
        expect_repair(running, service, before, restarts=1)
        coffee.expect(http)

        def grpc_is_back() -> bool:
            # A channel waits a little before it connects again, and says so.
            with contextlib.suppress(ServerUnreachable, Unavailable):
                coffee.expect(grpc)
                return True
            return False

        eventually(grpc_is_back, "masks over the old gRPC channel")
    expect_ended(everything)


def test_nobody_at_the_address_is_one_sentence(coffee: Coffee) -> None:
    for scheme in ("http", "grpc"):
        with pytest.raises(ServerUnreachable, match="triton-sam serve"):
            SAM2TritonClient(f"{scheme}://127.0.0.1:{free_port()}", retries=0).set_image(coffee.file)


def test_a_broken_model_says_why_and_leaves_nothing_running(embedded_server: None, tmp_path: Path) -> None:
    """Where nothing else is there to serve. That nothing runs is seen at the end of all tests."""
    models = write_analytic(tmp_path / "model_repository", tmp_path / "graphs")
    broken = models / "sam2" / "1" / "decoder.onnx"
    broken.unlink()  # a link to the graph
    broken.write_bytes(b"no graph")
    with pytest.raises(TritonSamError, match="sam2 does not load"), serve_folder(models, tmp_path / "home"):
        pass
    assert not list((tmp_path / "home").glob("run/*"))


# -- the rest of the matrix ----------------------------------------------------------------------------------------


@pytest.mark.part("faults")
@pytest.mark.also_part("faults-processes")
def test_a_hung_model_is_noticed(start_server: ServerFactory, coffee: Coffee) -> None:
    with (
        start_server(ping_policy=PingPolicy(every=0.5, timeout=5.0, missed=2)) as hurried,
        httpx.Client(base_url=hurried.urls["service"], timeout=PATIENCE, trust_env=False) as service,
        SAM2TritonClient(hurried.urls["HTTP"]) as client,
    ):
        client.set_image(coffee.file)
        before, everything = recoveries_of(hurried), processes_of(hurried)
        os.kill(stub_of(hurried), signal.SIGSTOP)  # alive, and silent
        expect_repair(hurried, service, before, restarts=1)
        coffee.expect(client)
        expect_ended(everything)


@pytest.mark.part("faults")
@pytest.mark.also_part("faults-processes")
def test_stopping_finishes_what_is_in_flight(start_server: ServerFactory) -> None:
    with ThreadPoolExecutor(1) as pool:
        with start_server() as stopping, SAM2TritonClient(stopping.urls["HTTP"]) as client:
            waiting = pool.submit(client.set_image, slow_picture(0))
            eventually(lambda: held_by(stopping), "the request in flight")
            everything = processes_of(stopping)
        assert len(waiting.result(timeout=PATIENCE)) == 40
    expect_ended(everything)
    assert stopping.supervisor.status["state"] == "stopped"
