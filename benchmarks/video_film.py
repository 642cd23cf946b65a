"""One video that is tracked by a server: a client in its own process, with several frames under way as clients have.

Run by ``benchmarks.video_device``. Standard input: one line of JSON, :class:`Order`, and one empty line to begin.
Standard output: ``{"ready": ...}`` once the memory is full, a line for every so many frames, and at last the figures.
"""

from __future__ import annotations

import collections
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.bench.binary_inputs import binary_inputs
from triton_sam.bench.load_worker import Connection
from triton_sam.bench.pictures import fresh_numbers, number_at


@dataclass(frozen=True)
class Order:
    """What to do.

    Attributes:
        folder: with the frames, JPEG files of :meth:`~triton_sam.bench.pictures.Pictures.jpeg`, which are repeated.
        objects: how many are followed.
        warm: frames before the count begins, to fill the memory.
        frames: that are counted.
        window: steps that are under way at once.
        told_every: frames after which a line is written; 0: none.
    """

    port: int
    model: str
    name: str
    folder: str
    width: int
    height: int
    objects: int = 1
    warm: int = 24
    frames: int = 100
    window: int = 4
    told_every: int = 0


@dataclass(frozen=True)
class Answer:
    """One response.

    Attributes:
        at: when it came, seconds of the monotonic clock.
        timings: the server's, in milliseconds.
        rle_bytes: length of the masks' run lengths.
        area: share of the pixels of all masks that are set.
    """

    at: float
    timings: dict[str, float]
    rle_bytes: int
    seen: int


def places(count: int, width: int, height: int) -> list[tuple[float, float]]:
    """A point for each object, xy in pixels of the frame."""
    return [
        ((0.5 + 0.381966 * number) % 1 * (width - 1), (0.5 + 0.618034 * number) % 1 * (height - 1))
        for number in range(count)
    ]


def renumbered(data: bytes, number: int) -> bytes:
    """A copy of a numbered file with another number."""
    place = number_at(data)
    return data[: place.start] + b"%0*d" % (place.stop - place.start, number) + data[place.stop :]


class Film:
    """The session of one video."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._pool = ThreadPoolExecutor(order.window)
        self._threads = threading.local()
        self._pictures = [path.read_bytes() for path in sorted(Path(order.folder).glob("*.jpg"))]
        self._numbers = fresh_numbers()
        self._step = 0

    def begin(self) -> None:
        """Opens the session and prompts all objects in the first frame."""
        order = self._order
        self._send("open", width=order.width, height=order.height).result()
        first = self._picture(0)
        for number, (x, y) in enumerate(places(order.objects, order.width, order.height)):
            self._send("prompt", first, frame=0, object=number, points=[[x, y]], labels=[1]).result()

    def track(self, first: int, count: int) -> Iterator[Answer]:
        """Tracks frames; yields the answers in order."""
        waiting: collections.deque[Future[Answer]] = collections.deque()
        for frame in range(first, first + count):
            if len(waiting) == self._order.window:
                yield waiting.popleft().result()
            waiting.append(self._send("track", self._picture(frame), frame=frame))
        while waiting:
            yield waiting.popleft().result()

    def close(self) -> None:
        self._send("close").result()
        self._pool.shutdown()

    def _picture(self, frame: int) -> bytes:
        """A file that the server has not seen."""
        return renumbered(self._pictures[frame % len(self._pictures)], next(self._numbers))

    def _send(self, do: str, image: bytes | None = None, **fields: Any) -> Future[Answer]:
        order = self._order
        video = {"session": order.name, "step": self._step, "do": do, **fields}
        self._step += 1
        inputs = {"prompt_json": json.dumps({"video": video, "format": "rle"}).encode()}
        if image is not None:
            inputs["image"] = image
        described, binary = binary_inputs(inputs)
        outputs = [{"name": "result_json", "parameters": {"binary_data": True}}]
        parameters = {"session_id": order.name}
        head = json.dumps({"parameters": parameters, "inputs": described, "outputs": outputs}).encode()
        lines = [
            f"POST /v2/models/{order.model}/infer HTTP/1.1",
            "Host: 127.0.0.1",
            f"Inference-Header-Content-Length: {len(head)}",
            f"Content-Length: {len(head) + len(binary)}",
            "",
            "",
        ]
        return self._pool.submit(self._exchange, b"".join(("\r\n".join(lines).encode(), head, binary)))

    def _exchange(self, request: bytes) -> Answer:
        if not hasattr(self._threads, "connection"):
            self._threads.connection = Connection("127.0.0.1", self._order.port)
        status, body = self._threads.connection.send(request, keep_body=True)
        at = time.monotonic()
        if status != 200:
            raise SystemExit(body[:500].decode(errors="replace"))
        head, _ = json.JSONDecoder().raw_decode(body.decode("latin-1"))  # Triton's own, before the binary outputs
        length = int(head["outputs"][0]["parameters"]["binary_data_size"])
        result = json.loads(body[len(body) - length + 4 :])  # after the length of the text
        masks = result.get("masks", ())
        there = sum(one > 0 for one in result["video"].get("appearance", ()))
        return Answer(at, result["timings_ms"], sum(len(mask["data"]["counts"]) for mask in masks), there)


def main() -> None:
    order = Order(**json.loads(sys.stdin.readline()))
    film = Film(order)
    film.begin()
    for _ in film.track(0, order.warm):
        pass
    _say(ready=order.name)
    sys.stdin.readline()
    answers: list[Answer] = []
    begun = time.monotonic()
    for answer in film.track(order.warm, order.frames):
        answers.append(answer)
        if order.told_every and len(answers) % order.told_every == 0:
            _say(frames=order.warm + len(answers))
    film.close()
    last = answers[-500:]
    steps = sorted({step for answer in last for step in answer.timings})
    _say(
        begun=begun,
        at=[round(answer.at, 5) for answer in answers],
        rle_bytes=round(statistics.mean(answer.rle_bytes for answer in last)),
        there=statistics.mean(answer.seen for answer in last),
        steps={step: statistics.median(answer.timings.get(step, 0.0) for answer in last) for step in steps},
    )


def _say(**figures: Any) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
