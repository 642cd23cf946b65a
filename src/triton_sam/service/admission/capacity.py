"""The service's capacity: slots for requests in progress and arriving, and bytes of request bodies in memory."""

from __future__ import annotations

from collections.abc import Mapping

from triton_sam.errors import QueueFull

_ARRIVING_PER_SLOT = 4


class ServiceCapacity:
    """Counts what one service does at a time against its limits. Belongs to the event loop."""

    def __init__(self, max_requests: int, max_requests_at: Mapping[str, int], *, max_bytes: int) -> None:
        """
        Args:
            max_requests_at: path -> how many of ``max_requests`` its requests may use, so that others find a slot.
            max_bytes: of all bodies together, from their arrival until their requests are answered.
        """
        self._max_requests = max_requests
        self._max_requests_at = dict(max_requests_at)
        self._working_at = dict.fromkeys(self._max_requests_at, 0)
        self._max_arriving = _ARRIVING_PER_SLOT * max_requests
        self._working = 0
        self._arriving = 0
        self._max_bytes = max_bytes
        self.bytes_held = 0

    def add(self, path: str, *, working: int = 0, arriving: int = 0) -> None:
        """Adds requests (negative: removes); if that exceeds a limit, raises QueueFull and adds none."""
        if working > 0:
            self.check(path)
        if arriving > 0 and self._arriving + arriving > self._max_arriving:
            raise QueueFull(f"{self._max_arriving} requests are already being received: try again in a moment")
        self._working += working
        self._arriving += arriving
        if path in self._working_at:
            self._working_at[path] += working

    def hold_bytes(self, nbytes: int) -> None:
        """Adds bytes of a body; if that exceeds the limit, raises QueueFull and adds none."""
        if self.bytes_held + nbytes > self._max_bytes:
            used = f"{self.bytes_held:,} of {self._max_bytes:,} bytes"
            raise QueueFull(f"the bodies of other requests use {used}: try again in a moment")
        self.bytes_held += nbytes

    def release_bytes(self, nbytes: int) -> None:
        self.bytes_held -= nbytes

    def check(self, path: str) -> None:
        """Raises QueueFull if no slot is free for a request to this path."""
        limit = self._max_requests_at.get(path)
        if limit is not None and self._working_at[path] >= limit:
            raise QueueFull(f"{limit} requests to {path} are already in progress: try again in a moment")
        if self.is_full:
            raise self.refusal()

    @property
    def is_full(self) -> bool:
        """Whether every slot is taken, for any path."""
        return self._working >= self._max_requests

    def refusal(self) -> QueueFull:
        """The error for a request while :attr:`is_full`."""
        return QueueFull(f"{self._max_requests} requests are already in progress: try again in a moment")
