"""Photographs that an installed package brings along, for first steps without an image of one's own."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def photograph_folder() -> Path | None:
    """Where scikit-image keeps its photographs; None without it. It is looked for and not imported, which is slow."""
    spec = importlib.util.find_spec("skimage")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "data"
