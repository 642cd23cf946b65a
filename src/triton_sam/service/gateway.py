"""The one way from a route to Triton: readiness, sessions, callers who hang up, and what may be seen of an error."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from triton_sam.client.async_transport import AsyncTransport, connect_async
from triton_sam.client.dispatch import Dispatcher, Outputs, Ticket
from triton_sam.client.wire import Address, Call, text_of
from triton_sam.errors import Cancelled, DeadlineExceeded, InternalError, TritonSamError, Unavailable
from triton_sam.service import faults
from triton_sam.service.admission.fullness import Fullness
from triton_sam.service.backend import Backend, missing_of
from triton_sam.service.served_models import Encoders, Models, Vlms
from triton_sam.service.streams import PieceStream
from triton_sam.service.telemetry import visits
from triton_sam.service.telemetry.spans import NO_SPAN, NO_TRACING, Span, Tracing
from triton_sam.settings import Settings

#: More than a server's queues take, so that its own refusals are what a caller sees.
_MAX_IN_AIR = 1024
#: How long a server that is told to end a stream is waited for.
_CLOSE_SECONDS = 5.0


class Gateway:
    """What the routes share. Belongs to the event loop."""

    def __init__(self, backend: Backend, settings: Settings, tracing: Tracing = NO_TRACING) -> None:
        self.backend = backend
        self.settings = settings
        self.tracing = tracing
        self.models = Models(backend.segmenters, backend.missing)
        self.vlms = Vlms(backend.vlms)
        self.encoders = Encoders(self._about)
        self._address = Address.parse(backend.triton_url)
        self._fullness = Fullness()
        self._dispatcher: Dispatcher | None = None
        self._transport: AsyncTransport | None = None
        #: With the model that each is of. Those that were left are here until the server has been told.
        self._streams: dict[PieceStream, str] = {}

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connected while the block is open."""
        transport = self.backend.transport or connect_async(self._address, self.settings.service_seconds, {})
        loop = asyncio.get_running_loop()
        dispatcher = Dispatcher(transport, loop, max_in_flight=_MAX_IN_AIR)
        self._dispatcher, self._transport = dispatcher, transport

        def tell(reason: str, lost: tuple[str, ...]) -> None:
            error = Unavailable(f"the model server is being restarted ({reason}): try again in a moment")
            dispatcher.abort(error, lost)
            with contextlib.suppress(RuntimeError):  # the loop has ended, and everything with it
                loop.call_soon_threadsafe(self._end_streams, error, lost)

        unsubscribe = self.backend.on_loss(tell)
        try:
            yield
        finally:
            unsubscribe()
            self._dispatcher = self._transport = None
            await self._close_streams()
            await dispatcher.close()

    def submit(self, call: Call, session: str, *, latest_wins: bool = False) -> Ticket:
        """Takes a request in; Unavailable at once while the server is not ready, QueueFull while its queue is full."""
        dispatcher = self._running()
        if not latest_wins:  # such a one may take the place of an older one of its session
            self._fullness.check(call)
        call, span = _of_this_visit(call)
        ticket = dispatcher.submit(call, session, latest_wins=latest_wins)
        self._fullness.watch(call, ticket.future)
        if span is not NO_SPAN:
            ticket.future.add_done_callback(lambda future: _end_call(span, future))
        # Looked at after the submit: a server that is lost before it aborts this ticket, one lost after is seen here.
        try:
            self._check_ready(call.model)
        except Unavailable:
            dispatcher.withdraw(ticket)
            raise
        return ticket

    async def infer(
        self, request: Request, call: Call, session: str | None = None, *, latest_wins: bool = False
    ) -> Outputs:
        """One request from start to end; withdrawn from the server when its caller hangs up.

        Args:
            request: its body must have been read.
            session: as a user named it; None for a request of its own.
        """
        dispatcher = self._running()
        ticket = self.submit(call, user_session(session), latest_wins=latest_wins)
        watcher = asyncio.create_task(_when_gone(request, lambda: dispatcher.withdraw(ticket)))
        try:
            return await dispatcher.wait(ticket)
        except TritonSamError as error:
            raise self.public(error) from error
        finally:
            watcher.cancel()

    async def _about(self, model: str) -> Mapping[str, object]:
        """What a segmenter says about itself, at once."""
        call = Call(model, {}, ("result_json",), {"about": True})
        dispatcher = self._running()
        ticket = self.submit(call, user_session(None))
        try:
            told = json.loads(json_output(await dispatcher.wait(ticket)))
        except ValueError:
            raise InternalError(f"{model} does not tell what it is") from None
        return told if isinstance(told, dict) else {}

    async def stream(
        self, call: Call, request: Request | None = None, seconds: float | None = None
    ) -> AsyncGenerator[Outputs, None]:
        """The pieces of one answer; closing the generator, or leaving it, ends the work at the server at once.

        Args:
            request: ends with Cancelled when its caller hangs up; its body must have been read.
            seconds: ends with DeadlineExceeded after so many.
        """
        if self._transport is None:
            raise _not_open()
        call, span = _of_this_visit(call)
        failure: str | None = None
        stream = PieceStream(self._transport.stream(call), _is_last, self.public)
        self._streams[stream] = call.model
        stream.when_closed(lambda: self._streams.pop(stream))
        helpers: list[asyncio.Task[None] | asyncio.TimerHandle] = []
        if request is not None:
            gone = Cancelled("the caller hung up before the answer was complete")
            helpers.append(asyncio.create_task(_when_gone(request, lambda: stream.end(gone))))
        if seconds is not None:
            late = DeadlineExceeded("the answer took longer than is allowed here: ask for fewer tokens, or try again")
            helpers.append(asyncio.get_running_loop().call_later(seconds, stream.end, late))
        try:
            self._check_ready(call.model)  # after the stream is known here, as in submit
            while (piece := await stream.next()) is not None:
                yield piece
        except TritonSamError as error:
            failure = faults.code_of(error)
            raise
        finally:
            span.end_call(failure=failure)
            stream.close()
            for helper in helpers:
                helper.cancel()

    def cancel(self, session: str) -> int:
        """Drops what a session (of :func:`user_session`) has waiting; returns how many requests that were."""
        return self._running().cancel(session)

    def public(self, error: TritonSamError) -> TritonSamError:
        """What a caller may see of an error from behind."""
        return faults.shown(error, self._address.target)

    def _running(self) -> Dispatcher:
        if self._dispatcher is None:
            raise _not_open()
        return self._dispatcher

    def _check_ready(self, model: str) -> None:
        status = self.backend.status()
        if status.get("state") != "ready" and not _spares(status, model):
            raise Unavailable(f"the model server is {status.get('state')}: try again in a moment")
        if model in missing_of(status):
            raise Unavailable(f"{model} does not load on this server: ask for another model, its log has the reason")

    def _end_streams(self, error: TritonSamError, models: tuple[str, ...]) -> None:
        for stream, model in list(self._streams.items()):
            if model in models:
                stream.end(error)

    async def _close_streams(self) -> None:
        for stream in self._streams:
            stream.end(_not_open())
        if self._streams:
            await asyncio.wait([stream.task for stream in self._streams], timeout=_CLOSE_SECONDS)


