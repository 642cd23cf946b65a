from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from triton_sam import __version__
from triton_sam.catalog import DEFAULT_MODEL, get_spec
from triton_sam.errors import ServerError
from triton_sam.host import free_port
from triton_sam.service.app import ServiceThread, create_app
from triton_sam.specs import ModelSpec


def ask(path: str, status: Mapping[str, object], segmenters: Mapping[str, ModelSpec] | None = None) -> httpx.Response:
    """One request to the application, without a port."""

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(lambda: status, lambda: segmenters or {}))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(path)

    return asyncio.run(request())


def test_health_while_masks_are_served() -> None:
    status = {
        "state": "ready",
        "restarts": 1,
        "reloads": 2,
        "reason": "it died once",
        "versions": {"sam2": "2"},
        "problems": {"sam2": "version 3 does not load"},
    }
    answer = ask("/health", status)
    assert answer.status_code == 200
    assert answer.json() == status


@pytest.mark.parametrize("state", ["starting", "recovering", "stopping", "stopped", "failed"])
def test_health_otherwise(state: str) -> None:
    status = {"state": state, "restarts": 0, "reloads": 0, "reason": "the process of sam2 died"}
    answer = ask("/health", status)
    assert answer.status_code == 503
    assert answer.json() == status


def test_health_is_asked_every_time() -> None:
    states = iter(["ready", "recovering", "ready"])
    app = create_app(lambda: {"state": next(states)}, dict)

    async def request() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return [(await client.get("/health")).status_code for _ in range(3)]

    assert asyncio.run(request()) == [200, 503, 200]


def test_models() -> None:
    spec = get_spec(DEFAULT_MODEL)
    answer = ask("/models", {}, {"sam2": spec})
    assert answer.status_code == 200
    assert answer.json() == [
        {"name": "sam2", "id": DEFAULT_MODEL, "family": "sam2", "title": spec.title, "licence": spec.licence}
    ]
    assert ask("/models", {}).json() == []


def test_the_version_is_told() -> None:
    assert ask("/openapi.json", {}).json()["info"]["version"] == __version__
    assert ask("/nothing-here", {}).status_code == 404


def get(url: str) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        found: dict[str, Any] = json.loads(response.read())
    return found


def test_the_service_answers_as_soon_as_it_is_entered_and_no_longer_than_that() -> None:
    port = free_port()
    app = create_app(lambda: {"state": "ready"}, dict)
    with ServiceThread(app, "127.0.0.1", port):
        assert get(f"http://127.0.0.1:{port}/health") == {"state": "ready"}
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        pytest.fail("it still listens")


def test_a_port_that_was_taken_meanwhile() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=str(port)), ServiceThread(create_app(dict, dict), "127.0.0.1", port):
            pytest.fail("entered")
