"""Asyncio transports, HTTP and gRPC: send a :class:`~.wire.Call`, return arrays or raise triton_sam.errors.

A connection belongs to the event loop on which it is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

import numpy.typing as npt

from triton_sam.client.http_connection import tls_context
from triton_sam.client.run_progress import followed, is_run
from triton_sam.client.transport import grpc_options, output_arrays, request_tensors
from triton_sam.client.wire import (
    Address,
    Call,
    OnMessage,
    Outputs,
    event_data,
    foreign_response,
    generate_document,
    generated_outputs,
    translate_error,
    translate_stream_error,
)
from triton_sam.errors import InternalError, ServerUnreachable

if TYPE_CHECKING:
    import aiohttp

_TLS_CLOSE_SECONDS = 0.25
#: Triton 25.06. In older ones a native cancel that coincides with the end of its request can end the whole server.
_NATIVE_CANCEL_SINCE = (2, 59)
_HEADER_LENGTH = "Inference-Header-Content-Length"
_LARGE_BODY = 2**19
_VERSION_SECONDS = 5.0
#: How long to read the rest of a stream after its cancel.
_DRAIN_SECONDS = 10.0
_T = TypeVar("_T")


class AsyncTransport(Protocol):
    """What a dispatcher needs from a connection; unit tests provide their own."""

    async def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]: ...

    def stream(self, call: Call) -> AsyncGenerator[Mapping[str, npt.NDArray[Any]], None]:
        """The responses of a model that sends several, or the progress of a segmenter and its answer.

        Closing the generator early cancels the request on the server.

        The connection's timeout applies to each response.
        """

    async def can_cancel_natively(self) -> bool:
        """Whether cancelling the task of :meth:`infer` reaches the server, and the server survives it."""

    async def close(self) -> None: ...


class HttpAsyncTransport:
    """tritonclient's requests and responses over aiohttp.

    Not tritonclient's own aiohttp client: that sends a body in one piece, and a large image would block the loop.
    """

    def __init__(self, address: Address, timeout: float, headers: Mapping[str, str]) -> None:
        self._address = address
        self._base = f"{'https' if address.tls else 'http'}://{address.target}"
        self._timeout = timeout
        # aiohttp accepts compression by default, and Triton would spend more time on it than on the mask.
        self._headers = {"Accept-Encoding": "identity", **headers}
        self._session: Any = None

    def _connected(self) -> Any:
        if self._session is None:
            self._session = open_session(self._address, self._timeout)
        return self._session

    async def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        import tritonclient.http as http

        def write() -> tuple[bytes, int | None]:
            outputs = [http.InferRequestedOutput(name) for name in call.outputs]
            body, header_length = http.InferenceServerClient.generate_request_body(
                request_tensors(http, call),
                outputs=outputs,
                request_id=call.request_id,
                parameters=dict(call.parameters),
            )
            return body, header_length

        def read(received: bytes, header_length: int | None) -> dict[str, npt.NDArray[Any]]:
            try:
                result = http.InferenceServerClient.parse_response_body(received, header_length=header_length)
                return output_arrays(result, call)
            except Exception as error:
                raise InternalError(f"the server's response cannot be read ({type(error).__name__})") from error

        try:
            body, header_length = await _by_size(call, write)
            path = f"/v2/models/{quote(call.model)}/infer"
            return read(*await self._post(path, body, header_length, call))
        except asyncio.TimeoutError as error:
            raise translate_error(TimeoutError(), self._address.target) from error
        except Exception as error:
            raise translate_error(error, self._address.target) from error

    async def _post(self, path: str, body: bytes, header_length: int | None, call: Call) -> tuple[bytes, int | None]:
        """(body of the response, length of its JSON part); tritonclient's exception for a status other than 200."""
        import aiohttp

        headers = {**self._headers, **call.headers}
        limits = {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=self._timeout)} if is_run(call) else {}
        if header_length is not None:
            headers[_HEADER_LENGTH] = str(header_length)
        data = io.BytesIO(body) if len(body) > _LARGE_BODY else body
        async with self._connected().post(self._base + path, data=data, headers=headers, **limits) as response:
            received = await response.read()
            if response.status != HTTPStatus.OK:
                raise _status_error(response.status, received, self._address)
            length = response.headers.get(_HEADER_LENGTH)
        return received, None if length is None else int(length)

    def stream(self, call: Call) -> AsyncGenerator[Outputs, None]:
        return followed(self.infer, call) if "prompt_json" in call.inputs else self._pieces(call)

    async def _pieces(self, call: Call) -> AsyncGenerator[Outputs, None]:
        import aiohttp

        path = f"/v2/models/{quote(call.model)}/generate_stream"
        headers = {**self._headers, **call.headers}
        timeouts = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=self._timeout)
        explain = translate_error
        try:
            body = await _by_size(call, lambda: json.dumps(generate_document(call)).encode())
            data = io.BytesIO(body) if len(body) > _LARGE_BODY else body
            async with self._connected().post(
                self._base + path, data=data, headers=headers, timeout=timeouts
            ) as response:
                if response.status != HTTPStatus.OK:
                    received = await response.read()
                    raise _status_error(response.status, event_data(received) or received, self._address)
                async for line in lines_of(response.content):
                    event = event_data(line)
                    if event is not None:
                        yield generated_outputs(event, call)
                        explain = translate_stream_error
        except asyncio.TimeoutError as error:
            raise translate_error(TimeoutError(), self._address.target) from error
        except Exception as error:
            raise explain(error, self._address.target) from error

    async def can_cancel_natively(self) -> bool:
        return False  # Triton notices a disconnected HTTP client only while it sends a stream

    async def close(self) -> None:
        if self._session is not None:
            await close_session(self._session, self._address)


