"""Checks that a server survived a test intact: same processes, no restarts or reloads, and correct masks at once."""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import httpx
from PIL import Image

from tests.analytic import assert_mask
from triton_sam.core.masks import decode
from triton_sam.serving import RunningServer

SPOON = [365, 290]
#: Seconds within which a bad request must be refused on an idle machine.
REFUSED_WITHIN = 1.0
T = TypeVar("T")


@dataclass(slots=True)
class Witness:
    """Records the state of a server with the analytic model at the start, and its response times.

    Attributes:
        before: the server's :func:`vitals` at the start.
        in_full: whether all cases run, with time limits; else some of them, on a machine that may be busy.
        slowest: (seconds, request) of the slowest response so far.
        slowest_refusal: the same for responses with 4xx.
    """

    running: RunningServer
    client: httpx.Client
    image: bytes
    image_key: str
    before: tuple[object, ...]
    in_full: bool = False
    slowest: tuple[float, str] = (0.0, "")
    slowest_refusal: tuple[float, str] = (0.0, "")
    statuses: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, running: RunningServer, client: httpx.Client, image: bytes, *, in_full: bool) -> Witness:
        sent = client.post("/v1/images", files={"image": image})
        assert sent.status_code == 200, sent.text
        return cls(running, client, image, sent.json()["image_key"], vitals(running), in_full)

    def timed(self, ask: Callable[[], T]) -> tuple[T, float]:
        """(response, seconds). In full, a slow request is repeated and its time corrected for other load on the
        machine: a refusal that is really slow is so each time, and on any machine."""
        for _ in range(3):
            begun = time.monotonic()
            answer = ask()
            seconds = time.monotonic() - begun
            if self.in_full and seconds >= REFUSED_WITHIN:
                seconds /= slowdown()
            if seconds < REFUSED_WITHIN:
                break
        return answer, seconds

    def note(self, what: str, status: int, seconds: float) -> None:
        """Counts a response; in full, a refusal must be quick."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.slowest = max(self.slowest, (seconds, what))
        if 400 <= status < 500:
            self.slowest_refusal = max(self.slowest_refusal, (seconds, what))
            assert not self.in_full or seconds < REFUSED_WITHIN, f"{what}: refused after {seconds:.2f} s"

    @property
    def is_intact(self) -> bool:
        """Whether the processes are still those of the start, without a restart or reload."""
        return vitals(self.running) == self.before

    def check(self) -> None:
        """Asserts that nothing died or was restarted, and that a good request gets the right mask."""
        assert vitals(self.running) == self.before
        click = {"image_key": self.image_key, "points": [SPOON], "format": "rle"}
        answer = self.client.post("/v1/segment", json=click)
        if answer.status_code == 404:  # other images may have evicted it
            assert self.client.post("/v1/images", files={"image": self.image}).status_code == 200
            answer = self.client.post("/v1/segment", json=click)
        assert answer.status_code == 200, answer.text
        with Image.open(io.BytesIO(self.image)) as picture:
            assert_mask(decode(answer.json()["mask"]), picture, points=[SPOON])
        assert vitals(self.running) == self.before


def vitals(running: RunningServer) -> tuple[object, ...]:
    """The pids of a server's processes, its state, and how often it was restarted or reloaded."""
    supervisor = running.supervisor
    process, status = supervisor.process, supervisor.status
    return (
        process.process.pid,
        tuple(sorted(process.model_pids)),
        status["state"],
        status["restarts"],
        status["reloads"],
    )


def slowdown() -> float:
    """How much longer work takes now than on an idle machine."""
    begun, used = time.monotonic(), time.thread_time()
    while (spent := time.thread_time() - used) < 0.1:
        hashlib.sha256(bytes(100_000)).digest()
    return max(1.0, (time.monotonic() - begun) / spent)


def sentence_of(body: bytes) -> str:
    """The message of an error response; fails if the response has another shape."""
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message", "type", "param"}
    message = error["message"]
    assert isinstance(message, str)
    assert 10 < len(message) <= 500
    assert "Traceback" not in message
    return message


def png(picture: Image.Image) -> bytes:
    """A picture as a PNG file."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


class Stopwatch:
    """Seconds since its creation."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun
