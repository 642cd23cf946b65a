"""Counts of the requests of each session, by outcome."""

from __future__ import annotations

import concurrent.futures
import threading
from dataclasses import dataclass, replace
from typing import Any

from triton_sam.client.wire import Outputs
from triton_sam.errors import Cancelled


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """Counts of a session's requests by outcome; ``pending`` ones have none yet."""

    requested: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    latest_wins: bool = False

    @property
    def pending(self) -> int:
        return self.requested - self.completed - self.cancelled - self.failed


class SessionStatuses:
    """The status of each session. Thread-safe."""

    def __init__(self, *, latest_wins: bool) -> None:
        """
        Args:
            latest_wins: of sessions that were not configured.
        """
        self._latest_wins = latest_wins
        self._lock = threading.Lock()
        self._statuses: dict[str, SessionStatus] = {}

    def get(self, session_id: str) -> SessionStatus:
        with self._lock:
            return self._statuses.get(session_id) or SessionStatus(latest_wins=self._latest_wins)

    def configure(self, session_id: str, *, latest_wins: bool) -> None:
        with self._lock:
            status = self._statuses.get(session_id) or SessionStatus()
            self._statuses[session_id] = replace(status, latest_wins=latest_wins)

    def count_request(self, session_id: str) -> SessionStatus:
        """Counts a new request; returns the status before."""
        with self._lock:
            status = self._statuses.get(session_id) or SessionStatus(latest_wins=self._latest_wins)
            self._statuses[session_id] = replace(status, requested=status.requested + 1)
            return status

    def count_outcome(self, session_id: str, future: concurrent.futures.Future[Outputs]) -> None:
        """Counts how a request has ended."""
        cancelled = future.cancelled() or isinstance(future.exception(), Cancelled)
        name = "cancelled" if cancelled else "completed" if future.exception() is None else "failed"
        with self._lock:
            status = self._statuses.get(session_id)
            if status is not None and status.pending > 0:  # the session may have been cleaned up and started again
                changed: dict[str, Any] = {name: getattr(status, name) + 1}
                self._statuses[session_id] = replace(status, **changed)

    def forget(self, session_id: str) -> None:
        with self._lock:
            self._statuses.pop(session_id, None)
