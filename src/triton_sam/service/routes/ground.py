"""``/v1/ground``: a vision-language model says where something is, and a segmenter makes masks of it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from triton_sam.client.vlm_calls import Answer, Region, collected, vlm_call
from triton_sam.client.vlm_ground import most_masks
from triton_sam.client.wire import Call, Outputs, text_of
from triton_sam.core.images import EncodedImage, from_base64
from triton_sam.core.prompt_values import refuse_unknown
from triton_sam.errors import InternalError, InvalidInput, TooLarge, Unsupported
from triton_sam.models.vlm_specs import Task, VlmSpec
from triton_sam.service import json_bodies, schemas
from triton_sam.service.admission.capacity import ServiceCapacity
from triton_sam.service.event_streams import time_limit
from triton_sam.service.forms import checked_name
from triton_sam.service.gateway import Gateway, json_output
from triton_sam.service.routes import ground_schemas
from triton_sam.service.served_models import ServedSegmenter, choose_vlm
from triton_sam.service.telemetry import request_context
from triton_sam.service.telemetry.metrics import ServiceMetrics
from triton_sam.service.triton_calls import Turn, checked_prompt, image_call
from triton_sam.settings import Settings

GROUND = "/v1/ground"
_FIELDS = frozenset(ground_schemas.GroundRequest.model_fields)
_FORMATS = ("png", "rle", "polygon", "bits")
#: Fields that go to the segmenter as they are.
_OF_MASKS = ("format", "clean")
_EXAMPLE = '{"image": ..., "question": ...}'


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A validated request.

    Attributes:
        call: to the vision-language model ``model``.
        size: width and height of the image.
        most: regions that are segmented; the segmenter makes no more masks of an image of this size.
        of_masks: fields of the segmenter's prompt beside its objects.
    """

    call: Call
    model: str
    segmenter: ServedSegmenter
    image: bytes
    size: tuple[int, int]
    most: int
    of_masks: Mapping[str, Any]
    turn: Turn


def ground_router(gateway: Gateway, metrics: ServiceMetrics, capacity: ServiceCapacity) -> APIRouter:
    """The router of ``/v1/ground``."""
    router = APIRouter(tags=["segment"])

    @router.post(
        GROUND,
        summary="Find what a question asks for, and segment it",
        description="A vision-language model gives boxes or points, and a segmenter on the same server makes masks of "
        "them. Without a region there are no masks, and the answer is the model's text.",
        response_model=ground_schemas.GroundAnswer,
        responses=schemas.error_responses(*schemas.TRITON_STATUSES),
        openapi_extra=schemas.body_of(ground_schemas.GroundRequest, "application/json"),
    )
    async def ground(request: Request) -> Response:
        deadline = time.monotonic() + gateway.settings.vlm_seconds
        with time_limit(gateway.settings.service_seconds):
            wanted = await _wanted(request, gateway, capacity)
        answer = await _asked(gateway.stream(wanted.call, request, deadline - time.monotonic(), wanted.turn.session))
        for kind, tokens in (("prompt", answer.prompt_tokens), ("completion", answer.completion_tokens)):
            metrics.tokens.labels(wanted.model, kind).inc(tokens)
        result = await _segmented(request, gateway, wanted, answer.regions[: wanted.most])
        return Response(await run_in_threadpool(_document, wanted, answer, result), media_type="application/json")

    return router


# -- the request -------------------------------------------------------------------------------------------------


async def _wanted(request: Request, gateway: Gateway, capacity: ServiceCapacity) -> _Wanted:
    """Everything that can be refused is refused here, before a model works."""
    settings = gateway.settings
    body = await request.body()
    limit = json_bodies.max_parts(settings) + settings.vlm_max_prompt_bytes
    document = await json_bodies.by_size(len(body), lambda: json_bodies.json_object(body, limit, example=_EXAMPLE))
    refuse_unknown(document, _FIELDS, "the request")
    turn = Turn.of(document)
    if turn.background:
        capacity.check_background(GROUND)
    text, task = _asks(document, settings)
    name, spec = _finder(await gateway.vlms.all(), checked_name(document.get("model"), "model"), task)
    segmenter = await gateway.segmenters.find(checked_name(document.get("segmenter"), "segmenter"), "boxes")
    of_masks = {field: document[field] for field in _OF_MASKS if document.get(field) is not None}
    if of_masks.get("format", "png") not in _FORMATS:
        raise InvalidInput(f"format is one of {', '.join(_FORMATS)}", field="format")
    checked_prompt({"points": [[0, 0]], **of_masks}, segmenter, settings)
    wanted_regions = _max_regions(document, settings)
    image, size = await run_in_threadpool(_image, document.get("image"), settings)
    most = min(wanted_regions, most_masks(size, settings))
    call = vlm_call(spec.name, image, text, grounds=spec.grounds, task=task)
    return _Wanted(call, name, segmenter, image, size, most, of_masks, turn)


