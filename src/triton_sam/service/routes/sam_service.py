"""The SAM service that annotation tools know: an embedding as text, later a click on it; also both in one."""

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
from triton_sam.service import calls, schemas
from triton_sam.service.forms import Form, checked_name, read_form
from triton_sam.service.gateway import Gateway, json_output, output, user_session
from triton_sam.service.routes import embeddings
from triton_sam.service.served_models import Served
from triton_sam.settings import Settings

_FORM = "multipart/form-data"
#: A session's name, with every character of it escaped, and room to spare.
_CANCEL_BYTES = 4096
_PNG = schemas.answer_of("The mask of the image's size, 8 bits: 0 and 255", "image/png", binary=True)
_ENCODING = {
    "name": "encoding",
    "in": "query",
    "required": False,
    "description": "compress: the gzip of the text",
    "schema": {"type": "string", "enum": ["compress"]},
}
_SESSION_QUERY = {
    "name": "session_id",
    "in": "query",
    "required": False,
    "description": "in place of the form's",
    "schema": {"type": "string", "maxLength": 200},
}


def sam_service_router(gateway: Gateway) -> APIRouter:
    """``/embedded_model``, ``/from_model``, ``/prediction`` and what belongs to their sessions."""
    router = APIRouter(tags=["SAM service"])
    makers = embeddings.Makers()

    @router.post(
        "/embedded_model",
        summary="An image's embedding as text",
        description="Without an image, and with a session_id: cancels what the session has waiting.",
        response_class=Response,
        responses={
            200: {
                "description": "base64 of little-endian float32 [1,256,64,64]; its gzip; or what was cancelled",
                "content": {
                    "text/plain": {"schema": {"type": "string"}},
                    "application/gzip": {"schema": {"type": "string", "format": "binary"}},
                    "application/json": {"schema": schemas.CancelAnswer.model_json_schema()},
                },
            },
            **schemas.refusals(*schemas.WORK),
        },
        openapi_extra={**schemas.body_of(schemas.EmbeddedModelForm, _FORM), "parameters": [_ENCODING]},
    )
    async def embedded_model(request: Request) -> Response:
        compress = _compress(request)
        async with read_form(request) as form:
            session, supersede = form.name("session_id"), form.flag("cancel_pending")
            image = await form.optional_file("image")
            if image is None:
                if session is None:
                    raise InvalidInput("the form has no file image: send one, or a session_id to cancel")
                return _cancel(gateway, session)
            served = await gateway.models.find(form.name("model_version"))
        call = await run_in_threadpool(lambda: calls.image_call(served, image, None, gateway.settings))
        call = Call(call.model, call.inputs, ("embedding",))
        outputs = await gateway.infer(request, call, session, latest_wins=supersede and session is not None)
        embedding = output(outputs, "embedding")
        text, digest = await run_in_threadpool(lambda: embeddings.to_text(embedding, compress=compress))
        makers.remember(digest, served.name)
        if compress:
            return Response(text, media_type="application/gzip", headers={"Content-Encoding": "gzip"})
        return PlainTextResponse(text)

    @router.post(
        "/from_model",
        summary="A click on an embedding",
        response_class=Response,
        responses={**_PNG, **schemas.refusals(*schemas.WORK)},
        openapi_extra=schemas.body_of(schemas.FromModelForm, _FORM),
    )
    async def from_model(request: Request) -> Response:
        async with read_form(request) as form:
            asked = _click(form) | {"image_size": _image_size(form, gateway.settings)}
            wanted = form.name("model_version")
            data = await form.file("model")
        known = await gateway.models.all()  # once: the bound on its bytes belongs to the rows that are chosen from
        served = gateway.models.choose(known, wanted)
        longest = embeddings.longest(Served(name, spec) for name, spec in known.items())
        raw, digest = await run_in_threadpool(lambda: embeddings.from_text(data, longest))
        maker = makers.maker(digest)
        if wanted is None and maker in known:
            served = gateway.models.choose(known, maker)
        call = await run_in_threadpool(lambda: _embedding_call(served, raw, asked, gateway.settings))
        return await _png(await gateway.infer(request, call))

    @router.post(
        "/prediction",
        summary="An image and a click in one",
        response_class=Response,
        responses={**_PNG, **schemas.refusals(*schemas.WORK)},
        openapi_extra=schemas.body_of(schemas.PredictionForm, _FORM),
    )
    async def prediction(request: Request) -> Response:
        async with read_form(request) as form:
            asked = _click(form)
            served = await gateway.models.find(form.name("model_version"))
            image = await form.file("image")
        call = await run_in_threadpool(lambda: calls.image_call(served, image, asked, gateway.settings))
        return await _png(await gateway.infer(request, call))

    @router.get(
        "/new_session_id",
        summary="A name that no other session has",
        response_class=Response,  # a text one would have FastAPI document its refusals as text too
        responses={**schemas.answer_of("A UUID", "text/plain"), **schemas.refusals()},
    )
    async def new_session_id() -> PlainTextResponse:
        return PlainTextResponse(str(uuid.uuid4()))

    @router.post(
        "/cancel_pending",
        summary="Cancel what a session has waiting",
        response_model=schemas.CancelAnswer,
        responses=schemas.refusals(400, 503),
        openapi_extra={
            **schemas.body_of(
                schemas.CancelForm,
                _FORM,
                "application/x-www-form-urlencoded",
                "application/json",
                required=False,
            ),
            "parameters": [_SESSION_QUERY],
        },
    )
    async def cancel_pending(request: Request) -> Response:
        session = await _session_to_cancel(request)
        if session is None:
            raise InvalidInput("there is no session_id: send it as a form field, in the query or in JSON")
        return _cancel(gateway, session)

    return router


