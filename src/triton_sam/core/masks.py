"""Masks: resizing, thresholding and their encodings.

A mask is [H,W] bool in original pixels. Its encodings: ``png`` (8-bit, 0 and 255), ``rle`` (COCO, compressed),
``polygon`` (rings of x, y in original pixels), ``bits`` (rows packed to bytes, first pixel in the highest bit).
``logits`` stands for the model's low-resolution output instead.
"""

from __future__ import annotations

import base64
import binascii
import io
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.rle import BoolArray, from_rle, rle, rle_of_bits, rle_of_columns, rle_of_logits
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.installation import install_extra

FORMATS = ("png", "rle", "polygon", "bits", "logits")
_OVERLAY_COLOURS = (
    (30, 144, 255),
    (255, 99, 71),
    (60, 179, 113),
    (255, 193, 37),
    (186, 85, 211),
    (0, 206, 209),
)
#: From this many pixels on, following a mask's outline is faster than filling its area.
_LARGE = 2**21
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def _cv2() -> Any:
    try:
        import cv2
    except ImportError:
        raise SetupError(f"this step needs OpenCV: {install_extra('server')}") from None
    return cv2


def full_size(logits: npt.NDArray[np.float32], frame: Frame) -> BoolArray:
    """[h,w] low-resolution logits of the model's square -> [H,W] bool in original pixels, threshold at 0.

    Bilinear with pixel centres at 0.5, as torch's ``interpolate(align_corners=False)``, which the reference
    implementation uses. Padding of the model's square is cropped.
    """
    cv2 = _cv2()
    resized = cv2.resize(_unpadded(logits, frame), (frame.width, frame.height), interpolation=cv2.INTER_LINEAR)
    return np.asarray(resized > 0)


def full_size_rle(logits: npt.NDArray[np.float32], frame: Frame) -> dict[str, Any]:
    """The JSON form of :func:`full_size` as COCO RLE. For a large image the pixels are never computed."""
    head = {"encoding": "rle", "width": frame.width, "height": frame.height}
    inner = _unpadded(logits, frame)
    if frame.width * frame.height < _LARGE or frame.height < 2 * inner.shape[0]:
        return head | {"data": rle(full_size(logits, frame))}
    return head | {"data": rle_of_logits(inner, frame.height, frame.width)}


def packed_rle(packed: npt.NDArray[np.uint8], width: int) -> dict[str, Any]:
    """The JSON form of a mask as COCO RLE, from its rows in packed bits, [H,ceil(W/8)] uint8."""
    return {"encoding": "rle", "width": width, "height": len(packed), "data": rle_of_bits(packed, width)}


def columns_rle(packed: npt.NDArray[np.uint8], height: int) -> dict[str, Any]:
    """The JSON form of a mask as COCO RLE, from its columns in packed bits, [W,ceil(H/8)] uint8; spare bits are like
    the column's last pixel."""
    return {"encoding": "rle", "width": len(packed), "height": height, "data": rle_of_columns(packed, height)}


def _unpadded(logits: npt.NDArray[np.float32], frame: Frame) -> npt.NDArray[np.float32]:
    """[h,w] logits of the model's square -> those of the image, without padding."""
    if frame.policy is not ResizePolicy.PAD:
        return logits
    cv2 = _cv2()
    square = cv2.resize(logits, (frame.side, frame.side), interpolation=cv2.INTER_LINEAR)
    width, height = frame.resized
    return np.ascontiguousarray(square[:height, :width])


def encode(mask: BoolArray, form: str) -> dict[str, Any]:
    """[H,W] bool -> its JSON form: ``{"encoding", "width", "height", "data"}``.

    ``data``: base64 text for png and bits, COCO's ``{"size", "counts"}`` for rle, a list of rings for polygon.
    """
    height, width = mask.shape
    head: dict[str, Any] = {"encoding": form, "width": width, "height": height}
    if form == "png":
        return head | {"data": base64.b64encode(png(mask)).decode("ascii")}
    if form == "bits":
        return head | {"data": base64.b64encode(np.packbits(mask, axis=1).tobytes()).decode("ascii")}
    if form == "rle":
        return head | {"data": rle(mask)}
    if form == "polygon":
        return head | {"data": polygons(mask)}
    raise InvalidInput(f"a mask is sent as png, rle, polygon or bits, not {form!r}")


def decode(document: Mapping[str, Any]) -> BoolArray:
    """The JSON form of :func:`encode` -> [H,W] bool. Polygons are not exact and are refused."""
    form, width, height = document.get("encoding"), int(document["width"]), int(document["height"])
    if form == "rle":
        return from_rle(document["data"])
    if form not in ("png", "bits"):
        raise InvalidInput(f"a mask can be read back from png, rle or bits, not from {form!r}")
    try:
        data = base64.b64decode(document["data"], validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"the mask is not base64 ({error})") from None
    if form == "bits":
        unpacked: BoolArray = unpack_bits(np.frombuffer(data, np.uint8).reshape(1, height, -1), width)[0]
        return unpacked
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(np.asarray(picture.convert("L")) > 127)


