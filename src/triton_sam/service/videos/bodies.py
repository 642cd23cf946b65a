"""The fields of requests about videos, validated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from triton_sam.core.video.given_mask import GivenMask, given_mask
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.service import json_bodies
from triton_sam.settings import Settings

_MAX_BYTES = 8 * 1024 * 1024
_MOST = 2**31 - 1
_EXAMPLE = '{"frame_index": 0, "object_id": 1, "points": [[420, 310]], "labels": [1]}'


@dataclass(frozen=True, slots=True, eq=False)
class PromptBody:
    """A prompt: points and a box, or a mask."""

    frame: int
    object: int
    points: Any
    labels: Any
    box: Any
    mask: GivenMask | None
    clear_old_points: bool


async def json_body(request: Request, settings: Settings, fields: Collection[str], example: str) -> dict[str, Any]:
    """The JSON object of a request, which may be missing where nothing is required."""
    body = await json_bodies.short_body(request, _MAX_BYTES)
    if not body:
        return {}
    return await json_bodies.by_size(len(body), lambda: checked_fields(parse(body, settings, example), fields))


def parse(text: bytes | str, settings: Settings, example: str = _EXAMPLE) -> dict[str, Any]:
    """A JSON object within limits."""
    return json_bodies.json_object(text, json_bodies.max_message_parts(settings), example=example)


def checked_fields(document: dict[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """The document; InvalidInput for unknown fields."""
    unknown = sorted(set(document) - set(fields))
    if unknown:
        raise InvalidInput(f"the field {unknown[0][:60]!r} is unknown: known are {', '.join(fields)}")
    return document


PROMPT_FIELDS = ("frame_index", "object_id", "points", "labels", "box", "mask", "clear_old_points")
PROPAGATE_FIELDS = ("start_frame_index", "max_frames", "direction")


def prompt_of(document: Mapping[str, Any], settings: Settings, frame: int | None = None) -> PromptBody:
    """
    Args:
        frame: the default of frame_index; None: it is required.
    """
    points, labels, box, mask = (document.get(name) for name in ("points", "labels", "box", "mask"))
    if mask is not None and any(value is not None for value in (points, labels, box)):
        raise InvalidInput("a mask stands alone: send it without points, labels and box")
    if mask is None and not points and box is None:
        raise InvalidInput(f"the prompt is empty: send points and labels, a box or a mask, as in {_EXAMPLE}")
    for field, value in (("points", points), ("labels", labels), ("box", box)):
        if value is not None and not isinstance(value, list):
            raise InvalidInput(f"{field} must be a list, as in {_EXAMPLE}")
    if points is not None and len(points) > settings.max_points:
        raise TooLarge(f"the prompt has {len(points):,} points and {settings.max_points:,} are allowed: send fewer")
    if points and labels is None:
        raise InvalidInput("labels are missing: send one for each point, 1 for the object and 0 for background")
    clear = document.get("clear_old_points", True)
    if not isinstance(clear, bool):
        raise InvalidInput("clear_old_points must be true or false")
    index = frame if frame is not None and "frame_index" not in document else whole(document, "frame_index", 0)
    assert index is not None
    name = whole(document, "object_id", 1)
    given = None if mask is None else given_mask(mask)
    return PromptBody(index, name, points or None, labels if points else None, box, given, clear)


def whole(document: Mapping[str, Any], field: str, least: int) -> int:
    """A whole number that is required."""
    found = optional_whole(document, field, least)
    if found is None:
        raise InvalidInput(f"{field} is missing: send a whole number from {least} on")
    return found


def optional_whole(document: Mapping[str, Any], field: str, least: int) -> int | None:
    """A whole number; None if it is missing."""
    value = document.get(field)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise InvalidInput(f"{field} must be a whole number from {least} to {_MOST:,}")
    return value


def whole_text(value: str | None, field: str, least: int) -> int | None:
    """The same for a part of the address."""
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 10 and least <= int(value) <= _MOST):
        raise InvalidInput(f"{field} must be a whole number from {least} to {_MOST:,}, not {value[:60]!r}")
    return int(value)
