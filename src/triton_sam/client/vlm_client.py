"""TritonVLMClient and AsyncTritonVLMClient: clients for vision-language models."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import queue
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import tenacity

from triton_sam.client import wire
from triton_sam.client.async_transport import AsyncTransport
from triton_sam.client.cleanup import Cleanup
from triton_sam.client.core import not_served, pause_after, retry_pause
from triton_sam.client.endpoint import Endpoint
from triton_sam.client.io_thread import IoThread
from triton_sam.client.transport import Transport
from triton_sam.client.user_input import ImageLike
from triton_sam.client.vlm_calls import Answer, Entity, Prompt, Region, collected, vlm_call
from triton_sam.client.vlm_ground import Clean, Grounded, GroundRequest, RegionSegmenter, read_grounded
from triton_sam.core.images import file_bytes
from triton_sam.errors import InvalidInput, NotFound, ServerUnreachable, Unavailable
from triton_sam.models.vlm_specs import STREAM_SUFFIX

__all__ = ["Answer", "AsyncTritonVLMClient", "Entity", "Grounded", "Region", "TritonVLMClient"]

T = TypeVar("T")
Piece = Mapping[str, Any]
_OPTIONS = frozenset({"max_new_tokens", "temperature", "top_p", "seed", "stop"})


def retry_options(retries: int, longest_wait: float = math.inf) -> dict[str, Any]:
    """tenacity's arguments for a server that is busy (UNAVAILABLE).

    Args:
        longest_wait: seconds that all pauses together may take if the server says how long to wait.
    """

    def stop(state: tenacity.RetryCallState) -> bool:
        error = _failure(state)
        asked = error is not None and error.retry_after is not None
        late = asked and state.idle_for + wait(state) > longest_wait
        return state.attempt_number > retries or late

    def wait(state: tenacity.RetryCallState) -> float:
        error = _failure(state)
        return retry_pause(state.attempt_number) if error is None else pause_after(error, state.attempt_number)

    return {"retry": tenacity.retry_if_exception_type(Unavailable), "stop": stop, "wait": wait, "reraise": True}


def _failure(state: tenacity.RetryCallState) -> Unavailable | None:
    error = None if state.outcome is None else state.outcome.exception()
    return error if isinstance(error, Unavailable) else None


class AsyncTritonVLMClient:
    """The asyncio client. It belongs to the event loop on which it is first used; tasks may share it."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 300.0,
        retries: int = 4,
        headers: Mapping[str, str] | None = None,
        transport: AsyncTransport | None = None,
        blocking_transport: Transport | None = None,
    ) -> None:
        """
        Args:
            url: Triton's ``localhost:8000`` (HTTP), ``https://host`` or ``grpc://host:8001``, or the service's
                ``http://host:8080`` or ``https://host``; default TRITON_URL, then localhost:8000.
            token: API token of the service; default TRITON_SAM_TOKEN.
            timeout: seconds until the first piece of an answer, and between two; includes the time a model loads.
            retries: how often a request is repeated if the server is busy (UNAVAILABLE), with growing pauses.
            headers: sent with every request, for example ``authorization``.
            transport, blocking_transport: replace the network, for tests.
        """
        if timeout <= 0 or retries < 0:
            raise InvalidInput("timeout must be above 0 and retries not below 0")
        endpoint = Endpoint(url, timeout, headers, token)
        self._served = list if transport else endpoint.served_vlms
        self._headers = endpoint.headers
        self._transport = transport or endpoint.async_transport()
        self._is_service = (lambda: False) if transport else endpoint.is_service
        self._segmenters = RegionSegmenter(
            lambda: blocking_transport or endpoint.transport(),
            retries=retries,
            longest_wait=timeout,
            headers=self._headers,
        )
        self._retries = retry_options(retries, timeout)
        self._closed = False

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

    # Many parameters: options that users set one by one.
    async def ground(
        self,
        model_name: str,
        image: ImageLike,
        question: str,
        *,
        task: str = "ground",
        segmenter: str | None = None,
        max_regions: int | None = None,
        clean: Clean = None,
    ) -> Grounded:
        """Masks of what a question asks for: the model gives boxes or points, which a segmenter gets as prompts.

        Args:
            model_name, image: as in :meth:`answer`; only some models know where things are.
            question: for the tasks detect and point, the name of an object.
            task: ground: the regions of what is asked for, as the model finds them best; detect: boxes; point: points.
            segmenter: Triton name or catalogue id of a segmenter on the same server; default: sam2, or the service's.
            max_regions: of many regions the first ones are segmented; default: as many as the server takes at once.
            clean: as in :meth:`SAM2TritonClient.segment`.
        """
        if self._closed:
            raise _closed()
        request = await asyncio.to_thread(
            GroundRequest.of, model_name, image, question, task, segmenter, max_regions, clean
        )
        if not await asyncio.to_thread(self._is_service):
            async with contextlib.aclosing(self.pieces(request.to_model())) as pieces:
                answer = collected([piece async for piece in pieces])
            return await asyncio.to_thread(self._segmenters.grounded, request, answer)
        async for attempt in tenacity.AsyncRetrying(**self._retries):
            with attempt:
                outputs = await self._transport.infer(request.to_service(self._headers))
        return await asyncio.to_thread(read_grounded, outputs)

    async def pieces(self, call: wire.Call) -> AsyncGenerator[Piece, None]:
        """Yields the server's responses to a call; the call is repeated while the model is busy or loading."""
        if self._closed:
            raise _closed()
        answers: AsyncGenerator[Piece, None] | None = None
        last: Piece | None = None
        try:
            async for attempt in tenacity.AsyncRetrying(**self._retries):
                with attempt:
                    answers = self._transport.stream(call)
                    last = await anext(answers, None)
        except NotFound as error:
            raise await self._not_served(call, error) from None
        if answers is None or last is None:
            raise _incomplete()
        async with contextlib.aclosing(answers):
            yield last
            async for last in answers:
                yield last
        if not wire.text_of(last, "finish_reason"):
            raise _incomplete()

    async def _not_served(self, call: wire.Call, error: NotFound) -> NotFound:
        """A message with the remedy if the server does not serve the model; any other NotFound as it is."""
        if call.model not in str(error):
            return error
        name = call.model.removesuffix(STREAM_SUFFIX)
        return NotFound(not_served(name, await asyncio.to_thread(self._served), f"vlm:{name}"))

    async def close(self) -> None:
        """Closes the connection; the client cannot be used any more."""
        self._closed = True
        await self._transport.close()
        self._segmenters.close()

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
        self._thread = IoThread("triton-sam-vlm")
        self._streams: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._cleanup = Cleanup(self, partial(_shut_down, self._client, self._thread, self._streams))

    def infer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> str:
        """The full text of an answer; arguments as in :meth:`AsyncTritonVLMClient.answer`."""
        return self.answer(model_name, image, prompt, **options).text

    def answer(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Answer:
        """The full answer; arguments as in :meth:`AsyncTritonVLMClient.answer`."""
        return collected(list(self.pieces(_call(model_name, image, prompt, options))))

    def stream(self, model_name: str, image: ImageLike, prompt: Prompt, **options: Any) -> Iterator[str]:
        """Yields the answer's text piece by piece; closing the iterator early stops the generation on the server."""
        return _texts(self.pieces(_call(model_name, image, prompt, options)))

    def ground(self, model_name: str, image: ImageLike, question: str, **options: Any) -> Grounded:
        """Masks of what a question asks for; arguments as in :meth:`AsyncTritonVLMClient.ground`."""
        if self._closed:
            raise _closed()
        running = self._thread.submit(self._tracked(self._client.ground(model_name, image, question, **options)))
        try:
            return running.result()
        except concurrent.futures.CancelledError:
            raise _closed_meanwhile() from None
        finally:
            _cancel(running)

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work that ends when the client is closed."""
        task = asyncio.current_task()
        assert task is not None  # this coroutine runs as a task
        self._streams.add(task)
        try:
            return await work
        finally:
            self._streams.discard(task)

    def pieces(self, call: wire.Call) -> Generator[Piece, None, None]:
        """As :meth:`AsyncTritonVLMClient.pieces`."""
        if self._closed:
            raise _closed()
        return self._pieces(call)

    def _pieces(self, call: wire.Call) -> Generator[Piece, None, None]:
        """Reads the stream in one task on the background thread, which also closes it properly in all cases."""
        received: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
        reading = self._thread.submit(self._read(call, received))
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
            received.put(_closed_meanwhile())
            raise
        except BaseException as error:
            received.put(error)
        finally:
            self._streams.discard(task)

    def close(self) -> None:
        """Ends running streams, closes the connection and its thread; may be called twice."""
        self._closed = True
        self._cleanup()

    def __enter__(self) -> TritonVLMClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _shut_down(client: AsyncTritonVLMClient, thread: IoThread, streams: set[asyncio.Task[Any]]) -> None:
    async def close() -> None:
        running = list(streams)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await client.close()

    thread.submit(close()).result()
    thread.close()


def _closed_meanwhile() -> InvalidInput:
    return InvalidInput("the client was closed before the answer was complete: make a new one")


def _closed() -> InvalidInput:
    return InvalidInput("the client is closed: make a new one")


def _call(model_name: str, image: ImageLike, prompt: Prompt, options: Mapping[str, Any]) -> wire.Call:
    """Reads a file or encodes a PNG, so the asyncio client runs it on a thread."""
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is not an option: give {', '.join(sorted(_OPTIONS))}, or none")
    return vlm_call(model_name, file_bytes(image), prompt, **options)


def _texts(pieces: Generator[Piece, None, None]) -> Generator[str, None, None]:
    with contextlib.closing(pieces):
        for piece in pieces:
            if text := wire.text_of(piece, "generated_text"):
                yield text


def _cancel(reading: concurrent.futures.Future[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the client was closed meanwhile, which has ended the stream
        reading.cancel()


def _incomplete() -> ServerUnreachable:
    return ServerUnreachable("the connection ended before the answer was complete: try again")
