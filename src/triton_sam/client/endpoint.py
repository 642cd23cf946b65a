"""A server's address, and the API that answers there: Triton's or the triton-sam service's.

The client finds out at its first request, with one small request of its own, and then uses the transport for it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import numpy.typing as npt

from triton_sam.client import service_calls
from triton_sam.client.async_transport import AsyncTransport, connect_async
from triton_sam.client.http_connection import HttpConnection, HttpResponse
from triton_sam.client.service_async import ServiceAsyncTransport
from triton_sam.client.service_errors import detail_of
from triton_sam.client.service_transport import ServiceTransport
from triton_sam.client.transport import Transport, connect
from triton_sam.client.wire import Address, Call, translate_error
from triton_sam.errors import InvalidInput, from_status
from triton_sam.models.vlm_catalog import VLM_CATALOG
from triton_sam.models.vlm_specs import STREAM_SUFFIX
from triton_sam.settings import get_settings

Outputs = Mapping[str, npt.NDArray[Any]]
#: A proxy's responses while its server is not reachable.
_FOR_NOW = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


class Endpoint:
    """Where a client's requests go, and what is sent with each of them. Thread-safe."""

    def __init__(
        self, url: str | None, timeout: float, headers: Mapping[str, str] | None = None, token: str | None = None
    ) -> None:
        """
        Args:
            url: None for the settings' address.
            headers: sent with every request.
            token: sent as ``Authorization: Bearer``. None for TRITON_SAM_TOKEN, which only the service gets.
        """
        self.address = Address.parse(url or get_settings().url)
        self.timeout = timeout
        self.headers = dict(headers or {})
        given = "authorization" in {name.lower() for name in self.headers}
        if token is not None:
            if given:
                raise InvalidInput("give either a token or an authorization header, not both")
            self.headers["authorization"] = f"Bearer {checked_token(token)}"
        self.service_headers = dict(self.headers)
        own = get_settings().token
        if token is None and own is not None and not given:
            self.service_headers["authorization"] = f"Bearer {own.get_secret_value()}"
        self._lock = threading.Lock()
        self._is_service: bool | None = False if self.address.grpc else None

    def transport(self) -> Transport:
        """The blocking transport; nothing is sent yet."""
        return self._to_triton() if self.address.grpc else ChosenTransport(self)

    def async_transport(self) -> AsyncTransport:
        """The asyncio transport; nothing is sent yet."""
        if self.address.grpc:
            return connect_async(self.address, self.timeout, self.headers)
        return ChosenAsyncTransport(self)

    def chosen_transport(self) -> Transport:
        """The transport for what answers; asks the server if that is not known yet."""
        if self.is_service():
            return ServiceTransport(self.address, self.timeout, self.service_headers)
        return self._to_triton()

    def _to_triton(self) -> Transport:
        return connect(self.address, self.timeout, self.headers)

    async def chosen_async_transport(self) -> AsyncTransport:
        """As :meth:`chosen_transport`, without blocking the event loop."""
        if await asyncio.to_thread(self.is_service):
            return ServiceAsyncTransport(self.address, self.timeout, self.service_headers)
        return connect_async(self.address, self.timeout, self.headers)

    def served_vlms(self) -> list[str]:
        """Names of the served vision-language models, for messages; empty if the server does not say."""
        transport = self.chosen_transport()
        try:
            names = [spec.name for spec in VLM_CATALOG.values()]
            return [name for name in names if transport.is_ready(name + STREAM_SUFFIX)]
        finally:
            transport.close()

    def is_service(self) -> bool:
        """Whether the triton-sam service answers, and not Triton. Asks once; raises if there is no answer."""
        with self._lock:
            if self._is_service is None:
                try:
                    self._is_service = self._ask()
                except Exception as error:
                    raise translate_error(error, self.address.target) from error
            return self._is_service

    def _ask(self) -> bool:
        connection = HttpConnection(self.address, self.timeout)
        try:
            found = connection.request("GET", "v2", self.headers)
            if _is_triton(found):
                return False
            if detail_of(found.body) is not None:
                return True
            # Another program, or a proxy that does not forward this path.
            health = connection.request("GET", service_calls.HEALTH, self.headers)
            if _has(health, "state"):
                return True
            if found.status in _FOR_NOW:
                raise from_status(found.status, f"{self.address.target} responds {found.status} for now")
            return False  # a proxy that forwards inference only; if it is not Triton's, its responses show that
        finally:
            connection.close()


def checked_token(token: str) -> str:
    """A token without surrounding blanks; InvalidInput if it cannot be sent in a header."""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidInput("a token must consist of printable ASCII characters, because it is sent in a header")
    return token


def _is_triton(response: HttpResponse) -> bool:
    """Whether this is the answer of Triton, or of another KServe server, to ``GET /v2``."""
    if _has(response, "extensions") or _has(response, "version"):
        return True
    return _has(response, "error") and isinstance(json.loads(response.body)["error"], str)


def _has(response: HttpResponse, field: str) -> bool:
    try:
        return field in json.loads(response.body)
    except (ValueError, TypeError):
        return False


class ChosenTransport:
    """A blocking transport that is chosen at the first request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._transport: Transport | None = None

    def _chosen(self) -> Transport:
        with self._lock:
            if self._transport is None:
                self._transport = self._endpoint.chosen_transport()
            return self._transport

    def infer(self, call: Call) -> Outputs:
        return self._chosen().infer(call)

    def is_ready(self, model: str) -> bool:
        return self._chosen().is_ready(model)

    def parameters(self, model: str) -> Mapping[str, str]:
        return self._chosen().parameters(model)

    def served(self) -> list[str]:
        return self._chosen().served()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ChosenAsyncTransport:
    """An asyncio transport that is chosen at the first request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport: AsyncTransport | None = None

    async def _chosen(self) -> AsyncTransport:
        if self._transport is None:
            transport = await self._endpoint.chosen_async_transport()
            if self._transport is None:  # another task may have been faster; this one has no connection yet
                self._transport = transport
        return self._transport

    async def infer(self, call: Call) -> Outputs:
        return await (await self._chosen()).infer(call)

    async def stream(self, call: Call) -> AsyncGenerator[Outputs, None]:
        async with aclosing((await self._chosen()).stream(call)) as responses:
            async for response in responses:
                yield response

    async def can_cancel_natively(self) -> bool:
        return self._transport is not None and await self._transport.can_cancel_natively()

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()