def _compress(request: Request) -> bool:
    encoding = request.query_params.get("encoding", "")
    if encoding not in ("", "none", "compress"):
        raise InvalidInput(f"encoding is compress or left out, not {encoding[:60]!r}")
    return encoding == "compress"


def _cancel(gateway: Gateway, session: str) -> JSONResponse:
    return JSONResponse({"session_id": session, "cancelled": gateway.cancel(user_session(session))})


async def _session_to_cancel(request: Request) -> str | None:
    named_in_query = request.query_params.getlist("session_id")
    if len(named_in_query) > 1:
        raise InvalidInput("session_id is there twice: which session shall be cancelled?")
    named = checked_name(next(iter(named_in_query), None), "session_id")
    if named is not None:
        return named
    if "json" in request.headers.get("content-type", "").lower():
        document = calls.json_object(await calls.short_body(request, _CANCEL_BYTES), _CANCEL_BYTES)
        return checked_name(document.get("session_id"), "session_id")
    async with read_form(request) as form:
        return form.name("session_id")


def _click(form: Form) -> dict[str, Any]:
    """One point on the object, and a PNG as the answer."""
    return {"points": [[form.number("x"), form.number("y")]], "labels": [1], "format": "png"}


def _image_size(form: Form, settings: Settings) -> list[int]:
    width, height = form.number("img_x"), form.number("img_y")
    limit = settings.max_image_pixels
    if width * height > limit:
        raise TooLarge(f"the image has {width} x {height} = {width * height:,} pixels and {limit:,} are allowed")
    return [width, height]


def _embedding_call(served: Served, raw: bytes, asked: dict[str, Any], settings: Settings) -> Call:
    prompt, text = calls.checked_prompt(asked, served, settings)
    prompt.check_inside(*asked["image_size"])
    inputs = {"embedding": embeddings.to_array(raw, served), "prompt_json": text_tensor(text)}
    return Call(served.name, inputs, ("result_json",))


async def _png(outputs: Outputs) -> Response:
    document = json_output(outputs)

    def picture() -> bytes:
        try:
            return base64.b64decode(json.loads(document)["mask"]["data"], validate=True)
        except (ValueError, LookupError, TypeError):
            raise InternalError("the model server's answer has no mask") from None

    return Response(await run_in_threadpool(picture), media_type="image/png")
