"""``/v1/everything``: all masks of an image, at once or as server-sent events while they are found."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from triton_sam.client.dispatch import Outputs
from triton_sam.errors import InternalError, TritonSamError
from triton_sam.service import json_bodies, schemas
from triton_sam.service.admission.capacity import ServiceCapacity
from triton_sam.service.error_responses import error_document
from triton_sam.service.event_streams import EVENTS, EventStream, Lines, event_of, time_limit
from triton_sam.service.gateway import Gateway, json_output
from triton_sam.service.routes import everything_schemas
from triton_sam.service.triton_calls import Turn, everything_call

EVERYTHING = "/v1/everything"


@dataclass(frozen=True, slots=True)
class _Message:
    """One message of a search: as text, and parsed."""

    text: bytes
    document: dict[str, Any]

    @property
    def is_final(self) -> bool:
        return self.document.get("final") is True


_Messages = AsyncGenerator[_Message, None]


def everything_router(gateway: Gateway, capacity: ServiceCapacity) -> APIRouter:
    """The router of ``/v1/everything``."""
    router = APIRouter(tags=["segment"])

    @router.post(
        EVERYTHING,
        summary="Find everything in an image",
        description="With `Accept: text/event-stream` masks are sent while they are found. A client that disconnects "
        "ends the search.",
        response_model=everything_schemas.EverythingAnswer,
        responses={**everything_schemas.event_stream(), **schemas.error_responses(*schemas.TRITON_STATUSES)},
        openapi_extra=schemas.body_of(everything_schemas.EverythingRequest, "application/json"),
    )
    async def everything(request: Request) -> Response:
        with time_limit(gateway.settings.service_seconds):
            body = await request.body()
            max_parts = json_bodies.max_parts(gateway.settings)
            document = await json_bodies.by_size(len(body), lambda: json_bodies.json_object(body, max_parts))
            turn = Turn.of(document)
            if turn.background:
                capacity.check_background(EVERYTHING)
            call = turn.of_call(await everything_call(gateway, document, len(body)))
        messages = _parsed(gateway.follow(request, call, turn.session, latest_wins=turn.latest_wins))
        if not _wants_events(request):
            async with contextlib.aclosing(messages):
                return await _answer(messages)
        try:
            first = await anext(messages)  # an error before the first message is still reported by the status code
        except BaseException:
            await messages.aclose()
            raise
        return EventStream(_events(first, messages), messages, _error_event)

    return router


def _wants_events(request: Request) -> bool:
    kinds = (kind.partition(";")[0].strip().lower() for kind in request.headers.get("accept", "").split(","))
    return EVENTS in kinds


async def _parsed(stream: AsyncGenerator[Outputs, None]) -> _Messages:
    """The messages up to the final one; raises InternalError if that is missing."""
    is_final = False
    async with contextlib.aclosing(stream):
        async for outputs in stream:
            message = await _message(json_output(outputs))
            is_final = message.is_final
            yield message
    if not is_final:
        raise InternalError("the model server's masks ended before they were complete")


async def _message(text: bytes) -> _Message:
    try:
        document = await json_bodies.by_size(len(text), lambda: json.loads(text))
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InternalError("the model server's masks are not valid JSON")
    return _Message(text, document)


async def _answer(messages: _Messages) -> Response:
    """The final message as the document that the model sends without a stream."""
    async for message in messages:
        last = message
    document = {name: value for name, value in last.document.items() if name != "final"}
    text = await json_bodies.by_size(len(last.text), lambda: json.dumps(document).encode())
    return Response(text, media_type="application/json")


async def _events(first: _Message, rest: _Messages) -> Lines:
    yield _event(first)
    async for message in rest:
        yield _event(message)


def _event(message: _Message) -> bytes:
    # JSON has line breaks only between its parts, if at all: an event's data is one line.
    text = message.text if b"\n" not in message.text else json.dumps(message.document).encode()
    return event_of(text, "result" if message.is_final else "progress")


def _error_event(error: TritonSamError) -> bytes:
    return event_of(json.dumps(error_document(error)).encode(), "error")
