"""Many clients, more images than the cache holds: every mask belongs to the image that was asked about."""

from __future__ import annotations

import io
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.analytic import expected_mask
from tests.conftest import ServerFactory
from tests.faults.figures import record
from tests.faults.witness import Stopwatch, png, vitals
from tests.server_readings import counters
from triton_sam import SAM2TritonClient
from triton_sam.core.masks import decode
from triton_sam.errors import QueueFull, Unavailable
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
#: Bytes of an embedding with its high-resolution companions: 256 x 64 x 64, 32 x 256 x 256 and 64 x 128 x 128 float32.
EMBEDDING = 4 * (256 * 64 * 64 + 32 * 256 * 256 + 64 * 128 * 128)
#: In every image, so that another image's embedding would give that image's mask and no error.
POINT = [64, 64]
CLICKS = 3
MOST_TRIES = 50
Mask = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Crowd:
    """How many clients ask about how many images, of which the cache holds ``kept``.

    Attributes:
        smallest, step: of the half axes of the ellipses in the images, in pixels.
    """

    clients: int
    images: int
    kept: int
    smallest: int
    step: int

    def picture(self, number: int) -> Image.Image:
        """An ellipse around the point, of a form that no other picture's has."""
        canvas = Image.new("RGB", (128, 128), (30 + 5 * number, 60, 90))
        wide, high = (self.smallest + self.step * (place % 4) for place in (number, number // 4))
        box = [POINT[0] - wide, POINT[1] - high, POINT[0] + wide, POINT[1] + high]
        ImageDraw.Draw(canvas).ellipse(box, fill=(220, 200, 20 + 10 * number))
        return canvas


#: The analytic model sees 15 pixels around the point.
FEW = Crowd(clients=6, images=8, kept=2, smallest=4, step=3)
MANY = Crowd(clients=16, images=16, kept=6, smallest=12, step=11)


def overlap(first: Mask, second: Mask) -> float:
    """Intersection over union."""
    return float((first & second).sum() / max(1, (first | second).sum()))


@dataclass(slots=True)
class Findings:
    """What all clients saw."""

    ways: Counter[str] = field(default_factory=Counter)
    expired: int = 0
    refused: int = 0
    worst: float = 1.0
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def judge(self, way: str, image: int, mask: Mask, expected: list[Mask]) -> None:
        """A mask must be its image's to the last pixel or nearly, and no other's."""
        found = overlap(mask, expected[image])
        nearest = max(range(len(expected)), key=lambda other: overlap(mask, expected[other]))
        with self._lock:
            self.ways[way] += 1
            self.worst = min(self.worst, found)
            if nearest != image or found < 0.999:
                self.wrong.append(f"{way}: image {image} got a mask like that of {nearest} (IoU {found:.4f})")

    def note_refused(self) -> None:
        with self._lock:
            self.refused += 1

    def note_expired(self) -> None:
        with self._lock:
            self.expired += 1


class Client:
    """Visits every image once, in an order of its own, each time by one of three ways."""

    def __init__(
        self, number: int, running: RunningServer, pictures: list[bytes], expected: list[Mask], seen: Findings
    ):
        self._number = number
        self._running = running
        self._pictures = pictures
        self._expected = expected
        self._seen = seen
        self._keys: dict[int, str] = {}

    def _post(self, service: httpx.Client, path: str, **body: Any) -> httpx.Response:
        """Asks again where the queue is full or no turn came: that is an answer, and no mask."""
        for _ in range(MOST_TRIES):
            answer = service.post(path, **body)
            if answer.status_code not in (429, 503):
                return answer
            self._seen.note_refused()
        pytest.fail(f"no turn in {MOST_TRIES} tries: {answer.text}")

    def run(self) -> None:
        order = list(range(len(self._pictures)))
        random.Random(self._number).shuffle(order)
        with (
            httpx.Client(base_url=self._running.urls["service"], timeout=600, trust_env=False) as service,
            SAM2TritonClient(self._running.urls["gRPC"], timeout=600) as straight,
        ):
            for turn, image in enumerate(order):
                way = (turn + self._number) % 3
                if way == 0:
                    self._by_key(service, image)
                elif way == 1:
                    fields = {"x": str(POINT[0]), "y": str(POINT[1])}
                    files = {"image": self._pictures[image]}
                    answer = self._post(service, "/prediction", files=files, data=fields)
                    assert answer.status_code == 200, answer.text
                    self._judge("image and click in one", image, np.asarray(Image.open(io.BytesIO(answer.content))) > 0)
                else:
                    self._straight(straight, image)
            for image, key in self._keys.items():
                self._come_back(service, image, key)

    def _straight(self, client: SAM2TritonClient, image: int) -> None:
        clicks = tries = 0
        is_set = False
        while clicks < CLICKS:
            tries += 1
            assert tries < MOST_TRIES
            try:
                if not is_set:
                    client.set_image(self._pictures[image])
                    is_set = True
                self._judge("straight to Triton", image, client.segment([POINT]).masks.best)
            except (QueueFull, Unavailable):
                self._seen.note_refused()
                continue
            clicks += 1

    def _by_key(self, service: httpx.Client, image: int) -> None:
        clicks = tries = 0
        key = ""
        while clicks < CLICKS:
            tries += 1
            assert tries < MOST_TRIES, "the image is pushed out before every click"
            click = {"image_key": key or "0" * 40, "points": [POINT], "format": "bits"}
            answer = self._post(service, "/v1/segment", json=click)
            if answer.status_code == 404:
                assert answer.json()["error"]["code"] == "image_expired"
                if key:
                    self._seen.note_expired()
                sent = self._post(service, "/v1/images", files={"image": self._pictures[image]})
                assert sent.status_code == 200, sent.text
                key = sent.json()["image_key"]
                continue
            assert answer.status_code == 200, answer.text
            assert answer.json()["image_key"] == key
            self._judge("click on a key", image, decode(answer.json()["mask"]))
            self._keys[image] = key
            clicks += 1

    def _come_back(self, service: httpx.Client, image: int, key: str) -> None:
        """A click on an image of long ago: its own mask or none, though others have its room in the cache by now."""
        answer = self._post(service, "/v1/segment", json={"image_key": key, "points": [POINT], "format": "bits"})
        if answer.status_code == 404:
            assert answer.json()["error"]["code"] == "image_expired"
            self._seen.note_expired()
        else:
            assert answer.status_code == 200, answer.text
            self._judge("click on an old key", image, decode(answer.json()["mask"]))

    def _judge(self, way: str, image: int, mask: Mask) -> None:
        self._seen.judge(way, image, mask, self._expected)


@pytest.mark.also_part("faults-processes")
def test_no_mask_of_another_image(start_server: ServerFactory) -> None:
    pictures = [FEW.picture(number) for number in range(FEW.images)]
    expected = [expected_mask(picture, points=[POINT]) for picture in pictures]
    with start_server(cache_bytes=str(FEW.kept * EMBEDDING)) as running:
        expect_no_mixing(FEW, running, [png(picture) for picture in pictures], expected)


@pytest.mark.part("faults")
@pytest.mark.also_part("faults-processes")
@pytest.mark.timeout(1800)
def test_no_mask_of_another_image_in_a_crowd(start_real_server: ServerFactory) -> None:
    pictures = [png(MANY.picture(number)) for number in range(MANY.images)]
    with start_real_server(cache_bytes=str(MANY.kept * EMBEDDING)) as running:
        with SAM2TritonClient(running.urls["HTTP"]) as alone:
            expected = []
            for data in pictures:
                alone.set_image(data)
                expected.append(alone.segment([POINT]).masks.best)
        seen, figures = expect_no_mixing(MANY, running, pictures, expected)
    assert seen.expired > 0, "nobody came back to an image that had gone"
    record("no_mixing", f"{MANY.clients} clients x {MANY.images} images, cache for {MANY.kept}", figures)


def expect_no_mixing(
    crowd: Crowd, running: RunningServer, pictures: list[bytes], expected: list[Mask]
) -> tuple[Findings, dict[str, tuple[Any, str]]]:
    """All clients get the expected masks: (what they saw, figures)."""
    images = range(crowd.images)
    likeness = max(overlap(expected[a], expected[b]) for a in images for b in range(a))
    assert likeness < 0.95, "masks of two images are too alike to tell which was answered"
    before = vitals(running)
    encodes = counters(running, "sam2")["encodes_total"]
    seen, watch = Findings(), Stopwatch()
    clients = [Client(number, running, pictures, expected, seen) for number in range(crowd.clients)]
    with ThreadPoolExecutor(crowd.clients) as pool:
        for done in [pool.submit(client.run) for client in clients]:
            done.result()
    seconds = watch.seconds
    encodes = counters(running, "sam2")["encodes_total"] - encodes
    assert seen.wrong == []
    assert sum(seen.ways.values()) >= crowd.clients * crowd.images
    assert encodes > crowd.images - crowd.kept, "the cache was large enough, so nothing was shown"
    assert vitals(running) == before
    return seen, {
        "masks": (sum(seen.ways.values()), ""),
        "masks by way": (dict(seen.ways), ""),
        "masks of another image": (len(seen.wrong), "0"),
        "smallest IoU with the mask made alone": (seen.worst, "> 0.999"),
        "largest IoU of two images' masks": (round(likeness, 3), ""),
        "keys that had expired": (seen.expired, ""),
        "refused for want of a turn, and asked again": (seen.refused, ""),
        "encodes": (int(encodes), ""),
        "seconds": (round(seconds), ""),
    }
