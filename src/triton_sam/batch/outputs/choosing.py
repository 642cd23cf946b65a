"""Which files a job writes, by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from PIL import Image

from triton_sam.batch.outputs.labels import LABEL_FORMATS, LabelWriter
from triton_sam.batch.outputs.overlays import OverlayWriter
from triton_sam.batch.records import ItemResult
from triton_sam.errors import InvalidInput

#: One file an image, written beside its result.
ITEM_OUTPUTS = ("labels", "overlays")
#: All; the others are written at the end.
OUTPUTS = ("coco", "geojson", *ITEM_OUTPUTS, "report")


class ItemWriter(Protocol):
    """Writes a file for each image. Any thread may use it; a file that is there already is replaced by an equal one."""

    def write(self, result: ItemResult, stem: str, picture: Callable[[], Image.Image]) -> None:
        """Writes the file of one image.

        Args:
            stem: path of the file below the output's own folder, without suffix.
            picture: the image, upright; called only if it is needed, and its errors are raised.

        Raises:
            InvalidInput: this image cannot be written in this form.
            OSError: the disk.
        """


def check_outputs(names: Sequence[str], label_format: str = "png") -> None:
    """Raises InvalidInput for a name that there is not. None of them needs more than the light client."""
    unknown = [name for name in names if name not in OUTPUTS]
    if unknown:
        raise InvalidInput(f"there is no output {unknown[0]!r}: choose among {', '.join(OUTPUTS)}")
    if label_format not in LABEL_FORMATS:
        raise InvalidInput(f"label images are not written as {label_format!r}: choose {_listed(LABEL_FORMATS)}")


def make_writers(names: Sequence[str], folder: Path, label_format: str = "png") -> list[ItemWriter]:
    """The writers of what has one file an image; other names are left to the end of the job.

    Args:
        folder: of the job; files are written in ``labels`` and ``overlays`` below it.
        label_format: png, tiff16 or tiff32.
    """
    check_outputs(names, label_format)
    writers: list[ItemWriter] = []
    if "labels" in names:
        writers.append(LabelWriter(folder / "labels", label_format))
    if "overlays" in names:
        writers.append(OverlayWriter(folder / "overlays"))
    return writers


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
