"""The tools of the browser tests catch what they are for; on a small page of their own, without the service."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.e2e.browser import AXE, REQUIRED, OpenPage, PageLog, axe_source, serious_findings, wait_until
from triton_sam.bench.traffic import Traffic
from triton_sam.fetch import npm

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[2]
#: With an icon: Chromium asks for /favicon.ico otherwise, and a 404 is a complaint.
GOOD = (
    '<!doctype html><html lang="en"><title>t</title><link rel="icon" href="/dot.svg">'
    '<meta name="viewport" content="width=device-width">'
)
STRICT = "default-src 'none'; script-src 'self'; img-src 'self'; connect-src 'self'; require-trusted-types-for 'script'"


@dataclass
class Site:
    """A server of the test's own, to be named before ``open_page``: it must outlive the pages.

    ``/v1/*`` answers when ``release`` is set.
    """

    url: str
    pages: dict[str, tuple[str, str]] = field(default_factory=dict)
    release: threading.Event = field(default_factory=threading.Event)

    def page(self, html: str, policy: str = "default-src * 'unsafe-inline' data: blob:") -> str:
        """The address of a page with this text and this Content-Security-Policy."""
        path = f"/{len(self.pages)}.html"
        self.pages[path] = (html, policy)
        return f"{self.url}{path}"


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/v1/"):
                site.release.wait(30)
                self._answer(200, "application/json", b"{}")
            elif self.path == "/dot.svg":
                self._answer(200, "image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
            elif self.path in site.pages:
                html, policy = site.pages[self.path]
                self._answer(200, "text/html", html.encode(), policy)
            else:
                self._answer(404, "text/plain", b"nothing here")

        def _answer(self, status: int, kind: str, body: bytes, policy: str | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if policy:
                self.send_header("Content-Security-Policy", policy)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = Site(f"http://127.0.0.1:{server.server_port}")
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


# -- complaints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>console.error('boom', 7)</script>", r"^console: boom 7 \(http://.*\.html:\d+\)$"),
        ("<script>throw new TypeError('unheard')</script>", "^uncaught: .*unheard"),
        ("<script>Promise.reject(new Error('nobody waits'))</script>", "^uncaught: .*nobody waits"),
        ("<img src='/missing.png'>", r"^console: .* 404 .*/missing\.png"),
        ("<img src='http://127.0.0.1:1/closed.png'>", r"^request: GET http://127\.0\.0\.1:1/closed\.png net::"),
    ],
)
def test_complaints_are_caught(site: Site, open_page: OpenPage, page_log: PageLog, body: str, complaint: str) -> None:
    page = open_page(site.page(GOOD + body))
    wait_until(page, lambda: any(re.search(complaint, entry) for entry in page_log.entries))
    with pytest.raises(AssertionError, match="the page complained"):
        page_log.check()
    page_log.expect("something else")
    assert page_log.unexpected == page_log.entries
    page_log.expect(complaint)
    page_log.expect(r"^console: Failed to load resource: net::ERR_")  # a failed request is said twice
    page_log.check()


def test_a_broken_policy_is_a_complaint(site: Site, open_page: OpenPage, page_log: PageLog) -> None:
    page = open_page(site.page(GOOD + "<script>document.title = 'ran'</script>", STRICT))
    assert page.title() == "t"
    page_log.expect("Content Security Policy")
    assert page_log.entries


def test_what_a_page_gives_up_is_no_complaint(site: Site, open_page: OpenPage, page_log: PageLog) -> None:
    page = open_page(site.page(GOOD))
    page.evaluate("stop = new AbortController(); fetch('/v1/slow', {signal: stop.signal}).catch(() => 0); 0")
    page.evaluate("stop.abort()")
    wait_until(page, lambda: page_log.aborted)
    assert "/v1/slow" in page_log.aborted[0]


def test_downloads_come_through(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.page(GOOD + "<a download='mask.txt' href='data:text/plain,mask'>save</a>"))
    with page.expect_download() as coming:
        page.click("a")
    assert coming.value.suggested_filename == "mask.txt"
    assert Path(coming.value.path()).read_text() == "mask"


# -- profiles and devices -----------------------------------------------------------------------------------------


def media(page: Page, query: str) -> bool:
    return bool(page.evaluate("query => matchMedia(query).matches", query))


def test_devices(site: Site, open_page: OpenPage) -> None:
    url = site.page(GOOD)
    desk = open_page(url)
    phone = open_page(url, width=390, height=700, touch=True, dark=True, scale=3)
    size = "[innerWidth, innerHeight, devicePixelRatio]"
    assert desk.evaluate(size) == [1280, 800, 1]
    assert phone.evaluate(size) == [390, 700, 3]
    assert media(desk, "(hover: hover) and (pointer: fine) and (prefers-color-scheme: light)")
    assert media(phone, "(hover: none) and (pointer: coarse) and (prefers-color-scheme: dark)")


