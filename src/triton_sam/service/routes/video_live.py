"""``/v1/videos/live``: a WebSocket that takes the frames of a camera, and answers each with its masks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from triton_sam.errors import InvalidInput, NotAuthorised, QueueFull, RateLimited, TooLarge, TritonSamError
from triton_sam.service.admission import authentication
from triton_sam.service.admission.access_control import AccessControl
from triton_sam.service.admission.capacity import ServiceCapacity
from triton_sam.service.admission.paths import VIDEO_LIVE
from triton_sam.service.forms import checked_name
from triton_sam.service.routes import sockets
from triton_sam.service.routes.sockets import POLICY_VIOLATION, TRY_AGAIN_LATER, RateLimit
from triton_sam.service.telemetry import request_context
from triton_sam.service.telemetry.access_log import log_websocket
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.service.telemetry.request_context import RequestContext
from triton_sam.service.videos.answers import error_of, frame_document
from triton_sam.service.videos.bodies import parse
from triton_sam.service.videos.callers import caller_of
from triton_sam.service.videos.films import Films
from triton_sam.service.videos.live import MAX_TEXT, Answer, LiveVideo, opening
from triton_sam.service.videos.sessions import end_within

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 8.0
_GOING_AWAY = 1001


def video_live_router(
    films: Films, metrics: ServiceMetrics, access: AccessControl, capacity: ServiceCapacity
) -> APIRouter:
    """The router of the WebSocket."""
    router = APIRouter()

    @router.websocket(VIDEO_LIVE)
    async def live(socket: WebSocket) -> None:
        try:
            caller = sockets.authenticated(socket, films.settings, access)
        except TritonSamError as refusal:
            await sockets.deny(socket, refusal)
            return
        offers_subprotocol = authentication.SUBPROTOCOL in socket.scope["subprotocols"]
        await socket.accept(authentication.SUBPROTOCOL if offers_subprotocol else None)
        with contextlib.ExitStack() as stack:
            try:
                capacity.open_socket()
                stack.callback(capacity.close_socket)
                stack.enter_context(films.place(caller_of(socket)))
            except QueueFull as refusal:
                await socket.close(TRY_AGAIN_LATER, str(refusal))
                return
            metrics.websockets.inc()
            stack.callback(metrics.websockets.dec)
            rate_limit = RateLimit(access, caller, authentication.client_address(socket.scope))
            await _LiveSocket(socket, films, metrics, rate_limit).run()

    return router


class _LiveSocket:
    """One camera. A message is answered before the next one is read."""

    def __init__(self, socket: WebSocket, films: Films, metrics: ServiceMetrics, rate_limit: RateLimit) -> None:
        self._socket, self._films, self._metrics = socket, films, metrics
        self._rate_limit = rate_limit
        self._video: LiveVideo | None = None
        self._context = request_context.current() or RequestContext("", VIDEO_LIVE)
        self._messages = 0

    async def run(self) -> None:
        """Serves until the socket closes."""
        opened = time.perf_counter()
        try:
            await self._serve()
        except (WebSocketDisconnect, NotAuthorised):
            pass
        finally:
            if self._video is not None:
                await asyncio.shield(end_within(_CLOSE_SECONDS, self._video.close()))
            log_websocket(self._context, self._messages, time.perf_counter() - opened)

    async def _serve(self) -> None:
        patience = self._films.settings.video_keep_seconds
        while True:
            try:
                message = await asyncio.wait_for(self._socket.receive(), patience)
            except asyncio.TimeoutError:
                await self._socket.close(_GOING_AWAY, f"nothing has come for {patience:g} s")
                return
            if message["type"] == "websocket.disconnect":
                return
            self._messages += 1
            try:
                await self._admitted()
                answer = await self._handled(message.get("text"), message.get("bytes"))
            except NotAuthorised:
                await self._socket.close(POLICY_VIOLATION, "the token is no longer valid")
                return
            except TritonSamError as error:
                await self._socket.send_text(json.dumps(error_of(error)))
                if self._video is None:
                    await self._socket.close(POLICY_VIOLATION, "the video could not be opened")
                    return
                continue
            if answer.found is not None:
                self._metrics.video_results.inc()
                await self._socket.send_text(json.dumps(frame_document(answer.found), separators=(",", ":")))

    async def _admitted(self) -> None:
        """Waits while the caller's rate is used up: frames come late then, and none is lost."""
        while True:
            try:
                self._rate_limit.check()
                return
            except RateLimited as error:
                await asyncio.sleep(error.retry_after or 1.0)

    async def _handled(self, text: str | None, data: bytes | None) -> Answer:
        if text is not None and len(text) > MAX_TEXT:
            raise TooLarge(f"a message has at most {MAX_TEXT:,} characters: send less")
        if self._video is None:
            if text is None:
                raise InvalidInput('the first message is text, {"open": {}}: it opens the video')
            wanted = opening(parse(text, self._films.settings, '{"open": {}}'))
            self._video = await self._films.live(checked_name(wanted, "model"))
            return Answer()
        if text is not None:
            return await self._video.take_text(text)
        return await self._video.take_frame(data or b"")
