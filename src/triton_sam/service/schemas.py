"""Schemas of requests and responses for the OpenAPI document.

The routes parse bodies themselves, because validation with these models would slow down every click.
:mod:`triton_sam.core.prompts` and :mod:`triton_sam.service.forms` validate the same, with one sentence for each error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from triton_sam.service import concept_schemas
from triton_sam.service.concept_schemas import ConceptFields, FoundConcept

MODEL = "a family (`sam2`), a catalogue id (`sam2.1:large`) or a Triton name (`sam2.1_large`); default: see /models"
_ENCODER = "precision of the encoder: float32, bfloat16, float16 or 8-bit"
SESSION = "name of a session, whose requests can be cancelled together; up to 200 printable characters"
BACKGROUND = "no person waits for the response: all other requests pass first, and half of the slots are left for them"
_REFERENCE = "#/components/schemas/{model}"

Point = tuple[float, float]
Box = concept_schemas.Box


def _example(**example: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]}, protected_namespaces=())


# -- responses -------------------------------------------------------------------------------------------------


class ErrorDetail(BaseModel):
    code: str = Field(description="for programs: invalid_input, not_found, image_expired, queue_full, unavailable, ...")
    message: str = Field(description="for people: one sentence with the fix")
    type: Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"] = Field(
        description="OpenAI's error type"
    )
    param: str | None = Field(description="the invalid field of the request, if known")


class ErrorAnswer(BaseModel):
    """Every error response."""

    model_config = _example(
        error={
            "code": "image_expired",
            "message": "the image is no longer cached: send it again",
            "type": "invalid_request_error",
            "param": None,
        }
    )

    error: ErrorDetail


class ModelRow(BaseModel):
    name: str = Field(description="of the model in Triton")
    id: str = Field(description="of the model in the catalogue")
    family: str
    title: str
    licence: str
    prompts: list[str] = Field(
        description="kinds of prompts that it accepts: boxes, everything, masks, points, text (words and exemplars)"
    )
    side: int = Field(description="side of the square model input in pixels; a larger image is scaled down to it")
    video: bool = Field(description="whether it tracks objects through videos")
    default: bool = Field(description="whether requests without a model use this one")
    encoder: str | None = Field(description=f"{_ENCODER}; null while the model does not respond")


class Limits(BaseModel):
    """The limits of one request; more is refused with 413."""

    max_image_bytes: int = Field(description="of an image file")
    max_image_pixels: int = Field(description="width x height of an image")
    max_points: int = Field(description="of one object")
    max_objects: int = Field(description="of one request")
    video_upload_bytes: int = Field(description="of a video file")


class SampleRow(BaseModel):
    """A sample image."""

    name: str
    title: str = Field(description="for display")
    credit: str = Field(description="author and licence")
    width: int
    height: int
    address: str = Field(description="URL of the image file, relative to the service's")
    file: str = Field(description="file name for the image")


class EngineReadiness(BaseModel):
    """How far an engine is from its full speed; it serves at every stage."""

    stage: Literal["uncompiled", "compiling", "full speed"]
    seconds: float = Field(description="when the stage began, from the start of loading")
    detail: str = Field(description="why it stays at this stage; empty if it goes on, or has arrived")


class DeviceRow(BaseModel):
    """One device of a model."""

    device: str = Field(description="number or UUID of a GPU, `cpu`, or `auto` before the engine has chosen")
    state: Literal["ready", "starting"]
    in_flight: int = Field(description="requests that it has and has not answered")
    engine: EngineReadiness | None = Field(description="null while it starts")


class Health(BaseModel):
    """The supervisor's status."""

    model_config = ConfigDict(extra="allow")

    state: str = Field(description="ready, starting, recovering, stopping, stopped or failed")
    reason: str = Field(default="", description="of the last recovery; it stays after it")
    restarts: int = Field(default=0, description="of Triton since the start")
    reloads: int = Field(default=0, description="of single models after a failure")
    lost: list[str] = Field(default=[], description="models that do not serve during a recovery")
    missing: list[str] = Field(default=[], description="models that did not load")
    problems: dict[str, str] = Field(default={}, description="model -> why its newest version does not serve")
    versions: dict[str, str] = Field(default={}, description="model -> the version that serves")
    devices: dict[str, list[DeviceRow]] = Field(
        default={}, description="segmenter, by Triton name -> its devices, a few seconds old"
    )


class DescribeAnswer(BaseModel):
    """What an image file has."""

    format: str = Field(description="TIFF, PNG, JPEG, ...")
    width: int = Field(description="upright, as height")
    height: int
    pages: int = Field(description="slices and times of a TIFF; 1 for other formats")
    channels: int
    channel_names: list[str] | None = Field(description="from the file's metadata, or its colours; null if unknown")
    dtype: str = Field(description="of the samples, as in numpy")
    bits: int = Field(description="of each sample")


