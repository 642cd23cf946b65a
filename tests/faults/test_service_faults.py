"""A model's process killed under the service: everybody is told at once, and masks come back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import websockets

from tests.conftest import ServerFactory
from tests.faults.forms import form
from tests.faults.helpers import POINT, held_by, stub_of
from tests.integration.test_service import fresh_picture
from tests.waiting import eventually
from triton_sam.serving import Running

pytestmark = pytest.mark.triton
CLIENTS = 8
#: Other programs share the cores in the short form.
TOLD_WITHIN, BACK_WITHIN = form(6.0, 2.0), form(15.0, 5.0)


@pytest.fixture(scope="module")
def started(start_server: ServerFactory) -> Iterator[tuple[Running, float]]:
    """A server, and how long it took to load and start."""
    begun = time.monotonic()
    with start_server() as running:
        yield running, time.monotonic() - begun


def post(url: str, number: int) -> tuple[httpx.Response, float]:
    """One client with an image of its own: (answer, when it came)."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        answer = client.post("/embedded_model", files={"image": fresh_picture(5000 + number)})
        return answer, time.monotonic()


def test_eight_clients_wait_while_the_model_is_killed(started: tuple[Running, float], photographs: Path) -> None:
    running, load_seconds = started
    url = running.urls["service"]
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client, ThreadPoolExecutor(CLIENTS) as pool:
        waiting = [pool.submit(post, url, number) for number in range(CLIENTS)]
        eventually(lambda: held_by(running) == CLIENTS, "eight requests in flight")
        os.kill(stub_of(running), signal.SIGKILL)
        killed = time.monotonic()
        for future in waiting:
            answer, when = future.result()
            assert answer.status_code == 503, answer.text
            assert answer.headers["Retry-After"]
            error = answer.json()["error"]
            assert error["code"] == "unavailable"
            assert "try again" in error["message"]
            assert when - killed < TOLD_WITHIN
        assert client.get("/health").status_code == 503

        def back() -> bool:
            answer = client.post("/v1/images", files={"image": (photographs / "coffee.png").read_bytes()})
            if answer.status_code == 200:
                return True
            assert answer.status_code == 503, answer.text
            return False

        eventually(lambda: client.get("/health").status_code == 200, "health")
        healthy = time.monotonic() - killed
        assert back(), "health says ready, so it is"
        assert healthy < BACK_WITHIN + load_seconds


def test_a_hover_socket_outlives_the_model(started: tuple[Running, float], photographs: Path) -> None:
    running, _ = started
    picture = (photographs / "coffee.png").read_bytes()

    async def body() -> None:
        address = running.urls["service"].replace("http://", "ws://") + "/v1/hover"
        async with (
            httpx.AsyncClient(base_url=running.urls["service"], timeout=60, trust_env=False) as client,
            websockets.connect(address, proxy=None) as socket,
        ):

            async def ask(name: str) -> dict[str, object]:
                key = (await client.post("/v1/images", files={"image": picture})).json().get("image_key", "0" * 40)
                await socket.send(json.dumps({"id": name, "image_key": key, "points": [POINT], "format": "rle"}))
                answer: dict[str, object] = json.loads(await asyncio.wait_for(socket.recv(), 60))
                return answer

            assert "result" in await ask("before")
            os.kill(running.supervisor.process.process.pid, signal.SIGKILL)
            answers = []
            while not answers or "result" not in answers[-1]:
                answers.append(await ask(f"try {len(answers)}"))
                await asyncio.sleep(0.05)
            refused = [answer["error"] for answer in answers[:-1]]
            assert all(isinstance(error, dict) and error["code"] in CALM for error in refused), refused

    asyncio.run(asyncio.wait_for(body(), 120))


#: What a page may be told while the server comes back.
CALM = ("unavailable", "image_expired")
