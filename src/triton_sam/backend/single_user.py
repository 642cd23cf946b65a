"""Detects whether a single user is clicking.

A single user's click is decoded at once, by the thread that received it. Clicks of several users are queued and decoded
in batches.
"""

from __future__ import annotations

from collections.abc import Hashable

#: How long the server counts as shared after a sign of a second client.
SHARED_SECONDS = 0.05
#: A client that returns within this time, after another client's click, shares the server. Longer than a round of many
#: clients that are served one by one: a shorter time would take slow shared traffic for single users and keep it slow.
RETURN_SECONDS = 0.5
#: A click this soon after a response was already waiting: no client can read a response and send again in this time.
TURNAROUND_SECONDS = 0.00015
_MAX_CLIENTS = 256


class SingleUserDetector:
    """Tracks which clients click and when. Not thread-safe; its owner's lock guards it.

    All times are seconds of one clock.
    """

    def __init__(self) -> None:
        self._last_click: dict[Hashable, float] = {}
        self._last_client: Hashable = None
        self._shared_until = float("-inf")
        self._last_response = float("-inf")

    def click(self, client: Hashable, now: float) -> bool:
        """Records a click and returns True if no other client is active.

        Args:
            client: the session and the image. Either one differing makes it another client.
        """
        changed = client != self._last_client
        if changed and now - self._last_click.get(client, float("-inf")) < RETURN_SECONDS:
            self._shared_until = now + SHARED_SECONDS
        if now - self._last_response < TURNAROUND_SECONDS:
            self._shared_until = now + SHARED_SECONDS
        if changed and len(self._last_click) >= _MAX_CLIENTS:
            self._last_click.clear()
        self._last_click[client] = now
        self._last_client = client
        return now >= self._shared_until

    def answered(self, now: float) -> None:
        """Records that a single user's click was answered and that the next request can be read."""
        self._last_response = now