def open_session(address: Address, timeout: float) -> aiohttp.ClientSession:
    """aiohttp's session for an address; inside an event loop."""
    import aiohttp

    # No limit on connections: the dispatcher has one, and a cancel must never wait for the request it cancels.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls_context() if address.tls else True),
        timeout=aiohttp.ClientTimeout(total=timeout),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def close_session(session: aiohttp.ClientSession, address: Address) -> None:
    """Closes aiohttp's session, and lets the event loop close its sockets.

    aiohttp does not wait for these: a plain socket is closed in the loop's next turn, one with TLS after a last
    exchange with the server, for which aiohttp's documentation has this pause.
    """
    await session.close()
    await asyncio.sleep(_TLS_CLOSE_SECONDS if address.tls else 0)


def _status_error(status: int, body: bytes, address: Address) -> Exception:
    """tritonclient's exception for an error response of Triton, or this package's for one of another program."""
    from tritonclient.utils import InferenceServerException

    try:
        message = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError):
        return foreign_response(status, body, address.target)
    error: Exception = InferenceServerException(str(message), status=str(status))
    return error


class GrpcAsyncTransport:
    """tritonclient's grpc.aio client."""

    def __init__(self, address: Address, timeout: float, headers: Mapping[str, str]) -> None:
        self._address = address
        self._timeout = timeout
        self._headers = dict(headers)
        self._client: Any = None
        self._can_cancel: asyncio.Task[bool | None] | None = None
        self._draining: set[asyncio.Task[None]] = set()

    def _connected(self) -> Any:
        if self._client is None:
            import tritonclient.grpc.aio as grpc

            self._client = grpc.InferenceServerClient(
                self._address.target, ssl=self._address.tls, channel_args=grpc_options(self._address)
            )
        return self._client

    async def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        import tritonclient.grpc.aio as grpc

        try:
            tensors = await _by_size(call, lambda: request_tensors(grpc, call))
            result = await self._connected().infer(
                call.model,
                tensors,
                outputs=[grpc.InferRequestedOutput(name) for name in call.outputs],
                headers={**self._headers, **call.headers},
                client_timeout=None if is_run(call) else self._timeout,
                request_id=call.request_id,
                parameters=dict(call.parameters),
            )
            return output_arrays(result, call)
        except Exception as error:
            raise translate_error(error, self._address.target) from error

    def stream(self, call: Call) -> AsyncGenerator[Outputs, None]:
        return followed(self.infer, call) if "prompt_json" in call.inputs else self._pieces(call)

    async def _pieces(self, call: Call) -> AsyncGenerator[Outputs, None]:
        import tritonclient.grpc.aio as grpc

        try:
            tensors = await _by_size(call, lambda: request_tensors(grpc, call))
        except Exception as error:
            raise translate_error(error, self._address.target) from error
        requests = _StreamRequests(call, tensors)
        responses = self._connected().stream_infer(requests.messages(), headers={**self._headers, **call.headers})
        finished = False
        explain = translate_error
        reading: asyncio.Future[Any] | None = None
        try:
            while not finished:
                # Cancelling a read, by a timeout or with its task, would cancel the call natively.
                reading = asyncio.ensure_future(anext(responses, None))
                done, _ = await asyncio.wait([reading], timeout=self._timeout)
                if not done:
                    raise TimeoutError
                received, reading = reading.result(), None
                if received is None:
                    return
                result, failure = received
                if failure is not None:
                    raise failure
                finished = result.get_response().parameters["triton_final_response"].bool_param
                outputs = output_arrays(result, call)
                if outputs:
                    yield outputs
                    explain = translate_stream_error
        except Exception as error:
            finished = not isinstance(error, TimeoutError)
            raise explain(error, self._address.target) from error
        finally:
            requests.end(cancel=not finished)
            task = asyncio.create_task(self._drain(responses, reading, cancelled=not finished))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)

    async def _drain(self, responses: Any, reading: asyncio.Future[Any] | None, *, cancelled: bool) -> None:
        """Reads the rest of a stream, because dropping it would cancel it natively; see can_cancel_natively."""

        async def read_on() -> None:
            if reading is not None:
                await reading
            async for _ in responses:
                pass

        with contextlib.suppress(Exception):
            if cancelled and await self.can_cancel_natively():
                responses.cancel()
            await asyncio.wait_for(read_on(), _DRAIN_SECONDS)

    async def can_cancel_natively(self) -> bool:
        if self._can_cancel is None:
            self._can_cancel = asyncio.create_task(self._read_version())
        survives = await asyncio.shield(self._can_cancel)
        if survives is None:  # unknown: do not cancel natively, and ask again next time
            self._can_cancel = None
        return bool(survives)

    async def _read_version(self) -> bool | None:
        """Whether the server survives a native cancel; None if its version cannot be read."""
        try:
            metadata = await self._connected().get_server_metadata(
                headers=self._headers, client_timeout=min(self._timeout, _VERSION_SECONDS)
            )
        except Exception:
            return None
        return survives_native_cancel(str(metadata.version))

    async def close(self) -> None:
        await asyncio.gather(*self._draining)
        if self._client is not None:
            await self._client.close()


