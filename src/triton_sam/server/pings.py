"""Pings through each segmenter's workers, which find a model that is alive but hung."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from triton_sam.errors import ServerError
from triton_sam.server.ping_message import PING, DeviceState, read_answer
from triton_sam.server.process import TritonProcess

log = logging.getLogger(__name__)
#: A ping reaches any one of a model's processes. After so many good answers for each it has most likely reached all.
_ANSWERS_EACH = 3


@dataclass(frozen=True, slots=True)
class PingPolicy:
    """When a model that is alive but silent counts as hung. Seconds, except ``missed``."""

    every: float = 5.0
    first: float = 0.2
    """Until the first round, which tells the devices of each model; ``every`` if that is less."""
    timeout: float = 15.0
    missed: int = 3
    """Rounds of pings that must fail, in a row if a model has one process."""
    longest_encode: float = 600.0


class Pinger:
    """Pings the models of a running server in rounds. :meth:`run` is the loop of its thread.

    Attributes:
        missed: rounds in which a model did not answer, since it last answered often enough.
        devices: model -> the state of its devices when it last answered.
    """

    def __init__(
        self,
        policy: PingPolicy,
        process: Callable[[], TritonProcess],
        models: Callable[[], Iterable[str]],
        is_serving: Callable[[], bool],
        is_stopping: Callable[[float], bool],
    ) -> None:
        """
        Args:
            process: the present server process.
            models: the models to ping now; consumed lazily, so that each is checked just before its ping.
            is_serving: whether the server is expected to answer.
            is_stopping: waits up to the given seconds and returns whether to end the loop.
        """
        self.policy = policy
        self.missed = 0
        self._answered = 0
        self.devices: dict[str, tuple[DeviceState, ...]] = {}
        self._lock = threading.Lock()
        self._process = process
        self._models = models
        self._is_serving = is_serving
        self._is_stopping = is_stopping

    @property
    def has_hung(self) -> bool:
        """Whether the policy calls the server hung."""
        return self.missed >= self.policy.missed

    def begin_anew(self) -> None:
        """Forgets what an earlier server process has answered."""
        with self._lock:
            self.missed = self._answered = 0
            self.devices = {}

    def run(self) -> None:
        """Pings until the supervisor stops."""
        pause = min(self.policy.first, self.policy.every)
        while not self._is_stopping(pause):
            pause = self.policy.every
            if not self._is_serving():
                continue
            healthy = self._ping_all()
            if self._is_serving():  # a ping into a recovery says nothing
                self._count(healthy)

    def _count(self, healthy: bool) -> None:
        """Counts a round. Of several processes one may hang while the others answer."""
        self._answered = self._answered + 1 if healthy else 0
        if not healthy:
            self.missed += 1
        elif self._answered >= self._answers_needed():
            self.missed = 0

    def _answers_needed(self) -> int:
        most = max(Counter(self._process().model_pids.values()).values(), default=1)
        return 1 if most == 1 else _ANSWERS_EACH * most

    def _ping_all(self) -> bool:
        """Whether all models answer; ends at the first that does not."""
        for model in self._models():
            process = self._process()
            devices = ping(process, model, self.policy)
            if devices is None:
                return False
            with self._lock:
                if self._process() is process:  # not of a server that has been replaced meanwhile
                    self.devices = {**self.devices, model: devices}
        return True


def ping(process: TritonProcess, model: str, policy: PingPolicy) -> tuple[DeviceState, ...] | None:
    """The state of a model's devices; None if its click worker does not answer, or its encoder has hung."""
    try:
        answer = read_answer(process.post(f"/v2/models/{model}/infer", PING, policy.timeout))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ServerError) as error:
        log.warning("%s did not answer a ping: %s", model, error)
        return None
    return answer.devices if answer.encode_seconds < policy.longest_encode else None
