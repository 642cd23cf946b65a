"""Clients and transports with servers in memory or on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.unit.client.kserve import KServe
from tests.unit.client.memory_server import PICTURE, MemoryServer
from triton_sam.client import link
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.client.transport import HttpTransport


@pytest.fixture
def transport() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def client(transport: MemoryServer) -> SAM2TritonClient:
    return SAM2TritonClient(transport=transport)


@pytest.fixture
def with_image(client: SAM2TritonClient, transport: MemoryServer) -> SAM2TritonClient:
    client.set_image(PICTURE)
    transport.calls.clear()
    return client


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client would have slept."""
    slept: list[float] = []
    monkeypatch.setattr(link, "time", SimpleNamespace(sleep=slept.append))
    return slept


@pytest.fixture
def server() -> Iterator[KServe]:
    with KServe() as running:
        yield running


@pytest.fixture
def http(server: KServe) -> Iterator[HttpTransport]:
    transport = HttpTransport(server.address, 20.0, {})
    yield transport
    transport.close()
