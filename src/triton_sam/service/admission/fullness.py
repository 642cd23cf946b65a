"""Refusals that need not be asked for: who waits at a full queue is told so by the service, not by the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from triton_sam.client.dispatch import Outputs
from triton_sam.client.wire import Call
from triton_sam.errors import QueueFull

#: Others may talk to Triton too, and their answers are not seen here.
_MOST_SECONDS = 0.05
#: A request with one of these may wait in another queue than a click, or need none.
_IMAGES = frozenset({"image", "image_b64"})


class Fullness:
    """Which models have just said that too many clicks wait.

    A place becomes free when a request is answered, and not before. Until then asking the model again costs the way
    there and back, of the same processors that the model needs to get on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, tuple[float, str]] = {}

    def check(self, call: Call) -> None:
        """QueueFull, in the model's own words, where it would say that again."""
        until, reason = self._full.get(call.model, (0.0, ""))
        if self._clock() < until and _is_click(call):
            raise QueueFull(reason)

    def watch(self, call: Call, answer: Future[Outputs]) -> None:
        """Learns from an answer when it comes, on whatever thread."""
        answer.add_done_callback(lambda future: self._learn(call, future))

    def _learn(self, call: Call, future: Future[Outputs]) -> None:
        error = None if future.cancelled() else future.exception()
        if not isinstance(error, QueueFull):
            self._full.pop(call.model, None)
        elif _is_click(call):
            self._full[call.model] = (self._clock() + _MOST_SECONDS, str(error))


def _is_click(call: Call) -> bool:
    return _IMAGES.isdisjoint(call.inputs)
