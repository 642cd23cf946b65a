"""Requests and responses as tensors, server addresses, and the translation of foreign exceptions. No I/O."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from triton_sam.core.mask_cleaning import Cleaning
from triton_sam.core.masks import MaskSet, decode, unpack_bits
from triton_sam.core.prompts import ObjectPrompt, mask_to_base64
from triton_sam.core.rle import BoolArray
from triton_sam.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    NotAuthorised,
    ServerUnreachable,
    TooLarge,
    TritonSamError,
    Unavailable,
    from_status,
)

_SCHEMES = {"http": (False, False), "https": (False, True), "grpc": (True, False), "grpcs": (True, True)}
#: gRPC's messages if there is no server, as opposed to a server that responds UNAVAILABLE.
_NO_SERVER = (
    "failed to connect",
    "connection refused",
    "connection reset",
    "connection aborted",
    "socket closed",
    "broken pipe",
    "name resolution",
    "dns resolution",
    "recvmsg",
    "goaway",
)
#: The header by which a proxy routes all requests about one image to one server.
IMAGE_HEADER = "x-image-key"
#: Triton's messages while a model is being reloaded; their status is NOT_FOUND or INTERNAL.
_COMING_BACK = ("has no available versions", "is not healthy", "is not ready")
#: Its message, as INTERNAL, if a tensor does not fit into shared memory; a later request may fit.
_NO_SHARED_MEMORY = "failed to increase the shared memory pool size"
#: Its message in a stream, which has no status.
_UNKNOWN_MODEL = "request for unknown model"
#: Bytes of a foreign response that a message shows.
_MAX_QUOTE = 120
#: Begins the names of sessions that encode one image each, on the server.
IMAGE_SESSION = "image "


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address: ``localhost:8000``, ``https://host/prefix``, ``grpc://host:8001``, ``grpcs://host``."""

    target: str
    grpc: bool
    tls: bool

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        host = urlsplit(f"//{self.target}").hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

    @classmethod
    def parse(cls, url: str) -> Address:
        scheme, separator, rest = url.strip().partition("://")
        if not separator:
            scheme, rest = "http", url.strip()
        if scheme.lower() not in _SCHEMES:
            raise InvalidInput(f"{url!r} is not a server address: use host:8000, https://host or grpc://host:8001")
        grpc, tls = _SCHEMES[scheme.lower()]
        rest = rest.rstrip("/")
        try:
            parts = urlsplit(f"//{rest}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or any(letter.isspace() for letter in rest) or (grpc and parts.path):
            raise InvalidInput(f"{url!r} is not a server address: use host:8000, https://host or grpc://host:8001")
        if port is None:
            port = 443 if tls else (8001 if grpc else 8000)
            rest = f"{parts.netloc.rstrip(':')}:{port}{parts.path}"
        return cls(rest, grpc, tls)


@dataclass(frozen=True, slots=True)
class Call:
    """One inference request, for any transport.

    Attributes:
        request_id: the protocol's ``id``, which the server's log shows beside errors; empty for none.
        headers: of this request only, for proxies and traces.
    """

    model: str
    inputs: Mapping[str, npt.NDArray[Any]]
    outputs: Sequence[str]
    parameters: Mapping[str, str | int | bool] = field(default_factory=dict)
    request_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


Outputs = Mapping[str, npt.NDArray[Any]]
#: Called with each message of a stream.
OnMessage = Callable[[Outputs], object]


def text_tensor(value: str) -> npt.NDArray[Any]:
    """A text as [1] of bytes, for a BYTES input."""
    return np.array([value.encode()], dtype=object)


def prompt_document(
    objects: Iterable[ObjectPrompt], *, multimask: bool = False, form: str = "png", clean: Cleaning | None = None
) -> dict[str, Any]:
    """Checked prompts as the JSON document of a request. Without ``clean``, older servers understand it too."""
    described = []
    for prompt in objects:
        entry: dict[str, Any] = {}
        if len(prompt.points):
            entry |= {"points": prompt.points.tolist(), "labels": prompt.labels.tolist()}
        if prompt.box is not None:
            entry["box"] = prompt.box.tolist()
        if prompt.mask_input is not None:
            entry["mask_input"] = mask_to_base64(prompt.mask_input)
        described.append(entry)
    document = {"objects": described, "multimask": multimask, "format": form}
    return document if clean is None else document | {"clean": clean.as_json()}


def image_headers(image: bytes) -> dict[str, str]:
    """The routing header of an image file: known before its key, and the same for all requests about it."""
    return {IMAGE_HEADER: hashlib.sha256(image).hexdigest()}


def image_inputs(image: bytes) -> dict[str, npt.NDArray[Any]]:
    """The input of an image file."""
    return {"image": np.frombuffer(image, np.uint8)}


def click_inputs(image_key: str, document: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """The inputs of a prompt on an encoded image."""
    return {"image_key": text_tensor(image_key), "prompt_json": text_tensor(json.dumps(document))}


def prompt_inputs(image: bytes, document: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """The inputs of a prompt on an image file."""
    return image_inputs(image) | {"prompt_json": text_tensor(json.dumps(document))}


def text_of(outputs: Mapping[str, npt.NDArray[Any]], name: str) -> str:
    """A BYTES output as text."""
    value = outputs[name].reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)


def mask_set(result: Mapping[str, Any], packed: npt.NDArray[np.uint8] | None = None, *, by: str = "object") -> MaskSet:
    """The masks of ``result_json``, or of the ``masks`` tensor if they were sent as bits.

    Args:
        by: what the masks are grouped by: the objects of a request, or its concepts.
    """
    entries = result["masks"]
    if not entries:
        stacked: BoolArray = np.zeros((0, int(result["height"]), int(result["width"])), np.bool_)
    elif packed is not None:
        stacked = unpack_bits(packed, int(result["width"]))
    else:
        stacked = np.stack([decode(entry) for entry in entries])
    scores = np.array([entry["score"] for entry in entries], np.float32)
    return MaskSet(stacked, scores, np.array([entry[by] for entry in entries], np.int32))


def generate_document(call: Call) -> dict[str, Any]:
    """A call as the JSON of Triton's generate extension; a uint8 input ``x`` becomes base64 under ``x_b64``."""
    document: dict[str, Any] = dict(call.parameters)
    if call.request_id:
        document["id"] = call.request_id
    for name, array in call.inputs.items():
        if array.dtype == np.uint8:
            document[f"{name}_b64"] = base64.b64encode(array.tobytes()).decode()
            continue
        values = [value.decode() if isinstance(value, bytes) else value for value in array.reshape(-1).tolist()]
        document[name] = values[0] if len(values) == 1 else values
    return document


def generated_outputs(event: bytes, call: Call) -> dict[str, npt.NDArray[Any]]:
    """The requested text outputs that one event of a ``generate_stream`` has."""
    try:
        document = json.loads(event)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InternalError(f"the server's response cannot be read ({event[:60]!r})")
    if "error" in document:
        raise from_status(None, str(document["error"]))
    return {name: text_tensor(str(document[name])) for name in call.outputs if name in document}


def event_data(line: bytes) -> bytes | None:
    """The data of a line of a server-sent event stream; None for other lines."""
    field, _, data = line.strip().partition(b":")
    return data.strip() if field == b"data" else None


def config_parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of a model's config in Triton's JSON."""
    return {name: str(entry.get("string_value", "")) for name, entry in config.get("parameters", {}).items()}


def translate_error(error: BaseException, address: str) -> TritonSamError:
    """An exception of tritonclient or its transports as one of triton_sam.errors."""
    if isinstance(error, TritonSamError):
        return error
    message = getattr(error, "message", None)
    if callable(message):  # tritonclient's InferenceServerException, recognised without importing tritonclient
        text = str(message() or "")
        status = getattr(error, "status", lambda: None)()
        lowered = text.lower()
        if "deadline exceeded" in lowered or str(status).endswith("DEADLINE_EXCEEDED"):
            return DeadlineExceeded(f"no response from {address} within the time limit")
        if any(sign in lowered for sign in _NO_SERVER):
            return ServerUnreachable(_unreachable(address, text))
        if any(sign in lowered for sign in _COMING_BACK):
            return Unavailable(f"the model is being loaded at {address} ({text}): try again in a moment")
        if _NO_SHARED_MEMORY in lowered:
            return Unavailable("the server's /dev/shm is full: free some of it, or give its container more --shm-size")
        return from_status("NOT_FOUND" if _UNKNOWN_MODEL in lowered else status, text)
    if isinstance(error, TimeoutError | socket.timeout):
        return DeadlineExceeded(f"no response from {address} within the time limit")
    details = getattr(error, "details", None)
    if callable(details):  # a bare gRPC error, whose str() has many lines
        return ServerUnreachable(_unreachable(address, str(details())))
    return ServerUnreachable(_unreachable(address, str(error) or type(error).__name__))


def translate_stream_error(error: BaseException, address: str) -> TritonSamError:
    """As :func:`translate_error`, for a stream that has begun: a lost connection then has another remedy."""
    translated = translate_error(error, address)
    if isinstance(translated, ServerUnreachable):
        return ServerUnreachable(f"the connection to {address} ended before the response was complete: try again")
    return translated


def foreign_response(status: int, body: bytes, address: str) -> TritonSamError:
    """The exception for an error response that Triton has not sent: a proxy's, or another program's at the address."""
    text = " ".join(body[:_MAX_QUOTE].decode(errors="replace").split())
    if status in (401, 403):
        return NotAuthorised(f"{address} refuses access ({status} {text}): check the token and the headers")
    translated = from_status(status, f"{address} responds {status} {text}".strip())
    if status >= 500 or isinstance(translated, Unavailable | TooLarge):
        return translated
    return ServerUnreachable(
        f"what responds at {address} is neither Triton nor the triton-sam service ({status} {text}): "
        "check the host and the port"
    )


def _unreachable(address: str, reason: str) -> str:
    reason = " ".join(reason.split())[:160]
    return f"no server responds at {address} ({reason}): start one with `triton-sam serve` or set TRITON_URL"
