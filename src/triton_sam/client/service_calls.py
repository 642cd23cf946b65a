"""Calls as requests to the triton-sam service, and its responses as outputs. No I/O.

A client builds the same :class:`~.wire.Call` for Triton and for the service. Here its tensors become the fields of the
service's routes, and the service's JSON becomes the tensors that Triton would have sent.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client import wire
from triton_sam.client.service_errors import detail_of, error_of_detail
from triton_sam.client.wire import Call
from triton_sam.core.masks import decode
from triton_sam.errors import InternalError, Unsupported

IMAGES, SEGMENT, HOVER, CANCEL = "v1/images", "v1/segment", "v1/hover", "cancel_pending"
EVERYTHING, GROUND = "v1/everything", "v1/ground"
HEALTH, MODELS = "health", "models"
_JSON = {"content-type": "application/json"}
#: Sent instead of packed bits: lossless too, and a hundredth of the bytes for a large image.
_SENT_AS = {"bits": "rle"}


@dataclass(frozen=True, slots=True, eq=False)
class ServiceRequest:
    """A POST to a path of the service."""

    path: str
    headers: Mapping[str, str]
    body: bytes


def request_of(call: Call) -> ServiceRequest:
    """The request for a call with an image, or with a prompt."""
    headers = dict(call.headers) | ({"x-request-id": call.request_id} if call.request_id else {})
    if set(call.inputs) == {"image"}:
        fields = {"model": call.model, **_session(call)}
        if call.parameters.get("background"):
            fields["background"] = "true"
        kind, body = _form(fields, call.inputs["image"].tobytes())
        return ServiceRequest(IMAGES, headers | {"content-type": kind}, body)
    if "ground_json" in call.inputs:
        return ServiceRequest(GROUND, headers | _JSON, json.dumps(_ground_document(call)).encode())
    document = click_document(call) | _session(call)
    document |= {name: True for name in ("latest_wins", "background") if call.parameters.get(name)}
    path = EVERYTHING if "everything" in document else SEGMENT
    return ServiceRequest(path, headers | _JSON, json.dumps(document).encode())


def _ground_document(call: Call) -> dict[str, Any]:
    """The fields of a request of :mod:`~.vlm_ground`."""
    image = base64.b64encode(call.inputs["image"].tobytes()).decode()
    wanted: dict[str, Any] = json.loads(wire.text_of(call.inputs, "ground_json"))
    return wanted | {"image": image, "model": call.model, "format": "rle"}


def stream_request_of(call: Call) -> ServiceRequest:
    """The request for a call that is followed; the response has its messages as events."""
    request = request_of(call)
    return replace(request, headers={**request.headers, "accept": "text/event-stream"})


def message_of(call: Call, event: bytes) -> dict[str, npt.NDArray[Any]]:
    """The message that the data of an event is; raises the error that an event reports."""
    detail = detail_of(event)
    if detail is not None:
        raise error_of_detail(detail)
    return outputs_of(call, event)


def cancel_request(session: str) -> ServiceRequest:
    """The request that cancels the waiting requests of a session."""
    return ServiceRequest(CANCEL, _JSON, json.dumps({"session_id": session}).encode())


def click_document(call: Call) -> dict[str, Any]:
    """The fields of a prompt and its image, without those about its session."""
    image: dict[str, str]
    if set(call.inputs) == {"image_key", "prompt_json"}:
        image = {"image_key": wire.text_of(call.inputs, "image_key")}
    elif set(call.inputs) == {"image", "prompt_json"}:
        image = {"image": base64.b64encode(call.inputs["image"].tobytes()).decode()}
    else:
        raise Unsupported(f"the service does not take {', '.join(call.inputs)}: connect to Triton itself")
    document: dict[str, Any] = json.loads(wire.text_of(call.inputs, "prompt_json"))
    form = document.get("format")
    if "masks" in call.outputs and form in _SENT_AS:
        document["format"] = _SENT_AS[form]
    return document | image | {"model": call.model}


def outputs_of(call: Call, body: bytes) -> dict[str, npt.NDArray[Any]]:
    """The requested outputs, from the JSON of a response."""
    try:
        return outputs_of_result(call, json.loads(body))
    except ValueError as error:
        raise InternalError(f"the service's response cannot be read ({type(error).__name__})") from error


def outputs_of_result(call: Call, result: Any) -> dict[str, npt.NDArray[Any]]:
    """As :func:`outputs_of`, for JSON that is parsed already."""
    try:
        return _outputs(call, result)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InternalError(f"the service's response cannot be read ({type(error).__name__})") from error


def _outputs(call: Call, result: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    outputs: dict[str, npt.NDArray[Any]] = {}
    if "masks" in call.outputs:
        pixels = [decode(entry) for entry in result["masks"]]
        if pixels:
            outputs["masks"] = np.stack([np.packbits(mask, axis=1) for mask in pixels])
        else:  # of words, nothing may be found
            outputs["masks"] = np.zeros((0, result["height"], -(-result["width"] // 8)), np.uint8)
        for entry in (*result["masks"], *([result["mask"]] if "mask" in result else [])):
            entry.pop("data", None)
            entry["encoding"] = "bits"
    if "low_res_logits" in call.outputs:
        outputs["low_res_logits"] = _by_object(result, [_logits(entry) for entry in result["masks"]])
    if "scores" in call.outputs:
        outputs["scores"] = _by_object(result, [np.float32(entry["score"]) for entry in result["masks"]])
    if "image_key" in call.outputs:
        outputs["image_key"] = wire.text_tensor(result["image_key"])
    if "result_json" in call.outputs:
        outputs["result_json"] = wire.text_tensor(json.dumps(result))
    return outputs


def _by_object(result: Mapping[str, Any], values: list[Any]) -> npt.NDArray[Any]:
    """[O*M,...] -> [O,M,...]: O objects with M masks each."""
    stacked = np.stack(values)
    objects = 1 + max(entry["object"] for entry in result["masks"])
    grouped: npt.NDArray[Any] = stacked.reshape(objects, -1, *stacked.shape[1:])
    return grouped


def _logits(entry: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    data = np.frombuffer(base64.b64decode(entry["data"]), "<f4")
    return data.reshape(entry["height"], entry["width"]).astype(np.float32)


def _session(call: Call) -> dict[str, str]:
    session = call.parameters.get("session_id")
    return {} if session is None else {"session_id": str(session)}


def _form(fields: Mapping[str, str], image: bytes) -> tuple[str, bytes]:
    """(content type, body) of a form with text fields and an image file."""
    boundary = uuid.uuid4().hex
    parts = [
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = f'--{boundary}\r\ncontent-disposition: form-data; name="image"; filename="image"\r\n\r\n'
    body = b"".join([*parts, head.encode(), image, f"\r\n--{boundary}--\r\n".encode()])
    return f"multipart/form-data; boundary={boundary}", body


# -- the served models -----------------------------------------------------------------------------------------


def model_rows(body: bytes) -> list[dict[str, Any]]:
    """The rows of ``/models``."""
    try:
        rows = json.loads(body)
        return [dict(row) for row in rows]
    except (ValueError, TypeError) as error:
        raise InternalError(f"the service's list of models cannot be read ({type(error).__name__})") from error


def find_row(rows: list[dict[str, Any]], model: str) -> dict[str, Any] | None:
    """The row that the service chooses for a Triton name, a catalogue id or a family."""
    for field in ("name", "id", "family"):
        for row in rows:
            if row.get(field) == model:
                return row
    return None


def is_served(health: bytes, name: str) -> bool:
    """Whether ``/health`` (200) does not say that the model failed to load."""
    try:
        missing = json.loads(health).get("missing") or ()
    except (ValueError, AttributeError):
        return False
    return name not in missing
