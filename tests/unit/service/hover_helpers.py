"""A WebSocket client for the tests of /v1/hover."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.unit.service.helpers import TIMEOUT


@contextlib.contextmanager
def hovering(port: int, path: str = "/v1/hover", **options: Any) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port}{path}", proxy=None, open_timeout=TIMEOUT, **options) as socket:
        yield socket


def say(socket: ClientConnection, **message: Any) -> None:
    socket.send(json.dumps(message))


def hear(socket: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(socket.recv(timeout=TIMEOUT))
    return found


def metric(port: int, line: str) -> bool:
    with httpx.Client(timeout=TIMEOUT, trust_env=False) as client:
        return line in client.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()


def until_metric(port: int, line: str) -> None:
    while not metric(port, line):  # the test's time limit ends it otherwise
        pass