class CancelAnswer(BaseModel):
    session_id: str
    cancelled: int = Field(description="number of waiting requests that were cancelled")


class ImageAnswer(BaseModel):
    """An encoded image."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    image_key: str = Field(description="identifies the image in segment requests")
    model: str
    model_version: str
    encoder: str = Field(description=_ENCODER)
    width: int
    height: int
    timings_ms: dict[str, float]


class MaskAnswer(BaseModel):
    encoding: Literal["png", "rle", "polygon", "bits", "logits"]
    width: int
    height: int
    data: Any = Field(description="base64 for png, bits and logits; COCO's size and counts for rle; rings for polygon")


class RankedMask(MaskAnswer):
    """A mask of an object, or of an instance of a concept."""

    score: float = Field(description="predicted IoU; of an instance the probability that it is one")
    object: int | None = Field(default=None, description="index of the object in the request")
    concept: int | None = Field(default=None, description="index of the concept in the request")
    box: Box | None = Field(default=None, description="of an instance: x0, y0, x1, y1 in original pixels")


class SegmentAnswer(ImageAnswer):
    """The segmenter's ``result_json``."""

    mask: MaskAnswer | None = Field(default=None, description="the best one; missing if there is none")
    score: float | None = Field(default=None, description="of the best one")
    masks: list[RankedMask] = Field(description="by object; instances by concept, then by falling score")
    concepts: list[FoundConcept] | None = Field(default=None, description="for words and examples: one for each")
    clean: CleanSizes | None = Field(default=None, description="how the masks were cleaned; missing if they were not")


# -- requests --------------------------------------------------------------------------------------------------


class ObjectRequest(BaseModel):
    """The prompts for one object."""

    points: list[Point] = Field(default=[], description="x, y in original pixels")
    labels: list[Literal[0, 1]] | None = Field(default=None, description="for each point: 1 object, 0 background")
    box: Box | None = Field(default=None, description="x0, y0, x1, y1 in original pixels")
    mask_input: str | list[list[float]] | None = Field(
        default=None, description="low-resolution logits of an earlier response, base64 of little-endian float32"
    )


