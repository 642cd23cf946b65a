"""Builds the calls to Triton's segmenters from validated requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.concurrency import run_in_threadpool

from triton_sam.client.wire import Call, image_inputs, text_tensor
from triton_sam.core.concepts.request import CONCEPT_KEYS
from triton_sam.core.images import EncodedImage, from_base64
from triton_sam.core.prompts import Prompt, PromptLimits, prompt_from_mapping
from triton_sam.errors import ImageExpired, InvalidInput, TooLarge
from triton_sam.service.forms import checked_name
from triton_sam.service.gateway import Gateway
from triton_sam.service.json_bodies import by_size
from triton_sam.service.served_models import ServedSegmenter
from triton_sam.service.telemetry import request_context
from triton_sam.settings import Settings

#: All other fields of a segment request belong to the prompt.
_NOT_PROMPT = frozenset({"image_key", "image", "model"})


@dataclass(frozen=True, slots=True)
class Turn:
    """The fields of a request about its session and its place in the queues.

    Attributes:
        session: the client's name for it; None without one.
        background: whether no person waits for the response.
    """

    session: str | None = None
    latest_wins: bool = False
    background: bool = False

    @classmethod
    def of(cls, document: dict[str, Any]) -> Turn:
        """Removes these fields from a request."""
        session = checked_name(document.pop("session_id", None), "session_id")
        latest_wins, background = (_flag(document, field) for field in ("latest_wins", "background"))
        if latest_wins and session is None:
            raise InvalidInput("latest_wins needs a session_id: send the session whose older requests it supersedes")
        return cls(session, latest_wins, background)

    def of_call(self, call: Call) -> Call:
        """The call with what Triton has to know beside the session."""
        return replace(call, parameters={**call.parameters, "background": True}) if self.background else call


def _flag(document: dict[str, Any], field: str) -> bool:
    value = document.pop(field, False)
    if not isinstance(value, bool):
        raise InvalidInput(f"{field} must be true or false")
    return value


async def segment_call(gateway: Gateway, document: Mapping[str, Any], size: int, file: bytes | None = None) -> Call:
    """The call for the fields of /v1/segment, without those about its session.

    Args:
        size: of the document's text, in bytes.
        file: an image that came beside the document.
    """
    if "everything" in document:
        raise InvalidInput("everything has a route of its own: send it to /v1/everything")
    return await _prompt_call(gateway, document, size, file)


async def everything_call(gateway: Gateway, document: Mapping[str, Any], size: int) -> Call:
    """The same for /v1/everything; without options it takes the defaults."""
    options = document.get("everything")
    if options is False:
        raise InvalidInput("everything is an object of options, not false: leave it out for the defaults")
    return await _prompt_call(gateway, {**document, "everything": {} if options is None else options}, size)


async def _prompt_call(gateway: Gateway, document: Mapping[str, Any], size: int, file: bytes | None = None) -> Call:
    served = await gateway.segmenters.find(checked_name(document.get("model"), "model"), _kind(document))
    key = checked_name(document.get("image_key"), "image_key")
    image = file if file is not None else document.get("image")
    if (key is None) == (image is None):
        raise InvalidInput(
            "send exactly one of image_key and image" + (", not both" if key else ": the request has none")
        )
    if image is not None and not isinstance(image, str | bytes):
        raise InvalidInput("image must be a string: base64 of an image file, or a data URL")
    fields = {name: value for name, value in document.items() if name not in _NOT_PROMPT}
    if "image_size" in fields:
        raise InvalidInput("image_size is only for embeddings: leave it out, the size of this image is known")
    if key is not None:
        request_context.set_image(key)
        _, text = await by_size(size, lambda: checked_prompt(fields, served, gateway.settings))
        return Call(served.name, {"image_key": text_tensor(key), "prompt_json": text_tensor(text)}, ("result_json",))
    return await run_in_threadpool(lambda: image_call(served, _image_bytes(image), fields, gateway.settings))


async def naming_the_model(gateway: Gateway, document: Mapping[str, Any], error: ImageExpired) -> ImageExpired:
    """The error of a request with an image_key, with what helps if no model is named, and images go to another one."""
    if document.get("model") is None:
        asked = await gateway.segmenters.find(None, _kind(document))
        if asked.name != (await gateway.segmenters.find(None)).name:
            return ImageExpired(f"{error}, and name the model in both requests, for example {asked.name}")
    return error


def _kind(document: Mapping[str, Any]) -> str:
    """Of the prompt: the default model is one that takes it."""
    return "text" if any(document.get(key) is not None for key in CONCEPT_KEYS) else "points"


def _image_bytes(image: str | bytes | None) -> bytes:
    return image if isinstance(image, bytes) else from_base64(str(image), "image")


def checked_prompt(fields: Mapping[str, Any], served: ServedSegmenter, settings: Settings) -> tuple[Prompt, str]:
    """(the validated prompt, its JSON text for Triton)."""
    prompt = prompt_from_mapping(fields, PromptLimits.of(settings, served.spec.decoder.mask_side))
    prompt.check_kinds(served.spec.prompts, served.spec.id)
    text = json.dumps(fields)
    if len(text) > settings.max_prompt_bytes:
        raise TooLarge(
            f"the prompt has {len(text):,} bytes, but at most {settings.max_prompt_bytes:,} are allowed: send less"
        )
    return prompt, text


def image_call(served: ServedSegmenter, image: bytes, fields: Mapping[str, Any] | None, settings: Settings) -> Call:
    """The call for an image file, with a prompt or to encode only. Reads the file's header, so run it on a thread."""
    encoded = EncodedImage(image, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    inputs = image_inputs(image)
    if fields is not None:
        prompt, text = checked_prompt(fields, served, settings)
        prompt.check_inside(*encoded.size)
        inputs["prompt_json"] = text_tensor(text)
    return Call(served.name, inputs, ("result_json",))
