"""Photographs that an installed package brings along, for first steps without an image of one's own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from triton_sam.errors import SetupError

SAMPLE_NAME = "coffee.png"
"""A cup of coffee, public domain (CC0), out of scikit-image's wheel."""


def photograph_folder() -> Path | None:
    """Where scikit-image keeps its photographs; None without it. It is looked for and not imported, which is slow."""
    spec = importlib.util.find_spec("skimage")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "data"


def sample_photograph(name: str = SAMPLE_NAME) -> Path:
    """A photograph that an installed package brings along."""
    folder = photograph_folder()
    if folder is None:
        raise SetupError("the sample photograph comes with scikit-image: pip install 'triton-sam[demo]'")
    return folder / name
