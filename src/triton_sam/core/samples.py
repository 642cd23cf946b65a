"""Sample photographs that scikit-image ships, for first steps without an own image."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.installation import install_extra

SAMPLE_NAME = "coffee.png"
"""A cup of coffee, public domain (CC0), from scikit-image's wheel."""


def photograph_folder() -> Path | None:
    """The folder of scikit-image's photographs; None if it is not installed. Does not import it, which is slow."""
    spec = importlib.util.find_spec("skimage")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "data"


def sample_photograph(name: str = SAMPLE_NAME) -> Path:
    """The path of a sample photograph; SetupError if scikit-image is not installed."""
    folder = photograph_folder()
    if folder is None:
        raise SetupError(f"the sample photograph comes with scikit-image: {install_extra('demo')}")
    return folder / name
