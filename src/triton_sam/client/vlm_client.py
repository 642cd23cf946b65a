"""TritonVLMClient and AsyncTritonVLMClient: clients for vision-language models."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any

import tenacity

from triton_sam.client import wire
from triton_sam.client.async_transport import AsyncTransport, connect_async
from triton_sam.client.core import retry_pause
from triton_sam.client.io_thread import IoThread
from triton_sam.client.user_input import ImageLike
from triton_sam.client.vlm_calls import Answer, Entity, Prompt, collected, vlm_call
from triton_sam.core.images import file_bytes
from triton_sam.errors import InvalidInput, NotFound, ServerUnreachable, Unavailable
from triton_sam.models.vlm_specs import STREAM_SUFFIX
from triton_sam.settings import get_settings

__all__ = ["Answer", "AsyncTritonVLMClient", "Entity", "TritonVLMClient"]

Piece = Mapping[str, Any]


def retry_options(retries: int) -> dict[str, Any]:
    """tenacity's arguments for a server that is busy (UNAVAILABLE)."""
    return {
        "retry": tenacity.retry_if_exception_type(Unavailable),
        "stop": tenacity.stop_after_attempt(retries + 1),
        "wait": lambda state: retry_pause(state.attempt_number),
        "reraise": True,
    }


class AsyncTritonVLMClient:
    """The asyncio client. It belongs to the event loop on which it is first used; tasks may share it."""

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
            timeout: seconds until the first piece of an answer, and between two; includes the time a model loads.
            retries: how often a request is repeated if the server is busy (UNAVAILABLE), with growing pauses.
            headers: sent with every request, for example ``authorization``.
            transport: replaces the network, for tests.
        """
        if timeout <= 0 or retries < 0:
            raise InvalidInput("timeout must be above 0 and retries not below 0")
        self._transport = transport or connect_async(
            wire.Address.parse(url or get_settings().url), timeout, dict(headers or {})
        )
        self._retries = retry_options(retries)

    async def infer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> str:
        """The full text of an answer; arguments as in :meth:`answer`."""
        return (await self.answer(model_name, image, prompt, **options)).text

    async def answer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Answer:
        """The full answer, with finish reason, token counts and entities.

        Args:
            model_name: Triton name (``llava``), or a catalogue id (``vlm:llava``).
            image: a path, the bytes of an image file, [H,W(,3|4)] uint8 (RGB), or a Pillow image.
            prompt: a text, or a conversation that ends with the user.
            options: max_new_tokens, temperature (0: greedy), top_p, seed, stop (one or several texts before which the
                answer ends).
        """
        call = await asyncio.to_thread(_call, model_name, image, prompt, options)
        async with contextlib.aclosing(self.pieces(call)) as pieces:
            return collected([piece async for piece in pieces])

    async def stream(
        self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any
    ) -> AsyncGenerator[str, None]:
        """Yields the answer's text piece by piece; leaving the loop early stops the generation on the server."""
        call = await asyncio.to_thread(_call, model_name, image, prompt, options)
        async with contextlib.aclosing(self.pieces(call)) as pieces:
            async for piece in pieces:
                if text := wire.text_of(piece, "generated_text"):
                    yield text

    async def pieces(self, call: wire.Call) -> AsyncGenerator[Piece, None]:
        """Yields the server's responses to a call; the call is repeated while the model is busy or loading."""
        answers: AsyncGenerator[Piece, None] | None = None
        last: Piece | None = None
        try:
            async for attempt in tenacity.AsyncRetrying(**self._retries):
                with attempt:
                    answers = self._transport.stream(call)
                    last = await anext(answers, None)
        except NotFound as error:
            raise _not_served(call, error) from None
        if answers is None or last is None:
            raise _incomplete()
        async with contextlib.aclosing(answers):
            yield last
            async for last in answers:
                yield last
        if not wire.text_of(last, "finish_reason"):
            raise _incomplete()

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
    """The blocking client. Threads may share it; its connection runs on a background thread."""

    def __init__(self, url: str | None = None, **options: Any) -> None:
        """Arguments as in :class:`AsyncTritonVLMClient`."""
        self._client = AsyncTritonVLMClient(url, **options)
        self._thread: IoThread | None = IoThread("triton-sam-vlm")
        self._streams: set[asyncio.Task[Any]] = set()

    def infer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> str:
        """The full text of an answer; arguments as in :meth:`AsyncTritonVLMClient.answer`."""
        return self.answer(model_name, image, prompt, **options).text

    def answer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Answer:
        """The full answer; arguments as in :meth:`AsyncTritonVLMClient.answer`."""
        return collected(list(self.pieces(_call(model_name, image, prompt, options))))

    def stream(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Iterator[str]:
        """Yields the answer's text piece by piece; closing the iterator early stops the generation on the server."""
        return _texts(self.pieces(_call(model_name, image, prompt, options)))

    def pieces(self, call: wire.Call) -> Generator[Piece, None, None]:
        """As :meth:`AsyncTritonVLMClient.pieces`."""
        if self._thread is None:
            raise InvalidInput("the client is closed: make a new one")
        return self._pieces(call, self._thread)

    def _pieces(self, call: wire.Call, thread: IoThread) -> Generator[Piece, None, None]:
        """Reads the stream in one task on the background thread, which also closes it properly in all cases."""
        received: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
        reading = thread.submit(self._read(call, received))
        try:
            while (piece := received.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            _cancel(reading)

    async def _read(self, call: wire.Call, received: queue.SimpleQueue[Piece | BaseException | None]) -> None:
        task = asyncio.current_task()
        assert task is not None  # this coroutine runs as a task
        self._streams.add(task)
        try:
            async with contextlib.aclosing(self._client.pieces(call)) as pieces:
                async for piece in pieces:
                    received.put(piece)
            received.put(None)
        except asyncio.CancelledError:
            received.put(InvalidInput("the client was closed before the answer was complete: make a new one"))
            raise
        except BaseException as error:
            received.put(error)
        finally:
            self._streams.discard(task)

    def close(self) -> None:
        """Ends running streams, closes the connection and its thread; may be called twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._close_streams()).result()
            thread.close()

    async def _close_streams(self) -> None:
        streams = list(self._streams)
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await self._client.close()

    def __enter__(self) -> TritonVLMClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _call(model_name: str, image: ImageLike, prompt: Prompt, options: Mapping[str, Any]) -> wire.Call:
    """Reads a file or encodes a PNG, so the asyncio client runs it on a thread."""
    return vlm_call(model_name, file_bytes(image), prompt, **options)


def _texts(pieces: Generator[Piece, None, None]) -> Generator[str, None, None]:
    with contextlib.closing(pieces):
        for piece in pieces:
            if text := wire.text_of(piece, "generated_text"):
                yield text


def _cancel(reading: concurrent.futures.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the client was closed meanwhile, which has ended the stream
        reading.cancel()


def _not_served(call: wire.Call, error: NotFound) -> NotFound:
    """A message with the remedy if the server does not serve the model; any other NotFound as it is."""
    name = call.model.removesuffix(STREAM_SUFFIX)
    if call.model not in str(error):
        return error
    return NotFound(
        f"this server does not serve {name}: run `triton-sam setup vlm:{name}` and `triton-sam serve` there, or choose "
        "a model that it serves"
    )


def _incomplete() -> ServerUnreachable:
    return ServerUnreachable("the connection ended before the answer was complete: try again")
