"""Embeddings as text, for tools that store them: base64 of little-endian float32, optionally gzipped."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import math
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.service.served_models import ServedSegmenter

_GZIP_SIGNATURE = b"\x1f\x8b"
_GZIP_WINDOW = 31


def to_text(embedding: npt.NDArray[Any], *, compress: bool) -> tuple[bytes, str]:
    """([1,C,h,w] float32 as text, the hash of its bytes). Processes megabytes, so run it on a thread."""
    raw = np.ascontiguousarray(embedding, dtype="<f4").tobytes()
    text = base64.b64encode(raw)
    return gzip.compress(text, 1) if compress else text, _hash(raw)


def from_text(data: bytes, max_bytes: int) -> tuple[bytes, str]:
    """(raw bytes, their hash) from the text of :func:`to_text`. Run it on a thread.

    Args:
        max_bytes: of the largest raw embedding. Decompression stops at this limit.
    """
    text_bound = max(1, 2 * max_bytes)  # base64 needs 4/3 and may have line breaks; 0 would mean unlimited to zlib
    if data[:2] == _GZIP_SIGNATURE:
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        try:
            data = unpacker.decompress(data, text_bound)
        except zlib.error as error:
            raise InvalidInput(f"model is not a valid gzip ({error}): send the text of /embedded_model") from None
        if unpacker.unconsumed_tail:
            raise TooLarge(f"model decompresses to more than {text_bound:,} bytes: send the text of /embedded_model")
    if len(data) > text_bound:
        raise TooLarge(f"model has more than {text_bound:,} bytes: send the text of /embedded_model")
    try:
        raw = base64.b64decode(data.translate(None, b" \t\r\n"), validate=True)
    except binascii.Error as error:
        raise InvalidInput(f"model is not valid base64 ({error}): send the text of /embedded_model") from None
    return raw, _hash(raw)


def to_array(raw: bytes, served: ServedSegmenter) -> npt.NDArray[np.float32]:
    """[1,C,h,w] float32 of this model from raw bytes; all values must be finite."""
    shape = served.embedding_shape
    if len(raw) != 4 * math.prod(shape):
        raise InvalidInput(
            f"an embedding of {served.spec.id} has {4 * math.prod(shape):,} bytes (float32 {list(shape)}), "
            f"not {len(raw):,}: set model_version to the model that made it"
        )
    array = np.frombuffer(raw, "<f4").reshape(shape)
    if not np.isfinite(array).all():
        raise InvalidInput("the embedding has values that are not finite: request it again from /embedded_model")
    return array


def max_embedding_bytes(served: Iterable[ServedSegmenter]) -> int:
    """The size of the largest raw embedding of these models."""
    return max((4 * math.prod(one.embedding_shape) for one in served), default=0)


def _hash(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
