"""Options, sessions, headers and threads of the blocking client, against a server in memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import pytest

from tests.unit.client.memory_server import PICTURE, MemoryServer
from triton_sam.client import endpoint
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.client.wire import Address
from triton_sam.errors import (
    InvalidInput,
    Unavailable,
)
from triton_sam.settings import get_settings

# the connection


def test_the_session_goes_with_every_request(transport: MemoryServer) -> None:
    client = SAM2TritonClient(transport=transport, session_id="tab-7")
    client.set_image(PICTURE)
    client.segment([[1, 2]])
    assert [dict(call.parameters) for call in transport.calls] == [{"session_id": "tab-7"}] * 2


def test_no_session_no_parameters(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    with_image.predict([[1, 2]])
    assert dict(transport.calls[0].parameters) == {}


def test_leaving_the_block_closes(transport: MemoryServer) -> None:
    with SAM2TritonClient(transport=transport) as client:
        assert transport.closed == 0
        assert isinstance(client, SAM2TritonClient)
    assert transport.closed == 1
    with pytest.raises(ZeroDivisionError), SAM2TritonClient(transport=transport):
        raise ZeroDivisionError
    assert transport.closed == 2


def test_is_ready_asks_for_the_model(transport: MemoryServer) -> None:
    assert SAM2TritonClient(transport=transport).is_ready()
    assert not SAM2TritonClient(model_type="sam1", transport=transport).is_ready()
    transport.ready = False
    assert not SAM2TritonClient(transport=transport).is_ready()


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Address, float, dict[str, str]]]:
    """What ``connect`` was asked for."""
    asked: list[tuple[Address, float, dict[str, str]]] = []

    def connect(address: Address, timeout: float, headers: dict[str, str]) -> MemoryServer:
        asked.append((address, timeout, headers))
        return MemoryServer()

    monkeypatch.setattr(endpoint, "connect", connect)
    monkeypatch.setattr(endpoint.Endpoint, "is_service", lambda self: False)
    for name in ("TRITON_URL", "TRITON_SAM_URL"):
        monkeypatch.delenv(name, raising=False)
    get_settings.cache_clear()
    return asked


@pytest.fixture(autouse=True)
def _fresh_settings() -> Any:
    yield
    get_settings.cache_clear()


def test_triton_url_is_respected(
    connected: list[tuple[Address, float, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    SAM2TritonClient().set_image(PICTURE)
    get_settings.cache_clear()
    monkeypatch.setenv("TRITON_URL", "grpc://far.example:9001")
    SAM2TritonClient()
    SAM2TritonClient("https://near.example/sam", timeout=7, headers={"authorization": "Bearer x"}).set_image(PICTURE)
    assert connected == [
        (Address("localhost:8000", grpc=False, tls=False), 120.0, {}),
        (Address("far.example:9001", grpc=True, tls=False), 120.0, {}),
        (Address("near.example:443/sam", grpc=False, tls=True), 7, {"authorization": "Bearer x"}),
    ]


def test_all_requests_about_an_image_name_it_to_a_proxy(transport: MemoryServer) -> None:
    client = SAM2TritonClient(transport=transport)
    client.set_image(PICTURE)
    client.predict([[1, 2]], [1])
    transport.images.clear()  # so the image is sent again
    client.segment([[1, 2]])
    assert [dict(call.headers) for call in transport.calls] == [{"x-image-key": sha256(PICTURE).hexdigest()}] * 5
    client.set_image(b"another")
    assert transport.calls[-1].headers == {"x-image-key": sha256(b"another").hexdigest()}


def test_the_caller_s_own_name_for_an_image_is_enough(transport: MemoryServer) -> None:
    client = SAM2TritonClient(transport=transport, headers={"X-Image-Key": "mine"})
    client.set_image(PICTURE)
    client.predict([[1, 2]], [1])
    assert [dict(call.headers) for call in transport.calls] == [{}, {}], "the transport sends the caller's headers"


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": -1.0}, {"retries": -1}, {"url": "ftp://host"}])
def test_options_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        SAM2TritonClient(**wrong)


def test_eight_threads_share_a_client(transport: MemoryServer, pauses: list[float]) -> None:
    client = SAM2TritonClient(transport=transport)
    client.set_image(PICTURE)
    transport.failures = [Unavailable("busy") for _ in range(3)]
    together = threading.Barrier(8, timeout=20)

    def click(number: int) -> list[float]:
        together.wait()
        return [float(client.predict([[100 * number + turn, 1]], [1])[0][0, 0, 0, 0]) for turn in range(10)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(click, range(8)))
    assert answers == [[100.0 * number + turn for turn in range(10)] for number in range(8)]
    assert len(transport.calls) == 1 + 80 + 3
    assert len(pauses) == 3


def test_threads_that_change_the_image_get_whole_answers(transport: MemoryServer) -> None:
    client = SAM2TritonClient(transport=transport)
    client.set_image(b"a")
    together = threading.Barrier(4, timeout=20)

    def work(number: int) -> None:
        together.wait()
        for _ in range(20):
            client.set_image(b"abcd"[: number + 1])
            client.predict([[1, 2]])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    used = {call.inputs["image_key"][0].decode() for call in transport.calls if "image_key" in call.inputs}
    assert used <= set(transport.images)
    assert transport.kinds.count("encode") == 1 + 4 * 20
