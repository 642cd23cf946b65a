"""Embeddings as text, for tools that keep them: base64 of little-endian float32, also as its gzip."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import math
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.service.served_models import Served

_GZIP_SIGNATURE = b"\x1f\x8b"
_GZIP_WINDOW = 31
_REMEMBERED = 512


def to_text(embedding: npt.NDArray[Any], *, compress: bool) -> tuple[bytes, str]:
    """([1,C,h,w] float32 as text, the hash of its bytes). Megabytes: for a thread."""
    raw = np.ascontiguousarray(embedding, dtype="<f4").tobytes()
    text = base64.b64encode(raw)
    return gzip.compress(text, 1) if compress else text, _hash(raw)


def from_text(data: bytes, longest: int) -> tuple[bytes, str]:
    """The text of :func:`to_text` -> (its raw bytes, their hash). For a thread.

    Args:
        longest: the most raw bytes that an embedding has here; what unpacks to more is not unpacked.
    """
    text_bound = max(1, 2 * longest)  # base64 needs 4/3, and may have line ends; 0 would mean no bound to zlib
    if data[:2] == _GZIP_SIGNATURE:
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        try:
            data = unpacker.decompress(data, text_bound)
        except zlib.error as error:
            raise InvalidInput(f"model is a damaged gzip ({error}): send the text of /embedded_model") from None
        if unpacker.unconsumed_tail:
            raise TooLarge(f"model unpacks to more than {text_bound:,} bytes: send the text of /embedded_model")
    if len(data) > text_bound:
        raise TooLarge(f"model has more than {text_bound:,} bytes: send the text of /embedded_model")
    try:
        raw = base64.b64decode(data.translate(None, b" \t\r\n"), validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"model is no base64 ({error}): send the text of /embedded_model") from None
    return raw, _hash(raw)


def to_array(raw: bytes, served: Served) -> npt.NDArray[np.float32]:
    """Raw bytes -> [1,C,h,w] float32 of this model, all finite."""
    shape = served.embedding_shape
    if len(raw) != 4 * math.prod(shape):
        raise InvalidInput(
            f"an embedding of {served.spec.id} has {4 * math.prod(shape):,} bytes (float32 {list(shape)}), "
            f"not {len(raw):,}: name the model that made it in model_version"
        )
    array = np.frombuffer(raw, "<f4").reshape(shape)
    if not np.isfinite(array).all():
        raise InvalidInput("the embedding has numbers that are not finite: ask /embedded_model again")
    return array


def longest(served: Iterable[Served]) -> int:
    """The most raw bytes that an embedding of these models has."""
    return max((4 * math.prod(one.embedding_shape) for one in served), default=0)


class Makers:
    """Which model made an embedding, of the last ones that were handed out."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, str] = OrderedDict()

    def remember(self, digest: str, name: str) -> None:
        self._names[digest] = name
        self._names.move_to_end(digest)
        while len(self._names) > _REMEMBERED:
            self._names.popitem(last=False)

    def maker(self, digest: str) -> str | None:
        """The Triton name of the model."""
        return self._names.get(digest)


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
