"""TritonVLMClient and AsyncTritonVLMClient: ask a vision-language model about an image."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import tenacity

from triton_sam import wire
from triton_sam.async_transport import AsyncTransport, connect_async
from triton_sam.client import ImageLike
from triton_sam.errors import InvalidInput, NotFound, ServerUnreachable
from triton_sam.images import file_bytes
from triton_sam.io_thread import IoThread
from triton_sam.link import retry_options
from triton_sam.settings import get_settings
from triton_sam.vlm_specs import STREAM_SUFFIX

#: What is asked: a text, or a conversation ``[{"role": "user", "content": "..."}, ...]`` that ends with the user.
Prompt = str | Sequence[Mapping[str, str]]
_T = TypeVar("_T")
_OUTPUTS = ("generated_text", "finish_reason", "usage_json", "entities_json")


@dataclass(frozen=True, slots=True)
class Entity:
    """A phrase of an answer, and where the image has it.

    Attributes:
        span: (start, end) of the phrase in the answer's text; None where it stands in the question.
        boxes: x0, y0, x1, y1 of each place in original pixels.
    """

    phrase: str
    span: tuple[int, int] | None
    boxes: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said.

    Attributes:
        finish_reason: ``stop`` where it came to its end, ``length`` where it was cut at max_new_tokens.
        entities: of models that ground their phrases, such as kosmos2.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    entities: tuple[Entity, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class AsyncTritonVLMClient:
    """The asyncio client. Belongs to the event loop on which it is first used; any number of tasks may share it."""

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: float = 300.0,
        retries: int = 4,
        headers: Mapping[str, str] | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        """
        Args:
            url: ``localhost:8000`` (HTTP), ``https://host`` or ``grpc://host:8001``; default TRITON_URL, then
                localhost:8000.
            timeout: seconds until the first piece of an answer, and between two; a model that is loading counts.
            retries: how often a busy server (UNAVAILABLE) is asked again, with growing pauses.
            headers: sent with every request, for example an authorisation.
            transport: takes the place of the network, for tests.
        """
        if timeout <= 0 or retries < 0:
            raise InvalidInput("timeout must be above 0 and retries not below 0")
        self._transport = transport or connect_async(
            wire.Address.parse(url or get_settings().url), timeout, dict(headers or {})
        )
        self._retries = retry_options(retries)

    async def infer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> str:
        """The whole text of an answer; arguments as in :meth:`answer`."""
        return (await self.answer(model_name, image, prompt, **options)).text

    async def answer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Answer:
        """The whole answer and what is known about it.

        Args:
            model_name: as the server calls it (``llava``), or a catalogue id (``vlm:llava``).
            image: a path, the bytes of an image file, [H,W(,3|4)] uint8 (RGB), or a Pillow image.
            prompt: a question, or a conversation that ends with one.
            options: max_new_tokens, temperature (0: always the likeliest word), top_p, seed, stop (one or several
                texts before which the answer ends).
        """
        return await collect(self.pieces(vlm_call(model_name, image, prompt, **options)))

    async def stream(
        self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any
    ) -> AsyncGenerator[str, None]:
        """The answer's text, piece by piece; leaving the loop early stops the generation on the server."""
        pieces = self.pieces(vlm_call(model_name, image, prompt, **options))
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if piece.get("generated_text") is not None and (text := wire.text_of(piece, "generated_text")):
                    yield text

    async def pieces(self, call: wire.Call) -> AsyncGenerator[Mapping[str, Any], None]:
        """The server's answers to a call as they come; asked again while the model is busy or loads."""
        answers: AsyncGenerator[Mapping[str, Any], None] | None = None
        first: Mapping[str, Any] | None = None
        try:
            async for attempt in tenacity.AsyncRetrying(**self._retries):
                with attempt:
                    answers = self._transport.stream(call)
                    first = await anext(answers, None)
        except NotFound as error:
            raise _not_served(call, error) from None
        if answers is None or first is None:
            raise _broken_off()
        last = first
        async with contextlib.aclosing(answers):
            yield first
            async for last in answers:
                yield last
        if not wire.text_of(last, "finish_reason"):
            raise _broken_off()

    async def close(self) -> None:
        """Closes the connection."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncTritonVLMClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class TritonVLMClient:
    """The blocking client; threads may share it. Its connection lives on a thread of its own."""

    def __init__(self, url: str | None = None, **options: Any) -> None:
        """Arguments as of :class:`AsyncTritonVLMClient`."""
        self._client = AsyncTritonVLMClient(url, **options)
        self._thread: IoThread | None = IoThread("triton-sam-vlm")

    def infer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> str:
        """The whole text of an answer; arguments as in :meth:`AsyncTritonVLMClient.answer`."""
        return self.answer(model_name, image, prompt, **options).text

    def answer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Answer:
        """The whole answer and what is known about it."""
        call = vlm_call(model_name, image, prompt, **options)
        return _result(self._io.submit(collect(self._client.pieces(call))))

    def stream(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Iterator[str]:
        """The answer's text, piece by piece; closing the iterator early stops the generation on the server."""
        for piece in self.pieces(vlm_call(model_name, image, prompt, **options)):
            if text := wire.text_of(piece, "generated_text"):
                yield text

    def pieces(self, call: wire.Call) -> Iterator[Mapping[str, Any]]:
        """As :meth:`AsyncTritonVLMClient.pieces`."""
        pieces = self._client.pieces(call)
        try:
            while (piece := _result(self._io.submit(_next(pieces)))) is not None:
                yield piece
        finally:
            _result(self._io.submit(pieces.aclose()))

    def close(self) -> None:
        """Closes the connection and ends its thread; does nothing the second time."""
        thread, self._thread = self._thread, None
        if thread is not None:
            _result(thread.submit(self._client.close()))
            thread.close()

    @property
    def _io(self) -> IoThread:
        if self._thread is None:
            raise InvalidInput("this client is closed: make a new one")
        return self._thread

    def __enter__(self) -> TritonVLMClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def vlm_call(
    model_name: str,
    image: ImageLike,
    prompt: Prompt,
    *,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
) -> wire.Call:
    """A question as Triton takes it; what is left out, the server chooses."""
    inputs = wire.image_inputs(file_bytes(image))
    if isinstance(prompt, str):
        inputs["prompt"] = wire.text_tensor(prompt)
    else:
        inputs["messages_json"] = wire.text_tensor(json.dumps([dict(message) for message in prompt]))
    numbers = {
        "max_new_tokens": (max_new_tokens, np.int32),
        "temperature": (temperature, np.float32),
        "top_p": (top_p, np.float32),
        "seed": (seed, np.int64),
    }
    for name, (value, kind) in numbers.items():
        if value is not None:
            try:
                inputs[name] = np.array([value]).astype(kind, casting="same_kind")
            except (TypeError, ValueError, OverflowError):
                raise InvalidInput(f"{name} is a number, not {value!r}") from None
    if stop:
        texts = [stop] if isinstance(stop, str) else list(stop)
        inputs["stop"] = np.array([text.encode() for text in texts], dtype=object)
    return wire.Call(model_name.removeprefix("vlm:") + STREAM_SUFFIX, inputs, _OUTPUTS)


