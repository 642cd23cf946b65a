"""Pings through each segmenter's workers, which find a model that is alive but hung."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from triton_sam.errors import ServerError
from triton_sam.server.process import TritonProcess

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PingPolicy:
    """When a model that is alive but silent counts as hung. Seconds, except ``missed``."""

    every: float = 5.0
    timeout: float = 15.0
    missed: int = 3
    """Rounds of pings in a row that must fail."""
    longest_encode: float = 600.0


class Pinger:
    """Pings the models of a running server in rounds. :meth:`run` is the loop of its thread.

    Attributes:
        missed: rounds in a row in which a model did not answer; the supervisor sets it back after a restart.
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
        self._process = process
        self._models = models
        self._is_serving = is_serving
        self._is_stopping = is_stopping

    @property
    def has_hung(self) -> bool:
        """Whether the policy calls the server hung."""
        return self.missed >= self.policy.missed

    def run(self) -> None:
        """Pings until the supervisor stops."""
        while not self._is_stopping(self.policy.every):
            if not self._is_serving():
                continue
            healthy = all(ping(self._process(), model, self.policy) for model in self._models())
            if self._is_serving():  # a ping into a recovery says nothing
                self.missed = 0 if healthy else self.missed + 1


def ping(process: TritonProcess, model: str, policy: PingPolicy) -> bool:
    """Whether the model's click worker answers and its encoder has not hung."""
    body = {"inputs": [], "outputs": [{"name": "result_json"}], "parameters": {"ping": True}}
    try:
        reply = process.post(f"/v2/models/{model}/infer", body, policy.timeout)
        answer = json.loads(reply["outputs"][0]["data"][0])
        return float(answer["encode_seconds"]) < policy.longest_encode
    except (OSError, ValueError, LookupError, TypeError, ServerError) as error:
        log.warning("%s did not answer a ping: %s", model, error)
        return False
