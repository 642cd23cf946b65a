"""The service's capacity: slots for requests in progress and arriving, and bytes of request bodies in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

from triton_sam.errors import QueueFull

_ARRIVING_PER_SLOT = 4
#: (name of its count, limit) of a path without a limit of its own.
_NO_PART = ("", 0)
_LATER = "try this background request again in a moment"
#: An image takes at least some milliseconds, and no process is told when another one has finished.
_DECODING_POLL_SECONDS = 0.02


class Tally(Protocol):
    """Counts by name; with several processes, also of the others."""

    def add(self, name: str, number: int) -> int:
        """Adds to a count of this process (negative: subtracts); returns the new total."""

    def total(self, name: str) -> int:
        """The sum over all processes."""


class LocalTally:
    """The counts of a service that is one process."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str, number: int) -> int:
        total = self._counts[name] = self._counts.get(name, 0) + number
        return total

    def total(self, name: str) -> int:
        return self._counts.get(name, 0)


class ServiceCapacity:
    """Counts what a service does at a time against its limits. Belongs to the event loop.

    Each limit is one number for all processes: a request is added first, and withdrawn if the total is too large.
    """

    def __init__(
        self,
        max_requests: int,
        max_requests_at: Mapping[str, int],
        *,
        max_bytes: int,
        max_sockets: int = 1,
        tally: Tally | None = None,
    ) -> None:
        """
        Args:
            max_requests_at: path -> how many of ``max_requests`` its requests may use, so that others find a slot.
            max_bytes: of all bodies together, from their arrival until their requests are answered.
            max_sockets: open hover WebSockets.
        """
        self._max_requests = max_requests
        self._parts = {path: (f"part {index}", limit) for index, (path, limit) in enumerate(max_requests_at.items())}
        self._max_arriving = _ARRIVING_PER_SLOT * max_requests
        self._max_bytes = max_bytes
        self._max_sockets = max_sockets
        self._tally: Tally = tally or LocalTally()

    @property
    def bytes_held(self) -> int:
        """Of the bodies in all processes."""
        return self._tally.total("bytes")

    def add(self, path: str, *, working: int = 0, arriving: int = 0) -> None:
        """Adds requests (negative: removes); if that exceeds a limit, raises QueueFull and adds none."""
        if arriving and not self._fits("arriving", arriving, self._max_arriving):
            raise QueueFull(f"{self._max_arriving} requests are already being received: try again in a moment")
        if working:
            try:
                self._add_working(path, working)
            except QueueFull:
                self._tally.add("arriving", -arriving)
                raise

    def _add_working(self, path: str, number: int) -> None:
        part, limit = self._parts.get(path, _NO_PART)
        if part and not self._fits(part, number, limit):
            raise self._part_is_full(path)
        if not self._fits("working", number, self._max_requests):
            if part:
                self._tally.add(part, -number)
            raise self.refusal()

    def _fits(self, name: str, number: int, limit: int) -> bool:
        """Adds to one count; if that exceeds its limit, adds nothing and returns false."""
        if self._tally.add(name, number) <= limit or number < 0:
            return True
        self._tally.add(name, -number)
        return False

    def hold_bytes(self, nbytes: int) -> None:
        """Adds bytes of a body; if that exceeds the limit, raises QueueFull and adds none."""
        if not self._fits("bytes", nbytes, self._max_bytes):
            used = f"{self.bytes_held:,} of {self._max_bytes:,} bytes"
            raise QueueFull(f"the bodies of other requests use {used}: try again in a moment")

    def release_bytes(self, nbytes: int) -> None:
        if nbytes:
            self._tally.add("bytes", -nbytes)

    def open_socket(self) -> None:
        """Adds a hover WebSocket; if that exceeds the limit, raises QueueFull and adds none."""
        if not self._fits("sockets", 1, self._max_sockets):
            raise QueueFull("too many hover WebSockets are open: try again in a moment")

    def close_socket(self) -> None:
        self._tally.add("sockets", -1)

    def check(self, path: str) -> None:
        """Raises QueueFull if no slot is free for a request to this path."""
        part, limit = self._parts.get(path, _NO_PART)
        if part and self._tally.total(part) >= limit:
            raise self._part_is_full(path)
        if self.is_full:
            raise self.refusal()

    def check_background(self, path: str) -> None:
        """Raises QueueFull if a background request, which holds a slot, is in the half that is left for people."""
        part, limit = self._parts.get(path, _NO_PART)
        working = self._tally.total("working")
        if working > max(1, self._max_requests // 2):
            raise QueueFull(f"{working} requests are in progress, and half of the slots are left for people: {_LATER}")
        if part and self._tally.total(part) > max(1, limit // 2):
            raise QueueFull(f"half of the {limit} slots of {path} are left for people: {_LATER}")
        if working > 1 and self.bytes_held > self._max_bytes // 2:
            raise QueueFull(f"the bodies of {working} requests use {self.bytes_held:,} bytes: {_LATER}")

    @property
    def is_full(self) -> bool:
        """Whether every slot is taken, for any path."""
        return self._tally.total("working") >= self._max_requests

    def refusal(self) -> QueueFull:
        """The error for a request while :attr:`is_full`."""
        return QueueFull(f"{self._max_requests} requests are already in progress: try again in a moment")

    def _part_is_full(self, path: str) -> QueueFull:
        return QueueFull(f"{self._parts[path][1]} requests to {path} are already in progress: try again in a moment")


class DecodingSlots:
    """How many images the service decodes at a time, over all processes; ``async with`` waits for a slot."""

    def __init__(self, slots: int, tally: Tally | None = None, name: str = "decoding") -> None:
        """
        Args:
            name: of their count.
        """
        self._slots = slots
        self._tally = tally
        self._name = name
        self._here = asyncio.Semaphore(slots)

    async def __aenter__(self) -> None:
        await self._here.acquire()
        try:
            while self._tally is not None and self._tally.add(self._name, 1) > self._slots:
                self._tally.add(self._name, -1)
                await asyncio.sleep(_DECODING_POLL_SECONDS)
        except BaseException:
            self._here.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tally is not None:
            self._tally.add(self._name, -1)
        self._here.release()
