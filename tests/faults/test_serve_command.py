"""``triton-sam serve`` killed, or asked to end: what is in flight is finished, and no process is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from testkit.steady_load import picture
from tests.analytic import slow_picture
from tests.faults.figures import record
from tests.faults.helpers import PATIENCE, expect_ended, family_of
from tests.faults.serve_command import expect_in_flight, serve_command, wait_until_serving
from triton_sam import SAM2TritonClient
from triton_sam.server.host import SHARED_MEMORY, free_port

pytestmark = [pytest.mark.triton, pytest.mark.timeout(300)]
#: Of one image, which is encoded once: a stop waits for 10 s at most, on any machine.
FEW = 8
IN_FLIGHT = 20
#: So many encodes as a stop waits for.
MOST_PICTURES, PICTURE_SECONDS = 3, 7.0
EXIT_WITHIN = 15.0
DOORS = {"service": "the service", "triton": "Triton's own port"}


@pytest.mark.also_part("faults-processes")
@pytest.mark.parametrize("processes", [1, 3])
def test_a_killed_serve_takes_its_processes_along_and_the_next_one_drains(
    repository: Path, tmp_path: Path, processes: int
) -> None:
    variables = {"TRITON_SAM_SERVICE_PROCESSES": str(processes)}
    with serve_command(repository, tmp_path, variables) as process:
        wait_until_serving(process)
        everything = family_of(process.pid)
        expected = 3 if processes == 1 else 3 + processes
        assert len(everything) >= expected, "the service, tritonserver and the model"
        process.kill()
        process.wait(PATIENCE)
        expect_ended(everything)
        left = list(SHARED_MEMORY.glob(f"triton_sam_{process.pid}_*"))

    ports = {"service": free_port()}
    address = f"http://127.0.0.1:{ports['service']}"
    with (
        serve_command(repository, tmp_path, variables, **ports) as process,
        httpx.Client(base_url=address, timeout=PATIENCE, trust_env=False) as client,
        ThreadPoolExecutor(FEW) as pool,
    ):
        wait_until_serving(process)
        assert not [region for region in left if region.exists()], "a start sweeps what a killed server left"
        kept = sorted(re.split(r"_|-\d+\.json", path.name)[0] for path in (tmp_path / "run").iterdir())
        assert kept == [str(process.pid), f"server-{process.pid}"], "of folders and records, too"
        everything = family_of(process.pid)
        image = {"image": slow_picture(0)}
        waiting = [pool.submit(client.post, "/v1/images", files=image) for _ in range(FEW)]
        expect_in_flight(tmp_path, FEW)
        process.send_signal(signal.SIGTERM)
        answers = [future.result(timeout=PATIENCE) for future in waiting]
        assert [answer.status_code for answer in answers] == [200] * FEW, answers[0].text
        assert process.wait(timeout=PATIENCE) == 0
    expect_ended(everything)
    assert not list((tmp_path / "run").iterdir())
    assert not list(SHARED_MEMORY.glob(f"triton_sam_{process.pid}_*"))


def test_a_busy_port_is_one_sentence_before_anything_starts(repository: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with serve_command(repository, tmp_path, http=number) as process:
            output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert f"the http port {number} on 127.0.0.1 cannot be used" in output
    assert "--http-port" in output
    assert len(output.strip().splitlines()) == 1, output
    assert not (tmp_path / "logs").exists()


# -- the rest of the matrix ----------------------------------------------------------------------------------------


@pytest.mark.part("faults")
@pytest.mark.also_part("faults-processes")
@pytest.mark.parametrize("door", DOORS)
def test_twenty_in_flight_finish(real_repository: Path, tmp_path: Path, door: str) -> None:
    ports = {"http": free_port(), "service": free_port()}

    def ask(number: int, through: httpx.Client) -> str:
        """The image's key."""
        image = picture(number)
        if door == "triton":
            with SAM2TritonClient(f"127.0.0.1:{ports['http']}", retries=0, timeout=PATIENCE) as client:
                return client.set_image(image)
        answer = through.post(f"http://127.0.0.1:{ports['service']}/v1/images", files={"image": image})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["image_key"])

    with (
        serve_command(real_repository, tmp_path, **ports) as process,
        httpx.Client(timeout=PATIENCE, trust_env=False) as client,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
    ):
        wait_until_serving(process)
        everything = family_of(process.pid)
        begun = time.monotonic()
        ask(1000, client)
        pictures = max(1, min(MOST_PICTURES, int(PICTURE_SECONDS / (time.monotonic() - begun))))
        waiting = [pool.submit(ask, number % pictures, client) for number in range(IN_FLIGHT)]
        expect_in_flight(tmp_path, IN_FLIGHT)
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        keys = [future.exception() or future.result() for future in waiting]
        answered = time.monotonic() - begun
        code = process.wait(timeout=PATIENCE)
        lasted = time.monotonic() - begun
    finished = [key for key in keys if isinstance(key, str)]
    record(
        f"drain-{door}",
        f"SIGTERM with {IN_FLIGHT} in flight, through {DOORS[door]}",
        {
            "finished": (len(finished), f"{IN_FLIGHT} of {IN_FLIGHT}"),
            "images to encode among them": (pictures, ""),
            "last answer after, s": (round(answered, 1), ""),
            "exit after, s": (round(lasted, 1), f"<= {EXIT_WITHIN:g}"),
            "exit code": (code, "0"),
        },
    )
    assert len(finished) == IN_FLIGHT, [key for key in keys if not isinstance(key, str)]
    assert len(set(finished)) == pictures
    assert code == 0
    expect_ended(everything)
    assert lasted <= EXIT_WITHIN


@pytest.mark.part("faults")
@pytest.mark.also_part("faults-processes")
def test_ctrl_c_drains_and_stops_all(repository: Path, tmp_path: Path) -> None:
    port = free_port()
    with (
        serve_command(repository, tmp_path, http=port) as process,
        SAM2TritonClient(f"127.0.0.1:{port}") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        wait_until_serving(process)
        everything = family_of(process.pid)
        waiting = pool.submit(client.set_image, slow_picture(0))
        expect_in_flight(tmp_path, 1)
        process.send_signal(signal.SIGINT)
        assert len(waiting.result(timeout=PATIENCE)) == 40
        assert process.wait(timeout=PATIENCE) == 0
    expect_ended(everything)
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.part("faults")
def test_a_proxy_for_the_world_is_not_for_our_own_server(repository: Path, tmp_path: Path) -> None:
    dead_proxy = f"http://127.0.0.1:{free_port()}"
    ports = {"http": free_port(), "grpc": free_port()}
    with serve_command(repository, tmp_path, {"http_proxy": dead_proxy, "https_proxy": dead_proxy}, **ports) as process:
        wait_until_serving(process)
        script = "import sys, triton_sam as t; [t.SAM2TritonClient(u).set_image(sys.argv[1]) for u in sys.argv[2:]]"
        image = tmp_path / "picture.png"
        image.write_bytes(picture(0))
        urls = [f"http://127.0.0.1:{ports['http']}", f"grpc://127.0.0.1:{ports['grpc']}"]
        done = subprocess.run(
            [sys.executable, "-c", script, str(image), *urls],
            env=os.environ | {"http_proxy": dead_proxy, "https_proxy": dead_proxy},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr
