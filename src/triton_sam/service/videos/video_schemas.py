"""Schemas of ``/v1/videos`` for the OpenAPI document; :mod:`.bodies` validates."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from triton_sam.service import schemas
from triton_sam.service.schemas import Box, Point

_ID = "0-4c1f8b7e2a90d35f6e1b0c9a8d7f6e5d"
_MASK: dict[str, Any] = {"size": [4, 6], "counts": "81312N"}


def _example(**example: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]}, protected_namespaces=())


class Rle(BaseModel):
    """COCO's run lengths."""

    model_config = _example(**_MASK)

    size: tuple[int, int] = Field(description="height, width")
    counts: str


class ObjectMask(BaseModel):
    object_id: int
    mask: Rle
    appearance: float = Field(description="above 0 if the object is there")


class FrameResults(BaseModel):
    """All objects of a frame."""

    model_config = _example(frame_index=0, results=[{"object_id": 1, "mask": _MASK, "appearance": 4.5}])

    frame_index: int
    results: list[ObjectMask]


class Contrast(BaseModel):
    """How values of more than 8 bits became grey."""

    model_config = ConfigDict(extra="allow")

    low: float = Field(description="becomes black")
    high: float = Field(description="becomes white")
    note: str = Field(default="", description="for people")


class Video(BaseModel):
    """A video."""

    model_config = _example(
        id=_ID,
        model="sam2:tiny_video",
        name="clip.mp4",
        width=1280,
        height=720,
        frames=250,
        fps=25.0,
        axis="t",
        contrast=None,
        notes=[],
        expires_in_seconds=1800.0,
    )

    id: str = Field(description="who knows it may use the video, unless the service has API tokens")
    model: str = Field(description="of the catalogue")
    name: str
    width: int
    height: int
    frames: int
    fps: float | None
    axis: Literal["t", "z"] = Field(description="t: a video; z: a stack of slices")
    contrast: Contrast | None = Field(description="null if nothing was scaled")
    notes: list[str] = Field(description="what a person should know about the file")
    expires_in_seconds: float = Field(description="when it is deleted if nobody uses it")


class GivenPrompt(BaseModel):
    frame_index: int
    points: list[Point]
    labels: list[int]
    box: Box | None
    mask: bool = Field(description="whether a mask was given")


class VideoObject(BaseModel):
    object_id: int
    prompts: list[GivenPrompt]


Range = tuple[int, int]


class VideoDetails(Video):
    """A video, its objects, and how far they were tracked."""

    objects: list[VideoObject]
    tracked: list[Range] = Field(description="first and last of frames with results")
    propagating: bool
    presence: dict[str, list[Range]] = Field(description="object -> first and last of frames in which it is there")


class VideoList(BaseModel):
    videos: list[Video]


class FrameCount(BaseModel):
    frames: int = Field(description="how many there are now")


class Cancelled(BaseModel):
    cancelled: bool = Field(description="whether there was a propagation")


class VideoForm(BaseModel):
    model_config = _example(file="(a video file)", model="sam2:tiny_video", axis="t")

    file: bytes = Field(description="a video, a TIFF stack or an animated WebP")
    model: str = Field(default="", max_length=200, description=schemas.MODEL)
    axis: Literal["", "t", "z"] = Field(
        default="", description="t: a video; z: a stack of slices; default: as a stack says, else t"
    )
    at: str = Field(default="", max_length=200, description="of a stack: where other dimensions are held, `t=0,c=1`")
    contrast: str = Field(
        default="",
        max_length=200,
        description="of a stack: values of black and white, `100,4000`; default: by its values",
    )
    axes: str = Field(
        default="", max_length=200, description="of a stack whose file does not name them: a letter each, `TZCYX`"
    )


class EmptyVideoRequest(BaseModel):
    """A video whose frames come one by one."""

    model_config = ConfigDict(
        extra="forbid", protected_namespaces=(), json_schema_extra={"examples": [{"width": 1280, "height": 720}]}
    )

    width: int = Field(ge=1, le=100_000, description="of all frames")
    height: int = Field(ge=1, le=100_000)
    model: str | None = Field(default=None, max_length=200, description=schemas.MODEL)
    name: str | None = Field(default=None, max_length=200)
    axis: Literal["t", "z"] | None = None