class _StreamRequests:
    """The messages that one stream sends: the request and, if its caller stops early, a cancel."""

    def __init__(self, call: Call, tensors: list[Any]) -> None:
        self._call, self._tensors = call, tensors
        self._ended = asyncio.Event()
        self._cancel = False

    def end(self, *, cancel: bool) -> None:
        self._cancel = cancel
        self._ended.set()

    async def messages(self) -> AsyncGenerator[dict[str, Any], None]:
        ticket = uuid.uuid4().hex
        yield {
            "model_name": self._call.model,
            "inputs": self._tensors,  # and no outputs: the model may have fewer than the caller knows
            "request_id": self._call.request_id or ticket,
            "parameters": {**self._call.parameters, "ticket": ticket},
            "enable_empty_final_response": True,
        }
        await self._ended.wait()
        if self._cancel:
            yield {"model_name": self._call.model, "inputs": [], "parameters": {"cancel": ticket}}


async def lines_of(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """The lines of a response as they arrive. aiohttp's own loop refuses long ones: an event may have megabytes."""
    parts: list[bytes] = []
    async for received in content.iter_any():
        *complete, rest = received.split(b"\n")
        for line in complete:
            yield b"".join((*parts, line))
            parts.clear()
        if rest:
            parts.append(rest)
    if parts:
        yield b"".join(parts)


async def last_message(transport: AsyncTransport, call: Call, on_message: OnMessage) -> Outputs:
    """Sends a call and follows it; returns the last message.

    Args:
        on_message: called with every message, also with the last one.
    """
    last: Outputs | None = None
    async with contextlib.aclosing(transport.stream(call)) as messages:
        async for last in messages:
            on_message(last)
    if last is None:
        raise ServerUnreachable("the server ended the response before its first message: try again")
    return last


async def _by_size(call: Call, action: Callable[[], _T]) -> _T:
    """The result of ``action``, which copies the call's inputs: on a thread if they are large."""
    size = sum(array.nbytes for array in call.inputs.values())
    return await asyncio.to_thread(action) if size > _LARGE_BODY else action()


def survives_native_cancel(version: str) -> bool:
    """Whether a server of this version (``2.59.0``) survives a native cancel; False if it cannot be parsed."""
    parts = version.split(".")
    try:
        return (int(parts[0]), int(parts[1])) >= _NATIVE_CANCEL_SINCE
    except (ValueError, IndexError):
        return False


def connect_async(address: Address, timeout: float, headers: Mapping[str, str]) -> AsyncTransport:
    """The transport for an address; nothing is sent yet."""
    return (GrpcAsyncTransport if address.grpc else HttpAsyncTransport)(address, timeout, headers)
