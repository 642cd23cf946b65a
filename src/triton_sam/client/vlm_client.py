"""TritonVLMClient and AsyncTritonVLMClient: ask a vision-language model about an image."""

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
from triton_sam.client.io_thread import IoThread
from triton_sam.client.link import retry_options
from triton_sam.client.sync_client import ImageLike
from triton_sam.client.vlm_calls import Answer, Entity, Prompt, collected, vlm_call
from triton_sam.core.images import file_bytes
from triton_sam.errors import InvalidInput, NotFound, ServerUnreachable
from triton_sam.models.vlm_specs import STREAM_SUFFIX
from triton_sam.settings import get_settings

__all__ = ["Answer", "AsyncTritonVLMClient", "Entity", "TritonVLMClient"]

Piece = Mapping[str, Any]


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
        call = await asyncio.to_thread(_call, model_name, image, prompt, options)
        async with contextlib.aclosing(self.pieces(call)) as pieces:
            return collected([piece async for piece in pieces])

    async def stream(
        self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any
    ) -> AsyncGenerator[str, None]:
        """The answer's text, piece by piece; leaving the loop early stops the generation on the server."""
        call = await asyncio.to_thread(_call, model_name, image, prompt, options)
        async with contextlib.aclosing(self.pieces(call)) as pieces:
            async for piece in pieces:
                if text := wire.text_of(piece, "generated_text"):
                    yield text

    async def pieces(self, call: wire.Call) -> AsyncGenerator[Piece, None]:
        """The server's answers to a call as they come; asked again while the model is busy or loads."""
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
            raise _broken_off()
        async with contextlib.aclosing(answers):
            yield last
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
        self._streams: set[asyncio.Task[Any]] = set()

    def infer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> str:
        """The whole text of an answer; arguments as in :meth:`AsyncTritonVLMClient.answer`."""
        return self.answer(model_name, image, prompt, **options).text

    def answer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Answer:
        """The whole answer and what is known about it."""
        return collected(list(self.pieces(_call(model_name, image, prompt, options))))

    def stream(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Iterator[str]:
        """The answer's text, piece by piece; closing the iterator early stops the generation on the server."""
        return _texts(self.pieces(_call(model_name, image, prompt, options)))

    def pieces(self, call: wire.Call) -> Generator[Piece, None, None]:
        """As :meth:`AsyncTritonVLMClient.pieces`."""
        if self._thread is None:
            raise InvalidInput("this client is closed: make a new one")
        return self._pieces(call, self._thread)

    def _pieces(self, call: wire.Call, thread: IoThread) -> Generator[Piece, None, None]:
        """One task on the other thread asks, reads and, whatever happens here, ends the stream in order."""
        news: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
        reading = thread.submit(self._read(call, news))
        try:
            while (piece := news.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            _cancel(reading)

    async def _read(self, call: wire.Call, news: queue.SimpleQueue[Piece | BaseException | None]) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine runs in one
        self._streams.add(task)
        try:
            async with contextlib.aclosing(self._client.pieces(call)) as pieces:
                async for piece in pieces:
                    news.put(piece)
            news.put(None)
        except asyncio.CancelledError:
            news.put(InvalidInput("this client was closed before the answer came: make a new one"))
            raise
        except BaseException as error:
            news.put(error)
        finally:
            self._streams.discard(task)

    def close(self) -> None:
        """Ends what is under way, closes the connection and its thread; does nothing the second time."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._shut()).result()
            thread.close()

    async def _shut(self) -> None:
        under_way = list(self._streams)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._client.close()

    def __enter__(self) -> TritonVLMClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _call(model_name: str, image: ImageLike, prompt: Prompt, options: Mapping[str, Any]) -> wire.Call:
    """Reads a file or writes a PNG, so asyncio does it on a thread."""
    return vlm_call(model_name, file_bytes(image), prompt, **options)


def _texts(pieces: Generator[Piece, None, None]) -> Generator[str, None, None]:
    with contextlib.closing(pieces):
        for piece in pieces:
            if text := wire.text_of(piece, "generated_text"):
                yield text


def _cancel(reading: concurrent.futures.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the client was closed meanwhile, and with it all that it read
        reading.cancel()


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
