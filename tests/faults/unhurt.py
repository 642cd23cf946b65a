"""Whether a server got through something unhurt: the same processes, nothing mended, and the right mask at once."""

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
#: Seconds in which whatever is refused has to be, where the machine has nothing else to do.
REFUSED_WITHIN = 1.0
T = TypeVar("T")


@dataclass(slots=True)
class Witness:
    """Knows how a server of the analytic model was at the start, and what is right.

    Attributes:
        in_full: whether all cases are tried, and in time; else some of them, on a machine that may be busy.
        slowest: the longest that an answer took so far, in seconds, and to what.
        slowest_refusal: the same of answers of 4xx.
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
        """(answer, seconds). In full, what took too long is asked again, and told as it would be if the machine had
        nothing else to do: a refusal that is slow is so each time, and on any machine."""
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
        """Counts an answer; in full, a refusal has to be quick."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.slowest = max(self.slowest, (seconds, what))
        if 400 <= status < 500:
            self.slowest_refusal = max(self.slowest_refusal, (seconds, what))
            assert not self.in_full or seconds < REFUSED_WITHIN, f"{what}: refused after {seconds:.2f} s"

    @property
    def is_unhurt(self) -> bool:
        """Whether the processes are those of the start, and none had to be mended."""
        return vitals(self.running) == self.before

    def check(self) -> None:
        """Nothing died, nothing had to be mended, and a good request gives the right mask."""
        assert vitals(self.running) == self.before
        click = {"image_key": self.image_key, "points": [SPOON], "format": "rle"}
        answer = self.client.post("/v1/segment", json=click)
        if answer.status_code == 404:  # other images may have pushed it out
            assert self.client.post("/v1/images", files={"image": self.image}).status_code == 200
            answer = self.client.post("/v1/segment", json=click)
        assert answer.status_code == 200, answer.text
        with Image.open(io.BytesIO(self.image)) as picture:
            assert_mask(decode(answer.json()["mask"]), picture, points=[SPOON])
        assert vitals(self.running) == self.before


def vitals(running: RunningServer) -> tuple[object, ...]:
    """The processes of a server by their pids, and how often it had to be mended."""
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
    """How much longer work takes now than it would if nobody else wanted the machine."""
    begun, used = time.monotonic(), time.thread_time()
    while (spent := time.thread_time() - used) < 0.1:
        hashlib.sha256(bytes(100_000)).digest()
    return max(1.0, (time.monotonic() - begun) / spent)


def sentence_of(body: bytes) -> str:
    """The one sentence of a refusal; whatever has another shape fails here."""
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message", "type", "param"}
    message = error["message"]
    assert isinstance(message, str)
    assert 10 < len(message) <= 500
    assert "Traceback" not in message
    return message


def png(picture: Image.Image) -> bytes:
    """A PNG file of a picture."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun
