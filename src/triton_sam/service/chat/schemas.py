"""Schemas of the chat routes for the OpenAPI document; :mod:`triton_sam.service.chat.messages` validates requests."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from triton_sam.models.vlm_specs import MAX_TEMPERATURE
from triton_sam.service import schemas

_IMAGE = "a data URL, `data:image/png;base64,...`; an https URL only if TRITON_SAM_REMOTE_IMAGES is set"
_TEXT: JsonDict = {"type": "text", "text": "What is in this image?"}
_PICTURE: JsonDict = {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}


# -- responses -------------------------------------------------------------------------------------------------


class VlmRow(BaseModel):
    id: str = Field(description="a value for a request's `model`")
    object: Literal["model"] = "model"
    created: int = Field(description="when the service started, in seconds since 1970")
    owned_by: str = "triton-sam"
    title: str
    chats: bool = Field(description="whether it supports conversations; other models answer single questions")
    grounds: bool = Field(description="whether it returns boxes for phrases of its answers, as `entities`")
    tasks: list[str] = Field(description="what it can do for /v1/ground: ground, detect, point")


class VlmList(BaseModel):
    object: Literal["list"] = "list"
    data: list[VlmRow]


class Entity(BaseModel):
    """A phrase of an answer and its boxes in the image."""

    phrase: str
    start: int | None = Field(
        description="of the phrase in the whole answer, in characters; null if it is in the question"
    )
    end: int | None
    boxes: list[schemas.Box] = Field(description="x0, y0, x1, y1 in original pixels")


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None = None
    entities: list[Entity] | None = Field(
        default=None, description="only if the model grounds phrases; an extension of OpenAI's format"
    )


class Choice(BaseModel):
    index: Literal[0]
    message: AnswerMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length"] = Field(description="length: the answer reached max_tokens")


class TokenUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: TokenUsage


# -- requests --------------------------------------------------------------------------------------------------


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class ImageUrl(BaseModel):
    url: str = Field(description=_IMAGE)
    detail: str | None = Field(default=None, description="ignored")


class ImagePart(BaseModel):
    type: Literal["image_url"]
    image_url: ImageUrl


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="system and developer messages are put before the first user message"
    )
    content: str | list[TextPart | ImagePart] = Field(description="all messages together must have exactly one image")


class StreamOptions(BaseModel):
    include_usage: bool | None = Field(default=None, description="adds a chunk with the usage before `[DONE]`")


class ResponseFormat(BaseModel):
    type: Literal["text"]


class ChatCompletionRequest(BaseModel):
    """OpenAI's request. Its other fields are ignored, or refused if they would change the answer."""

    model_config = ConfigDict(
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {"model": "moondream2", "messages": [{"role": "user", "content": [_TEXT, _PICTURE]}], "max_tokens": 100}
            ]
        },
    )

    model: str = Field(max_length=200, description="a Triton name (`llava`) or a catalogue id (`vlm:llava`)")
    messages: list[ChatMessage] = Field(min_length=1, description="the last one must be the user's")
    max_tokens: int | None = Field(default=None, ge=1, description="maximum number of tokens in the answer")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, description="the same; takes precedence over max_tokens"
    )
    temperature: float | None = Field(
        default=None, ge=0, le=MAX_TEMPERATURE, description="default 0: always the most likely token"
    )
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(
        default=None, ge=-(2**63), lt=2**63, description="makes the answer to the same request reproducible"
    )
    stop: str | list[str] | None = Field(default=None, description="up to 4 texts; the answer ends before them")
    stream: bool | None = Field(default=None, description="stream the answer as server-sent events")
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    response_format: ResponseFormat | None = None


def event_stream() -> dict[int | str, dict[str, Any]]:
    """``responses`` of a streaming route."""
    schema = {
        "type": "string",
        "description": "lines `data: {chunk}`, each a chat.completion.chunk, and finally `data: [DONE]`; "
        'if the answer fails after its start, the last line is `data: {"error": ...}`',
    }
    return {200: {"description": "The answer", "content": {"text/event-stream": {"schema": schema}}}}


def request_schemas() -> dict[str, Any]:
    """Name -> schema of the request and its parts."""
    return schemas.request_schemas((ChatCompletionRequest,))
