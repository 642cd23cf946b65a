"""A crowd of clicks that HAProxy refuses before the service has to. A stand-in for the service answers when told."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.proxies import HAProxy, WholeServer, running_haproxy
from tests.waiting import eventually

pytestmark = pytest.mark.part("overload")
PATIENCE = 60.0
CLICK = {"image_key": "a", "points": [[1, 2]]}


class Service:
    """Healthy; holds uploads until it is told to answer them."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.paths: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._say(b"{}")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.paths.append(self.path)
                if self.path == "/v1/images":
                    outer.may_answer.wait(PATIENCE)
                self._say(b'{"from": "the service"}')

            def _say(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()
        self.port = self._http.server_port

    def close(self) -> None:
        self.may_answer.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


@pytest.fixture
def haproxy(service: Service, tmp_path: Path) -> Iterator[HAProxy]:
    """With room for one request."""
    alone = WholeServer(tmp_path, tmp_path, ports=dict.fromkeys(("service", "http", "grpc", "metrics"), service.port))
    with running_haproxy([alone, alone], tmp_path, MOST_REQUESTS="1") as running:
        yield running


def test_clicks_above_the_limit_are_refused_in_the_services_words(service: Service, haproxy: HAProxy) -> None:
    with (
        httpx.Client(base_url=haproxy.url, timeout=PATIENCE, trust_env=False) as client,
        ThreadPoolExecutor() as pool,
    ):
        assert client.post("/v1/segment", json=CLICK).json() == {"from": "the service"}
        eventually(lambda: haproxy.under_way() == 0, "the end of the click")
        upload = pool.submit(httpx.post, f"{haproxy.url}/v1/images", content=b"a", timeout=PATIENCE, trust_env=False)
        eventually(lambda: haproxy.under_way() == 1, "the upload at the service")
        for path in ("/v1/segment", "/v1/segment", "//v1//segment"):
            refused = client.post(f"{haproxy.url}{path}", json=CLICK, headers={"X-Request-ID": "mine"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert (refused.headers["Retry-After"], refused.headers["X-Request-ID"]) == ("1", "mine")
        assert client.get("/health").status_code == 200, "health is always answered"
        passed = ("/cancel_pending", "/v1/chat/completions")
        assert [client.post(path, json={}).status_code for path in passed] == [200, 200]
        assert client.post("/v1/segment", json=CLICK | {"note": "x" * 8192}).status_code == 200, "not a plain click"
        assert client.post("/v1/segment", json=CLICK, headers={"Origin": "http://page"}).status_code == 200
        service.may_answer.set()
        assert upload.result(PATIENCE).status_code == 200
        eventually(lambda: haproxy.under_way() == 0, "the end of the upload")
        assert client.post("/v1/segment", json=CLICK).status_code == 200
    assert haproxy.refused() == 3
    assert service.paths.count("/v1/segment") == 4
