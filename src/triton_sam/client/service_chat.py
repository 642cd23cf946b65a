"""Questions to vision-language models through the service's chat route, and its events as Triton's pieces. No I/O."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from triton_sam.client import wire
from triton_sam.client.service_calls import ServiceRequest
from triton_sam.client.service_errors import error_of_detail
from triton_sam.client.wire import Call
from triton_sam.errors import InternalError
from triton_sam.models.vlm_specs import STREAM_SUFFIX

COMPLETIONS = "v1/chat/completions"
_DONE = b"[DONE]"
_OPTIONS = {"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "seed": "seed"}
Piece = dict[str, npt.NDArray[Any]]


def chat_request(call: Call) -> ServiceRequest:
    """The streaming chat request for a call of :func:`~.vlm_calls.vlm_call`."""
    headers = {**call.headers, "content-type": "application/json"}
    return ServiceRequest(COMPLETIONS, headers, json.dumps(chat_document(call)).encode())


def chat_document(call: Call) -> dict[str, Any]:
    """Its body."""
    if "prompt" in call.inputs:
        messages = [{"role": "user", "content": wire.text_of(call.inputs, "prompt")}]
    else:
        messages = json.loads(wire.text_of(call.inputs, "messages_json"))
    document: dict[str, Any] = {
        "model": call.model.removesuffix(STREAM_SUFFIX),
        "messages": _with_image(messages, call.inputs["image"].tobytes()),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for name, field in _OPTIONS.items():
        if name in call.inputs:
            document[field] = call.inputs[name].reshape(-1)[0].item()
    if "stop" in call.inputs:
        document["stop"] = [text.decode() for text in call.inputs["stop"].tolist()]
    return document


def _with_image(messages: list[dict[str, Any]], image: bytes) -> list[dict[str, Any]]:
    """The messages, with the image in the first one of the user."""
    url = f"data:application/octet-stream;base64,{base64.b64encode(image).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    for index, message in enumerate(messages):
        if message["role"] == "user":
            content = [part, {"type": "text", "text": message["content"]}]
            return [*messages[:index], {**message, "content": content}, *messages[index + 1 :]]
    return messages


class ChatPieces:
    """Turns the events of one answer into the outputs that Triton's stream has."""

    def __init__(self) -> None:
        self._last: dict[str, str] | None = None

    def of(self, event: bytes) -> Piece | None:
        """The piece that an event completes; None if there is none. Raises the error that an event reports."""
        if event == _DONE:
            return None if self._last is None else _piece(self._last)
        try:
            document = json.loads(event)
            if "error" in document:
                raise error_of_detail(document["error"])
            return self._of_chunk(document)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise InternalError(f"the service's response cannot be read ({event[:60]!r})") from None

    def _of_chunk(self, chunk: Mapping[str, Any]) -> Piece | None:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if choice.get("finish_reason"):
                self._last = {"generated_text": delta.get("content") or "", "finish_reason": choice["finish_reason"]}
                if "entities" in delta:
                    self._last["entities_json"] = json.dumps(delta["entities"])
            elif delta.get("content"):
                return _piece({"generated_text": delta["content"], "finish_reason": ""})
        if chunk.get("usage") and self._last is not None:
            self._last["usage_json"] = json.dumps(chunk["usage"])
        return None


def _piece(texts: Mapping[str, str]) -> Piece:
    return {name: wire.text_tensor(text) for name, text in texts.items()}
