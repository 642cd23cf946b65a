"""Requests and answers as tensors, addresses, and foreign exceptions as ours. Pure: nothing here opens a socket."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from triton_sam.core.masks import MaskSet, decode, unpack_bits
from triton_sam.core.prompts import ObjectPrompt, mask_to_base64
from triton_sam.core.rle import BoolArray
from triton_sam.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    ServerUnreachable,
    TritonSamError,
    Unavailable,
    from_status,
)

_SCHEMES = {"http": (False, False), "https": (False, True), "grpc": (True, False), "grpcs": (True, True)}
#: What gRPC says when there is no server, as opposed to a server that says UNAVAILABLE.
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
#: By which a proxy brings all requests about one image to one server.
IMAGE_HEADER = "x-image-key"
#: What Triton itself says while a model is being loaded again; its status for that is NOT_FOUND or INTERNAL.
_COMING_BACK = ("has no available versions", "is not healthy", "is not ready")
#: What it says, as INTERNAL, where a tensor does not fit into shared memory; a request in the same moment may.
_NO_SHARED_MEMORY = "failed to increase the shared memory pool size"
#: What it says in a stream, where it has no status for it.
_UNKNOWN_MODEL = "request for unknown model"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: ``localhost:8000``, ``https://host/prefix``, ``grpc://host:8001``, ``grpcs://host``."""

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
            raise InvalidInput(f"{url!r} is no server address: use host:8000, https://host or grpc://host:8001")
        grpc, tls = _SCHEMES[scheme.lower()]
        rest = rest.rstrip("/")
        try:
            parts = urlsplit(f"//{rest}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or any(letter.isspace() for letter in rest) or (grpc and parts.path):
            raise InvalidInput(f"{url!r} is no server address: use host:8000, https://host or grpc://host:8001")
        if port is None:
            port = 443 if tls else (8001 if grpc else 8000)
            rest = f"{parts.netloc.rstrip(':')}:{port}{parts.path}"
        return cls(rest, grpc, tls)


def candidate_names(model_id: str) -> tuple[str, str]:
    """The Triton names under which a server may have a model: its own, then its family's.

    ``sam2.1:large`` -> ``sam2.1_large``, ``sam2``.
    """
    generation = model_id.partition(":")[0]
    return model_id.replace(":", "_"), generation.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Call:
    """One inference request, whatever carries it.

    Attributes:
        request_id: the protocol's ``id``, which stands in the server's log beside what fails; empty for none.
    """

    model: str
    inputs: Mapping[str, npt.NDArray[Any]]
    outputs: Sequence[str]
    parameters: Mapping[str, str | int | bool] = field(default_factory=dict)
    request_id: str = ""
    #: For whoever stands between, as a proxy that sends everything about one image to one server, and for traces.
    headers: Mapping[str, str] = field(default_factory=dict)


def text_tensor(value: str) -> npt.NDArray[Any]:
    """[1] of bytes, as Triton's BYTES inputs take it."""
    return np.array([value.encode()], dtype=object)


def prompt_document(objects: Iterable[ObjectPrompt], *, multimask: bool = False, form: str = "png") -> dict[str, Any]:
    """Checked prompts -> the JSON form that the server takes."""
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
    return {"objects": described, "multimask": multimask, "format": form}


def image_headers(image: bytes) -> dict[str, str]:
    """The same for all requests about an image file, before its key is known too."""
    return {IMAGE_HEADER: hashlib.sha256(image).hexdigest()}


def image_inputs(image: bytes) -> dict[str, npt.NDArray[Any]]:
    """The input of an image file."""
    return {"image": np.frombuffer(image, np.uint8)}


def click_inputs(image_key: str, document: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """The inputs of a prompt on an image that the server has."""
    return {"image_key": text_tensor(image_key), "prompt_json": text_tensor(json.dumps(document))}


def text_of(outputs: Mapping[str, npt.NDArray[Any]], name: str) -> str:
    """A BYTES output as text."""
    value = outputs[name].reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)


def mask_set(result: Mapping[str, Any], packed: npt.NDArray[np.uint8] | None = None) -> MaskSet:
    """``result_json`` (and the ``masks`` tensor where the masks travelled as bits) -> MaskSet."""
    entries = result["masks"]
    if packed is not None:
        stacked: BoolArray = unpack_bits(packed, int(result["width"]))
    else:
        stacked = np.stack([decode(entry) for entry in entries])
    scores = np.array([entry["score"] for entry in entries], np.float32)
    return MaskSet(stacked, scores, np.array([entry["object"] for entry in entries], np.int32))


def generate_document(call: Call) -> dict[str, Any]:
    """A call as Triton's generate extension takes it, in plain JSON; bytes ``x`` travel as base64 under ``x_b64``."""
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
    """One event of a ``generate_stream`` -> the text outputs that were asked for and are there."""
    try:
        document = json.loads(event)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InternalError(f"the server's answer cannot be read ({event[:60]!r})")
    if "error" in document:
        raise from_status(None, str(document["error"]))
    return {name: text_tensor(str(document[name])) for name in call.outputs if name in document}


def event_data(line: bytes) -> bytes | None:
    """What a line of a server-sent event stream carries; None for the empty ones between."""
    field, _, data = line.strip().partition(b":")
    return data.strip() if field == b"data" else None


def config_parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of a model's config, as a server sends it in JSON."""
    return {name: str(entry.get("string_value", "")) for name, entry in config.get("parameters", {}).items()}


def as_our_error(error: BaseException, address: str) -> TritonSamError:
    """Whatever tritonclient or its transports raise -> our exception tree."""
    if isinstance(error, TritonSamError):
        return error
    message = getattr(error, "message", None)
    if callable(message):  # tritonclient's InferenceServerException, told apart without importing tritonclient
        text = str(message() or "")
        status = getattr(error, "status", lambda: None)()
        lowered = text.lower()
        if "deadline exceeded" in lowered or str(status).endswith("DEADLINE_EXCEEDED"):
            return DeadlineExceeded(f"no answer from {address} within the time limit")
        if any(sign in lowered for sign in _NO_SERVER):
            return ServerUnreachable(_unreachable(address, text))
        if any(sign in lowered for sign in _COMING_BACK):
            return Unavailable(f"the model is being loaded at {address} ({text}): try again in a moment")
        if _NO_SHARED_MEMORY in lowered:
            return Unavailable("the server's /dev/shm is full: make room there, or give its container more --shm-size")
        return from_status("NOT_FOUND" if _UNKNOWN_MODEL in lowered else status, text)
    if isinstance(error, TimeoutError | socket.timeout):
        return DeadlineExceeded(f"no answer from {address} within the time limit")
    details = getattr(error, "details", None)
    if callable(details):  # a bare gRPC error, whose own text is a whole report
        return ServerUnreachable(_unreachable(address, str(details())))
    return ServerUnreachable(_unreachable(address, str(error) or type(error).__name__))


def as_broken_off(error: BaseException, address: str) -> TritonSamError:
    """The same for a stream whose first answers have come: a connection that is lost then has another mend."""
    ours = as_our_error(error, address)
    if isinstance(ours, ServerUnreachable):
        return ServerUnreachable(f"the server at {address} broke off before the end of its answer: ask again")
    return ours


def _unreachable(address: str, reason: str) -> str:
    reason = " ".join(reason.split())[:160]
    return f"no server answers at {address} ({reason}): start one with `triton-sam serve` or set TRITON_URL"
