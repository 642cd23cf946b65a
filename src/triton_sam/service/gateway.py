"""The gateway from the routes to Triton: readiness, sessions, cancellation on disconnect, errors without internals."""

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
from triton_sam.client.wire import Address, Call, OnMessage, text_of
from triton_sam.errors import Cancelled, DeadlineExceeded, InternalError, TritonSamError, Unavailable
from triton_sam.service.admission.backpressure import Backpressure
from triton_sam.service.error_responses import code_of, public_triton_error
from triton_sam.service.served_models import EncoderPrecisions, ServedSegmenters, ServedVlms
from triton_sam.service.siblings import Siblings
from triton_sam.service.streams import ResponseStream
from triton_sam.service.telemetry import request_context
from triton_sam.service.telemetry.spans import NO_SPAN, NO_TRACING, Span, Tracing
from triton_sam.service.upstream import Upstream, missing_of
from triton_sam.service.video_steps import VideoSteps
from triton_sam.settings import Settings

#: More than the server's queues hold, so that callers get the server's own refusals.
_MAX_IN_FLIGHT = 1024
#: How long the shutdown waits for the server to end its streams.
_CLOSE_SECONDS = 5.0


class Gateway:
    """Sends calls to Triton for all routes. Belongs to the event loop."""

    def __init__(
        self,
        upstream: Upstream,
        settings: Settings,
        tracing: Tracing = NO_TRACING,
        siblings: Siblings | None = None,
    ) -> None:
        self.upstream = upstream
        self.settings = settings
        self.tracing = tracing
        self.segmenters = ServedSegmenters(upstream.segmenters, upstream.missing)
        self.vlms = ServedVlms(upstream.vlms)
        self.encoder_precisions = EncoderPrecisions(self._describe)
        self._address = Address.parse(upstream.triton_url)
        self._backpressure = Backpressure()
        self._siblings = siblings or Siblings()
        self._dispatcher: Dispatcher | None = None
        self._transport: AsyncTransport | None = None
        #: Each with its model and its session. A closed stream stays here until its cancel is sent to the server.
        self._streams: dict[ResponseStream, tuple[str, str]] = {}
        self._steps = VideoSteps()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connects to Triton for the duration of the block."""
        transport = self.upstream.transport or connect_async(self._address, self.settings.service_seconds, {})
        loop = asyncio.get_running_loop()
        siblings = self._siblings
        dispatcher = Dispatcher(
            transport,
            loop,
            max_in_flight=_MAX_IN_FLIGHT,
            namespace=siblings.namespace,
            numbers=siblings.sequence_numbers(),
        )
        self._dispatcher, self._transport = dispatcher, transport

        def abort_lost(reason: str, lost: tuple[str, ...]) -> None:
            error = Unavailable(f"the model server is being restarted ({reason}): try again in a moment")
            dispatcher.abort(error, lost)
            with contextlib.suppress(RuntimeError):  # the event loop has already stopped
                loop.call_soon_threadsafe(self._end_streams, error, lost)
                loop.call_soon_threadsafe(self._steps.abort, error, lost)

        unsubscribe = self.upstream.on_loss(abort_lost)

        def cancel_here(session: str) -> int:
            """For another process; on any thread."""
            streams = self._streams_of(session)
            with contextlib.suppress(RuntimeError):  # the event loop has already stopped
                for stream in streams:
                    loop.call_soon_threadsafe(stream.end, _cancelled())
            return dispatcher.cancel(session) + len(streams)

        siblings.serve_cancels(cancel_here)
        try:
            yield
        finally:
            siblings.serve_cancels(None)
            unsubscribe()
            self._dispatcher = self._transport = None
            await self._close_streams()
            await dispatcher.close()

    def submit(
        self, call: Call, session: str, *, latest_wins: bool = False, on_message: OnMessage | None = None
    ) -> Ticket:
        """Sends a call. Raises Unavailable while the server is not ready and QueueFull while its queue is full.

        Args:
            on_message: as in :meth:`Dispatcher.submit`.
        """
        dispatcher = self._running()
        if not latest_wins:  # it may replace an older call of its session in the queue
            self._backpressure.check(call)
        call, span = _with_request_context(call)
        ticket = dispatcher.submit(call, session, latest_wins=latest_wins, on_message=on_message)
        self._backpressure.watch(call, ticket.future)
        if span is not NO_SPAN:
            ticket.future.add_done_callback(lambda future: _end_call(span, future))
        # Checked after the submit: a later loss of the server aborts this ticket, and an earlier one shows here.
        try:
            self._check_ready(call.model)
        except Unavailable:
            dispatcher.withdraw(ticket)
            raise
        return ticket

    async def infer(
        self, request: Request, call: Call, session: str | None = None, *, latest_wins: bool = False
    ) -> Outputs:
        """Sends a call and waits for its outputs; cancels it on the server if the client disconnects.

        Args:
            request: its body must have been read.
            session: the client's name for its session; None for a request without one.
        """
        dispatcher = self._running()
        ticket = self.submit(call, user_session(session), latest_wins=latest_wins)
        watcher = asyncio.create_task(_on_disconnect(request, lambda: dispatcher.withdraw(ticket)))
        try:
            return await dispatcher.wait(ticket)
        except TritonSamError as error:
            raise self.public(error) from error
        finally:
            watcher.cancel()

    async def follow(
        self, request: Request, call: Call, session: str | None = None, *, latest_wins: bool = False
    ) -> AsyncGenerator[Outputs, None]:
        """As :meth:`infer`, for the messages of a call that is followed. Closing the generator cancels the call.

        The time limit counts from one message to the next.
        """
        dispatcher = self._running()
        watchers: list[asyncio.Task[None]] = []

        def start(put: OnMessage) -> Ticket:
            ticket = self.submit(call, user_session(session), latest_wins=latest_wins, on_message=put)
            gone = _on_disconnect(request, lambda: dispatcher.withdraw(ticket))
            watchers.append(asyncio.create_task(gone))
            return ticket

        try:
            async with contextlib.aclosing(dispatcher.follow(start)) as messages:
                async for message in messages:
                    yield message
        except TritonSamError as error:
            raise self.public(error) from error
        finally:
            for watcher in watchers:
                watcher.cancel()

    async def _describe(self, model: str) -> Mapping[str, object]:
        """A segmenter's description of itself; the model answers without waiting in its queue."""
        call = Call(model, {}, ("result_json",), {"about": True})
        dispatcher = self._running()
        ticket = self.submit(call, user_session(None))
        try:
            description = json.loads(json_output(await dispatcher.wait(ticket)))
        except ValueError:
            raise InternalError(f"{model} sent a description that is not valid JSON") from None
        return description if isinstance(description, dict) else {}

    async def stream(
        self, call: Call, request: Request | None = None, seconds: float | None = None, session: str | None = None
    ) -> AsyncGenerator[Outputs, None]:
        """The pieces of a streaming response. Closing the generator cancels the work on the server.

        Args:
            request: the stream ends with Cancelled if its client disconnects; its body must have been read.
            seconds: the stream ends with DeadlineExceeded after this time.
            session: the client's name for its session, whose cancel ends the stream with Cancelled; None without one.
        """
        if self._transport is None:
            raise _not_open()
        call, span = _with_request_context(call)
        failure: str | None = None
        stream = ResponseStream(self._transport.stream(call), _is_last, self.public)
        self._streams[stream] = call.model, user_session(session)
        stream.when_closed(lambda: self._streams.pop(stream))
        helpers: list[asyncio.Task[None] | asyncio.TimerHandle] = []
        if request is not None:
            gone = Cancelled("the client disconnected before the answer was complete")
            helpers.append(asyncio.create_task(_on_disconnect(request, lambda: stream.end(gone))))
        if seconds is not None:
            late = DeadlineExceeded("the answer took longer than the time limit: ask for fewer tokens, or try again")
            helpers.append(asyncio.get_running_loop().call_later(seconds, stream.end, late))
        try:
            self._check_ready(call.model)  # after the stream is registered, as in submit
            while (piece := await stream.next()) is not None:
                yield piece
        except TritonSamError as error:
            failure = code_of(error)
            raise
        finally:
            span.end_call(failure=failure)
            stream.close()
            for helper in helpers:
                helper.cancel()

    async def send_step(self, call: Call) -> Outputs:
        """Sends a step of a video. Steps are numbered by their sender, who also knows the way back after a loss."""
        if self._transport is None:
            raise _not_open()
        call, _ = _with_request_context(call)
        self._check_ready(call.model)
        return await self._steps.answer(call.model, self._transport.infer(call))

    def cancel(self, session: str) -> int:
        """Cancels the waiting requests and the streams of a session in this process; returns how many there were."""
        count = self._running().cancel(session)
        for stream in self._streams_of(session):
            stream.end(_cancelled())
            count += 1
        return count

    async def cancel_everywhere(self, session: str) -> int:
        """As :meth:`cancel`, in all processes: the requests of a :func:`user_session` may have reached any of them."""
        return self.cancel(session) + await self._siblings.cancel(session)

    def public(self, error: TritonSamError) -> TritonSamError:
        """An error from Triton without internals."""
        return public_triton_error(error, self._address.target)

    def _running(self) -> Dispatcher:
        if self._dispatcher is None:
            raise _not_open()
        return self._dispatcher

    def _check_ready(self, model: str) -> None:
        status = self.upstream.status()
        if status.get("state") != "ready" and not _recovery_spares(status, model):
            raise Unavailable(f"the model server is {status.get('state')}: try again in a moment")
        if model in missing_of(status):
            raise Unavailable(f"{model} failed to load on this server: use another model, or see the server's log")

    def _streams_of(self, session: str) -> list[ResponseStream]:
        """Those that are not over; on any thread."""
        return [stream for stream, (_, of) in self._streams.copy().items() if of == session and not stream.is_over]

    def _end_streams(self, error: TritonSamError, models: tuple[str, ...]) -> None:
        for stream, (model, _) in list(self._streams.items()):
            if model in models:
                stream.end(error)

    async def _close_streams(self) -> None:
        for stream in self._streams:
            stream.end(_not_open())
        if self._streams:
            await asyncio.wait([stream.task for stream in self._streams], timeout=_CLOSE_SECONDS)


