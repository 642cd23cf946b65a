"""The SAM service protocol of annotation tools: an embedding as text, a click on that embedding, or both in one."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from triton_sam.client.dispatch import Outputs
from triton_sam.client.wire import Call, text_tensor
from triton_sam.errors import InternalError, InvalidInput, TooLarge
from triton_sam.service import json_bodies, schemas
from triton_sam.service.forms import Form, checked_name, read_form
from triton_sam.service.gateway import Gateway, json_output, output, user_session
from triton_sam.service.routes import embedding_text
from triton_sam.service.routes.embedding_models import EmbeddingModels
from triton_sam.service.served_models import ServedSegmenter
from triton_sam.service.triton_calls import checked_prompt, image_call
from triton_sam.settings import Settings

_FORM = "multipart/form-data"
#: A session's name with every character escaped, and some reserve.
_MAX_CANCEL_BYTES = 4096
_PNG = schemas.response_of("The mask at the image's size, 8 bits: 0 and 255", "image/png", binary=True)
_ENCODING = {
    "name": "encoding",
    "in": "query",
    "required": False,
    "description": "compress: the text is gzipped",
    "schema": {"type": "string", "enum": ["compress"]},
}
_SESSION_QUERY = {
    "name": "session_id",
    "in": "query",
    "required": False,
    "description": "instead of the form field",
    "schema": {"type": "string", "maxLength": 200},
}

# -- OpenAPI documentation of the routes -------------------------------------------------------------------------

_EMBEDDED_MODEL: dict[str, Any] = {
    "summary": "An image's embedding as text",
    "description": "With a session_id and without an image: cancels the waiting requests of the session.",
    "response_class": Response,
    "responses": {
        200: {
            "description": "base64 of little-endian float32 [1,256,64,64]; the same gzipped; "
            "or the number of cancelled requests",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                "application/gzip": {"schema": {"type": "string", "format": "binary"}},
                "application/json": {"schema": schemas.CancelAnswer.model_json_schema()},
            },
        },
        **schemas.error_responses(*schemas.TRITON_STATUSES),
    },
    "openapi_extra": {**schemas.body_of(schemas.EmbeddedModelForm, _FORM), "parameters": [_ENCODING]},
}
_FROM_MODEL: dict[str, Any] = {
    "summary": "A mask for a click on an embedding",
    "response_class": Response,
    "responses": {**_PNG, **schemas.error_responses(*schemas.TRITON_STATUSES)},
    "openapi_extra": schemas.body_of(schemas.FromModelForm, _FORM),
}
_PREDICTION: dict[str, Any] = {
    "summary": "A mask for a click on an image, in one request",
    "response_class": Response,
    "responses": {**_PNG, **schemas.error_responses(*schemas.TRITON_STATUSES)},
    "openapi_extra": schemas.body_of(schemas.PredictionForm, _FORM),
}
_NEW_SESSION_ID: dict[str, Any] = {
    "summary": "A unique session name",
    "response_class": Response,  # with PlainTextResponse, FastAPI would document the errors as text too
    "responses": {**schemas.response_of("A UUID", "text/plain"), **schemas.error_responses()},
}
_CANCEL_PENDING: dict[str, Any] = {
    "summary": "Cancel the waiting requests of a session",
    "response_model": schemas.CancelAnswer,
    "responses": schemas.error_responses(400, 503),
    "openapi_extra": {
        **schemas.body_of(
            schemas.CancelForm, _FORM, "application/x-www-form-urlencoded", "application/json", required=False
        ),
        "parameters": [_SESSION_QUERY],
    },
}


def sam_service_router(gateway: Gateway, embedding_models: EmbeddingModels) -> APIRouter:
    """The router of ``/embedded_model``, ``/from_model``, ``/prediction`` and the routes for their sessions."""
    router = APIRouter(tags=["SAM service"])
    service = _SamService(gateway, embedding_models)
    router.add_api_route("/embedded_model", service.embedded_model, methods=["POST"], **_EMBEDDED_MODEL)
    router.add_api_route("/from_model", service.from_model, methods=["POST"], **_FROM_MODEL)
    router.add_api_route("/prediction", service.prediction, methods=["POST"], **_PREDICTION)
    router.add_api_route("/new_session_id", service.new_session_id, methods=["GET"], **_NEW_SESSION_ID)
    router.add_api_route("/cancel_pending", service.cancel_pending, methods=["POST"], **_CANCEL_PENDING)
    return router


class _SamService:
    """The handlers. They have no docstrings, because FastAPI would publish them."""

    def __init__(self, gateway: Gateway, embedding_models: EmbeddingModels) -> None:
        self._gateway = gateway
        self._embedding_models = embedding_models

    async def embedded_model(self, request: Request) -> Response:
        gateway = self._gateway
        compress = _compress(request)
        async with read_form(request) as form:
            session, supersede = form.name("session_id"), form.flag("cancel_pending")
            image = await form.optional_file("image")
            if image is None:
                if session is None:
                    raise InvalidInput("the form has no file image: send one, or a session_id to cancel")
                return await _cancel(gateway, session)
            served = await gateway.segmenters.find(form.name("model_version"))
        call = await run_in_threadpool(lambda: image_call(served, image, None, gateway.settings))
        call = Call(call.model, call.inputs, ("embedding",))
        outputs = await gateway.infer(request, call, session, latest_wins=supersede and session is not None)
        embedding = output(outputs, "embedding")
        text = await run_in_threadpool(lambda: self._text(embedding, served.name, compress=compress))
        if compress:
            return Response(text, media_type="application/gzip", headers={"Content-Encoding": "gzip"})
        return PlainTextResponse(text)

    async def from_model(self, request: Request) -> Response:
        gateway = self._gateway
        async with read_form(request) as form:
            fields = _click(form) | {"image_size": _image_size(form, gateway.settings)}
            wanted = form.name("model_version")
            data = await form.file("model")
        # Read once, so that the size limit belongs to the same models that are chosen from.
        segmenters = await gateway.segmenters.all()
        served = gateway.segmenters.choose(segmenters, wanted)
        max_bytes = embedding_text.max_embedding_bytes(ServedSegmenter(name, spec) for name, spec in segmenters.items())
        raw, model = await run_in_threadpool(lambda: self._embedding(data, max_bytes))
        if wanted is None and model in segmenters:
            served = gateway.segmenters.choose(segmenters, model)
        call = await run_in_threadpool(lambda: _embedding_call(served, raw, fields, gateway.settings))
        return await _png(await gateway.infer(request, call))

    def _text(self, embedding: Any, model: str, *, compress: bool) -> bytes:
        text, digest = embedding_text.to_text(embedding, compress=compress)
        self._embedding_models.remember(digest, model)
        return text

    def _embedding(self, data: bytes, max_bytes: int) -> tuple[bytes, str | None]:
        raw, digest = embedding_text.from_text(data, max_bytes)
        return raw, self._embedding_models.model_of(digest)

    async def prediction(self, request: Request) -> Response:
        gateway = self._gateway
        async with read_form(request) as form:
            fields = _click(form)
            served = await gateway.segmenters.find(form.name("model_version"))
            image = await form.file("image")
        call = await run_in_threadpool(lambda: image_call(served, image, fields, gateway.settings))
        return await _png(await gateway.infer(request, call))

    async def new_session_id(self) -> PlainTextResponse:
        return PlainTextResponse(str(uuid.uuid4()))

    async def cancel_pending(self, request: Request) -> Response:
        session = await _session_to_cancel(request)
        if session is None:
            raise InvalidInput("there is no session_id: send it as a form field, in the query or in JSON")
        return await _cancel(self._gateway, session)


def _compress(request: Request) -> bool:
    encoding = request.query_params.get("encoding", "")
    if encoding not in ("", "none", "compress"):
        raise InvalidInput(f"encoding must be compress or left out, not {encoding[:60]!r}")
    return encoding == "compress"


async def _cancel(gateway: Gateway, session: str) -> JSONResponse:
    cancelled = await gateway.cancel_everywhere(user_session(session))
    return JSONResponse({"session_id": session, "cancelled": cancelled})


async def _session_to_cancel(request: Request) -> str | None:
    named_in_query = request.query_params.getlist("session_id")
    if len(named_in_query) > 1:
        raise InvalidInput("session_id appears twice in the query: send it once")
    named = checked_name(next(iter(named_in_query), None), "session_id")
    if named is not None:
        return named
    if "json" in request.headers.get("content-type", "").lower():
        body = await json_bodies.short_body(request, _MAX_CANCEL_BYTES)
        document = json_bodies.json_object(body, _MAX_CANCEL_BYTES)
        return checked_name(document.get("session_id"), "session_id")
    async with read_form(request) as form:
        return form.name("session_id")


def _click(form: Form) -> dict[str, Any]:
    """A prompt of one foreground point, with a PNG as the result."""
    return {"points": [[form.number("x"), form.number("y")]], "labels": [1], "format": "png"}


def _image_size(form: Form, settings: Settings) -> list[int]:
    width, height = form.number("img_x"), form.number("img_y")
    limit = settings.max_image_pixels
    if width * height > limit:
        raise TooLarge(
            f"the image has {width} x {height} = {width * height:,} pixels, but at most {limit:,} are allowed"
        )
    return [width, height]


def _embedding_call(served: ServedSegmenter, raw: bytes, fields: dict[str, Any], settings: Settings) -> Call:
    prompt, text = checked_prompt(fields, served, settings)
    prompt.check_inside(*fields["image_size"])
    inputs = {"embedding": embedding_text.to_array(raw, served), "prompt_json": text_tensor(text)}
    return Call(served.name, inputs, ("result_json",))


async def _png(outputs: Outputs) -> Response:
    document = json_output(outputs)

    def picture() -> bytes:
        try:
            return base64.b64decode(json.loads(document)["mask"]["data"], validate=True)
        except (ValueError, LookupError, TypeError):
            raise InternalError("the model server's response has no mask") from None

    return Response(await run_in_threadpool(picture), media_type="image/png")
