"""Closes the connections of clients that their users have not closed."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable


class Cleanup:
    """Shuts a client down once: when it is called, when the client is garbage, or when the program ends."""

    def __init__(self, client: object, shut_down: Callable[[], None]) -> None:
        """
        Args:
            shut_down: must not refer to the client, which would then never be garbage.
        """
        self._shut_down = shut_down
        self._lock = threading.Lock()
        self._done = False
        weakref.finalize(client, self._in_background).atexit = False
        _OPEN.add(self)

    def __call__(self) -> None:
        with self._lock:
            if self._done:
                return
            self._done = True
            try:
                self._shut_down()
            finally:
                _OPEN.discard(self)

    def _in_background(self) -> None:
        """The garbage collector runs on any thread, also on one that the shutdown would wait for."""
        if not self._done:
            threading.Thread(target=self, name="triton-sam-close", daemon=True).start()


_OPEN: set[Cleanup] = set()


@atexit.register
def _close_all() -> None:
    for cleanup in list(_OPEN):
        cleanup()
