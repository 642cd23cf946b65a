"""Backpressure from a model's full queue: the service repeats the model's refusal for a moment without asking again."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from triton_sam.client.dispatch import Outputs
from triton_sam.client.wire import Call
from triton_sam.errors import QueueFull

#: Short, because other clients may use Triton directly, and their responses are not seen here.
_MAX_SECONDS = 0.05
#: A request with one of these may use another queue than a click does, or none.
_IMAGES = frozenset({"image", "image_b64"})


class Backpressure:
    """Remembers which models have just refused a click because their queue is full.

    A slot in the queue becomes free only when a request is answered. Until then another attempt would cost a round trip
    on the same processors that the model needs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By model, and whether the refused request was in the background: such requests have fewer places.
        self._full: dict[tuple[str, bool], tuple[float, str]] = {}

    def check(self, call: Call) -> None:
        """Raises QueueFull with the model's own message if the model would refuse this call again."""
        until, reason = self._full.get(_queue_of(call), (0.0, ""))
        if self._clock() < until and _is_click(call):
            raise QueueFull(reason)

    def watch(self, call: Call, response: Future[Outputs]) -> None:
        """Learns from a response when it arrives, on any thread."""
        response.add_done_callback(lambda future: self._learn(call, future))

    def _learn(self, call: Call, future: Future[Outputs]) -> None:
        error = None if future.cancelled() else future.exception()
        if not isinstance(error, QueueFull):
            for background in (False, True):
                self._full.pop((call.model, background), None)
        elif _is_click(call):
            self._full[_queue_of(call)] = (self._clock() + _MAX_SECONDS, str(error))


def _queue_of(call: Call) -> tuple[str, bool]:
    return call.model, call.parameters.get("background") is True


def _is_click(call: Call) -> bool:
    return _IMAGES.isdisjoint(call.inputs)
