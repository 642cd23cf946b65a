"""Answers about videos: documents, lines of a stream, pictures of frames."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

from PIL import Image

from triton_sam.core.images import EncodedImage, to_rgb
from triton_sam.errors import TritonSamError
from triton_sam.service.error_responses import error_document, public_error
from triton_sam.service.videos.film import Film
from triton_sam.service.videos.limits import VideoLimits
from triton_sam.video.found import VideoFrame

NDJSON = "application/x-ndjson"
#: As Meta's demo streams results.
SAVI = "multipart/x-savi-stream"
_SAVI_BOUNDARY = b"frame"
_QUALITY, _THUMBNAIL_QUALITY = 92, 80


def film_document(film: Film, keep_seconds: float) -> dict[str, Any]:
    """What a client is told of a video when it is made."""
    facts = film.facts
    return {
        "id": facts.id,
        "model": film.model.spec.id,
        "name": facts.name,
        "width": facts.size[0],
        "height": facts.size[1],
        "frames": film.frames,
        "fps": facts.fps,
        "axis": facts.axis,
        "contrast": facts.contrast,
        "notes": facts.notes,
        "expires_in_seconds": round(max(0.0, keep_seconds - film.idle_seconds), 1),
    }


async def details_document(film: Film, keep_seconds: float) -> dict[str, Any]:
    """The same, with the objects and how far they were tracked."""
    document = film_document(film, keep_seconds) | {"objects": objects_document(film)}
    objects = film.objects

    def reach() -> dict[str, Any]:  # on a thread: a long video has many frames, and results may be written now
        presence = film.results.presence(objects)
        return {"tracked": film.results.frames(), "presence": {str(name): found for name, found in presence.items()}}

    return document | await asyncio.to_thread(reach) | {"propagating": film.tracking is not None}


def objects_document(film: Film) -> list[dict[str, Any]]:
    """The objects with their prompts."""
    return [
        {
            "object_id": name,
            "prompts": [
                {"frame_index": frame, "mask": prompt is None}
                | (
                    {"points": [], "labels": [], "box": None}
                    if prompt is None
                    else {"points": prompt.points, "labels": prompt.labels, "box": prompt.box}
                )
                for frame, prompt in sorted(prompts.items())
            ],
        }
        for name, prompts in film.prompts().items()
    ]


def frame_document(found: VideoFrame) -> dict[str, Any]:
    """The masks of a frame."""
    return {
        "frame_index": found.index,
        "results": [
            {"object_id": name, "mask": dict(one.rle), "appearance": one.appearance}
            for name, one in found.objects.items()
        ],
    }


def line(document: dict[str, Any]) -> bytes:
    """One line of a stream of JSON."""
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def savi_part(document: dict[str, Any]) -> bytes:
    """One part of a stream as Meta's demo sends them; the last one has no boundary behind it."""
    body = json.dumps(document).encode()
    return (
        b"--%b\r\nContent-Type: application/json; charset=utf-8\r\nFrame-Current: -1\r\nFrame-Total: -1\r\n"
        b"Mask-Type: RLE[]\r\nContent-Length: %d\r\n\r\n%b" % (_SAVI_BOUNDARY, len(body), body)
    )


def savi_document(found: VideoFrame) -> dict[str, Any]:
    """The masks of a frame, as Meta's demo names them."""
    return {
        "frame_index": found.index,
        "results": [{"object_id": name, "mask": dict(one.rle)} for name, one in found.objects.items()],
    }


def error_of(error: TritonSamError) -> dict[str, Any]:
    """An error without internals."""
    return error_document(public_error(error))


def jpeg_of(data: bytes, width: int | None, limits: VideoLimits) -> bytes:
    """A frame as JPEG, upright and RGB.

    Args:
        width: at most; None: as it is.
    """
    encoded = EncodedImage(data, max_bytes=limits.frame_bytes, max_pixels=limits.frame_pixels)
    if width is None or width >= encoded.size[0]:
        if encoded.is_plain_jpeg:
            return data
        return _jpeg(encoded.pixels(), _QUALITY)
    size = width, max(1, round(encoded.size[1] * width / encoded.size[0]))
    if encoded.is_plain_jpeg:
        with Image.open(io.BytesIO(data)) as picture:
            picture.draft("RGB", size)  # libjpeg decodes a fraction of the pixels
            return _jpeg(to_rgb(picture).resize(size, Image.Resampling.BILINEAR), _THUMBNAIL_QUALITY)
    return _jpeg(encoded.pixels().resize(size, Image.Resampling.BILINEAR), _THUMBNAIL_QUALITY)


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
