"""A minimal client: prebuilt request bytes over one connection that is kept open.

It shows the cost of the server alone. The difference to the other clients is what Python's clients add.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from triton_sam.bench.load_clients import infer_request
from triton_sam.bench.load_worker import Connection
from triton_sam.bench.pictures import fresh_numbers, number_at
from triton_sam.bench.target import Target
from triton_sam.client.wire import Address
from triton_sam.errors import InternalError

#: Its name in figures, where other clients have the name of their protocol.
RAW_HTTP = "plain HTTP"
#: The number of different points that it clicks on.
POINTS = 10
_LENGTH_BYTES = 4
#: A placeholder as long as a key.
_NO_KEY = "0" * 40


class RawHttpClient:
    """Sends new images and clicks, one request after the other. Made by :func:`raw_http_clients`."""

    def __init__(self, target: Target, connection: Connection) -> None:
        self._connection = connection
        self._numbers = fresh_numbers()
        data = target.pictures.jpeg()
        where = number_at(data)
        image = infer_request(
            target.urls["HTTP"], target.name, {"image": data}, ("image_key",), session="plain", number=where
        )
        self._image = bytearray(base64.b64decode(image.request))
        self._number = slice(image.number_at, image.number_at + image.digits)
        self._clicks = [self._click_request(target, number) for number in range(POINTS)]

    @staticmethod
    def _click_request(target: Target, number: int) -> bytes:
        prompt = {"points": [list(target.pictures.point(number))], "labels": [1], "format": "bits"}
        inputs = {"image_key": _NO_KEY.encode(), "prompt_json": json.dumps(prompt).encode()}
        request = infer_request(target.urls["HTTP"], target.name, inputs, ("masks", "scores"), session="plain")
        return base64.b64decode(request.request)

    def new_image(self) -> str:
        """Sends an image that the server has not seen; returns its key."""
        digits = self._number.stop - self._number.start
        self._image[self._number] = b"%0*d" % (digits, next(self._numbers))
        body = self._send(self._image)
        length, key = body[-len(_NO_KEY) - _LENGTH_BYTES : -len(_NO_KEY)], body[-len(_NO_KEY) :]
        if int.from_bytes(length, "little") != len(_NO_KEY):
            raise InternalError(f"the server returned an image key that is not {len(_NO_KEY)} characters long")
        return key.decode("ascii")

    def click(self, key: str, number: int = 0) -> None:
        """Clicks on an image, at one of the points; the response has packed bits and a score."""
        self._send(self._clicks[number % POINTS].replace(_NO_KEY.encode(), key.encode(), 1))

    def _send(self, request: bytes | bytearray) -> bytes | bytearray:
        status, body = self._connection.send(request, keep_body=True)
        if status != 200:
            raise InternalError(f"the server returned {status}: {body[:200].decode(errors='replace')}")
        return body


@contextmanager
def raw_http_clients(target: Target) -> Iterator[dict[str, RawHttpClient]]:
    """Name -> the client; empty if the server cannot be reached over HTTP without TLS."""
    address = Address.parse(target.urls["HTTP"]) if "HTTP" in target.urls else None
    if address is None or address.tls:
        yield {}
        return
    parts = urlsplit(f"//{address.target}")
    connection = Connection(parts.hostname or "", parts.port or 80)
    try:
        yield {RAW_HTTP: RawHttpClient(target, connection)}
    finally:
        connection.close()
