"""Requests and parsed responses for the tests of the chat routes."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.unit.service.helpers import (
    USAGE,
    Fake,
    ask,
)

PATH = "/v1/chat/completions"
TOTAL = {**USAGE, "total_tokens": 10}


def completion(document: dict[str, Any], fake: Fake | None = None, **settings: Any) -> httpx.Response:
    return ask("POST", PATH, fake, settings=settings, json=document)


def param(answer: httpx.Response) -> str | None:
    found: str | None = answer.json()["error"]["param"]
    return found


def events(answer: httpx.Response | str) -> list[Any]:
    """What a stream of events carries; its form is checked on the way."""
    lines = (answer if isinstance(answer, str) else answer.text).split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def request_bytes(document: dict[str, Any]) -> bytes:
    body = json.dumps(document).encode()
    return b"POST %s HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%s" % (PATH.encode(), len(body), body)
