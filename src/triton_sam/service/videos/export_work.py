"""Writes what was found in a video as a file; runs in :mod:`.child_process`."""

from __future__ import annotations

from typing import Any

from triton_sam.errors import Unsupported


def export(request: dict[str, Any]) -> dict[str, Any]:
    """Writes the file."""
    raise Unsupported("not yet")
