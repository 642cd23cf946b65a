"""Annotators at work: each sends images and clicks on them, and compares every mask with the expected one."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from tests.analytic import expected_logits, png
from tests.faults.test_no_mixing import FEW, POINT
from tests.integration.reference import bilinear
from triton_sam import SAM2TritonClient
from triton_sam.errors import ImageExpired, TritonSamError, Unavailable
from triton_sam.serving import RunningServer

#: Different forms around the point.
_PICTURES = 16
_FORMATS = ("bits", "rle", "png", "bits")
#: Every so many images an annotator returns to an image of another one.
_SHARED_EVERY = 4
_TIMEOUT = 120.0
_PAUSE_SECONDS = 0.05
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A picture and the logits [H,W] of its mask."""

    picture: Image.Image
    logits: np.ndarray[Any, Any]

    @classmethod
    def of(cls, number: int) -> Case:
        picture = FEW.picture(number)
        return cls(picture, bilinear(expected_logits(picture, points=[POINT]), *picture.size))

    def file(self, number: int) -> bytes:
        """A PNG that is different for each number, with the same mask."""
        picture = self.picture.copy()
        corner = picture.width - 1, picture.height - 1
        picture.putpixel(corner, (number % 256, number // 256 % 256, number // 65536))
        return png(picture)

    def is_right(self, mask: np.ndarray[Any, Any]) -> bool:
        """Whether a mask is the expected one, except for pixels exactly on its border."""
        return (
            mask.shape == self.logits.shape and not ((mask != (self.logits > 0)) & (np.abs(self.logits) > 1e-3)).any()
        )


@dataclass
class Seen:
    """What all annotators saw.

    Attributes:
        answers: ``right``, ``told`` (one clear error that says what to do) -> number.
        faults: everything else.
        slowest: seconds of the slowest answer.
    """

    answers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, answer: str, begun: float) -> None:
        with self._lock:
            (self.answers if answer in ("right", "told") else self.faults)[answer] += 1
            self.slowest = max(self.slowest, time.monotonic() - begun)


class Annotators:
    """A context manager: they work until its end, and each request of theirs is answered by then."""

    def __init__(self, running: RunningServer, count: int) -> None:
        self.seen = Seen()
        self._running = running
        self._cases = [Case.of(number) for number in range(_PICTURES)]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number, count)) for number in range(count)]

    def __enter__(self) -> Annotators:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * _TIMEOUT)
            if thread.is_alive():
                self.seen.note("without an answer", time.monotonic())

    def _work(self, annotator: int, count: int) -> None:
        """Images and clicks through one of the protocols. Nothing is repeated, so that every error is seen."""
        url = self._running.urls["HTTP" if annotator % 2 else "gRPC"]
        with SAM2TritonClient(url, retries=0, timeout=_TIMEOUT, session_id=f"annotator {annotator}") as client:
            turn = 0
            while not self._stop.is_set():
                turn += 1
                number = turn if turn % _SHARED_EVERY == 0 else turn * count + annotator + _SHARED_EVERY * 65536
                case = self._cases[number % _PICTURES]
                image = case.file(number)
                if self._ask(lambda image=image: client.set_image(image), lambda key: len(key) == 40):  # type: ignore[misc]
                    for form in _FORMATS:
                        self._ask(
                            lambda form=form: client.segment([POINT], format=form).masks.masks[0],  # type: ignore[misc]
                            case.is_right,
                        )

    def _ask(self, ask: Callable[[], T], is_right: Callable[[T], bool]) -> bool:
        """Sends a request and notes its answer; whether that is right."""
        begun = time.monotonic()
        try:
            answer = "right" if is_right(ask()) else "wrong"
        except (Unavailable, ImageExpired) as error:  # a device may be lost again while an image is sent again
            answer = "told" if "again" in str(error) else f"{type(error).__name__}: {error}"
        except TritonSamError as error:
            answer = f"{type(error).__name__}: {error}"
        self.seen.note(answer, begun)
        if answer != "right":
            self._stop.wait(_PAUSE_SECONDS)  # "in a moment"
        return answer == "right"
