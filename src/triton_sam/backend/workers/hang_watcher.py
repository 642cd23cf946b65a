"""Notices a worker that is alive but hangs: it owes answers and does not respond to anything."""

from __future__ import annotations

import threading
from collections.abc import Callable

from triton_sam.backend.workers.channel import Channel

_ASK_SECONDS = 3.0
#: Half a minute in all. The supervisor's pings, which lead to a restart of the whole server, take twice as long.
_ROUNDS = 10


class HangWatcher:
    """Asks a worker that owes answers whether it is alive, again and again, on a thread of its own.

    A worker that computes responds: its thread for messages does not compute. Rounds are counted and not seconds, so
    that a machine or a process that was suspended is no reason to kill anybody.
    """

    def __init__(self, owing: Callable[[], Channel | None], hung: Callable[[Channel], None]) -> None:
        """
        Args:
            owing: the connection to the worker if it owes answers, otherwise None.
            hung: called with the connection of a worker that has been silent for all rounds.
        """
        self._owing = owing
        self._hung = hung
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hangs", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread at its next round."""
        self._end.set()

    def _run(self) -> None:
        asked: tuple[Channel, int] | None = None
        silent = 0
        while not self._end.wait(_ASK_SECONDS):
            channel = self._owing()
            if channel is None:
                asked = None
                continue
            # If nobody listens here, this process is behind and not the worker.
            is_silent = channel.listening and asked == (channel, channel.reads)
            silent = silent + 1 if is_silent else 0
            asked = channel, channel.reads
            if silent >= _ROUNDS:
                silent, asked = 0, None
                self._hung(channel)
            else:
                self._ask(channel)

    @staticmethod
    def _ask(channel: Channel) -> None:
        try:
            channel.send_if_free({"is": "alive"})
        except OSError:  # it has ended, which the link notices by itself
            return
