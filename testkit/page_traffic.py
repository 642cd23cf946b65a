"""Requests and WebSocket frames of a page that are in flight, to test and measure the web page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request, WebSocket


class Traffic:
    """Counts one page's requests to ``/v1/*`` and its frames on ``/v1/hover``.

    A request is in flight until its response is complete, a frame until the service has sent one back: it answers
    every frame with one (docs/reference/http.md). Sockets that a worker opens are not seen.

    Attributes:
        requests: for example "POST /v1/segment", in the order in which they began.
        most_in_flight: the maximum so far; assign 0 to start over.
    """

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.frames_sent: list[str | bytes] = []
        self.frames_received: list[str | bytes] = []
        self.sockets_opened = 0
        self.most_in_flight = 0
        self._open: list[Request] = []
        self._unanswered: dict[WebSocket, int] = {}
        page.on("request", self._began)
        page.on("requestfinished", self._ended)
        page.on("requestfailed", self._ended)
        page.on("websocket", self._opened)

    @property
    def in_flight(self) -> int:
        """Now, according to the events that have arrived: Playwright delivers them only while it runs."""
        return len(self._open) + sum(self._unanswered.values())

    def _count(self) -> None:
        self.most_in_flight = max(self.most_in_flight, self.in_flight)

    def _began(self, request: Request) -> None:
        path = urlsplit(request.url).path
        if path.startswith("/v1/"):
            self.requests.append(f"{request.method} {path}")
            self._open.append(request)
            self._count()

    def _ended(self, request: Request) -> None:
        if request in self._open:
            self._open.remove(request)

    def _opened(self, socket: WebSocket) -> None:
        if urlsplit(socket.url).path != "/v1/hover":
            return
        self.sockets_opened += 1
        self._unanswered[socket] = 0

        def sent(frame: str | bytes) -> None:
            self.frames_sent.append(frame)
            self._unanswered[socket] += 1
            self._count()

        def received(frame: str | bytes) -> None:
            self.frames_received.append(frame)
            self._unanswered[socket] = max(0, self._unanswered[socket] - 1)

        def closed(_: WebSocket) -> None:
            self._unanswered[socket] = 0  # these will get no response

        socket.on("framesent", sent)
        socket.on("framereceived", received)
        socket.on("close", closed)
