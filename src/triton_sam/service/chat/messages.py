"""Validates chat requests in OpenAI's format: one conversation about one image. Every error names its field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton_sam.core.images import from_base64
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.models.vlm_specs import MAX_TEMPERATURE, VlmSpec
from triton_sam.service.forms import MAX_NAME, checked_name
from triton_sam.settings import Settings

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_CONVERSATION_ROLES = frozenset({"user", "assistant"})
#: A smaller top_p rounds to 0 in the model's arithmetic.
_MIN_TOP_P = 1e-6
_MAX_STOPS = 4
_MAX_URL = 4096
_MAX_QUOTE = 60
_INT64 = range(-(2**63), 2**63)
_DATA_URL = "data:image/png;base64,..."
#: Unsupported fields, with the values that are allowed because they ask for nothing.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "web_search_options": (None,),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
}
#: Unsupported fields of a message.
_UNSUPPORTED_IN_MESSAGE = ("tool_calls", "function_call", "audio")


@dataclass(frozen=True, slots=True)
class Message:
    """One message; ``role`` is user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Options:
    """Sampling options; None means the server's default."""

    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A question about one image, and the conversation before it.

    Attributes:
        model: as the client named it.
        messages: at least one, the last is the user's; system messages are put into the first user message.
        image: the bytes of an image file, or its https URL.
        image_field: the path of the image's field in the request.
    """

    model: str
    messages: tuple[Message, ...]
    image: bytes | str
    image_field: str
    options: Options = Options()
    stream: bool = False
    include_usage: bool = False


def read_chat(document: Mapping[str, Any], settings: Settings) -> ChatRequest:
    """The validated request. Decodes the image's base64, so run it on a thread if the body is large."""
    model = _checked_model(document.get("model"))
    _refuse_unsupported(document)
    options = _options(document, settings)
    stream, include_usage = _streaming(document)
    conversation = _Conversation(settings)
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidInput(
            f"messages must be a list with at least one message, not {_kind(messages)}", field="messages"
        )
    for index, message in enumerate(messages):
        conversation.add(message, f"messages[{index}]")
    checked, image, image_field = conversation.checked(options.stop)
    return ChatRequest(model, checked, image, image_field, options, stream, include_usage)


def check_fits(request: ChatRequest, spec: VlmSpec) -> None:
    """Raises InvalidInput for a conversation with a model that answers single questions only."""
    if not spec.chats and len(request.messages) > 1:
        raise InvalidInput(
            f"{spec.name} answers one question at a time, without a conversation: "
            "send one user message with the image and the question",
            field="messages",
        )


# -- messages --------------------------------------------------------------------------------------------------


