"""JSON request bodies and messages, parsed within limits of size and complexity."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.settings import Settings

_T = TypeVar("_T")
#: A smaller text is parsed faster than a thread can take it over; a larger one would block the event loop.
_SMALL = 64 * 1024
#: Brackets and commas: five masks of SAM 3 as lists of numbers, parsed in less than a tenth of a second.
_MAX_PARTS = 500_000
#: The same for a hover message, which has one mask at most.
_MAX_MESSAGE_PARTS = 200_000
#: Both coordinates, their brackets and the label.
_PARTS_PER_POINT = 5


async def by_size(size: int, action: Callable[[], _T]) -> _T:
    """The result of ``action``, which processes ``size`` bytes: run here if they are few, else on a thread."""
    return action() if size <= _SMALL else await run_in_threadpool(action)


def max_parts(settings: Settings) -> int:
    """Brackets and commas that a segment request may have."""
    return max(_MAX_PARTS, _PARTS_PER_POINT * settings.max_points * settings.max_objects)


def max_message_parts(settings: Settings) -> int:
    """The same for a hover message."""
    return max(_MAX_MESSAGE_PARTS, _PARTS_PER_POINT * settings.max_points * settings.max_objects)


def json_object(text: bytes | str, max_parts: int, *, example: str = '{"image_key": ...}') -> dict[str, Any]:
    """Parses a body or a message that must be a JSON object.

    Args:
        max_parts: brackets and commas that it may have. They are counted before parsing, because the parser holds the
            GIL until it is done: millions of empty lists would block the whole service for seconds.
        example: the beginning of such an object, for the error message.
    """
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if sum(map(raw.count, (b"[", b"{", b","))) > max_parts:
        raise TooLarge(f"the JSON has more than {max_parts:,} brackets and commas: send masks as base64, or send less")
    try:
        document = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the request is not valid JSON ({error}): send an object like {example}") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"the request is not a JSON object: send one like {example}")
    return document


def json_value(text: str, field: str) -> Any:
    """Parses a short text of a form that must be JSON."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the field {field[:60]!r} is not valid JSON ({error}): send it as in a JSON body") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Duplicate names are refused: a proxy may have checked the first one, and Python takes the last."""
    document = dict(pairs)
    if len(document) != len(pairs):
        counts = Counter(name for name, _ in pairs)  # in one pass: a body may have a hundred thousand names
        duplicate = next(name for name, count in counts.items() if count > 1)
        raise InvalidInput(f"the field {duplicate[:60]!r} appears twice: send each field once")
    return document


async def short_body(request: Request, max_bytes: int) -> bytes:
    """A body of at most ``max_bytes`` bytes; a longer one is not kept in memory."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise TooLarge(f"the request has more than {max_bytes:,} bytes: send less")
    return body