def test_profiles_are_empty(site: Site, open_page: OpenPage) -> None:
    url = site.page(GOOD)
    open_page(url).evaluate("localStorage.setItem('kept', '1'); document.cookie = 'kept=1'; 0")
    assert open_page(url).evaluate("[localStorage.length, document.cookie]") == [0, ""]


# -- what is in flight --------------------------------------------------------------------------------------------


def test_requests_in_flight(site: Site, open_page: OpenPage, traffic: Callable[[Page], Traffic]) -> None:
    page, other = open_page(site.page(GOOD)), open_page(site.page(GOOD))
    seen = traffic(page)
    assert seen.requests == [], "the page itself is none of the service's requests"
    page.evaluate("fetch('/v1/a'); fetch('/v1/b'); fetch('/dot.svg'); 0")
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
    page = open_page(site.page(GOOD))
    page.evaluate("(async () => { for (let i = 0; i < 50; i++) await (await fetch('/v1/x')).text(); })()")
    assert len(traffic(page).requests) == 50
    assert traffic(page).most_in_flight == 1


def test_frames_in_flight(site: Site, open_page: OpenPage, traffic: Callable[[Page], Traffic], hover_url: str) -> None:
    page = open_page(site.page(GOOD))
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


# -- axe-core -----------------------------------------------------------------------------------------------------


def test_axe_under_a_strict_policy(site: Site, open_page: OpenPage, axe: str) -> None:
    good = open_page(site.page(GOOD + "<main><h1>t</h1><img src='/dot.svg' alt='a dot'></main>", STRICT))
    assert serious_findings(good, axe) == []
    bad = open_page(site.page(GOOD + "<main><h1>t</h1><img src='/dot.svg'><p id=e>x</main>", STRICT))
    assert serious_findings(bad, axe) == ["critical image-alt img"]


def test_axe_is_fetched_once(axe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "test-tools" / f"axe-core-{AXE.version}-axe.min.js"
    kept.parent.mkdir()
    kept.write_text(axe, encoding="utf-8", newline="")
    monkeypatch.setattr(npm, "find_npm", lambda: None)
    monkeypatch.delenv(REQUIRED, raising=False)
    assert axe_source(tmp_path) == axe
    kept.write_text("something else")
    with pytest.raises(pytest.skip.Exception, match="npm is not installed"):
        axe_source(tmp_path)
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match=REQUIRED):
        axe_source(tmp_path)
    assert list(kept.parent.iterdir()) == [kept]


# -- the fixtures, in test runs of their own ----------------------------------------------------------------------

USES_THE_BROWSER = """
import asyncio

def test_good(open_page):
    open_page("data:text/html,<p>x")
    assert asyncio.get_running_loop(), "if there is none any more, the browser may live as long as the session"

def test_complains(open_page):
    open_page("data:text/html,<script>console.error('boom')</script>")
"""
USES_ASYNCIO = """
import asyncio, gc, os
import pytest

def test_asyncio_afterwards():
    assert asyncio.run(asyncio.sleep(0, "done")) == "done"
    gc.collect()

def test_no_process_is_left():
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
"""


def run_tests(folder: Path, **environment: str) -> str:
    """What pytest says of a run with these fixtures, in which every warning is an error."""
    (folder / "test_1.py").write_text(USES_THE_BROWSER)
    (folder / "test_2.py").write_text(USES_ASYNCIO)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    inherited = {name: value for name, value in os.environ.items() if name != REQUIRED}
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "dev",
            "-m",
            "pytest",
            "-q",
            "-rA",
            "-p",
            "tests.e2e.conftest",
            "-p",
            "no:cacheprovider",
        ],
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def processes_that_name(folder: str) -> list[str]:
    """Command lines with the folder in them, as Chromium's have that of its profile."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.append(line.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if folder in line]


def test_a_module_after_the_browser(browser: object, tmp_path: Path) -> None:
    """The complaint fails its own test; asyncio works in the next module, and nothing is left behind."""
    # Not in tmp_path: the path of a socket in the profile has a hundred characters at most.
    with tempfile.TemporaryDirectory() as profiles:
        output = run_tests(tmp_path, TMPDIR=profiles)
        assert "ERROR test_1.py::test_complains - AssertionError: the page complained" in output
        assert "4 passed, 1 error" in output, output
        # The browser itself is waited for; its own helpers notice that it is gone a moment later.
        deadline = time.monotonic() + 20
        while left := processes_that_name(profiles):
            assert time.monotonic() < deadline, left
        assert not list(Path(profiles).glob("playwright*")), "the profile of the browser is left"


def test_without_a_browser(tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path), "CHROMIUM": "/nonexistent/chrome"}
    output = run_tests(tmp_path, **nowhere)
    assert "2 passed, 2 skipped" in output, output
    assert "scripts/install_browser.sh" in output
    output = run_tests(tmp_path, **nowhere, **{REQUIRED: "1"})
    assert "2 passed, 2 errors" in output, output
    assert "scripts/install_browser.sh" in output
