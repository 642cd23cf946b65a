"""Clients of two servers behind a proxy, which upload and click all the time and record which server answered."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from testkit.steady_load import picture

#: Seconds that a client looks at its mask: clicks go before encodes, and these servers share their cores.
PAUSE = 0.3
_numbers = itertools.count(30_000)


def upload(client: httpx.Client, key: str, image: bytes) -> httpx.Response:
    return client.post("/v1/images", files={"image": image}, headers={"X-Image-Key": key})


def click(client: httpx.Client, key: str, image_key: str) -> httpx.Response:
    body = {"image_key": image_key, "points": [[30, 30]], "format": "rle"}
    return client.post("/v1/segment", json=body, headers={"X-Image-Key": key})


@dataclass
class TwoServerLoad:
    """Clients that click on their images until the end, and upload an image again when it has expired."""

    url: str
    owners: dict[str, str]
    end: threading.Event = field(default_factory=threading.Event)
    #: (time, X-Image-Key, status, server, route)
    answers: list[tuple[float, str, int, str, str]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    no_more_newcomers: threading.Event = field(default_factory=threading.Event)
    #: The servers that answered uploads of new images, in order.
    newcomers: list[str] = field(default_factory=list)

    def send_newcomers(self, keys: list[str]) -> None:
        """Uploads new images one after the other, so that an upload is nearly always in flight."""
        with httpx.Client(base_url=self.url, timeout=120, trust_env=False) as client:
            for key in keys:
                image = picture(next(_numbers))
                while not self.no_more_newcomers.is_set():
                    try:
                        answer = upload(client, key, image)
                    except httpx.TransportError as error:
                        self.broken.append(f"newcomer: {error!r}")
                        continue
                    by = answer.headers.get("X-Served-By", "haproxy")
                    self.answers.append((time.monotonic(), key, answer.status_code, by, "/v1/images"))
                    if answer.status_code == 200:
                        self.newcomers.append(by)
                        break
                    self._take(key, answer, {})

    def run(self, keys: list[str]) -> None:
        pictures = {key: picture(next(_numbers)) for key in keys}
        known: dict[str, str] = {}
        with httpx.Client(base_url=self.url, timeout=120, trust_env=False) as client:
            for key in itertools.cycle(keys):
                if self.end.is_set():
                    return
                try:
                    answer = click(client, key, known[key]) if key in known else upload(client, key, pictures[key])
                except httpx.TransportError as error:
                    self.broken.append(f"{'click' if key in known else 'upload'}: {error!r}")
                    continue
                route = answer.request.url.path
                by = answer.headers.get("X-Served-By", "haproxy")
                self.answers.append((time.monotonic(), key, answer.status_code, by, route))
                self._take(key, answer, known)
                self.end.wait(PAUSE)

    def _take(self, key: str, answer: httpx.Response, known: dict[str, str]) -> None:
        code = answer.json()["error"]["code"] if answer.status_code != 200 else ""
        if answer.status_code == 200 and key not in known:
            known[key] = answer.json()["image_key"]
        elif answer.status_code in (429, 503):
            self.end.wait(min(1.0, float(answer.headers["Retry-After"])))
        elif code == "image_expired":
            known.pop(key, None)
        elif answer.status_code != 200:
            self.broken.append(f"{answer.status_code} {answer.text[:200]}")

    def by(
        self, server: str, owner: str, since: float, route: str | None = None, status: int | None = None
    ) -> set[str]:
        """The images of ``owner`` for which ``server`` has answered a request."""
        return {
            key
            for when, key, answered, name, path in self.answers
            if when > since
            and name == server
            and self.owners.get(key) == owner
            and path == (route or path)
            and answered == (status or answered)
        }

    def first_masks(self, server: str, owner: str, since: float) -> float:
        """The time when ``server`` had returned a first mask of each of the images of ``owner`` that it served."""
        first: dict[str, float] = {}
        for when, key, status, name, path in self.answers:
            if when > since and (name, status, path) == (server, 200, "/v1/segment") and self.owners.get(key) == owner:
                first.setdefault(key, when)
        return max(first.values())

    def uploads(self, owner: str) -> Counter[str]:
        """How often each image of a server was encoded."""
        done = (key for _, key, status, _, route in self.answers if status == 200 and route == "/v1/images")
        return Counter(key for key in done if self.owners.get(key) == owner)