class _Conversation:
    """Collects and validates messages one after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._instructions: list[str] = []
        self._messages: list[Message] = []
        self._image: tuple[str, str] | None = None
        self._last_role = ""

    def add(self, message: Any, field: str) -> None:
        if not isinstance(message, dict):
            raise InvalidInput(f"{field} must be an object with role and content, not {_kind(message)}", field=field)
        role = message.get("role")
        if not isinstance(role, str) or role not in _INSTRUCTION_ROLES | _CONVERSATION_ROLES:
            raise InvalidInput(
                f"{field}.role must be system, developer, user or assistant, not {_quoted(role)}",
                field=f"{field}.role",
            )
        for name in _UNSUPPORTED_IN_MESSAGE:
            if message.get(name):
                raise InvalidInput(f"{field}.{name} is not supported: leave it out", field=f"{field}.{name}")
        text = self._text(message.get("content"), role, f"{field}.content")
        self._last_role = role
        if not text.strip():
            if role == "assistant":  # without it two user messages would follow each other, which no model accepts
                raise InvalidInput(
                    f"{field}.content is empty: send the assistant's answer, "
                    "or leave the message out together with the question before it",
                    field=f"{field}.content",
                )
            return  # a message with the image only
        if role in _INSTRUCTION_ROLES:
            self._instructions.append(text)
        else:
            self._messages.append(Message(role, text))

    def _text(self, content: Any, role: str, field: str) -> str:
        """The text of a message's content; an image in it is stored."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list) or not content:
            raise InvalidInput(f"{field} must be a string or a list of parts, not {_kind(content)}", field=field)
        return "\n".join(self._texts(content, role, field))

    def _texts(self, parts: list[Any], role: str, content_field: str) -> Iterator[str]:
        for index, part in enumerate(parts):
            field = f"{content_field}[{index}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "text":
                if not isinstance(part.get("text"), str):
                    raise InvalidInput(
                        f"{field}.text must be a string, not {_kind(part.get('text'))}", field=f"{field}.text"
                    )
                yield part["text"]
            elif kind == "image_url":
                self._take_image(part.get("image_url"), role, f"{field}.image_url")
            else:
                raise InvalidInput(
                    f'{field} must be {{"type": "text", "text": ...}} or {{"type": "image_url", "image_url": ...}}, '
                    f"not a part of type {_quoted(kind)}",
                    field=f"{field}.type",
                )

    def _take_image(self, image: Any, role: str, field: str) -> None:
        if role != "user":
            raise InvalidInput(f"{field} is in a message of the {role}: send the image in a user message", field=field)
        url = image.get("url") if isinstance(image, dict) else None
        if not isinstance(url, str):
            raise InvalidInput(f'{field} must be {{"url": "{_DATA_URL}"}}, not {_kind(image)}', field=field)
        if self._image is not None:
            raise InvalidInput(
                f"{field} is a second image, but a conversation has one: send the others in separate requests",
                field=field,
            )
        self._image = (url, f"{field}.url")

    def checked(self, stops: tuple[str, ...]) -> tuple[tuple[Message, ...], bytes | str, str]:
        """(messages, image, field of the image)."""
        if self._last_role != "user":
            raise InvalidInput(
                f"the last message is of the {self._last_role}: end with a user message", field="messages"
            )
        if self._image is None:
            raise InvalidInput(
                'the messages have no image: add {"type": "image_url", "image_url": {"url": "'
                f'{_DATA_URL}"}}}} to the content of a user message',
                field="messages",
            )
        user_indices = [index for index, message in enumerate(self._messages) if message.role == "user"]
        if not user_indices or user_indices[-1] != len(self._messages) - 1:
            raise InvalidInput(
                'the last message has no question: add {"type": "text", "text": "What is in this image?"} to it',
                field="messages",
            )
        messages = list(self._messages)
        first = messages[user_indices[0]]
        messages[user_indices[0]] = Message(first.role, "\n\n".join([*self._instructions, first.content]))
        self._check_length(messages, stops)
        url, field = self._image
        return tuple(messages), _image(url, field, self._settings), field

    def _check_length(self, messages: list[Message], stops: tuple[str, ...]) -> None:
        size = sum(_bytes_of(message.content, "messages") for message in messages)
        size += sum(_bytes_of(stop, "stop") for stop in stops)
        limit = self._settings.vlm_max_prompt_bytes
        if size > limit:
            raise TooLarge(
                f"the texts have {size:,} bytes, but at most {limit:,} are allowed: leave out the oldest messages",
                field="messages",
            )


