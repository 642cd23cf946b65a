"""The smallest client: requests that are bytes already, over one connection that it keeps.

What a server costs is seen best through it; beside it stands what Python's clients add.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from triton_sam.bench.load import http_job
from triton_sam.bench.load_worker import Connection
from triton_sam.bench.pictures import fresh_numbers, number_at
from triton_sam.bench.target import Target
from triton_sam.client.wire import Address
from triton_sam.errors import InternalError

#: What figures of it are called by, where others are called by their protocol.
PLAIN = "plain HTTP"
#: Where it clicks, in turns.
PLACES = 10
_LENGTH_BYTES = 4
#: In the place of a key, and as long as one.
_NO_KEY = "0" * 40


class PlainClient:
    """One after the other: a new image, clicks on it. Made by :func:`plain_clients`."""

    def __init__(self, target: Target, connection: Connection) -> None:
        self._connection = connection
        self._numbers = fresh_numbers()
        data = target.pictures.jpeg()
        where = number_at(data)
        image = http_job(
            target.urls["HTTP"], target.name, {"image": data}, ("image_key",), session="plain", number=where
        )
        self._image = bytearray(base64.b64decode(image.request))
        self._number = slice(image.number_at, image.number_at + image.digits)
        self._clicks = [self._click_request(target, number) for number in range(PLACES)]

    @staticmethod
    def _click_request(target: Target, number: int) -> bytes:
        prompt = {"points": [list(target.pictures.point(number))], "labels": [1], "format": "bits"}
        inputs = {"image_key": _NO_KEY.encode(), "prompt_json": json.dumps(prompt).encode()}
        job = http_job(target.urls["HTTP"], target.name, inputs, ("masks", "scores"), session="plain")
        return base64.b64decode(job.request)

    def new_image(self) -> str:
        """Sends an image that the server has not seen; returns its key."""
        digits = self._number.stop - self._number.start
        self._image[self._number] = b"%0*d" % (digits, next(self._numbers))
        body = self._ask(self._image)
        length, key = body[-len(_NO_KEY) - _LENGTH_BYTES : -len(_NO_KEY)], body[-len(_NO_KEY) :]
        if int.from_bytes(length, "little") != len(_NO_KEY):
            raise InternalError("the server's keys have another length than this client knows")
        return key.decode("ascii")

    def click(self, key: str, number: int = 0) -> None:
        """A click on an image, at one of its places; packed bits and a score come back."""
        self._ask(self._clicks[number % PLACES].replace(_NO_KEY.encode(), key.encode(), 1))

    def _ask(self, request: bytes | bytearray) -> bytes:
        status, body = self._connection.ask(request, keep=True)
        if status != 200:
            raise InternalError(f"the server answers {status}: {body[:200].decode(errors='replace')}")
        return body


@contextmanager
def plain_clients(target: Target) -> Iterator[dict[str, PlainClient]]:
    """One under its name, connected until the end; none where the server is not reached over HTTP without TLS."""
    address = Address.parse(target.urls["HTTP"]) if "HTTP" in target.urls else None
    if address is None or address.tls:
        yield {}
        return
    parts = urlsplit(f"//{address.target}")
    connection = Connection(parts.hostname or "", parts.port or 80)
    try:
        yield {PLAIN: PlainClient(target, connection)}
    finally:
        connection.close()