def _of_this_visit(call: Call) -> tuple[Call, Span]:
    """(the call with the ids of the request that it is made for, its span)."""
    visit = visits.current()
    if visit is None:
        return call, NO_SPAN
    span = visit.span.call(call.model)
    return replace(call, request_id=visit.request_id, headers={**call.headers, **span.headers()}), span


def _end_call(span: Span, future: Future[Outputs]) -> None:
    """On whatever thread the answer came; whoever waits for the future sees to its errors."""
    if future.cancelled():
        span.end_call(failure=faults.code_of(Cancelled()))
        return
    error = future.exception()
    if error is None:
        value = future.result().get("result_json")
        span.end_call(None if value is None else json_output({"result_json": value}))
    else:
        span.end_call(failure=faults.code_of(error) if isinstance(error, TritonSamError) else type(error).__name__)


def _not_open() -> Unavailable:
    return Unavailable("the service is starting or stopping: try again in a moment")


def _spares(status: Mapping[str, object], model: str) -> bool:
    """Whether a recovery is about other models only."""
    lost = status.get("lost")
    return status.get("state") == "recovering" and isinstance(lost, tuple | list) and bool(lost) and model not in lost


async def _when_gone(request: Request, action: Callable[[], None]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    action()


def user_session(name: str | None) -> str:
    """The dispatcher's name of a user's session; apart from those of sockets, which nobody else may cancel."""
    return f"user/{name}" if name else f"single/{uuid.uuid4().hex}"


def _is_last(piece: Outputs) -> bool:
    """Whether a piece of a stream says how the answer ended."""
    return "finish_reason" in piece and text_of(piece, "finish_reason") != ""


def output(outputs: Outputs, name: str) -> Any:
    """An output that was asked for."""
    try:
        return outputs[name]
    except KeyError:
        raise InternalError(f"the model server's answer has no {name}") from None


def json_output(outputs: Outputs) -> bytes:
    """``result_json`` as it came."""
    value = output(outputs, "result_json").reshape(-1)[0]
    return value if isinstance(value, bytes) else str(value).encode()
