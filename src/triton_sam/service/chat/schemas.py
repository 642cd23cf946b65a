"""The shapes of the chat routes, for the OpenAPI document; :mod:`triton_sam.service.chat.messages` checks them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from triton_sam.models.vlm_specs import MAX_TEMPERATURE
from triton_sam.service import schemas

_IMAGE = "a data URL, `data:image/png;base64,...`; an https address only where the service is told to fetch such"
_TEXT: JsonDict = {"type": "text", "text": "What is in this image?"}
_PICTURE: JsonDict = {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}


# -- answers ---------------------------------------------------------------------------------------------------


class VlmRow(BaseModel):
    id: str = Field(description="what a request's `model` may be")
    object: Literal["model"] = "model"
    created: int = Field(description="when the service was started, in seconds since 1970")
    owned_by: str = "triton-sam"
    title: str
    chats: bool = Field(description="whether it follows a conversation; the others answer one question at a time")
    grounds: bool = Field(description="whether phrases of its answers have boxes: `entities`")


class VlmList(BaseModel):
    object: Literal["list"] = "list"
    data: list[VlmRow]


class Entity(BaseModel):
    """A phrase of an answer, and where in the image it is."""

    phrase: str
    start: int | None = Field(description="of the phrase in the whole answer, in characters; null: in the question")
    end: int | None
    boxes: list[schemas.Box] = Field(description="x0, y0, x1, y1 in original pixels")


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None = None
    entities: list[Entity] | None = Field(default=None, description="only where the model grounds; not OpenAI's")


class Choice(BaseModel):
    index: Literal[0]
    message: AnswerMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length"] = Field(description="length: max_tokens were not enough")


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
    detail: str | None = Field(default=None, description="has no meaning here")


class ImagePart(BaseModel):
    type: Literal["image_url"]
    image_url: ImageUrl


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="what system and developer say is put before the first text of the user"
    )
    content: str | list[TextPart | ImagePart] = Field(description="exactly one image in all messages together")


class StreamOptions(BaseModel):
    include_usage: bool | None = Field(default=None, description="a chunk with the usage before `[DONE]`")


class ResponseFormat(BaseModel):
    type: Literal["text"]


class ChatCompletionRequest(BaseModel):
    """OpenAI's request; other fields of theirs are ignored, or refused where the answer would be another."""

    model_config = ConfigDict(
        protected_namespaces=(),
        json_schema_extra={
            "examples": [
                {"model": "moondream2", "messages": [{"role": "user", "content": [_TEXT, _PICTURE]}], "max_tokens": 100}
            ]
        },
    )

    model: str = Field(max_length=200, description="a Triton name (`llava`) or a catalogue id (`vlm:llava`)")
    messages: list[ChatMessage] = Field(min_length=1, description="the last one is the user's")
    max_tokens: int | None = Field(default=None, ge=1, description="most tokens of the answer")
    max_completion_tokens: int | None = Field(default=None, ge=1, description="the same; counts before max_tokens")
    temperature: float | None = Field(
        default=None, ge=0, le=MAX_TEMPERATURE, description="default 0: the likeliest words, always"
    )
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63, description="the same answer for the same request")
    stop: str | list[str] | None = Field(default=None, description="up to 4 texts before which an answer ends")
    stream: bool | None = Field(default=None, description="the answer piece by piece, as server-sent events")
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    response_format: ResponseFormat | None = None


def event_stream() -> dict[int | str, dict[str, Any]]:
    """``responses`` for an answer in pieces."""
    schema = {
        "type": "string",
        "description": "lines `data: {chunk}`, each a chat.completion.chunk, and at last `data: [DONE]`; "
        'where the answer fails on its way the last one is `data: {"error": ...}`',
    }
    return {200: {"description": "The answer", "content": {"text/event-stream": {"schema": schema}}}}


def request_schemas() -> dict[str, Any]:
    """Name -> schema of the request and what it is made of."""
    return schemas.request_schemas((ChatCompletionRequest,))
