"""The requests of a person as bytes, as ``SpeculativeSAM2Client`` sends them to Triton and to the service.

Everything that can be is formatted before it is needed. A hover or a click only writes its point and its number over
placeholders of the same width: lengths never change, and JSON allows blanks before a number.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from triton_sam.bench.binary_inputs import binary_inputs
from triton_sam.errors import InternalError, TritonSamError, from_status, spelled

#: Placeholders: as long in JSON as the fields that replace them, and unlike any real value.
_X, _Y, _NUMBER = 837465.1, 837465.2, 837465837465
_COORDINATE, _COUNT = b"%8.1f", b"%12d"
#: As the clients do: lossless too, and a hundredth of the bytes in JSON.
_SENT_AS = {"bits": "rle"}
_TEXT_FRAME, _MASKED = 0x81, 0x80
_TWO_BYTES, _EIGHT_BYTES = 126, 127
#: A mask of zeros leaves the text as it is. RFC 6455 masks against proxies that look into bytes which others choose;
#: here nobody does.
_NO_MASK = bytes(4)


class Template:
    """A request with places for the point, in original pixels, and perhaps for a number."""

    __slots__ = ("_number", "_request", "_x", "_y")

    def __init__(self, request: bytes, *, numbered: bool = True) -> None:
        self._request = request
        self._x, self._y = _place(request, _X, 8), _place(request, _Y, 8)
        self._number = _place(request, _NUMBER, 12) if numbered else None

    def filled(self, x: float, y: float, number: int) -> bytearray:
        request = bytearray(self._request)
        request[self._x], request[self._y] = _COORDINATE % x, _COORDINATE % y
        if self._number is not None:
            request[self._number] = _COUNT % number
        return request


def _place(request: bytes, placeholder: float, width: int) -> slice:
    text = json.dumps(placeholder).encode()
    if request.count(text) != 1 or len(text) != width:
        raise InternalError(f"a request cannot be preformatted: it does not have {placeholder} exactly once")
    start = request.index(text)
    return slice(start, start + width)


@dataclass(frozen=True, slots=True)
class Site:
    """Where requests go and what they ask for.

    Attributes:
        model: the segmenter's name at Triton, or its id or name at the service.
        image: the JPEG; number_at, digits: position and length of the number in it that makes every image a new one.
        form: how masks are returned.
        token: the service's; empty for none.
    """

    host: str
    port: int
    model: str
    image: bytes
    number_at: int
    digits: int
    form: str
    token: str = ""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def new_image(self, number: int) -> bytes:
        """The image file with this number."""
        image = bytearray(self.image)
        image[self.number_at : self.number_at + self.digits] = b"%0*d" % (self.digits, number % 10**self.digits)
        return bytes(image)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts on one encoded image. A hover is a request to Triton, or a frame of the service's WebSocket."""

    hover: Template
    click: Template


class Messages(Protocol):
    """The requests of one person."""

    def image(self, data: bytes, number: int) -> bytes:
        """The request that encodes an image file; ``number`` grows with every request of the person."""

    def prompts(self, key: str, data: bytes) -> Prompts:
        """The prompts on the image ``data`` that the server knows as ``key``."""


@dataclass(frozen=True, slots=True)
class TritonMessages:
    """Requests to Triton itself. ``session`` begins the names of one person's sessions."""

    site: Site
    session: str

    def image(self, data: bytes, number: int) -> bytes:
        parameters = {"session_id": f"{self.session} image", "sequence": number}
        return self._infer({"image": data}, parameters, {"image_key": False}, data)

    def prompts(self, key: str, data: bytes) -> Prompts:
        # Hovers and clicks are different sessions, so that a hover never supersedes a click.
        hover = {"session_id": f"{self.session} hover", "sequence": _NUMBER, "latest_wins": True}
        click = {"session_id": f"{self.session} click", "sequence": _NUMBER}
        inputs = {"image_key": key.encode(), "prompt_json": json.dumps(_prompt(self.site.form)).encode()}
        outputs = {"result_json": True, **({"masks": True} if self.site.form == "bits" else {})}
        return Prompts(*(Template(self._infer(inputs, session, outputs, data)) for session in (hover, click)))

    def _infer(
        self, inputs: Mapping[str, bytes], parameters: Mapping[str, object], outputs: Mapping[str, bool], image: bytes
    ) -> bytes:
        """A request in Triton's binary form; ``outputs``: name -> whether it is returned as binary, not as JSON."""
        described, binary = binary_inputs(inputs)
        wanted = [{"name": name, "parameters": {"binary_data": is_binary}} for name, is_binary in outputs.items()]
        head = json.dumps({"parameters": parameters, "inputs": described, "outputs": wanted}).encode()
        headers = {
            "content-type": "application/octet-stream",
            "inference-header-content-length": str(len(head)),
            # A proxy routes all requests about an image to one server by it.
            "x-image-key": hashlib.sha256(image).hexdigest(),
        }
        return _post(self.site, f"v2/models/{self.site.model}/infer", headers, head + binary)


