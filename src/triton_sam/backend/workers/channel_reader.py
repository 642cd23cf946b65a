"""Reads several channels on one thread: more threads would only wait for each other, because of Python's lock."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from triton_sam.backend.workers.channel import Channel, Message

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    channel: Channel
    take: Callable[[Message], None]
    ended: Callable[[], None]


#: In a crowd, the pause before the next messages are read.
_COLLECT_SECONDS = 0.001


class ChannelReader:
    """Passes the messages of all its channels on."""

    def __init__(self, crowded: Callable[[], bool] = lambda: False) -> None:
        """
        Args:
            crowded: whether enough requests are waiting. New ones are collected then, and read together: each read
                takes Python's lock from the threads that work on the others.
        """
        self._crowded = crowded
        self._epoll = select.epoll()
        self._readers: dict[int, _Reader] = {}
        threading.Thread(target=self._loop, name="messages", daemon=True).start()

    def add(self, channel: Channel, take: Callable[[Message], None], ended: Callable[[], None]) -> None:
        """Reads a channel from now on.

        Args:
            take: gets each message, on the reader's thread, and must release it.
            ended: called once, on that thread, after the other end has closed.
        """
        descriptor = channel.fileno()
        self._readers[descriptor] = _Reader(channel, take, ended)
        try:
            self._epoll.register(descriptor, select.EPOLLIN)
        except (OSError, ValueError):  # closed at this end meanwhile
            del self._readers[descriptor]
            ended()

    def _loop(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                try:
                    self._read(descriptor)
                except Exception:
                    log.exception("messages of a Triton process could not be read")
            if self._crowded():
                time.sleep(_COLLECT_SECONDS)

    def _read(self, descriptor: int) -> None:
        reader = self._readers[descriptor]
        arrived = reader.channel.receive()
        if arrived is None:
            self._epoll.unregister(descriptor)
            del self._readers[descriptor]
            reader.ended()
            return
        for message in arrived:
            try:
                reader.take(message)
            except Exception:
                log.exception("a message of a Triton process could not be read")