async def collect(pieces: AsyncGenerator[Mapping[str, Any], None]) -> Answer:
    """A stream's pieces as one answer."""
    async with contextlib.aclosing(pieces):
        return collected([piece async for piece in pieces])


def collected(pieces: Sequence[Mapping[str, Any]]) -> Answer:
    """All pieces of a stream as one answer."""
    last = pieces[-1]
    usage = json.loads(wire.text_of(last, "usage_json")) if "usage_json" in last else {}
    found = json.loads(wire.text_of(last, "entities_json")) if "entities_json" in last else []
    return Answer(
        "".join(wire.text_of(piece, "generated_text") for piece in pieces),
        wire.text_of(last, "finish_reason"),
        int(usage.get("prompt_tokens", 0)),
        int(usage.get("completion_tokens", 0)),
        tuple(_entity(entry) for entry in found),
    )


def _entity(entry: Mapping[str, Any]) -> Entity:
    span = None if entry["start"] is None else (int(entry["start"]), int(entry["end"]))
    boxes = tuple((float(x0), float(y0), float(x1), float(y1)) for x0, y0, x1, y1 in entry["boxes"])
    return Entity(str(entry["phrase"]), span, boxes)


def _not_served(call: wire.Call, error: NotFound) -> NotFound:
    """The mend for a model that the server does not know; its own sentence where it is about something else."""
    name = call.model.removesuffix(STREAM_SUFFIX)
    if call.model not in str(error):
        return error
    return NotFound(
        f"this server does not serve {name}: run `triton-sam setup vlm:{name}` and `triton-sam serve` there, or name a "
        "model that it serves"
    )


def _broken_off() -> ServerUnreachable:
    return ServerUnreachable("the server broke off before the end of its answer: ask again")


async def _next(pieces: AsyncGenerator[Mapping[str, Any], None]) -> Mapping[str, Any] | None:
    return await anext(pieces, None)


def _result(future: concurrent.futures.Future[_T]) -> _T:
    """What another thread's coroutine gives; an interrupted wait ends it before anything else happens to it."""
    try:
        return future.result()
    except (KeyboardInterrupt, SystemExit):
        future.cancel()
        with contextlib.suppress(BaseException):
            future.exception(timeout=5)
        raise
