"""The asyncio transport through the triton-sam service, instead of Triton itself.

Hovers use the service's WebSocket, which keeps their order; everything else uses plain requests. The service drops a
request whose connection is closed, so cancelling means closing it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import numpy.typing as npt

from triton_sam.client import service_calls
from triton_sam.client.async_transport import close_session, lines_of, open_session
from triton_sam.client.hover_socket import HoverSockets, SocketLost
from triton_sam.client.service_calls import ServiceRequest
from triton_sam.client.service_chat import ChatPieces, chat_request
from triton_sam.client.service_errors import error_of
from triton_sam.client.wire import (
    IMAGE_HEADER,
    IMAGE_SESSION,
    Address,
    Call,
    event_data,
    translate_error,
    translate_stream_error,
)
from triton_sam.errors import Cancelled, TritonSamError

Outputs = Mapping[str, npt.NDArray[Any]]
_LARGE_BODY = 2**19
_DROPPED = "the request was cancelled before its response arrived"


@dataclass(eq=False, slots=True)
class _InFlight:
    """A request that has no response yet."""

    call: Call
    task: asyncio.Task[Any]
    dropped: bool = False

    def is_meant_by(self, cancel: Call) -> bool:
        numbers, wanted = self.call.parameters, cancel.parameters
        if numbers.get("session_id") != wanted["session_id"]:
            return False
        if self.call.headers.get(IMAGE_HEADER) != cancel.headers.get(IMAGE_HEADER):
            return False
        sequence = int(numbers.get("sequence", 0))
        return sequence == wanted["only"] if "only" in wanted else sequence < int(wanted.get("before", sequence + 1))


class ServiceAsyncTransport:
    """Sends calls to the service's routes over aiohttp."""

    def __init__(self, address: Address, timeout: float, headers: Mapping[str, str]) -> None:
        self._address = address
        self._base = f"{'https' if address.tls else 'http'}://{address.target}"
        self._timeout = timeout
        self._headers = {"Accept-Encoding": "identity", **headers}
        self._has_token = "authorization" in {name.lower() for name in headers}
        self._session: Any = None
        self._sockets = HoverSockets(self._open_socket)
        self._in_flight: set[_InFlight] = set()

    def _connected(self) -> Any:
        if self._session is None:
            self._session = open_session(self._address, self._timeout)
        return self._session

    async def infer(self, call: Call) -> Outputs:
        if call.parameters.get("cancel"):
            await self._cancel(call)
            return {}
        entry = _InFlight(call, asyncio.create_task(self._answer(call)))
        self._in_flight.add(entry)
        try:
            found: Outputs = await entry.task
            return found
        except asyncio.CancelledError:
            if entry.dropped:
                raise Cancelled(_DROPPED) from None
            raise
        finally:
            self._in_flight.discard(entry)

    async def stream(self, call: Call) -> AsyncGenerator[Outputs, None]:
        task = asyncio.current_task()
        assert task is not None  # asyncio runs every coroutine in one
        entry = _InFlight(call, task)
        self._in_flight.add(entry)
        explain = translate_error
        try:
            request, read = await asyncio.to_thread(_stream_request, call)
            async with contextlib.aclosing(self._events(request)) as events:
                async for event in events:
                    message = read(event)
                    if message is not None:
                        yield message
                        explain = translate_stream_error
        except asyncio.CancelledError:
            if entry.dropped:
                raise Cancelled(_DROPPED) from None
            raise
        except asyncio.TimeoutError as error:
            raise translate_error(TimeoutError(), self._address.target) from error
        except Exception as error:
            raise explain(error, self._address.target) from error
        finally:
            self._in_flight.discard(entry)

    async def _events(self, request: ServiceRequest) -> AsyncGenerator[bytes, None]:
        """The data of a response's server-sent events. The time limit counts from one piece of them to the next."""
        import aiohttp

        timeouts = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=self._timeout)
        async with self._connected().post(
            f"{self._base}/{request.path}",
            data=io.BytesIO(request.body),
            headers={**self._headers, **request.headers},
            timeout=timeouts,
        ) as response:
            if response.status != HTTPStatus.OK:
                raise self._error(response, await response.read())
            async for line in lines_of(response.content):
                event = event_data(line)
                if event is not None:
                    yield event

    async def can_cancel_natively(self) -> bool:
        return False  # a cancel closes the connection itself

    async def close(self) -> None:
        await self._sockets.close()
        if self._session is not None:
            await close_session(self._session, self._address)

    # -- requests --------------------------------------------------------------------------------------------------

    async def _answer(self, call: Call) -> Outputs:
        try:
            request = service_calls.request_of(call)
            hovers = call.parameters.get("latest_wins") and not call.parameters.get("background")
            if hovers and request.path == service_calls.SEGMENT:
                found = await asyncio.wait_for(self._hover(call), self._timeout)
                if found is not None:
                    return found
            return service_calls.outputs_of(call, await self._post(request))
        except asyncio.TimeoutError as error:
            raise translate_error(TimeoutError(), self._address.target) from error
        except Exception as error:
            raise translate_error(error, self._address.target) from error

    async def _hover(self, call: Call) -> Outputs | None:
        """The outputs over the session's WebSocket; None if there is none, or if it was lost."""
        image = call.headers.get(IMAGE_HEADER)
        socket = await self._sockets.get((str(call.parameters.get("session_id")), image), call.headers)
        if socket is None:
            return None
        try:
            result = await socket.ask(service_calls.click_document(call))
        except SocketLost:
            return None
        return service_calls.outputs_of_result(call, result)

    async def _open_socket(self, headers: Mapping[str, str]) -> Any:
        own = {**self._headers, **headers}
        url = f"{self._base}/{service_calls.HOVER}"
        return await self._connected().ws_connect(url, headers=own, max_msg_size=0)

    async def _post(self, request: ServiceRequest) -> bytes:
        """The body of the response; a kept connection that the server has closed is replaced, once."""
        import aiohttp

        try:
            return await self._post_once(request)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._post_once(request)

    async def _post_once(self, request: ServiceRequest) -> bytes:
        data = io.BytesIO(request.body) if len(request.body) > _LARGE_BODY else request.body
        headers = {**self._headers, **request.headers}
        async with self._connected().post(f"{self._base}/{request.path}", data=data, headers=headers) as response:
            received: bytes = await response.read()
            if response.status != HTTPStatus.OK:
                raise self._error(response, received)
            return received

    def _error(self, response: Any, body: bytes) -> TritonSamError:
        return error_of(
            response.status, response.headers, body, address=self._address.target, has_token=self._has_token
        )

    async def _cancel(self, call: Call) -> None:
        session = str(call.parameters["session_id"])
        if session.startswith(IMAGE_SESSION):  # its encode is another connection's
            try:
                await self._post(service_calls.cancel_request(session))
            except Exception as error:
                raise translate_error(error, self._address.target) from error
        for entry in list(self._in_flight):
            if entry.is_meant_by(call):
                entry.dropped = True
                entry.task.cancel()


def _stream_request(call: Call) -> tuple[ServiceRequest, Callable[[bytes], Outputs | None]]:
    """(the request for a call to a stream, what turns the data of its events into the stream's messages).

    Copies the call's image, so run it on a thread.
    """
    if "prompt_json" in call.inputs:
        return service_calls.stream_request_of(call), partial(service_calls.message_of, call)
    return chat_request(call), ChatPieces().of
