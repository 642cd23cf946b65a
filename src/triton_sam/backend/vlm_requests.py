"""Parses and validates requests to a vision-language model. No Triton types: it takes arrays."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from triton_sam.core.images import EncodedImage, check_size, from_base64
from triton_sam.engines.vlm.base import Message, Options, Question
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.models.vlm_specs import MAX_TEMPERATURE, Task, VlmSpec
from triton_sam.settings import Settings

_ROLES = ("user", "assistant", "system")
_MOST_STOPS = 8
_LONGEST_STOP = 200
_LONGEST_TASK = 40
#: JSON may need six bytes to escape one byte of text.
_JSON_OVERHEAD = 8
Arrays = Mapping[str, npt.NDArray[Any]]


class VlmRequest:
    """A validated request. Its image is decoded later, by :meth:`question`."""

    def __init__(self, arrays: Arrays, settings: Settings, spec: VlmSpec) -> None:
        """Raises InvalidInput, or Unsupported for a task that the model of ``spec`` cannot do."""
        self._task = _task(arrays)
        spec.check_task(self._task)
        data = _image_bytes(arrays, settings.max_image_bytes)
        self._image = EncodedImage(data, max_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels)
        self._image_key = hashlib.sha256(data).hexdigest()
        self._messages = _messages(arrays, settings.vlm_max_prompt_bytes)
        self._options = _options(arrays, settings)

    def question(self) -> Question:
        """The question with the image's pixels; InvalidInput if they cannot be decoded."""
        return Question(self._image.pixels(), self._image_key, self._messages, self._options, task=self._task)


def _task(arrays: Arrays) -> Task:
    text = _text(arrays, "task")
    if text is None:
        return Task.ANSWER
    try:
        return Task(text)
    except ValueError:
        known = ", ".join(task.value for task in Task)
        raise InvalidInput(f"task is one of {known}, not {text[:_LONGEST_TASK]!r}") from None


def _image_bytes(arrays: Arrays, max_bytes: int) -> bytes:
    raw, text = arrays.get("image"), _text(arrays, "image_b64")
    if (raw is None) == (text is None):
        raise InvalidInput("send exactly one of image and image_b64" + (", not both" if text else ": it has neither"))
    if raw is not None:
        check_size(raw.size, max_bytes)
        return bytes(raw.tobytes())
    assert text is not None
    check_size(len(text) * 3 // 4, max_bytes)
    return from_base64(text, "image_b64")


def _messages(arrays: Arrays, max_bytes: int) -> tuple[Message, ...]:
    prompt, document = _text(arrays, "prompt"), _text(arrays, "messages_json")
    if (prompt is None) == (document is None):
        raise InvalidInput("send exactly one of prompt and messages_json" + (", not both" if prompt else ": no prompt"))
    longest = max_bytes if prompt is not None else _JSON_OVERHEAD * max_bytes
    if len(prompt or document or "") > longest:  # before anything is parsed
        raise _too_long(len(prompt or document or ""), max_bytes)
    messages = [Message("user", prompt)] if prompt is not None else _conversation(document or "")
    try:
        size = sum(len(message.text.encode()) for message in messages)
    except UnicodeEncodeError:
        raise InvalidInput("the prompt has an unpaired surrogate: send well-formed Unicode") from None
    if size > max_bytes:
        raise _too_long(size, max_bytes)
    if not messages[-1].text.strip():
        raise InvalidInput("the prompt is empty: send a question")
    return tuple(messages)


def _too_long(size: int, max_bytes: int) -> TooLarge:
    return TooLarge(f"the prompt has {size:,} bytes and {max_bytes:,} are allowed: shorten it")


def _conversation(document: str) -> list[Message]:
    """User and assistant in turn, the user first and last. System messages go before the first question."""
    try:
        entries = json.loads(document)
        turns = [(entry["role"], entry["content"]) for entry in entries]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InvalidInput('messages_json is a list like [{"role": "user", "content": "..."}]') from None
    if any(role not in _ROLES or not isinstance(text, str) for role, text in turns):
        raise InvalidInput(f"a message needs a role ({', '.join(_ROLES)}) and a content, which is a text")
    system = [text for role, text in turns if role == "system"]
    messages = [Message(role, text) for role, text in turns if role != "system"]
    expected = ["user", "assistant"] * (len(messages) // 2) + ["user"]
    if [message.role for message in messages] != expected:
        raise InvalidInput("messages of user and assistant must alternate, with the user's first and last")
    if system:
        messages[0] = Message("user", "\n".join([*system, messages[0].text]))
    return messages


def _options(arrays: Arrays, settings: Settings) -> Options:
    tokens = _number(arrays, "max_new_tokens", settings.vlm_default_new_tokens)
    if not 1 <= tokens <= settings.vlm_max_new_tokens:
        raise InvalidInput(f"max_new_tokens is a number from 1 to {settings.vlm_max_new_tokens}, not {tokens:g}")
    temperature = _number(arrays, "temperature", 0.0)
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise InvalidInput(f"temperature is a number from 0 to {MAX_TEMPERATURE:g}, not {temperature:g}")
    top_p = _number(arrays, "top_p", 1.0)
    if not 0 < top_p <= 1:
        raise InvalidInput(f"top_p is a number above 0 and up to 1, not {top_p:g}")
    seed = int(_number(arrays, "seed", 0)) if "seed" in arrays else None
    stops = tuple(_decoded(value, "stop") for value in arrays["stop"].reshape(-1)) if "stop" in arrays else ()
    if len(stops) > _MOST_STOPS or any(not 1 <= len(stop) <= _LONGEST_STOP for stop in stops):
        raise InvalidInput(f"stop has at most {_MOST_STOPS} texts of 1 to {_LONGEST_STOP} characters")
    return Options(int(tokens), float(temperature), float(top_p), seed, stops)


def _number(arrays: Arrays, name: str, default: float) -> float:
    if name not in arrays:
        return default
    if arrays[name].size != 1:
        raise InvalidInput(f"{name} is one number of shape [1], not {arrays[name].size} of them")
    if arrays[name].dtype.kind not in "iuf":
        raise InvalidInput(f"{name} is a number, not a tensor of {arrays[name].dtype}")
    value = arrays[name].reshape(-1)[0].item()
    if not math.isfinite(value):
        raise InvalidInput(f"{name} is a finite number, not {value}")
    return value  # type: ignore[no-any-return]


def _text(arrays: Arrays, name: str) -> str | None:
    if name not in arrays:
        return None
    if arrays[name].size != 1:
        raise InvalidInput(f"{name} is one string of shape [1], not {arrays[name].size} of them")
    return _decoded(arrays[name].reshape(-1)[0], name)


def _decoded(value: Any, name: str) -> str:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise InvalidInput(f"{name} is not valid UTF-8") from None
