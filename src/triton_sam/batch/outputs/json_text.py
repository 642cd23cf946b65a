"""JSON for files with millions of entries: short, and every number as it was."""

from __future__ import annotations

import json
import math
from typing import IO, Any

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def json_text(value: Any) -> bytes:
    """ASCII without spaces, so that no name can break the file."""
    return _ENCODER.encode(value).encode("ascii")


def short_numbers(value: Any) -> Any:
    """The same value with ``12`` for ``12.0``, and null for what JSON has not: NaN, infinity."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [short_numbers(one) for one in value]
    if isinstance(value, dict):
        return {key: short_numbers(one) for key, one in value.items()}
    return value


class JsonList:
    """Writes the entries of a JSON list, one a line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._between = b"\n"

    def add(self, entry: Any) -> None:
        self._file.write(self._between + json_text(entry))
        self._between = b",\n"
