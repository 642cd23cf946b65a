"""Schemas of ``/v1/ground`` for the OpenAPI document; :mod:`triton_sam.service.routes.ground` validates requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from triton_sam.service import schemas

_VLM = "a Triton name (`kosmos2`) or a catalogue id (`vlm:kosmos2`); default: the first served model that does the task"


class GroundRequest(BaseModel):
    """Exactly one of question and object."""

    model_config = ConfigDict(
        extra="forbid",
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {"image": "data:image/png;base64,...", "question": "where is the cup?", "format": "rle"},
                {"image": "data:image/png;base64,...", "object": "cup", "task": "point", "model": "moondream2"},
            ]
        },
    )

    image: str = Field(description="an image file as base64 or as a data URL")
    question: str | None = Field(default=None, description="a question, or a text to continue (task: ground)")
    object: str | None = Field(default=None, description="the name of an object (task: detect)")
    task: Literal["ground", "detect", "point"] | None = Field(
        default=None,
        description="ground: the regions of what is asked for, as the model finds them best; detect: boxes; point: "
        "points. /v1/models says which tasks a model does.",
    )
    model: str | None = Field(default=None, description=_VLM)
    segmenter: str | None = Field(default=None, description=schemas.MODEL)
    max_regions: int | None = Field(
        default=None,
        ge=1,
        description="default and limit: max_objects of /v1/limits; fewer of an image of many megapixels",
    )
    format: Literal["png", "rle", "polygon", "bits"] = Field(default="png", description="of each mask")
    clean: schemas.CleanSizes | Annotated[int, Field(ge=0, le=10**9)] | None = Field(
        default=None, description="clean the masks, as /v1/segment does"
    )
    session_id: str | None = Field(default=None, max_length=200, description=schemas.SESSION)
    background: bool = Field(default=False, description=schemas.BACKGROUND)


class GroundedRegion(BaseModel):
    """A thing that was found: with a box or a point."""

    label: str
    box: schemas.Box | None = Field(default=None, description="x0, y0, x1, y1 in original pixels")
    point: schemas.Point | None = Field(default=None, description="x, y in original pixels")
    mask: schemas.MaskAnswer
    score: float = Field(description="predicted IoU of the mask with what the box or the point means")


class GroundAnswer(BaseModel):
    """What was said, and the masks of what was found; without regions if nothing was."""

    model_config = ConfigDict(
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {
                    "text": "The cup is at the left.",
                    "model": "shapes",
                    "segmenter": "sam2",
                    "width": 640,
                    "height": 480,
                    "image_key": "5f2c...",
                    "found": 1,
                    "regions": [
                        {
                            "label": "cup",
                            "box": [12.0, 80.5, 210.0, 300.0],
                            "mask": {"encoding": "rle", "width": 640, "height": 480, "data": {"size": [480, 640]}},
                            "score": 0.94,
                        }
                    ],
                }
            ]
        },
    )

    text: str = Field(description="the model's answer; empty for models that only give boxes or points")
    model: str = Field(description="Triton name of the vision-language model")
    segmenter: str = Field(description="Triton name of the segmenter")
    width: int = Field(description="of the image, upright")
    height: int
    image_key: str | None = Field(description="of the image on the segmenter; null if there was nothing to segment")
    found: int = Field(
        description="regions that the model gave; at most max_regions are returned, fewer of a very large image"
    )
    regions: list[GroundedRegion]


def request_schemas() -> dict[str, Any]:
    """Name -> schema of the request and its parts."""
    return schemas.request_schemas((GroundRequest,))
