"""Requests from outside -> checked calls of Triton. Nothing that is wrong gets through here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from triton_sam.client.wire import Call, image_inputs, text_tensor
from triton_sam.core.images import EncodedImage, from_base64
from triton_sam.core.prompts import Prompt, PromptLimits, prompt_from_mapping
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.service.forms import checked_name
from triton_sam.service.gateway import Gateway
from triton_sam.service.served_models import Served
from triton_sam.service.telemetry import visits
from triton_sam.settings import Settings

_T = TypeVar("_T")
#: A smaller text is checked sooner than a thread takes it over; a larger one would keep everybody else waiting.
_SMALL = 64 * 1024
#: Of a segment request; everything else in it belongs to the prompt.
_OWN_FIELDS = frozenset({"image_key", "image", "model"})
#: Brackets and commas: five masks of SAM 3 as lists of numbers, parsed in less than a tenth of a second.
_MOST_PARTS = 500_000
#: The same for a hover message, which has one mask at most.
_MOST_PARTS_OF_A_MESSAGE = 200_000
#: With both coordinates, their brackets and the label.
_PARTS_OF_A_POINT = 5


async def by_size(size: int, action: Callable[[], _T]) -> _T:
    """The result of ``action``, which works through ``size`` bytes: here where they are few, else on a thread."""
    return action() if size <= _SMALL else await run_in_threadpool(action)


def most_parts(settings: Settings) -> int:
    """Brackets and commas that a segment request may have."""
    return max(_MOST_PARTS, _PARTS_OF_A_POINT * settings.max_points * settings.max_objects)


def most_parts_of_a_message(settings: Settings) -> int:
    """The same for a hover message."""
    return max(_MOST_PARTS_OF_A_MESSAGE, _PARTS_OF_A_POINT * settings.max_points * settings.max_objects)


def json_object(text: bytes | str, most: int, *, like: str = '{"image_key": ...}') -> dict[str, Any]:
    """A body or a message -> the JSON object that it must be.

    Args:
        like: how such an object begins, for whoever sent something else.
        most: brackets and commas that it may have. Counted before anything is parsed, because the parser lets no other
            thread run until it is through: millions of empty lists would stop the whole service for seconds.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if sum(map(raw.count, (b"[", b"{", b","))) > most:
        raise TooLarge(f"the JSON has more than {most:,} brackets and commas: send masks as base64, or less")
    try:
        document = json.loads(text, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the request is no JSON ({error}): send an object like {like}") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"the request is no JSON object: send one like {like}")
    return document


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. A proxy in front may have read the first of two equal names, and Python would take the last."""
    document = dict(pairs)
    if len(document) != len(pairs):
        counts = Counter(name for name, _ in pairs)  # in one pass: a body may have a hundred thousand names
        twice = next(name for name, count in counts.items() if count > 1)
        raise InvalidInput(f"the field {twice[:60]!r} is there twice: send each field once")
    return document


async def short_body(request: Request, most: int) -> bytes:
    """A body of at most ``most`` bytes; the rest of a longer one is not kept."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise TooLarge(f"the request has more than {most:,} bytes: send less")
    return body


async def segment_call(gateway: Gateway, document: Mapping[str, Any], size: int) -> Call:
    """The fields of /v1/segment, without those about its session -> a call.

    Args:
        size: bytes of the text that the document was.
    """
    served = await gateway.models.find(checked_name(document.get("model"), "model"))
    key = checked_name(document.get("image_key"), "image_key")
    image = document.get("image")
    if (key is None) == (image is None):
        raise InvalidInput("send exactly one of image_key and image" + (", not both" if key else ": there is none"))
    if image is not None and not isinstance(image, str):
        raise InvalidInput("image is a string: base64 of an image file, or a data URL")
    asked = {name: value for name, value in document.items() if name not in _OWN_FIELDS}
    if "image_size" in asked:
        raise InvalidInput("image_size goes with an embedding, and the size of this image is known: leave it out")
    if key is not None:
        visits.name_image(key)
        _, text = await by_size(size, lambda: checked_prompt(asked, served, gateway.settings))
        return Call(served.name, {"image_key": text_tensor(key), "prompt_json": text_tensor(text)}, ("result_json",))
    return await run_in_threadpool(
        lambda: image_call(served, from_base64(str(image), "image"), asked, gateway.settings)
    )


def checked_prompt(asked: Mapping[str, Any], served: Served, settings: Settings) -> tuple[Prompt, str]:
    """The prompt, and its text for Triton."""
    prompt = prompt_from_mapping(asked, PromptLimits.of(settings, served.spec.decoder.mask_side))
    prompt.check_kinds(served.spec.prompts, served.spec.id)
    text = json.dumps(asked)
    if len(text) > settings.max_prompt_bytes:
        raise TooLarge(f"the prompt has {len(text):,} bytes and {settings.max_prompt_bytes:,} are allowed")
    return prompt, text


def image_call(served: Served, image: bytes, asked: Mapping[str, Any] | None, settings: Settings) -> Call:
    """An image file, with a prompt or to be encoded only. Looks into the file: for a thread."""
    encoded = EncodedImage(image, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
    inputs = image_inputs(image)
    if asked is not None:
        prompt, text = checked_prompt(asked, served, settings)
        prompt.check_inside(*encoded.size)
        inputs["prompt_json"] = text_tensor(text)
    return Call(served.name, inputs, ("result_json",))
