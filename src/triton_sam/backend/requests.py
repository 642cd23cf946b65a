"""Reads the parameters and input tensors of a segmenter's requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton_sam.core.images import check_size, from_base64
from triton_sam.errors import InvalidInput

_LONGEST_TEXT = 200


class Turn:
    """The parameters of a request about its session and its place in the queues."""

    def __init__(self, session: str | None, parameters: dict[str, Any]) -> None:
        self.session = session
        self.latest_wins = flag(parameters, "latest_wins")
        self.background = flag(parameters, "background")
        self.sequence = number(parameters, "sequence")
        if self.sequence is not None and session is None:
            raise InvalidInput("the parameter sequence counts the requests of a session: add session_id")


def session_of(parameters: dict[str, Any]) -> str | None:
    """The parameter ``session_id``; None if it is missing or empty."""
    session = parameters.get("session_id")
    return None if session is None or session == "" else str(session)


def flag(parameters: dict[str, Any], name: str) -> bool:
    """A parameter that is true or false."""
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInput(f"the parameter {name} is true or false, not {value!r}")
    return value


def text_parameter(parameters: dict[str, Any], name: str) -> str:
    """A parameter that is a short text; empty if it is missing."""
    value = parameters.get(name, "")
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise InvalidInput(f"the parameter {name} is a text of at most {_LONGEST_TEXT} characters")
    return value


def number(parameters: dict[str, Any], name: str) -> int | None:
    """A parameter that is a number from 0 on; None if it is missing."""
    value = parameters.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidInput(f"the parameter {name} is a number from 0 on, not {value!r}")
    return value


def text_of(tensors: Mapping[str, Any], name: str) -> str | None:
    """A string input; None if it is missing."""
    if name not in tensors:
        return None
    array = tensors[name].as_numpy()
    if array.size != 1:
        raise InvalidInput(f"{name} is one string of shape [1], not {array.size} of them")
    value = array.reshape(-1)[0]
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise InvalidInput(f"{name} is not valid UTF-8") from None


def image_bytes(tensors: Mapping[str, Any], max_bytes: int) -> bytes | None:
    """The image file of ``image`` or ``image_b64``; None if there is neither."""
    raw = tensors.get("image")
    text = text_of(tensors, "image_b64")
    if raw is not None and text is not None:
        raise InvalidInput("send exactly one of image and image_b64, not both")
    if raw is not None:
        array = raw.as_numpy()
        check_size(array.size, max_bytes)
        return bytes(array.tobytes())
    if text is None:
        return None
    check_size(len(text) * 3 // 4, max_bytes)
    return from_base64(text, "image_b64")
