"""A body in OpenAI's shape -> a checked question about one image. Pure; every refusal names its field and the mend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton_sam.core.images import from_base64
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.models.vlm_specs import MAX_TEMPERATURE, VlmSpec
from triton_sam.service.forms import LONGEST_NAME, checked_name
from triton_sam.settings import Settings

_INSTRUCTING = frozenset({"system", "developer"})
_SPEAKING = frozenset({"user", "assistant"})
#: Of top_p; a smaller one is 0 in the model's arithmetic.
_LEAST = 1e-6
_MOST_STOPS = 4
_LONGEST_URL = 4096
_LONGEST_QUOTE = 60
_INT64 = range(-(2**63), 2**63)
_DATA_URL = "data:image/png;base64,..."
#: Fields that ask for what is not done here, with the values that ask for nothing.
_NOT_DONE: Mapping[str, tuple[object, ...]] = {
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
#: The same of a message.
_NOT_SAID = ("tool_calls", "function_call", "audio")


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said; ``role`` is user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Options:
    """How the answer is made; None leaves it to the server."""

    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question about one image, and what led to it.

    Attributes:
        model: as the client named it.
        messages: at least one, the last is the user's; what a system said stands in the first of the user.
        image: the bytes of an image file, or its https address as it came.
        image_field: where the image stood in the request.
    """

    model: str
    messages: tuple[Message, ...]
    image: bytes | str
    image_field: str
    options: Options = Options()
    stream: bool = False
    include_usage: bool = False


def read_chat(document: Mapping[str, Any], settings: Settings) -> ChatRequest:
    """A checked request. Decodes the image's base64: for a thread where that is large."""
    model = _checked_model(document.get("model"))
    _refuse_what_is_not_done(document)
    options = _options(document, settings)
    stream, include_usage = _streaming(document)
    conversation = _Conversation(settings)
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidInput(f"messages is a list with at least one message, not {_kind(messages)}", field="messages")
    for index, message in enumerate(messages):
        conversation.add(message, f"messages[{index}]")
    told, image, place = conversation.checked(options.stop)
    return ChatRequest(model, told, image, place, options, stream, include_usage)


def check_fits(request: ChatRequest, spec: VlmSpec) -> None:
    """InvalidInput where a conversation is told to a model that follows none."""
    if not spec.chats and len(request.messages) > 1:
        raise InvalidInput(
            f"{spec.name} answers one question at a time and follows no conversation: "
            "send one message of the user, with the image and the question",
            field="messages",
        )


# -- messages --------------------------------------------------------------------------------------------------


