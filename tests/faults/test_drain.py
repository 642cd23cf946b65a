"""A polite kill of ``triton-sam serve`` with twenty requests in flight: all of them get what they asked for."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.faults.forms import form, record
from tests.faults.helpers import PATIENCE, children_of
from tests.faults.load import picture
from tests.faults.test_recovery import serve_command, wait_until_serving
from tests.waiting import eventually
from triton_sam import SAM2TritonClient
from triton_sam.host import free_port, process_alive

pytestmark = [pytest.mark.triton, pytest.mark.timeout(300)]
IN_FLIGHT = 20
#: Equal images are encoded once: so many encodes as a stop waits for, which is 10 s at most, on any machine.
MOST_PICTURES, PICTURE_SECONDS = 3, 7.0
EXIT_WITHIN = 15.0
DOORS = {"service": "the service", "triton": "Triton's own port"}
#: Other programs share the cores in the short form.
SLACK = form(3.0, 1.0)


@pytest.mark.parametrize("door", DOORS)
def test_twenty_in_flight_finish(repository: Path, tmp_path: Path, door: str) -> None:
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
        serve_command(repository, tmp_path, **ports) as process,
        httpx.Client(timeout=PATIENCE, trust_env=False) as client,
        ThreadPoolExecutor(IN_FLIGHT) as pool,
    ):
        wait_until_serving(process)
        servers = children_of(process.pid)
        (flight,) = tmp_path.glob("run/*/flight/sam2.*")
        begun = time.monotonic()
        ask(1000, client)
        pictures = max(1, min(MOST_PICTURES, int(PICTURE_SECONDS / (time.monotonic() - begun))))
        waiting = [pool.submit(ask, number % pictures, client) for number in range(IN_FLIGHT)]
        eventually(lambda: int.from_bytes(flight.read_bytes(), "little") == IN_FLIGHT, "all in flight", pause=0.01)
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
    assert not any(process_alive(pid) for pid in servers)
    assert lasted <= EXIT_WITHIN * SLACK