def _asks(document: Mapping[str, Any], settings: Settings) -> tuple[str, Task]:
    """(the question or the object's name, the task)."""
    given = [field for field in ("question", "object") if document.get(field) is not None]
    if len(given) != 1:
        raise InvalidInput("send exactly one of question and object" + (", not both" if given else ""))
    text = document[given[0]]
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{given[0]} must be a text that is not empty", field=given[0])
    if len(text) > settings.vlm_max_prompt_bytes:
        raise TooLarge(f"{given[0]} has {len(text):,} characters, which are too many: shorten it", field=given[0])
    task = document.get("task")
    if task is None:
        return text, Task.GROUND if given[0] == "question" else Task.DETECT
    tasks = {kind.value: kind for kind in Task if kind is not Task.ANSWER}
    if not isinstance(task, str) or task not in tasks:
        raise InvalidInput(f"task is one of {', '.join(tasks)}", field="task")
    return text, tasks[task]


def _finder(served: Mapping[str, VlmSpec], wanted: str | None, task: Task) -> tuple[str, VlmSpec]:
    """(Triton name, row) of the wanted model, or of the first one that does the task."""
    if wanted is not None or not served:
        name, spec = choose_vlm(served, wanted or "")
        spec.check_task(task)
        return name, spec
    for name, spec in served.items():
        if task in spec.tasks:
            return name, spec
    raise Unsupported(f"no vision-language model that is served ({', '.join(served)}) does the task {task.value}")


def _image(image: object, settings: Settings) -> tuple[bytes, tuple[int, int]]:
    """(the file, its width and height)."""
    if not isinstance(image, str):
        raise InvalidInput(
            "image must be a string, base64 of an image file or a data URL: an image_key is not enough here, "
            "because a vision-language model needs the pixels",
            field="image",
        )
    try:
        data = from_base64(image, "image")
        encoded = EncodedImage(data, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    except InvalidInput as error:
        error.field = "image"
        raise
    return data, encoded.size


def _max_regions(document: Mapping[str, Any], settings: Settings) -> int:
    most = document.get("max_regions")
    if most is None:
        return settings.max_objects
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= settings.max_objects:
        raise InvalidInput(f"max_regions is a whole number from 1 to {settings.max_objects}", field="max_regions")
    return most


# -- the models --------------------------------------------------------------------------------------------------


async def _asked(stream: AsyncGenerator[Outputs, None]) -> Answer:
    """The whole answer of the vision-language model, with its regions."""
    async with contextlib.aclosing(stream):
        pieces = [piece async for piece in stream]
    if not pieces or not text_of(pieces[-1], "finish_reason"):
        raise InternalError("the model server's answer ended before it was complete")
    try:
        return collected(pieces)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InternalError("the model server's regions cannot be read") from None


async def _segmented(
    request: Request, gateway: Gateway, wanted: _Wanted, regions: Sequence[Region]
) -> Mapping[str, Any] | None:
    """The segmenter's result with a mask for each region; None without regions."""
    if not regions:
        return None
    fields = {"objects": [region.as_prompt() for region in regions], **wanted.of_masks}
    call = await run_in_threadpool(
        lambda: wanted.turn.of_call(image_call(wanted.segmenter, wanted.image, fields, gateway.settings))
    )
    answer = json_output(await gateway.infer(request, call, wanted.turn.session))
    try:
        result = await json_bodies.by_size(len(answer), lambda: json.loads(answer))
        request_context.set_image(str(result["image_key"]))
        return dict(result)
    except (ValueError, LookupError, TypeError):
        raise InternalError("the model server's masks are not valid JSON") from None


def _document(wanted: _Wanted, answer: Answer, result: Mapping[str, Any] | None) -> bytes:
    """The response; large with many masks, so run it on a thread."""
    regions = []
    for entry in () if result is None else sorted(result["masks"], key=itemgetter("object")):
        mask = {name: value for name, value in entry.items() if name not in ("score", "object")}
        regions.append(answer.regions[entry["object"]].as_dict() | {"mask": mask, "score": entry["score"]})
    width, height = wanted.size
    document = {
        "text": answer.text,
        "model": wanted.model,
        "segmenter": wanted.segmenter.name,
        "width": width,
        "height": height,
        "image_key": None if result is None else result["image_key"],
        "found": len(answer.regions),
        "regions": regions,
    }
    return json.dumps(document).encode()