class _Conversation:
    """Messages as they are read, one after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._instructions: list[str] = []
        self._told: list[Message] = []
        self._image: tuple[str, str] | None = None
        self._last_role = ""

    def add(self, message: Any, place: str) -> None:
        if not isinstance(message, dict):
            raise InvalidInput(f"{place} is an object with role and content, not {_kind(message)}", field=place)
        role = message.get("role")
        if not isinstance(role, str) or role not in _INSTRUCTING | _SPEAKING:
            raise InvalidInput(
                f"{place}.role is system, developer, user or assistant, not {_quoted(role)}", field=f"{place}.role"
            )
        for name in _NOT_SAID:
            if message.get(name):
                raise InvalidInput(f"{place}.{name} is not supported here: leave it out", field=f"{place}.{name}")
        text = self._text(message.get("content"), role, f"{place}.content")
        self._last_role = role
        if not text.strip():
            if role == "assistant":  # without it two questions would follow each other, which no model takes
                raise InvalidInput(
                    f"{place}.content is empty: send what the assistant said, "
                    "or leave the message out together with the question before it",
                    field=f"{place}.content",
                )
            return  # a message that only shows the image
        if role in _INSTRUCTING:
            self._instructions.append(text)
        else:
            self._told.append(Message(role, text))

    def _text(self, content: Any, role: str, place: str) -> str:
        """The text of a content; its image is kept aside."""
        if isinstance(content, str):
            return content
        if not isinstance(content, list) or not content:
            raise InvalidInput(f"{place} is a string or a list of parts, not {_kind(content)}", field=place)
        return "\n".join(self._texts(content, role, place))

    def _texts(self, parts: list[Any], role: str, place: str) -> Iterator[str]:
        for index, part in enumerate(parts):
            field = f"{place}[{index}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "text":
                if not isinstance(part.get("text"), str):
                    raise InvalidInput(
                        f"{field}.text is a string, not {_kind(part.get('text'))}", field=f"{field}.text"
                    )
                yield part["text"]
            elif kind == "image_url":
                self._take_image(part.get("image_url"), role, f"{field}.image_url")
            else:
                raise InvalidInput(
                    f'{field} is {{"type": "text", "text": ...}} or {{"type": "image_url", "image_url": ...}}, '
                    f"not a part of type {_quoted(kind)}",
                    field=f"{field}.type",
                )

    def _take_image(self, image: Any, role: str, place: str) -> None:
        if role != "user":
            raise InvalidInput(f"{place} is in a message of the {role}: send the image in one of the user", field=place)
        url = image.get("url") if isinstance(image, dict) else None
        if not isinstance(url, str):
            raise InvalidInput(f'{place} is {{"url": "{_DATA_URL}"}}, not {_kind(image)}', field=place)
        if self._image is not None:
            raise InvalidInput(
                f"{place} is a second image and a conversation is about one: send the others in requests of their own",
                field=place,
            )
        self._image = (url, f"{place}.url")

    def checked(self, stops: tuple[str, ...]) -> tuple[tuple[Message, ...], bytes | str, str]:
        """(messages, image, place of the image)."""
        if self._last_role != "user":
            raise InvalidInput(
                f"the last message is of the {self._last_role}: end with one of the user", field="messages"
            )
        if self._image is None:
            raise InvalidInput(
                'the messages have no image: add {"type": "image_url", "image_url": {"url": "'
                f'{_DATA_URL}"}}}} to the content of a message of the user',
                field="messages",
            )
        asked = [index for index, message in enumerate(self._told) if message.role == "user"]
        if not asked or asked[-1] != len(self._told) - 1:
            raise InvalidInput(
                'the user asks nothing: add {"type": "text", "text": "What is in this image?"} to the last message',
                field="messages",
            )
        told = list(self._told)
        first = told[asked[0]]
        told[asked[0]] = Message(first.role, "\n\n".join([*self._instructions, first.content]))
        self._check_length(told, stops)
        url, place = self._image
        return tuple(told), _image(url, place, self._settings), place

    def _check_length(self, told: list[Message], stops: tuple[str, ...]) -> None:
        size = sum(_bytes_of(message.content, "messages") for message in told)
        size += sum(_bytes_of(stop, "stop") for stop in stops)
        most = self._settings.vlm_max_prompt_bytes
        if size > most:
            raise TooLarge(
                f"the texts have {size:,} bytes and {most:,} are allowed: leave out the oldest messages",
                field="messages",
            )


def _bytes_of(text: str, field: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # half of a character, which JSON can write and nothing else
        raise InvalidInput(f"{field} has half a character (a lone surrogate): send whole ones", field=field) from None


def _image(url: str, field: str, settings: Settings) -> bytes | str:
    """The bytes of a data URL, or an address that may be fetched."""
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
        raise InvalidInput(f"{field} is no data URL: send the image as {_DATA_URL}", field=field)
    if not settings.remote_images:
        raise InvalidInput(
            f"{field} is an address, and images are not fetched here: send the image itself as {_DATA_URL}", field=field
        )
    if len(url) > _LONGEST_URL:
        raise InvalidInput(f"{field} has more than {_LONGEST_URL:,} characters: send {_DATA_URL}", field=field)
    return url


# -- everything else -------------------------------------------------------------------------------------------


def _checked_model(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"model is the name of a model of /v1/models, not {_kind(name)}", field="model")
    try:
        checked_name(name, "model")
    except InvalidInput:
        raise InvalidInput(
            f"model has at most {LONGEST_NAME} characters, all of them printable", field="model"
        ) from None
    return name


def _refuse_what_is_not_done(document: Mapping[str, Any]) -> None:
    for name, nothing in _NOT_DONE.items():
        if name in document and not any(_same(document[name], value) for value in nothing):
            raise InvalidInput(f"{name} is not supported here: leave it out", field=name)
    if document.get("n") is not None and not _same(document["n"], 1):
        raise InvalidInput("n is 1: send a request for each further answer", field="n")
    wanted = document.get("response_format")
    if wanted is not None and not (isinstance(wanted, dict) and wanted.get("type") == "text"):
        raise InvalidInput(
            'response_format is {"type": "text"}: nothing else is supported here', field="response_format"
        )


def _same(value: object, other: object) -> bool:
    """Equal, but true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _options(document: Mapping[str, Any], settings: Settings) -> Options:
    most = settings.vlm_max_new_tokens
    tokens, newer = (_whole(document, name, range(1, most + 1)) for name in ("max_tokens", "max_completion_tokens"))
    temperature = _decimal(
        document, "temperature", lambda it: 0 <= it <= MAX_TEMPERATURE, f"a number from 0 to {MAX_TEMPERATURE:g}"
    )
    return Options(
        max_tokens=tokens if newer is None else newer,
        temperature=0.0 if temperature is None else temperature,
        top_p=_decimal(document, "top_p", lambda it: _LEAST <= it <= 1, "a number above 0 and up to 1"),
        seed=_whole(document, "seed", _INT64),
        stop=_stops(document.get("stop")),
    )


def _whole(document: Mapping[str, Any], name: str, allowed: range) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        raise InvalidInput(
            f"{name} is a whole number from {allowed[0]} to {allowed[-1]}, not {_quoted(value)}", field=name
        )
    return value


def _decimal(document: Mapping[str, Any], name: str, fits: Callable[[float], bool], words: str) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
        raise InvalidInput(f"{name} is {words}, not {_quoted(value)}", field=name)
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if (
        not isinstance(stops, list)
        or len(stops) > _MOST_STOPS
        or not all(isinstance(stop, str) and stop for stop in stops)
    ):
        raise InvalidInput(
            f"stop is a string or a list of up to {_MOST_STOPS} strings, none of them empty", field="stop"
        )
    return tuple(stops)


def _streaming(document: Mapping[str, Any]) -> tuple[bool, bool]:
    """(whether the answer is wanted in pieces, whether with a last one that has the usage)."""
    stream = _flag(document, "stream", "stream")
    options = document.get("stream_options")
    if options is None:
        return stream, False
    if not isinstance(options, dict):
        raise InvalidInput(f"stream_options is an object, not {_kind(options)}", field="stream_options")
    return stream, _flag(options, "include_usage", "stream_options.include_usage")


def _flag(document: Mapping[str, Any], name: str, field: str) -> bool:
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"{field} is true or false, not {_quoted(value)}", field=field)
    return bool(value)


def _kind(value: object) -> str:
    """What JSON calls a value, for a sentence."""
    if value is None:
        return "nothing"
    kinds = {bool: "a boolean", str: "a string", dict: "an object", list: "a list"}
    if value in ("", [], {}):
        return "an empty one"
    return kinds.get(type(value), "a number")


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