def unpack_bits(packed: npt.NDArray[np.uint8], width: int) -> BoolArray:
    """[N,H,ceil(W/8)] uint8 -> [N,H,W] bool."""
    # Unpacked at once and cropped afterwards: row by row takes five times as long.
    flat = np.unpackbits(packed.reshape(-1)).view(np.bool_)
    return np.ascontiguousarray(flat.reshape(*packed.shape[:2], 8 * packed.shape[2])[..., :width])


def png(mask: BoolArray) -> bytes:
    """[H,W] bool -> the bytes of an 8-bit grey PNG, 0 and 255.

    Not Pillow's encoder, because this is on the path of a click: each row is stored as its difference to the row above
    (PNG filter 2), which is nearly all zeros for a mask and compresses quickly.
    """
    height, width = mask.shape
    rows = np.empty((height, width + 1), np.uint8)
    rows[:, 0] = 2
    grey = mask.view(np.uint8) * np.uint8(255)
    rows[0, 1:] = grey[0]
    np.subtract(grey[1:], grey[:-1], out=rows[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.data, 1)), (b"IEND", b""))
    return _PNG_SIGNATURE + b"".join(_png_chunk(name, body) for name, body in chunks)


def _png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def polygons(mask: BoolArray, tolerance: float = 0.7) -> list[list[float]]:
    """[H,W] bool -> outer rings as [x, y, x, y, ...] in original pixels, holes left out (COCO's polygons have none).

    Args:
        tolerance: how far, in pixels, a simplified ring may deviate from the mask's border.
    """
    cv2 = _cv2()
    contours, _ = cv2.findContours(mask.view(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    rings = (cv2.approxPolyDP(contour, tolerance, True).reshape(-1) for contour in contours)
    return [[float(value) for value in ring] for ring in rings if len(ring) >= 6]


def overlay_colour(index: int) -> tuple[int, int, int]:
    """RGB of the mask with this index in an overlay."""
    return _OVERLAY_COLOURS[index % len(_OVERLAY_COLOURS)]


def overlay(
    picture: Image.Image,
    masks: Sequence[BoolArray] | BoolArray,
    points: Sequence[tuple[float, float, int]] = (),
) -> Image.Image:
    """Draws masks on a picture: each tinted and outlined in its own colour, points as dots.

    Args:
        picture: the original, mode RGB; masks: [H,W] bool each, of its size.
        points: (x, y, label) in original pixels; foreground green, background red.
    """
    from PIL import ImageDraw, ImageFilter

    result = picture.convert("RGB")
    line = max(3, 2 * round(max(picture.size) / 500) + 1)
    for index, mask in enumerate(masks):
        colour = overlay_colour(index)
        area = Image.fromarray(mask.view(np.uint8) * np.uint8(255))
        tint = Image.blend(result, Image.new("RGB", result.size, colour), 0.45)
        result.paste(tint, mask=area)
        border = np.asarray(area.filter(ImageFilter.MaxFilter(line))) != np.asarray(
            area.filter(ImageFilter.MinFilter(line))
        )
        result.paste(Image.new("RGB", result.size, colour), mask=Image.fromarray(border))
    draw = ImageDraw.Draw(result)
    radius = max(4.0, max(picture.size) / 110)
    for x, y, label in points:
        fill = (46, 204, 64) if label else (255, 65, 54)
        outline = [x - radius, y - radius, x + radius, y + radius]
        draw.ellipse(outline, fill=fill, outline="white", width=max(1, round(radius / 4)))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class MaskSet:
    """Masks of one image at its original size.

    Attributes:
        masks: [N,H,W] bool, original pixels.
        scores: [N] float32, the model's own estimate of each mask's IoU.
        objects: [N] int32, which object of the request each mask belongs to.
    """

    masks: BoolArray
    scores: npt.NDArray[np.float32]
    objects: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.masks)

    @property
    def best(self) -> BoolArray:
        """[H,W] bool, the mask with the highest score."""
        best: BoolArray = self.masks[int(np.argmax(self.scores))]
        return best

    def png(self, index: int = 0) -> bytes:
        """One mask as the bytes of a PNG, 0 and 255."""
        return png(self.masks[index])

    def rle(self, index: int = 0) -> dict[str, Any]:
        """One mask as COCO RLE."""
        return rle(self.masks[index])

    def polygons(self, index: int = 0) -> list[list[float]]:
        """One mask as polygons; needs OpenCV here (or ask the server: ``segment(..., format="polygon")``)."""
        return polygons(self.masks[index])

    def overlay(self, picture: Image.Image) -> Image.Image:
        """The picture with all masks drawn over it."""
        return overlay(picture, self.masks)