def _with_request_context(call: Call) -> tuple[Call, Span]:
    """(the call with the request id and trace headers of the current request, its span)."""
    context = request_context.current()
    if context is None:
        return call, NO_SPAN
    span = context.span.call(call.model)
    return replace(call, request_id=context.request_id, headers={**call.headers, **span.headers()}), span


def _end_call(span: Span, future: Future[Outputs]) -> None:
    """Ends a call's span, on the thread that completed the future. The waiting caller handles the error itself."""
    if future.cancelled():
        span.end_call(failure=code_of(Cancelled()))
        return
    error = future.exception()
    if error is None:
        value = future.result().get("result_json")
        span.end_call(None if value is None else json_output({"result_json": value}))
    else:
        span.end_call(failure=code_of(error) if isinstance(error, TritonSamError) else type(error).__name__)


def _cancelled() -> Cancelled:
    return Cancelled("the request was cancelled by its session before the answer was complete")


def _not_open() -> Unavailable:
    return Unavailable("the service is starting or stopping: try again in a moment")


def _recovery_spares(status: Mapping[str, object], model: str) -> bool:
    """Whether the server recovers other models only."""
    lost = status.get("lost")
    return status.get("state") == "recovering" and isinstance(lost, tuple | list) and bool(lost) and model not in lost


async def _on_disconnect(request: Request, action: Callable[[], None]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    action()


def user_session(name: str | None) -> str:
    """The dispatcher's name for a client's session; distinct from WebSockets' sessions, which no client may cancel."""
    return f"user/{name}" if name else f"single/{uuid.uuid4().hex}"


def _is_last(piece: Outputs) -> bool:
    """Whether a piece of a stream has the reason why the answer ended."""
    return "finish_reason" in piece and text_of(piece, "finish_reason") != ""


def output(outputs: Outputs, name: str) -> Any:
    """A requested output."""
    try:
        return outputs[name]
    except KeyError:
        raise InternalError(f"the model server's response has no {name}") from None


def json_output(outputs: Outputs) -> bytes:
    """The bytes of ``result_json``."""
    value = output(outputs, "result_json").reshape(-1)[0]
    return value if isinstance(value, bytes) else str(value).encode()
