"""Which files a job writes, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triton_sam.batch.outputs import coco, geojson, report
from triton_sam.batch.outputs.labels import LABEL_FORMATS, LabelWriter
from triton_sam.batch.outputs.overlays import OverlayWriter
from triton_sam.batch.state.writing import ItemWriter
from triton_sam.errors import InvalidInput

#: One file an image, written beside its result.
ITEM_OUTPUTS = ("labels", "overlays")
#: All; the others are written at the end.
OUTPUTS = ("coco", "geojson", *ITEM_OUTPUTS)
#: Of those that are written at the end.
_FILES = {"coco": coco.NAME, "geojson": geojson.NAME, "report": report.NAME}


def check_outputs(names: Sequence[str], label_format: str = "png") -> None:
    """Raises InvalidInput for a name that there is not. None of them needs more than the light client."""
    unknown = [name for name in names if name not in (*OUTPUTS, "report")]
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


def files_of(names: Sequence[str]) -> list[str]:
    """The files that are written at the end of the job."""
    return [_FILES[name] for name in names if name in _FILES]


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