@dataclass(frozen=True, slots=True)
class ServiceMessages:
    """Requests to the service, of the same people."""

    site: Site
    session: str

    def image(self, data: bytes, number: int) -> bytes:
        boundary = secrets.token_hex(16)
        fields = {"model": self.site.model, "session_id": f"{self.session} image"}
        parts = [
            f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
            for name, value in fields.items()
        ]
        start = f'--{boundary}\r\ncontent-disposition: form-data; name="image"; filename="image"\r\n\r\n'
        body = b"".join([*parts, start.encode(), data, f"\r\n--{boundary}--\r\n".encode()])
        return _post(self.site, "v1/images", {"content-type": f"multipart/form-data; boundary={boundary}"}, body)

    def prompts(self, key: str, data: bytes) -> Prompts:
        form = _SENT_AS.get(self.site.form, self.site.form)
        document = _prompt(form) | {"image_key": key, "model": self.site.model}
        text = json.dumps({"id": _NUMBER, **document}).encode()
        body = json.dumps(document | {"session_id": f"{self.session} click"}).encode()
        click = _post(self.site, "v1/segment", {"content-type": "application/json"}, body)
        return Prompts(Template(frame_head(len(text)) + text), Template(click, numbered=False))

    def handshake(self) -> bytes:
        """The request that opens the hover WebSocket."""
        lines = [
            "GET /v1/hover HTTP/1.1",
            f"host: {self.site.authority}",
            "upgrade: websocket",
            "connection: Upgrade",
            f"sec-websocket-key: {base64.b64encode(secrets.token_bytes(16)).decode()}",
            "sec-websocket-version: 13",
            *_authorization(self.site),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def frame_head(size: int, opcode: int = _TEXT_FRAME) -> bytes:
    """The head of a whole masked frame of ``size`` bytes."""
    if size < _TWO_BYTES:
        length = bytes([_MASKED | size])
    elif size < 2**16:
        length = bytes([_MASKED | _TWO_BYTES]) + size.to_bytes(2, "big")
    else:
        length = bytes([_MASKED | _EIGHT_BYTES]) + size.to_bytes(8, "big")
    return bytes([opcode]) + length + _NO_MASK


def image_key(body: bytes) -> str:
    """The key in Triton's or the service's response to an image; ValueError if there is none."""
    try:
        document = json.loads(body)
        if "image_key" in document:
            return str(document["image_key"])
        return str(next(output["data"][0] for output in document["outputs"] if output["name"] == "image_key"))
    except (LookupError, TypeError, StopIteration):
        raise ValueError("the response has no image_key") from None


def error_kind(status: int, body: bytes) -> tuple[str, str]:
    """(kind, message) of an error response; the kind is spelled as the service's codes: ``queue_full``."""
    try:
        detail = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError):
        detail = body[:200].decode(errors="replace")
    if isinstance(detail, dict):
        return str(detail.get("code")), str(detail.get("message"))
    error: TritonSamError = from_status(status, str(detail))
    return spelled(type(error), "_"), str(error)


def _prompt(form: str) -> dict[str, object]:
    return {"objects": [{"points": [[_X, _Y]], "labels": [1]}], "multimask": False, "format": form}


def _authorization(site: Site) -> list[str]:
    return [f"authorization: Bearer {site.token}"] if site.token else []


def _post(site: Site, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST /{path} HTTP/1.1", f"host: {site.authority}", *_authorization(site)]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join([*lines, f"content-length: {len(body)}"]) + "\r\n\r\n").encode() + body
