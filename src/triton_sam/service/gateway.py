"""The one way from a route to Triton: readiness, sessions, callers who hang up, and what may be seen of an error."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request

from triton_sam.async_transport import connect_async
from triton_sam.dispatch import Dispatcher, Outputs, Ticket
from triton_sam.errors import InternalError, TritonSamError, Unavailable
from triton_sam.service import faults
from triton_sam.service.backend import Backend
from triton_sam.service.models import Models
from triton_sam.settings import Settings
from triton_sam.wire import Address, Call

#: More than a server's queues take, so that its own refusals are what a caller sees.
_MAX_IN_AIR = 1024


class Gateway:
    """What the routes share. Belongs to the event loop."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings
        self.models = Models(backend.segmenters)
        self._address = Address.parse(backend.triton_url)
        self._dispatcher: Dispatcher | None = None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connected while the block is open."""
        transport = self.backend.transport or connect_async(self._address, self.settings.service_seconds, {})
        dispatcher = Dispatcher(transport, asyncio.get_running_loop(), max_in_air=_MAX_IN_AIR)
        self._dispatcher = dispatcher
        unsubscribe = self.backend.on_loss(lambda reason, lost: _abort(dispatcher, reason, lost))
        try:
            yield
        finally:
            unsubscribe()
            self._dispatcher = None
            await dispatcher.close()

    def submit(self, call: Call, session: str, *, latest_wins: bool = False) -> Ticket:
        """Takes a request in; Unavailable at once while the server is not ready."""
        dispatcher = self._running()
        ticket = dispatcher.submit(call, session, latest_wins=latest_wins)
        # Looked at after the submit: a server that is lost before it aborts this ticket, one lost after is seen here.
        status = self.backend.status()
        if status.get("state") != "ready" and not _spares(status, call.model):
            dispatcher.withdraw(ticket)
            raise Unavailable(f"the model server is {status.get('state')}: try again in a moment")
        return ticket

    async def infer(
        self, request: Request, call: Call, session: str | None = None, *, latest_wins: bool = False
    ) -> Outputs:
        """One request from start to end; withdrawn from the server when its caller hangs up.

        Args:
            request: its body must have been read.
            session: as a user named it; None for a request of its own.
        """
        dispatcher = self._running()
        ticket = self.submit(call, user_session(session), latest_wins=latest_wins)
        watcher = asyncio.create_task(_withdraw_when_gone(request, ticket, dispatcher))
        try:
            return await dispatcher.wait(ticket)
        except TritonSamError as error:
            raise self.public(error) from error
        finally:
            watcher.cancel()

    def cancel(self, session: str) -> int:
        """Drops what a session (of :func:`user_session`) has waiting; returns how many requests that were."""
        return self._running().cancel(session)

    def public(self, error: TritonSamError) -> TritonSamError:
        """What a caller may see of an error from behind."""
        return faults.shown(error, self._address.target)

    def _running(self) -> Dispatcher:
        if self._dispatcher is None:
            raise Unavailable("the service is starting or stopping: try again in a moment")
        return self._dispatcher


def _spares(status: Mapping[str, object], model: str) -> bool:
    """Whether a recovery is about other models only."""
    lost = status.get("lost")
    return status.get("state") == "recovering" and isinstance(lost, tuple | list) and bool(lost) and model not in lost


async def _withdraw_when_gone(request: Request, ticket: Ticket, dispatcher: Dispatcher) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    dispatcher.withdraw(ticket)


def _abort(dispatcher: Dispatcher, reason: str, lost: tuple[str, ...]) -> None:
    dispatcher.abort(Unavailable(f"the model server is being restarted ({reason}): try again in a moment"), lost)


def user_session(name: str | None) -> str:
    """The dispatcher's name of a user's session; apart from those of sockets, which nobody else may cancel."""
    return f"user/{name}" if name else f"single/{uuid.uuid4().hex}"


def output(outputs: Outputs, name: str) -> Any:
    """An output that was asked for."""
    try:
        return outputs[name]
    except KeyError:
        raise InternalError(f"the model server's answer has no {name}") from None


def json_output(outputs: Outputs) -> bytes:
    """``result_json`` as it came."""
    value = output(outputs, "result_json").reshape(-1)[0]
    return value if isinstance(value, bytes) else str(value).encode()