class PromptRequest(BaseModel):
    """Points, a box or both; or a mask alone."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"frame_index": 0, "object_id": 1, "points": [[420, 310]], "labels": [1]},
                {"frame_index": 12, "object_id": 2, "box": [80, 90, 240, 300]},
                {"frame_index": 0, "object_id": 3, "mask": _MASK},
            ]
        },
    )

    frame_index: int = Field(ge=0)
    object_id: int = Field(ge=1, description="you choose it; one that is not known is a further object")
    points: list[Point] | None = Field(default=None, description="x, y in pixels of the video")
    labels: list[Literal[0, 1]] | None = Field(default=None, description="for each point: 1 object, 0 background")
    box: Box | None = Field(default=None, description="x0, y0, x1, y1 in pixels of the video")
    mask: Rle | None = Field(default=None, description="of the video's size")
    clear_old_points: bool = Field(default=True, description="forget the object's earlier points in this frame")


class PropagateRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"direction": "both"}]})

    start_frame_index: int | None = Field(
        default=None, ge=0, description="default: the first prompted frame, backward the last one"
    )
    max_frames: int | None = Field(default=None, ge=1, description="of each direction; default: all")
    direction: Literal["forward", "backward", "both"] = Field(
        default="forward", description="default both for a stack of slices"
    )


_REQUESTS = (VideoForm, EmptyVideoRequest, PromptRequest, PropagateRequest)


def request_schemas() -> dict[str, Any]:
    """Name -> schema of the requests and their parts."""
    return schemas.request_schemas(_REQUESTS)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """``responses`` for these error statuses and the common ones; with 422 FastAPI would describe errors of its own."""
    return schemas.error_responses(422, *statuses)


def body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """``openapi_extra`` of a route with a JSON body."""
    return schemas.body_of(model, "application/json", required=required)


def making() -> dict[str, Any]:
    """``openapi_extra`` of the route that makes videos."""
    return schemas.json_or_form(EmptyVideoRequest, VideoForm)


def image_body() -> dict[str, Any]:
    """``openapi_extra`` of a route that takes an image file."""
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {"requestBody": {"required": True, "content": {"image/*": schema}}}


def parameters(*, frame_index: bool = False, object_id: bool = False, width: bool = False) -> dict[str, Any]:
    """``openapi_extra`` for a route's parameters in the query."""
    found = []
    if frame_index:
        found.append(_parameter("frame_index", 0, 3, required=True))
    if object_id:
        found.append(_parameter("object_id", 1, 1, required=True))
    if width:
        found.append(_parameter("width", 8, 160, required=False, maximum=8192))
    return {"parameters": found}


def _parameter(name: str, least: int, example: int, *, required: bool, maximum: int = 2**31 - 1) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": least, "maximum": maximum}
    return {"name": name, "in": "query", "required": required, "schema": schema, "example": example}


def jpeg() -> dict[int | str, dict[str, Any]]:
    """``responses`` for a picture."""
    found = schemas.response_of("The frame", "image/jpeg", binary=True)
    found[304] = {"description": "The client has it already"}
    return found


def stream() -> dict[int | str, dict[str, Any]]:
    """``responses`` for a propagation."""
    return schemas.response_of("The results as they come", "application/x-ndjson", "multipart/x-savi-stream")


def export() -> dict[int | str, dict[str, Any]]:
    """``responses`` for an export."""
    kinds = ("video/mp4", "application/zip", "application/json", "image/tiff")
    return schemas.response_of("The file", *kinds, binary=True)


def form_parameter(forms: tuple[str, ...]) -> dict[str, Any]:
    """``openapi_extra`` for the format of an export."""
    schema = {"type": "string", "enum": list(forms)}
    return {"parameters": [{"name": "format", "in": "query", "required": True, "schema": schema, "example": forms[0]}]}
