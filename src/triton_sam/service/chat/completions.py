"""Questions about images, as OpenAI's clients ask them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Iterator

import anyio
from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from triton_sam.client.dispatch import Outputs
from triton_sam.client.vlm_calls import vlm_call
from triton_sam.client.wire import Call
from triton_sam.core.images import EncodedImage
from triton_sam.errors import DeadlineExceeded, InternalError, InvalidInput, TritonSamError
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.service import calls, faults, schemas
from triton_sam.service.chat import schemas as chat_schemas
from triton_sam.service.chat.answers import Events, Head, Piece, cut_short, error_event, joined, piece_of
from triton_sam.service.chat.messages import ChatRequest, check_fits, read_chat
from triton_sam.service.chat.remote_images import RemoteImages
from triton_sam.service.gateway import Gateway
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.settings import Settings

log = logging.getLogger(__name__)

COMPLETIONS = "/v1/chat/completions"
#: After the time limit of an answer, for telling so.
FAREWELL_SECONDS = 5.0
#: Brackets and commas of a request besides those in its texts.
_PARTS = 20_000
_LIKE = '{"model": ..., "messages": [...]}'
_EVENT_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or nginx would keep the pieces together
}
_NAME = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "a Triton name or a catalogue id",
    "schema": {"type": "string"},
}

Pieces = AsyncGenerator[Piece, None]
Lines = AsyncGenerator[bytes, None]


def chat_router(gateway: Gateway, metrics: ServiceMetrics) -> APIRouter:
    """``/v1/chat/completions`` and ``/v1/models``."""
    router = APIRouter(tags=["chat"])
    remote = RemoteImages(gateway.settings.max_image_bytes)
    since = int(time.time())

    @router.post(
        COMPLETIONS,
        summary="Ask a vision-language model about an image",
        description="As OpenAI's clients do it: one image, one question or a conversation, one answer.",
        response_model=chat_schemas.ChatCompletion,
        responses={**chat_schemas.event_stream(), **schemas.refusals(*schemas.WORK)},
        openapi_extra=schemas.body_of(chat_schemas.ChatCompletionRequest, "application/json"),
    )
    async def completions(request: Request) -> Response:
        ends = time.monotonic() + gateway.settings.vlm_seconds
        with _time_limit(gateway.settings.service_seconds):
            asked, name, call = await _prepared(request, gateway, remote)
        pieces = _pieces(gateway.stream(call, request, ends - time.monotonic()), name, metrics)
        head = Head(name)
        if not asked.stream:
            async with contextlib.aclosing(pieces):
                return JSONResponse(head.completion(await joined(pieces)))
        events = Events(head, include_usage=asked.include_usage)
        try:
            first = await anext(pieces)  # until it is there, whatever goes wrong is told by the status
        except BaseException:
            await pieces.aclose()
            raise
        return _EventStream(_events(events, first, pieces), pieces)

    @router.get("/v1/models", summary="The vision-language models that are served", responses=schemas.refusals())
    async def models() -> chat_schemas.VlmList:
        found = await gateway.vlms.all()
        return chat_schemas.VlmList(data=[_row(name, spec, since) for name, spec in found.items()])

    @router.get(
        "/v1/models/{model}",
        summary="One of them",
        response_model=chat_schemas.VlmRow,
        responses=schemas.refusals(404),
        openapi_extra={"parameters": [_NAME]},
    )
    async def model(request: Request) -> JSONResponse:
        row = _row(*await gateway.vlms.find(request.path_params["model"]), since)
        return JSONResponse(row.model_dump())

    return router


def _row(name: str, spec: VlmSpec, since: int) -> chat_schemas.VlmRow:
    return chat_schemas.VlmRow(id=name, created=since, title=spec.title, chats=spec.chats, grounds=spec.grounds)


# -- the way in ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """For everything before the model's work, which has a longer one."""
    with anyio.move_on_after(seconds) as limit:
        yield
    if limit.cancelled_caught:
        raise DeadlineExceeded(f"the request took longer than {seconds:g} s to come: try again, or send less")


async def _prepared(request: Request, gateway: Gateway, remote: RemoteImages) -> tuple[ChatRequest, str, Call]:
    """(the request, the model's name, the call for Triton)."""
    settings = gateway.settings
    body = await request.body()
    most = settings.vlm_max_prompt_bytes + _PARTS

    def read() -> ChatRequest:
        return read_chat(calls.json_object(body, most, like=_LIKE), settings)

    asked = await calls.by_size(len(body), read)
    name, spec = await gateway.vlms.find(asked.model)
    check_fits(asked, spec)
    with _blaming(asked.image_field):
        image = asked.image if isinstance(asked.image, bytes) else await remote.fetch(asked.image)
    return asked, name, await run_in_threadpool(lambda: question_call(spec, asked, image, settings))


@contextlib.contextmanager
def _blaming(field: str) -> Iterator[None]:
    """What is wrong in the block is wrong with this field."""
    try:
        yield
    except InvalidInput as error:
        error.field = field
        raise


def question_call(spec: VlmSpec, asked: ChatRequest, image: bytes, settings: Settings) -> Call:
    """The call of a model's stream. Looks into the image file: for a thread."""
    with _blaming(asked.image_field):
        EncodedImage(image, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    options = asked.options
    told = [{"role": message.role, "content": message.content} for message in asked.messages]
    return vlm_call(
        spec.name,
        image,
        told if len(told) > 1 else asked.messages[0].content,
        max_new_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        stop=options.stop,
        grounds=spec.grounds,
    )


# -- the way out -----------------------------------------------------------------------------------------------


async def _pieces(stream: AsyncGenerator[Outputs, None], model: str, metrics: ServiceMetrics) -> Pieces:
    """What a model gives, counted; InternalError where the last piece does not come."""
    finished = False
    async with contextlib.aclosing(stream):
        async for outputs in stream:
            piece = piece_of(outputs)
            if piece.usage is not None:
                metrics.tokens.labels(model, "prompt").inc(piece.usage.prompt)
                metrics.tokens.labels(model, "completion").inc(piece.usage.completion)
            finished = piece.finish_reason is not None
            yield piece
    if not finished:
        raise cut_short()


async def _events(events: Events, first: Piece, rest: Pieces) -> Lines:
    """Server-sent events; what goes wrong now is the last of them. Closing ``rest`` is left to others."""
    yield events.begin()
    try:
        for event in events.of(first):
            yield event
        async for piece in rest:
            for event in events.of(piece):
                yield event
    except TritonSamError as error:
        yield error_event(faults.visible(error))
    except Exception:
        log.exception("an answer failed in a way that nobody expected")
        yield error_event(InternalError("the service failed on this request: its log has the reason"))


class _EventStream(Response):
    """The framework's own would watch the caller a second time, and leave the generator to the garbage collector."""

    def __init__(self, events: Lines, pieces: Pieces) -> None:
        """
        Args:
            pieces: what the events are made of. Closed here, because closing events that never began closes nothing.
        """
        self.status_code = 200
        self.background = None
        self._events = events
        self._pieces = pieces
        self.init_headers(_EVENT_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._pieces), contextlib.aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
