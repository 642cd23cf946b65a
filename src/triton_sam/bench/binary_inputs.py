"""The inputs of an infer request in Triton's binary form. Only the standard library: load generators start quickly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def binary_inputs(inputs: Mapping[str, bytes]) -> tuple[list[dict[str, Any]], bytes]:
    """(descriptions for the JSON header, the bytes that follow it).

    Args:
        inputs: name -> bytes; ``image`` is sent as UINT8, the others as BYTES.
    """
    described, binary = [], b""
    for name, data in inputs.items():
        raw = data if name == "image" else len(data).to_bytes(4, "little") + data
        kind, shape = ("UINT8", len(data)) if name == "image" else ("BYTES", 1)
        size = {"binary_data_size": len(raw)}
        described.append({"name": name, "datatype": kind, "shape": [shape], "parameters": size})
        binary += raw
    return described, binary
