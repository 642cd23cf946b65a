"""Videos and several processes: a request about a video goes to the process that has it.

The kernel gives a connection to any process. The id of a video begins with the number of its process, and a caller's
new videos all go to one process, which so knows how many there are. Processes reach each other by Unix sockets in the
service's private folder; who comes that way was admitted already.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from triton_sam.errors import InternalError, TritonSamError, Unavailable
from triton_sam.service.admission.authentication import client_address
from triton_sam.service.admission.paths import VIDEO_LIVE, VIDEOS, is_video
from triton_sam.service.api_tokens import ANONYMOUS
from triton_sam.service.error_responses import error_response
from triton_sam.service.rate_limits import address_name
from triton_sam.service.siblings import Siblings
from triton_sam.service.telemetry import request_context
from triton_sam.service.telemetry.request_context import RequestContext
from triton_sam.service.videos.absent import no_video

_CALLER, _ADDRESS, _REQUEST = "x-peer-caller", "x-peer-address", "x-request-id"
_OURS = frozenset({_CALLER, _ADDRESS, _REQUEST})
_OF_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "expect"})
_OF_ANSWER = frozenset({"connection", "transfer-encoding", "date", "server", _REQUEST})
_CHUNK = 256 * 1024
_CONNECT_SECONDS = 5.0


def socket_of(folder: Path, process: int) -> Path:
    """Where a process takes requests of the others."""
    return folder / f"videos-{process}"


class VideoForwarding:
    """Middleware: sends requests about videos of other processes there."""

    def __init__(self, app: ASGIApp, *, siblings: Siblings) -> None:
        self._app = app
        self._siblings = siblings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._siblings.folder is None or not is_video(scope["path"]):
            await self._app(scope, receive, send)
            return
        owner = self._owner(scope)
        if owner == self._siblings.number:
            await self._app(scope, receive, send)
            return
        forwarded = _Forwarded(socket_of(self._siblings.folder, owner), scope, receive, send)
        try:
            await forwarded.run()
        except TritonSamError as error:
            await error_response(error)(scope, receive, send)

    def _owner(self, scope: Scope) -> int:
        path = scope["path"]
        if path == VIDEOS:
            who = f"{_caller_name()} {address_name(client_address(scope))}" if _is_anonymous() else _caller_name()
            return int.from_bytes(hashlib.sha256(who.encode()).digest()[:4], "big") % self._siblings.count
        number = path.removeprefix(f"{VIDEOS}/").partition("-")[0]
        known = path != VIDEO_LIVE and number.isascii() and number.isdigit() and len(number) <= 3
        return int(number) if known and int(number) < self._siblings.count else self._siblings.number


class _Forwarded:
    """One request on its way to another process."""

    def __init__(self, address: Path, scope: Scope, receive: Receive, send: Send) -> None:
        self._address, self._scope, self._receive, self._send = address, scope, receive, send
        self._failure: BaseException | None = None
        self._body_read = asyncio.Event()
        self._has_answered = False

    async def run(self) -> None:
        """Relays the answer. A client that disconnects ends the request there too."""
        work = asyncio.ensure_future(self._exchange())
        gone = asyncio.ensure_future(self._disconnect())
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                raise ClientDisconnect
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await work

    async def _exchange(self) -> None:
        import aiohttp

        path = (self._scope.get("raw_path") or self._scope["path"].encode()).decode("latin-1")
        query = self._scope["query_string"].decode("latin-1")
        target = f"http://peer{path}{f'?{query}' if query else ''}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        connector = aiohttp.UnixConnector(str(self._address), force_close=True)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
                session.request(
                    self._scope["method"],
                    _as_it_is(target),
                    headers=self._headers(),
                    data=self._body(),
                    skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                    allow_redirects=False,
                ) as answer,
            ):
                await self._relay(answer)
        except aiohttp.ClientError:
            if self._failure is not None:
                raise self._failure from None
            if self._has_answered:
                raise  # only closing the connection can tell the client
            if self._scope["path"] == VIDEOS:
                raise Unavailable("a process of the service is being restarted: try again in a moment") from None
            raise no_video() from None

    def _headers(self) -> list[tuple[str, str]]:
        context = request_context.current()
        kept = [
            (name, value)
            for name, value in Headers(scope=self._scope).items()
            if name not in _OURS and name not in _OF_CONNECTION
        ]
        return [
            *kept,
            (_CALLER, quote(_caller_name())),
            (_ADDRESS, quote(client_address(self._scope))),
            (_REQUEST, "" if context is None else context.request_id),
        ]

    async def _body(self) -> AsyncIterator[bytes]:
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                if message.get("body"):
                    yield message["body"]
                if not message.get("more_body", False):
                    self._body_read.set()
                    return
        except BaseException as error:
            self._failure = error
            raise

    async def _relay(self, answer: Any) -> None:
        headers = [
            (name.lower(), value) for name, value in answer.raw_headers if name.lower().decode() not in _OF_ANSWER
        ]
        self._has_answered = True
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for part in answer.content.iter_any():
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _disconnect(self) -> None:
        await self._body_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


class PeerApp:
    """The application for requests that other processes have admitted and sent on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        scope = {**scope, "client": (unquote(headers.get(_ADDRESS, "")), 0)}
        context = RequestContext(headers.get(_REQUEST, ""), scope["path"], unquote(headers.get(_CALLER, ANONYMOUS)))
        has_answered = False

        async def noted(message: Message) -> None:
            nonlocal has_answered
            has_answered = has_answered or message["type"] == "http.response.start"
            await send(message)

        with request_context.use(context):
            try:
                await self._app(scope, receive, noted)
            except ClientDisconnect:
                pass
            except Exception:
                if has_answered:
                    raise
                failure = InternalError("the service failed on this request: see its log")
                await error_response(failure)(scope, receive, send)
                raise


@contextlib.asynccontextmanager
async def listening_to_peers(app: ASGIApp, siblings: Siblings) -> AsyncIterator[None]:
    """Takes requests of other processes in this block, if there are any."""
    if siblings.folder is None:
        yield
        return
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    from uvicorn.server import ServerState

    options: Mapping[str, Any] = {"lifespan": "off", "log_config": None, "access_log": False, "server_header": False}
    config = uvicorn.Config(PeerApp(app), **options)
    config.load()
    state = ServerState()
    address = socket_of(siblings.folder, siblings.number)
    address.unlink(missing_ok=True)  # of a process that this one replaces
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: HttpToolsProtocol(config=config, server_state=state, app_state={}), str(address)
    )
    try:
        yield
    finally:
        server.close()
        for task in list(state.tasks):
            task.cancel()
        address.unlink(missing_ok=True)


def _as_it_is(target: str) -> Any:
    """The address without another round of quoting."""
    from yarl import URL

    return URL(target, encoded=True)


def _caller_name() -> str:
    context = request_context.current()
    return ANONYMOUS if context is None else context.caller


def _is_anonymous() -> bool:
    return _caller_name() == ANONYMOUS
