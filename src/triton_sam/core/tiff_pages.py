"""What the tags of a TIFF page say about its samples, checked; no pixel is decoded here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.tiff_directories import Directory
from triton_sam.errors import InvalidInput

WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, TRANSPARENCY_MASK, CMYK, YCBCR = range(7)
PHOTOMETRICS = {
    CMYK: "CMYK",
    YCBCR: "YCbCr",
    8: "CIE L*a*b*",
    9: "ICC L*a*b*",
    10: "ITU L*a*b*",
    32803: "the colour filter array of a camera's raw file",
    32844: "LogL",
    32845: "LogLuv",
    34892: "the linear raw data of a camera",
}
ASSOCIATED_ALPHA, UNASSOCIATED_ALPHA = 1, 2
_KINDS = {1: "u", 2: "i", 3: "f", 4: "u"}
_FLOAT_BITS = (16, 32, 64)
#: More would take minutes to decode one by one; a file of this many strips has rows of a few pixels.
_MAX_SEGMENTS = 500_000
_MAX_SAMPLES = 1024
_MISSING_PHOTOMETRIC = -1


@dataclass(frozen=True, slots=True, eq=False)
class TiffPage:
    """One page: its size, its samples and where its segments (strips or tiles) lie in the file."""

    directory: Directory
    width: int
    """As stored, before the orientation."""
    height: int
    samples: int
    bits: int
    kind: str
    """u, i or f, as in numpy."""
    is_planar: bool
    photometric: int
    compression: int
    predictor: int
    fill_order: int
    orientation: int
    extra_samples: tuple[int, ...] | None
    """What the samples beyond grey or RGB are; None if the tag is missing."""
    segment_width: int
    segment_height: int
    is_tiled: bool
    offsets: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    """Bytes of each segment."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the decoded samples, in the machine's byte order."""
        size = next(size for size in (8, 16, 32, 64) if self.bits <= size)
        return np.dtype(f"{self.kind}{size // 8}")

    @property
    def samples_in_segment(self) -> int:
        """Samples of each pixel inside a segment."""
        return 1 if self.is_planar else self.samples

    @property
    def segment_bytes(self) -> int:
        """Bytes of a full segment when it is not compressed; each row begins with a new byte."""
        row = math.ceil(self.segment_width * self.samples_in_segment * self.bits / 8)
        return row * self.segment_height

    def shifted(self, distance: int) -> TiffPage:
        """The page whose segments lie this many bytes further in the file."""
        return replace(self, offsets=self.offsets.astype(np.uint64) + np.uint64(distance))

    @property
    def frame_bytes(self) -> int:
        """Bytes of the page's pixels, if they are not compressed."""
        return (
            math.ceil(self.width * self.bits * self.samples_in_segment / 8)
            * self.height
            * (self.samples if self.is_planar else 1)
        )


def read_page(directory: Directory) -> TiffPage:
    """A page's tags; InvalidInput names what cannot be read, ValueError what is damaged."""
    width, height = directory.number(256, 0), directory.number(257, 0)
    if width <= 0 or height <= 0:
        raise ValueError(f"the TIFF has {width} x {height} pixels")
    if directory.number(32997, 1) != 1:
        raise InvalidInput("the TIFF has a volume in one page (ImageDepth): write one page for each slice")
    samples = directory.number(277, 1)
    if not 0 < samples <= _MAX_SAMPLES:
        raise ValueError(f"the TIFF has {samples} samples for each pixel")
    extra = directory.numbers(338)
    tiled = 322 in directory.entries
    page = TiffPage(
        directory=directory,
        width=width,
        height=height,
        samples=samples,
        bits=_same(directory, 258, samples, 1, "bits"),
        kind=_kind(directory, samples),
        is_planar=samples > 1 and directory.number(284, 1) == 2,
        photometric=directory.number(262, _MISSING_PHOTOMETRIC),
        compression=directory.number(259, 1),
        predictor=directory.number(317, 1),
        fill_order=directory.number(266, 1),
        orientation=directory.number(274, 1),
        extra_samples=None if extra is None else tuple(extra[:_MAX_SAMPLES].tolist()),
        segment_width=directory.number(322, 0) if tiled else width,
        segment_height=directory.number(323, 0) if tiled else min(height, directory.number(278, height)),
        is_tiled=tiled,
        offsets=np.zeros(0, np.uint64),
        counts=np.zeros(0, np.uint64),
    )
    if not 0 < page.bits <= 64:
        raise ValueError(f"the TIFF has {page.bits} bits for each sample")
    if page.kind == "f" and page.bits not in _FLOAT_BITS:
        raise InvalidInput(f"the TIFF has floats of {page.bits} bits: write it with 32-bit floats or 16-bit integers")
    return _with_segments(page)


def _with_segments(page: TiffPage) -> TiffPage:
    directory = page.directory
    if page.segment_width <= 0 or page.segment_height <= 0:
        raise ValueError("the TIFF has tiles or strips without pixels")
    columns = math.ceil(page.width / page.segment_width)
    rows = math.ceil(page.height / page.segment_height)
    expected = columns * rows * (page.samples if page.is_planar else 1)
    if expected > _MAX_SEGMENTS:
        raise InvalidInput(f"the TIFF has {expected:,} strips or tiles: write it with larger ones")
    offsets = directory.numbers(324) if page.is_tiled else None
    counts = directory.numbers(325) if page.is_tiled else None
    offsets = directory.numbers(273) if offsets is None else offsets  # some writers store tiles as strips
    counts = directory.numbers(279) if counts is None else counts
    if offsets is None and 513 in directory.entries:  # JPEG as TIFF 6.0 had it first; only Pillow reads it
        return page
    if counts is None and page.compression == 1:
        counts = np.full(expected, page.segment_bytes, np.uint64)
    if offsets is None or counts is None or min(len(offsets), len(counts)) < expected:
        raise ValueError(f"the TIFF does not say where its {expected:,} strips or tiles are")
    return replace(page, offsets=offsets[:expected], counts=counts[:expected])


def _same(directory: Directory, tag: int, samples: int, default: int, what: str) -> int:
    """The one value that all samples of a pixel have."""
    values = directory.numbers(tag)
    if values is None:
        return default
    values = values[:samples]
    if (values != values[0]).any():
        raise InvalidInput(f"the TIFF's channels have different {what} ({values.tolist()}): write them alike")
    return int(values[0])


def _kind(directory: Directory, samples: int) -> str:
    code = _same(directory, 339, samples, 1, "sample formats")
    if code in (5, 6):
        raise InvalidInput("the TIFF has complex numbers: write their magnitude, for example numpy.abs(image)")
    if code not in _KINDS:
        raise ValueError(f"the TIFF has samples of the unknown format {code}")
    return _KINDS[code]
