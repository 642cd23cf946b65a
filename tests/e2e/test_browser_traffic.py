"""What testkit.page_traffic counts, on a page and a server of the test's own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from testkit.page_traffic import Traffic
from tests.e2e.browser import OpenPage, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.part("page")
#: With an icon: Chromium asks for /favicon.ico otherwise, and a 404 is a complaint.
PAGE = b'<!doctype html><html lang="en"><title>t</title><link rel="icon" href="data:,">'


@dataclass
class Site:
    """Any page at ``url``; what is under ``/v1/`` is answered when ``release`` is set."""

    url: str
    release: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def site() -> Iterator[Site]:
    """To be named before ``open_page``: it must outlive the pages."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_asked = self.path.startswith("/v1/")
            if is_asked:
                site.release.wait(30)
            body = b"{}" if is_asked else PAGE
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if is_asked else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = Site(f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield site
        finally:
            site.release.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def hover_url(site: Site) -> Iterator[str]:
    """A socket that answers every frame, once ``site.release`` is set."""

    def answer(socket: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            for frame in socket:
                site.release.wait(30)
                socket.send(frame)

    with serve(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/v1/hover"
        finally:
            site.release.set()
            server.shutdown()
            thread.join()


def test_requests_in_flight(site: Site, open_page: OpenPage, traffic: Callable[[Page], Traffic]) -> None:
    page, other = open_page(site.url), open_page(site.url)
    seen = traffic(page)
    assert seen.requests == [], "the page itself is none of the service's requests"
    page.evaluate("fetch('/v1/a'); fetch('/v1/b'); fetch('/other'); 0")
    wait_until(page, lambda: seen.in_flight == 2)
    site.release.set()
    wait_until(page, lambda: seen.in_flight == 0)
    assert seen.most_in_flight == 2
    page.evaluate("fetch('/v1/c').then(r => r.json()).then(() => fetch('/v1/d')).then(r => r.json())")
    assert sorted(seen.requests) == ["GET /v1/a", "GET /v1/b", "GET /v1/c", "GET /v1/d"]
    assert seen.most_in_flight == 2
    assert traffic(other).most_in_flight == 0


def test_requests_one_after_the_other(site: Site, open_page: OpenPage, traffic: Callable[[Page], Traffic]) -> None:
    """Events come in the page's order: a request that begins when the one before is read counts as one."""
    site.release.set()
    page = open_page(site.url)
    page.evaluate("(async () => { for (let i = 0; i < 50; i++) await (await fetch('/v1/x')).text(); })()")
    assert len(traffic(page).requests) == 50
    assert traffic(page).most_in_flight == 1


def test_frames_in_flight(site: Site, open_page: OpenPage, traffic: Callable[[Page], Traffic], hover_url: str) -> None:
    page = open_page(site.url)
    seen = traffic(page)
    page.evaluate("url => new Promise(done => { hover = new WebSocket(url); hover.onopen = done; })", hover_url)
    page.evaluate("hover.send('1'); hover.send('2'); fetch('/v1/a'); 0")
    wait_until(page, lambda: seen.in_flight == 3)
    assert seen.frames_received == []
    site.release.set()
    wait_until(page, lambda: seen.in_flight == 0)
    assert seen.frames_sent == seen.frames_received == ["1", "2"]
    site.release.clear()
    page.evaluate("hover.send('3')")
    wait_until(page, lambda: seen.in_flight == 1)
    page.evaluate("hover.close()")
    site.release.set()
    wait_until(page, lambda: seen.in_flight == 0)
    assert (seen.most_in_flight, seen.sockets_opened) == (3, 1)
