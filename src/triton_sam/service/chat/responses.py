"""Chat responses in OpenAI's format: one document, or chunks as server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from triton_sam.client.dispatch import Outputs
from triton_sam.client.wire import text_of
from triton_sam.errors import InternalError, TritonSamError
from triton_sam.service.error_responses import error_document
from triton_sam.service.event_streams import event_of

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of prompt and completion tokens."""

    prompt: int
    completion: int

    def document(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer.

    Attributes:
        finish_reason: "stop" or "length" in the last piece, which also has the usage.
        entities: as in ``entities_json``; None before the last piece, and if the model does not ground phrases.
    """

    text: str
    finish_reason: str | None = None
    usage: Usage | None = None
    entities: list[Any] | None = None


def piece_of(outputs: Outputs) -> Piece:
    """The piece in Triton's outputs, of which some may be missing or empty."""
    found = {name: text_of(outputs, name) for name in outputs}
    usage, entities = (_json(found, name) for name in ("usage_json", "entities_json"))
    return Piece(
        text=found.get("generated_text", ""),
        finish_reason=found.get("finish_reason") or None,
        usage=None if usage is None else _usage(usage),
        entities=entities if isinstance(entities, list) else None,
    )


def _json(found: Mapping[str, str], name: str) -> Any:
    if not found.get(name):
        return None
    try:
        return json.loads(found[name])
    except ValueError:
        raise InternalError(f"the model server's {name} is not valid JSON") from None


def _usage(document: Any) -> Usage:
    try:
        return Usage(int(document["prompt_tokens"]), int(document["completion_tokens"]))
    except (LookupError, TypeError, ValueError):
        raise InternalError("the model server's usage_json has no tokens") from None


async def joined(pieces: AsyncIterable[Piece]) -> Piece:
    """The whole answer from its pieces; there must be at least one."""
    found = [piece async for piece in pieces]
    return replace(found[-1], text="".join(piece.text for piece in found))


def incomplete() -> InternalError:
    """The error for an answer that ended without a finish_reason."""
    return InternalError("the model server's answer ended before it was complete")


@dataclass(frozen=True, slots=True)
class CompletionBuilder:
    """Builds the documents of one answer, with the fields that they share."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def _document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def completion(self, answer: Piece) -> dict[str, Any]:
        """``chat.completion``."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.entities is not None:
            message["entities"] = answer.entities
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        usage = answer.usage or Usage(0, 0)
        return self._document("chat.completion", [choice]) | {"usage": usage.document()}

    def chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        """``chat.completion.chunk``."""
        choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish_reason}
        return self._document("chat.completion.chunk", [choice])

    def usage_chunk(self, usage: Usage | None) -> dict[str, Any]:
        """The chunk with the usage, after the last one; it has no choices."""
        return self._document("chat.completion.chunk", []) | {"usage": (usage or Usage(0, 0)).document()}


class EventFormatter:
    """Formats the pieces of an answer as server-sent events, in order."""

    def __init__(self, builder: CompletionBuilder, *, include_usage: bool) -> None:
        self._builder = builder
        self._include_usage = include_usage

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def of(self, piece: Piece) -> Iterator[bytes]:
        """The events of one piece; after those of the last piece the stream is complete."""
        if piece.text:
            yield self._chunk({"content": piece.text})
        if piece.finish_reason is None:
            return
        yield self._chunk({} if piece.entities is None else {"entities": piece.entities}, piece.finish_reason)
        if self._include_usage:
            yield event(self._builder.usage_chunk(piece.usage))
        yield DONE

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        chunk = self._builder.chunk(delta, finish_reason)
        return event(chunk | {"usage": None} if self._include_usage else chunk)


def event(document: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return event_of(json.dumps(document, separators=(",", ":")).encode())


def error_event(error: TritonSamError) -> bytes:
    """The event for an error after the response has started."""
    return event(error_document(error))