class CleanSizes(BaseModel):
    """Sizes in original pixels; 0 keeps all of a kind."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"holes": 64, "islands": 64}]})

    holes: int = Field(default=0, ge=0, le=10**9, description="fill holes with fewer pixels")
    islands: int = Field(default=0, ge=0, le=10**9, description="remove islands with fewer pixels, but the largest")


class SegmentRequest(ObjectRequest, ConceptFields):
    """Exactly one of image_key and image; at least one point, box, mask_input or object, or else text or exemplars."""

    model_config = ConfigDict(
        extra="forbid",
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {"image_key": "5f2c...", "points": [[365, 290]], "labels": [1], "format": "rle"},
                {"image": "data:image/png;base64,...", "box": [174, 18, 408, 208], "model": "sam2"},
                {"image": "data:image/png;base64,...", "text": "coin", "model": "sam3", "format": "rle"},
                {"image_key": "5f2c...", "model": "sam3", "text": "coin", "exemplars": [[21, 40, 66, 83]]},
            ]
        },
    )

    image_key: str | None = Field(default=None, description="of an image that was encoded with /v1/images")
    image: str | None = Field(default=None, description="an image file as base64 or as a data URL")
    model: str | None = Field(default=None, description=MODEL)
    boxes: list[Box] = Field(default=[], description="without points, each box is one object")
    objects: list[ObjectRequest] | None = Field(default=None, description="several objects in one request")
    multimask: bool = Field(default=False, description="return several masks for each object")
    format: Literal["png", "rle", "polygon", "bits", "logits"] = "png"
    clean: CleanSizes | Annotated[int, Field(ge=0, le=10**9)] | None = Field(
        default=None, description="clean full-size masks: a number of pixels for both sizes, or holes and islands"
    )
    session_id: str | None = Field(default=None, max_length=200, description=SESSION)
    latest_wins: bool = Field(default=False, description="supersede the waiting requests of the session")
    background: bool = Field(default=False, description=BACKGROUND)


class SegmentForm(BaseModel):
    """An image file or an image_key, and the other fields of the JSON form; those that are no texts as JSON."""

    model_config = _example(image="(an image file)", text="coin")

    image: bytes = Field(default=b"", description="an image file")
    image_key: str = Field(default="", max_length=200, description="instead of it")
    model: str = Field(default="", max_length=200, description=MODEL)
    text: str = Field(default="", description="one text, or a JSON list of several")
    points: str = Field(default="", description="JSON, as all further fields: [[365, 290]]")
    exemplars: str = Field(default="", description="[[21, 40, 66, 83]]")
    format: Literal["png", "rle", "polygon", "bits", "logits"] = "png"


class ImageForm(BaseModel):
    model_config = _example(image="(an image file)", model="sam2", session_id="annotator-1")

    image: bytes = Field(description="an image file")
    model: str = Field(default="", max_length=200, description=MODEL)
    session_id: str = Field(default="", max_length=200, description=SESSION)
    background: Literal["true", "false"] = Field(default="false", description=BACKGROUND)


class PreviewForm(BaseModel):
    model_config = _example(image="(an image file)")

    image: bytes = Field(description="an image file")


class EmbeddedModelForm(BaseModel):
    """An image to encode, or only the session whose waiting requests are cancelled."""

    model_config = _example(image="(an image file)", session_id="annotator-1", cancel_pending="true")

    image: bytes = Field(default=b"", description="an image file")
    session_id: str = Field(default="", max_length=200, description=SESSION)
    cancel_pending: Literal["true", "false"] = Field(
        default="false", description="cancel the waiting requests of the session"
    )
    model_version: str = Field(default="", max_length=200, description=MODEL)


class FromModelForm(BaseModel):
    model_config = _example(model="(the text of /embedded_model)", x=365, y=290, img_x=768, img_y=512)

    model: bytes = Field(description="the response of /embedded_model: base64 text, or the same gzipped")
    x: int = Field(ge=0, description="of the click, in original pixels")
    y: int = Field(ge=0, description="of the click, in original pixels")
    img_x: int = Field(ge=1, le=100_000, description="width of the original image")
    img_y: int = Field(ge=1, le=100_000, description="height of the original image")
    model_version: str = Field(default="", max_length=200, description=f"{MODEL}, or the model that made the embedding")


class PredictionForm(BaseModel):
    model_config = _example(image="(an image file)", x=365, y=290)

    image: bytes = Field(description="an image file")
    x: int = Field(ge=0, description="of the click, in original pixels")
    y: int = Field(ge=0, description="of the click, in original pixels")
    model_version: str = Field(default="", max_length=200, description=MODEL)


class CancelForm(BaseModel):
    model_config = _example(session_id="annotator-1")

    session_id: str = Field(min_length=1, max_length=200, description=SESSION)


# -- the document ----------------------------------------------------------------------------------------------

_REQUESTS = (
    SegmentRequest,
    SegmentForm,
    ImageForm,
    PreviewForm,
    EmbeddedModelForm,
    FromModelForm,
    PredictionForm,
    CancelForm,
)
_ERROR_STATUSES = {
    400: "The request is invalid; the message has the reason and the fix",
    401: "The token is missing or wrong",
    404: "No such model, sample or video, or an image_key that is unknown or expired",
    408: "The body stalled",
    409: "It does not fit what is going on, or what is there; the message has the reason",
    413: "Too many bytes or pixels",
    415: "A kind of file that is not taken",
    422: "A kind of prompt that the model does not accept",
    429: "Too many requests; Retry-After has the seconds to wait",
    499: "Cancelled, or superseded by a newer request of the session",
    501: "No model that is served can do it; the message names one that could",
    500: "The service or the model server failed; see its log",
    503: "The model server is not ready; Retry-After has the seconds to wait",
    504: "No response within the time limit",
}
_COMMON_STATUSES = (401, 408, 413, 429, 500, 504)
#: Statuses of routes that call Triton.
TRITON_STATUSES = (400, 404, 422, 499, 503)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route: these error statuses, and those that every route can have."""
    return {
        status: {"model": ErrorAnswer, "description": _ERROR_STATUSES[status]}
        for status in sorted({*_COMMON_STATUSES, *statuses})
    }


def body_of(model: type[BaseModel], *media_types: str, required: bool = True) -> dict[str, Any]:
    """``openapi_extra`` of a route that parses its body itself."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": required, "content": {media: {"schema": schema} for media in media_types}}}


def json_or_form(json: type[BaseModel], form: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of a route that takes both."""
    bodies = (body_of(json, "application/json"), body_of(form, "multipart/form-data"))
    content = {media: schema for body in bodies for media, schema in body["requestBody"]["content"].items()}
    return {"requestBody": {"required": True, "content": content}}


def response_of(description: str, *media_types: str, binary: bool = False) -> dict[int | str, dict[str, Any]]:
    """``responses`` for a response that is not JSON."""
    schema = {"type": "string", "format": "binary"} if binary else {"type": "string"}
    return {200: {"description": description, "content": {media: {"schema": schema} for media in media_types}}}


def request_schemas(models: Sequence[type[BaseModel]] = _REQUESTS) -> dict[str, Any]:
    """Name -> schema of every request model, for the document's components."""
    _, document = models_json_schema([(model, "validation") for model in models], ref_template=_REFERENCE)
    return dict(document["$defs"])
