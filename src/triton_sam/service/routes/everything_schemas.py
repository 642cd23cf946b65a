"""Schemas of ``/v1/everything`` for the OpenAPI document; :mod:`triton_sam.core.everything.options` validates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from triton_sam.service import schemas
from triton_sam.service.event_streams import EVENTS

_Share = Annotated[float, Field(ge=0, le=1)]


class EverythingOptions(BaseModel):
    """What is looked for, and which masks are kept; names and defaults are those of Meta's generators."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"points_per_side": 16}]})

    points_per_side: int | None = Field(default=32, ge=1, le=128, description="of the grid of points")
    points_per_batch: int = Field(default=64, ge=1, le=1024, description="the most points that are decoded at once")
    pred_iou_thresh: _Share | None = Field(
        default=None, description="keep masks with a higher predicted IoU; default 0.8, SAM 1 0.88"
    )
    stability_score_thresh: float = Field(
        default=0.95, ge=0, le=1, description="keep masks that hardly change with the threshold: IoU of both"
    )
    stability_score_offset: float = Field(
        default=1.0, ge=0, le=100, description="how far the threshold is moved for that, up and down"
    )
    mask_threshold: float = Field(
        default=0.0, ge=-100, le=100, description="the logit above which a pixel belongs to a mask"
    )
    box_nms_thresh: float = Field(
        default=0.7, ge=0, le=1, description="of two masks whose boxes have a higher IoU, the better one stays"
    )
    crop_n_layers: int = Field(
        default=0, ge=0, le=3, description="layer i also looks into 4^i overlapping crops, each encoded on its own"
    )
    crop_nms_thresh: float = Field(
        default=0.7, ge=0, le=1, description="as box_nms_thresh, between crops: the one of the smaller crop stays"
    )
    crop_overlap_ratio: float = Field(
        default=512 / 1500, ge=0, le=1, description="of crops, as a share of the image's shorter side"
    )
    crop_n_points_downscale_factor: int = Field(
        default=1, ge=1, le=128, description="layer i has points_per_side / factor^i points a side"
    )
    point_grids: list[list[tuple[_Share, _Share]]] | None = Field(
        default=None, description="instead of points_per_side, for each layer: [x, y] as shares of a crop"
    )
    min_mask_region_area: int = Field(
        default=0, ge=0, le=10**9, description="clean away holes and islands with fewer pixels"
    )
    multimask_output: bool = Field(default=True, description="judge all masks of a point, not only one")
    use_m2m: bool = Field(default=False, description="decode each mask once more, with itself as prompt")
    region: schemas.Box | None = Field(
        default=None, description="x0, y0, x1, y1 in original pixels: look only there; masks may reach outside"
    )


class EverythingRequest(BaseModel):
    """Exactly one of image_key and image."""

    model_config = ConfigDict(
        extra="forbid",
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {"image_key": "5f2c...", "format": "rle"},
                {"image": "data:image/png;base64,...", "everything": {"points_per_side": 16}, "format": "labels"},
            ]
        },
    )

    image_key: str | None = Field(default=None, description="of an image that was encoded with /v1/images")
    image: str | None = Field(default=None, description="an image file as base64 or as a data URL")
    model: str | None = Field(default=None, description=schemas.MODEL)
    everything: EverythingOptions | None = None
    format: Literal["rle", "png", "polygon", "labels"] = Field(
        default="rle", description="of each mask; labels: one image of them all"
    )
    session_id: str | None = Field(default=None, max_length=200, description=schemas.SESSION)
    latest_wins: bool = Field(default=False, description="supersede the waiting requests of the session")
    background: bool = Field(default=False, description=schemas.BACKGROUND)


class EverythingRecord(BaseModel):
    """One mask."""

    model_config = ConfigDict(extra="allow")

    id: int = Field(description="of this mask in this response")
    area: int = Field(description="original pixels")
    bbox: list[float] = Field(description="x, y, width, height in original pixels")
    predicted_iou: float
    point_coords: list[schemas.Point] = Field(description="the point that found it")
    stability_score: float
    crop_box: list[float] = Field(description="x, y, width, height of the crop it was found in")
    segmentation: Any = Field(
        default=None, description="COCO's size and counts for rle, base64 for png, rings for polygon"
    )
    label: int | None = Field(default=None, description="for labels: the value of its pixels in the label image")


class EverythingAnswer(schemas.ImageAnswer):
    """The segmenter's ``result_json``."""

    of: int = Field(description="points that were tried")
    masks: list[EverythingRecord]
    labels: str | None = Field(
        default=None, description="for labels: base64 of a PNG, 0 for background, smaller masks on top"
    )


def event_stream() -> dict[int | str, dict[str, Any]]:
    """``responses`` of the route as events."""
    schema = {
        "type": "string",
        "description": '`event: progress` with `{"progress": {"done", "of", "masks"}, "masks": [new records], "gone": '
        "[ids]}`, at least every few seconds; last `event: result` with the whole document, or `event: error`",
    }
    return {200: {"description": "The masks", "content": {EVENTS: {"schema": schema}}}}


def request_schemas() -> dict[str, Any]:
    """Name -> schema of the request and its parts."""
    return schemas.request_schemas((EverythingRequest,))