def _bytes_of(text: str, field: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate, which JSON can express and UTF-8 cannot
        raise InvalidInput(
            f"{field} has a lone surrogate (half a character): send whole characters", field=field
        ) from None


def _image(url: str, field: str, settings: Settings) -> bytes | str:
    """The bytes of a data URL, or an https URL that may be fetched."""
    scheme = url[:8].partition(":")[0].lower()
    if scheme == "data":
        head, comma, _ = url.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InvalidInput(f"{field} is a data URL without base64: send {_DATA_URL}", field=field)
        try:
            return from_base64(f"data:{url[5:]}", field)
        except InvalidInput as error:
            raise InvalidInput(str(error), field=field) from None
    if scheme != "https":
        raise InvalidInput(f"{field} is not a data URL: send the image as {_DATA_URL}", field=field)
    if not settings.remote_images:
        raise InvalidInput(
            f"{field} is an https URL, but fetching images is disabled: send the image itself as {_DATA_URL}",
            field=field,
        )
    if len(url) > _MAX_URL:
        raise InvalidInput(f"{field} has more than {_MAX_URL:,} characters: send {_DATA_URL}", field=field)
    return url


# -- other fields ----------------------------------------------------------------------------------------------


def _checked_model(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"model must be the name of a model from /v1/models, not {_kind(name)}", field="model")
    try:
        checked_name(name, "model")
    except InvalidInput:
        raise InvalidInput(
            f"model must have at most {MAX_NAME} characters, all of them printable", field="model"
        ) from None
    return name


def _refuse_unsupported(document: Mapping[str, Any]) -> None:
    for name, nothing in _UNSUPPORTED.items():
        if name in document and not any(_same(document[name], value) for value in nothing):
            raise InvalidInput(f"{name} is not supported: leave it out", field=name)
    if document.get("n") is not None and not _same(document["n"], 1):
        raise InvalidInput("n must be 1: send a request for each further answer", field="n")
    wanted = document.get("response_format")
    if wanted is not None and not (isinstance(wanted, dict) and wanted.get("type") == "text"):
        raise InvalidInput(
            'response_format must be {"type": "text"}: other formats are not supported', field="response_format"
        )


def _same(value: object, other: object) -> bool:
    """Whether two JSON values are equal; True does not equal 1."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _options(document: Mapping[str, Any], settings: Settings) -> Options:
    limit = settings.vlm_max_new_tokens
    tokens, newer = (_whole(document, name, range(1, limit + 1)) for name in ("max_tokens", "max_completion_tokens"))
    temperature = _decimal(
        document, "temperature", lambda it: 0 <= it <= MAX_TEMPERATURE, f"a number from 0 to {MAX_TEMPERATURE:g}"
    )
    return Options(
        max_tokens=tokens if newer is None else newer,
        temperature=0.0 if temperature is None else temperature,
        top_p=_decimal(document, "top_p", lambda it: _MIN_TOP_P <= it <= 1, "a number above 0 and up to 1"),
        seed=_whole(document, "seed", _INT64),
        stop=_stops(document.get("stop")),
    )


def _whole(document: Mapping[str, Any], name: str, allowed: range) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        raise InvalidInput(
            f"{name} must be a whole number from {allowed[0]} to {allowed[-1]}, not {_quoted(value)}", field=name
        )
    return value


def _decimal(document: Mapping[str, Any], name: str, fits: Callable[[float], bool], words: str) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
        raise InvalidInput(f"{name} must be {words}, not {_quoted(value)}", field=name)
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if (
        not isinstance(stops, list)
        or len(stops) > _MAX_STOPS
        or not all(isinstance(stop, str) and stop for stop in stops)
    ):
        raise InvalidInput(
            f"stop must be a string or a list of up to {_MAX_STOPS} strings, none of them empty", field="stop"
        )
    return tuple(stops)


def _streaming(document: Mapping[str, Any]) -> tuple[bool, bool]:
    """(whether to stream the answer, whether to end the stream with the usage)."""
    stream = _flag(document, "stream", "stream")
    options = document.get("stream_options")
    if options is None:
        return stream, False
    if not isinstance(options, dict):
        raise InvalidInput(f"stream_options must be an object, not {_kind(options)}", field="stream_options")
    return stream, _flag(options, "include_usage", "stream_options.include_usage")


def _flag(document: Mapping[str, Any], name: str, field: str) -> bool:
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"{field} must be true or false, not {_quoted(value)}", field=field)
    return bool(value)


def _kind(value: object) -> str:
    """The JSON type of a value, for an error message."""
    if value is None:
        return "nothing"
    kinds = {bool: "a boolean", str: "a string", dict: "an object", list: "a list"}
    if value in ("", [], {}):
        return "an empty value"
    return kinds.get(type(value), "a number")


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE else f"{text[:_MAX_QUOTE]}..."
