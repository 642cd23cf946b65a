"""Requests with progress for blocking code: their connection runs on a thread of its own."""

from __future__ import annotations

import itertools
import queue
import secrets
import uuid
from functools import partial

from triton_sam.client.async_transport import AsyncTransport
from triton_sam.client.cleanup import Cleanup
from triton_sam.client.dispatch import Dispatcher
from triton_sam.client.io_thread import IoThread
from triton_sam.client.wire import Call, OnMessage, Outputs

_NUMBER_BITS = 40


class Follower:
    """Follows requests while they run. Threads may share it."""

    def __init__(self, transport: AsyncTransport) -> None:
        io = IoThread("triton-sam-follow")
        # The session is the client's own, as for its clicks. Others may use its name too, but not these numbers, by
        # which one request is cancelled.
        numbers = itertools.count(secrets.randbits(_NUMBER_BITS))
        self._dispatcher = Dispatcher(transport, io.loop, namespace="", numbers=numbers)
        self._cleanup = Cleanup(self, partial(_shut_down, io, self._dispatcher))

    def follow(self, call: Call, on_message: OnMessage) -> Outputs:
        """Sends a call and follows it; returns the last message.

        Args:
            on_message: called with every message, on the calling thread. If it raises, or Ctrl-C comes, the request is
                cancelled on the server.
        """
        messages: queue.SimpleQueue[Outputs | None] = queue.SimpleQueue()
        session = str(call.parameters.get("session_id") or uuid.uuid4().hex)
        ticket = self._dispatcher.submit(call, session, on_message=messages.put)
        ticket.future.add_done_callback(lambda _: messages.put(None))
        try:
            while (message := messages.get()) is not None:
                on_message(message)
        except BaseException:
            self._dispatcher.withdraw(ticket)
            raise
        return ticket.future.result()

    def close(self) -> None:
        """Cancels what runs, and closes the connection; may be called twice."""
        self._cleanup()


def _shut_down(io: IoThread, dispatcher: Dispatcher) -> None:
    try:
        io.submit(dispatcher.close()).result()
    finally:
        io.close()
