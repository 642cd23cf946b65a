"""Answers of a vision-language model through HAProxy and nginx: word by word, as they are said."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from tests.faults.proxies import WholeServer, running_haproxy, running_nginx
from tests.integration.vlm_serving import serving_vlms
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.part("overload")]
#: Seconds for a word, so that words cannot arrive together by chance.
SLOW = 0.3
#: The model that comes with the package does not always end by itself.
WORDS = 8


@pytest.fixture(scope="module")
def running(embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    pytest.importorskip("transformers")
    with serving_vlms(tmp_path_factory.mktemp("vlm"), {"vlm:shapes": None}, slow={"vlm:shapes": SLOW}) as running:
        yield running


@contextlib.contextmanager
def behind(proxy: str, running: RunningServer, folder: Path) -> Iterator[httpx.Client]:
    ports = {name: urlsplit(running.urls["service"]).port or 0 for name in ("service", "http", "grpc", "metrics")}
    with contextlib.ExitStack() as stack:
        if proxy == "haproxy":
            alone = WholeServer(folder, folder, ports=ports)
            url, trust = stack.enter_context(running_haproxy([alone, alone], folder)).url, None
        else:
            url = stack.enter_context(running_nginx([f"127.0.0.1:{ports['service']}"], folder))
            trust = ssl.create_default_context(cafile=str(folder / "site.crt"))
        yield stack.enter_context(httpx.Client(base_url=url, verify=trust or True, timeout=120, trust_env=False))


def question() -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(buffer, "PNG")
    address = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = [{"type": "text", "text": "what is there?"}, {"type": "image_url", "image_url": {"url": address}}]
    return {"model": "shapes", "stream": True, "max_tokens": WORDS, "messages": [{"role": "user", "content": content}]}


def pieces(client: httpx.Client) -> list[bytes]:
    """The answer's body in the parts in which it came."""
    with client.stream("POST", "/v1/chat/completions", json=question()) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(answer.iter_raw())


def words(parts: list[bytes]) -> list[str]:
    events = [line[6:] for line in b"".join(parts).decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"] for event in events[:-1]]
    return [choice["delta"].get("content") or "" for chosen in choices for choice in chosen]


@pytest.mark.parametrize("proxy", ["haproxy", "nginx"])
def test_words_come_as_they_are_said(running: RunningServer, proxy: str, tmp_path: Path) -> None:
    with httpx.Client(base_url=running.urls["service"], timeout=120, trust_env=False) as straight:
        said = words(pieces(straight))
    assert sum(map(bool, said)) >= 2, said
    with behind(proxy, running, tmp_path) as client:
        parts = pieces(client)
    assert words(parts) == said
    assert len(parts) >= sum(map(bool, said)), "each word in a part of its own: nobody on the way has waited for more"
