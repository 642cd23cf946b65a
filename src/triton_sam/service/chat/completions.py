"""The routes of OpenAI's chat API: ``/v1/chat/completions`` and ``/v1/models``."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Iterator

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from triton_sam.client.dispatch import Outputs
from triton_sam.client.vlm_calls import vlm_call
from triton_sam.client.wire import Call
from triton_sam.core.images import EncodedImage
from triton_sam.errors import InvalidInput
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.service import json_bodies, schemas
from triton_sam.service.chat import schemas as chat_schemas
from triton_sam.service.chat.messages import ChatRequest, check_fits, read_chat
from triton_sam.service.chat.remote_images import RemoteImages
from triton_sam.service.chat.responses import (
    CompletionBuilder,
    EventFormatter,
    Piece,
    error_event,
    incomplete,
    joined,
    piece_of,
)
from triton_sam.service.event_streams import EventStream, Lines, time_limit
from triton_sam.service.gateway import Gateway
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.settings import Settings

log = logging.getLogger(__name__)

COMPLETIONS = "/v1/chat/completions"
#: Time after an answer's time limit to send the error response.
TIMEOUT_RESPONSE_SECONDS = 5.0
#: Brackets and commas of a request's JSON, without those in its texts.
_MAX_PARTS = 20_000
_EXAMPLE = '{"model": ..., "messages": [...]}'
_NAME = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "a Triton name or a catalogue id",
    "schema": {"type": "string"},
}

Pieces = AsyncGenerator[Piece, None]


def chat_router(gateway: Gateway, metrics: ServiceMetrics) -> APIRouter:
    """The router of ``/v1/chat/completions`` and ``/v1/models``."""
    router = APIRouter(tags=["chat"])
    remote = RemoteImages(gateway.settings.max_image_bytes)
    started = int(time.time())

    @router.post(
        COMPLETIONS,
        summary="Ask a vision-language model about an image",
        description="Compatible with OpenAI's clients: one image, one question or a conversation, one answer.",
        response_model=chat_schemas.ChatCompletion,
        responses={**chat_schemas.event_stream(), **schemas.error_responses(*schemas.TRITON_STATUSES)},
        openapi_extra=schemas.body_of(chat_schemas.ChatCompletionRequest, "application/json"),
    )
    async def completions(request: Request) -> Response:
        deadline = time.monotonic() + gateway.settings.vlm_seconds
        with time_limit(gateway.settings.service_seconds):
            chat, name, call = await _prepared(request, gateway, remote)
        pieces = _pieces(gateway.stream(call, request, deadline - time.monotonic()), name, metrics)
        builder = CompletionBuilder(name)
        if not chat.stream:
            async with contextlib.aclosing(pieces):
                return JSONResponse(builder.completion(await joined(pieces)))
        formatter = EventFormatter(builder, include_usage=chat.include_usage)
        try:
            first = await anext(pieces)  # an error before the first piece is still reported by the status code
        except BaseException:
            await pieces.aclose()
            raise
        return EventStream(_events(formatter, first, pieces), pieces, error_event)

    @router.get("/v1/models", summary="The served vision-language models", responses=schemas.error_responses())
    async def models() -> chat_schemas.VlmList:
        found = await gateway.vlms.all()
        return chat_schemas.VlmList(data=[_row(name, spec, started) for name, spec in found.items()])

    @router.get(
        "/v1/models/{model}",
        summary="One vision-language model",
        response_model=chat_schemas.VlmRow,
        responses=schemas.error_responses(404),
        openapi_extra={"parameters": [_NAME]},
    )
    async def model(request: Request) -> JSONResponse:
        row = _row(*await gateway.vlms.find(request.path_params["model"]), started)
        return JSONResponse(row.model_dump())

    return router


def _row(name: str, spec: VlmSpec, started: int) -> chat_schemas.VlmRow:
    return chat_schemas.VlmRow(
        id=name,
        created=started,
        title=spec.title,
        chats=spec.chats,
        grounds=spec.grounds,
        tasks=[task.value for task in spec.tasks],
    )


# -- requests ------------------------------------------------------------------------------------------------


async def _prepared(request: Request, gateway: Gateway, remote: RemoteImages) -> tuple[ChatRequest, str, Call]:
    """(the chat request, the model's name, the call to Triton)."""
    settings = gateway.settings
    body = await request.body()
    max_parts = settings.vlm_max_prompt_bytes + _MAX_PARTS

    def read() -> ChatRequest:
        return read_chat(json_bodies.json_object(body, max_parts, example=_EXAMPLE), settings)

    chat = await json_bodies.by_size(len(body), read)
    name, spec = await gateway.vlms.find(chat.model)
    check_fits(chat, spec)
    with _errors_name(chat.image_field):
        image = chat.image if isinstance(chat.image, bytes) else await remote.fetch(chat.image)
    return chat, name, await run_in_threadpool(lambda: question_call(spec, chat, image, settings))


@contextlib.contextmanager
def _errors_name(field: str) -> Iterator[None]:
    """Sets the ``field`` of InvalidInput errors raised in the block."""
    try:
        yield
    except InvalidInput as error:
        error.field = field
        raise


def question_call(spec: VlmSpec, chat: ChatRequest, image: bytes, settings: Settings) -> Call:
    """The streaming call to the model. Reads the image file's header, so run it on a thread."""
    with _errors_name(chat.image_field):
        EncodedImage(image, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    options = chat.options
    messages = [{"role": message.role, "content": message.content} for message in chat.messages]
    return vlm_call(
        spec.name,
        image,
        messages if len(messages) > 1 else chat.messages[0].content,
        max_new_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        stop=options.stop,
        grounds=spec.grounds,
    )


# -- responses -----------------------------------------------------------------------------------------------


async def _pieces(stream: AsyncGenerator[Outputs, None], model: str, metrics: ServiceMetrics) -> Pieces:
    """The pieces of a model's answer, with tokens counted; raises InternalError if the last piece is missing."""
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
        raise incomplete()


async def _events(formatter: EventFormatter, first: Piece, rest: Pieces) -> Lines:
    """Server-sent events. The caller closes ``rest``."""
    yield formatter.begin()
    for event in formatter.of(first):
        yield event
    async for piece in rest:
        for event in formatter.of(piece):
            yield event
