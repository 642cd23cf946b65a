"""A batch job's images a second against the plain load generator with the same requests, and a person beside it.

usage: python -m benchmarks.batch_rate URL MODEL [IMAGES] [BOXES] [ROUNDS]

A server must run at URL (Triton over HTTP). In turns: the load generator with several numbers of clients, then a job on
as many new images. The person clicks once a second on an image of their own: alone, then while a job runs. Prints JSON,
one line each.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from triton_sam import BatchJob, SAM2TritonClient
from triton_sam.batch.progress import JobProgress
from triton_sam.bench.load_clients import infer_request, load_clients
from triton_sam.bench.pictures import Pictures, fresh_numbers, number_at

_CLIENTS = (2, 4)
_STEP_SECONDS = 20.0
_CLICK_EVERY = 1.0
_EACH = 1_000_000


def say(**figures: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def load_rate(url: str, model: str, pictures: Pictures, boxes: int) -> float:
    """Images a second of the best number of clients, each image new."""
    base = next(fresh_numbers())
    prompt = json.dumps({"boxes": pictures.boxes(boxes), "format": "rle"}).encode()
    data = pictures.jpeg()
    rates = []
    with load_clients() as clients:
        for client in range(max(_CLIENTS)):
            clients.add(
                infer_request(
                    url,
                    model,
                    {"prompt_json": prompt, "image": data},
                    ("result_json",),
                    session=f"rate {base} {client}",
                    number=number_at(data),
                    first_number=base + client * _EACH,
                )
            )
        clients.wait_until_ready()
        for count in _CLIENTS:
            stop = clients.begin(count, _STEP_SECONDS, 3.0)
            time.sleep(max(0.0, stop - time.monotonic()))
            rates.append(clients.outcome(count, _STEP_SECONDS).rate)
    return max(rates)


def write_images(folder: Path, pictures: Pictures, images: int, boxes: int) -> Path:
    """A folder of new images, and the COCO file of their boxes."""
    (folder / "in").mkdir(parents=True)
    numbers = fresh_numbers()
    names = [f"{number:06}.jpg" for number in range(images)]
    for name in names:
        (folder / "in" / name).write_bytes(pictures.jpeg(next(numbers)))
    wanted = [[x0, y0, x1 - x0, y1 - y0] for x0, y0, x1, y1 in pictures.boxes(boxes)]
    document = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
        "annotations": [
            {"id": number * boxes + place, "image_id": number, "category_id": 1, "bbox": box}
            for number in range(images)
            for place, box in enumerate(wanted)
        ],
        "categories": [{"id": 1, "name": "box"}],
    }
    path = folder / "boxes.json"
    path.write_text(json.dumps(document))
    return path


def job_rate(url: str, model: str, folder: Path, boxes: Path) -> tuple[float, float]:
    """Images a second of a whole job, and of the middle eight tenths of its images."""
    moments: list[tuple[float, int]] = []

    def note(step: JobProgress) -> None:
        moments.append((time.monotonic(), step.done))

    job = BatchJob(folder / "in", folder / "out", coco=boxes, model=model, url=url)
    summary = job.run(note)
    assert summary.failed == 0
    first, last = summary.done * 0.1, summary.done * 0.9
    begun, ended = (next(moment for moment in moments if moment[1] >= count) for count in (first, last))
    return summary.now / summary.seconds, (ended[1] - begun[1]) / (ended[0] - begun[0])


class Person(threading.Thread):
    """Clicks once a second until told to stop; the times of its clicks in ms."""

    def __init__(self, url: str, model: str, pictures: Pictures) -> None:
        super().__init__(daemon=True)
        self._client = SAM2TritonClient(url, model)
        self._client.set_image(pictures.jpeg(next(fresh_numbers())))
        self._pictures = pictures
        self.times: list[float] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopped.wait(_CLICK_EVERY):
            number += 1
            begun = time.perf_counter()
            self._client.predict([self._pictures.point(number)], [1])
            self.times.append((time.perf_counter() - begun) * 1e3)

    def told(self) -> dict[str, float]:
        self.stopped.set()
        self.join()
        p50, p95 = np.percentile(self.times, (50, 95))
        return {"clicks": len(self.times), "p50_ms": round(p50, 1), "p95_ms": round(p95, 1)}


def main(arguments: list[str]) -> None:
    """The command line."""
    url, model, *numbers = arguments
    images, boxes, rounds = (int(text) for text in [*numbers, *("60", "1", "2")[len(numbers) :]])
    pictures = Pictures()
    ratios = []
    for _ in range(rounds):
        load = load_rate(url, model, pictures, boxes)
        with tempfile.TemporaryDirectory() as name:
            whole, swing = job_rate(url, model, Path(name), write_images(Path(name), pictures, images, boxes))
        ratios.append(swing / load)
        say(boxes=boxes, load_per_s=round(load, 3), job_per_s=round(whole, 3), job_in_full_swing_per_s=round(swing, 3))
    say(ratio=round(statistics.median(ratios), 3), of=[round(ratio, 3) for ratio in ratios])
    alone = Person(url, model, pictures)
    alone.start()
    time.sleep(max(_STEP_SECONDS, images * 0.5))
    say(person="alone", **alone.told())
    beside = Person(url, model, pictures)
    with tempfile.TemporaryDirectory() as name:
        given = write_images(Path(name), pictures, images, boxes)
        beside.start()
        job_rate(url, model, Path(name), given)
    say(person="beside a job", **beside.told())


if __name__ == "__main__":
    main(sys.argv[1:])
