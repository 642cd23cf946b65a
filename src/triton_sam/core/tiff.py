"""TIFF files: their pages and channels, and the picture that a model is given.

What a file does not say is not guessed: two channels that are not declared as colours are refused by name.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core import tiff_decoder, tiff_pages
from triton_sam.core.deep_pixels import Bytes
from triton_sam.core.picture_samples import Samples
from triton_sam.core.tiff_directories import Directories, Directory, FileData
from triton_sam.core.tiff_pages import TiffPage, read_page
from triton_sam.core.tiff_stacks import Stack, may_have_channels, stack_of
from triton_sam.core.untrusted import check_pixels
from triton_sam.errors import InvalidInput

_SIDES_SWAPPED = frozenset({5, 6, 7, 8})
_SUBDIRECTORIES = 330
_RGB_NAMES = ("red", "green", "blue")
_CHOOSE = "choose one: on the page, with --channel on the command line, or set_image(..., channel=0) in Python"


class TiffFile:
    """A TIFF whose first page was read: its size is known, no pixel is decoded."""

    def __init__(self, data: bytes | memoryview | FileData, *, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._directories = Directories(data)
        directory = self._directories.first()
        _refuse_raw_files(directory)
        self.first = self._checked(read_page(directory))

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the first page, upright."""
        return upright_size(self.first)

    @cached_property
    def stack(self) -> Stack:
        """All pages, and which of them are channels of one image."""
        return stack_of(self._directories, self.first)

    @property
    def channels(self) -> int:
        """Channels of each page."""
        return self.stack.channels if self.stack.channels > 1 else _channels(self.first)

    @property
    def channel_names(self) -> tuple[str, ...] | None:
        """From the file's metadata, or the colours; None if nothing is known."""
        if self.stack.channels > 1:
            return self.stack.channel_names
        if self.channels in (3, 4) and self.first.photometric != tiff_pages.BLACK_IS_ZERO:
            alpha = ("alpha",) if self.channels == 4 and _alpha(self.first) else ("channel 4",)
            return _RGB_NAMES + (alpha if self.channels == 4 else ())
        return None

    def page(self, index: int) -> Samples:
        """[C,H,W] of one page, upright; of a stack with channels as pages, all channels."""
        stack = self.stack
        if not 0 <= index < stack.pages:
            raise InvalidInput(f"the TIFF has {stack.pages} page(s), and {index} is none of 0 to {stack.pages - 1}")
        pages = [self._checked(stack.page(index, channel)) for channel in range(stack.channels)]
        if len({(upright_size(page), page.dtype, page.samples) for page in pages}) > 1:
            raise InvalidInput("the channels of the TIFF have different sizes or depths: choose pages one by one")
        found = [self.samples(page) for page in pages]
        if len(found) == 1:
            return found[0]
        values = np.concatenate([each.values for each in found])
        return Samples(values, is_inverted=found[0].is_inverted, bits=found[0].bits)

    def directory(self, number: int) -> TiffPage:
        """One page in the order of the file; nothing is decoded."""
        return self._checked(self.stack.directory(number))

    def samples(self, page: TiffPage) -> Samples:
        """One page, upright."""
        decoded = tiff_decoder.decode(page)
        values = upright(decoded, page.orientation)
        if page.photometric == tiff_pages.PALETTE:
            return Samples(_coloured(values[0], page), colours=3)
        if page.photometric in (tiff_pages.CMYK, tiff_pages.YCBCR):
            return Samples(values, colours=3)
        colours = 3 if page.photometric == tiff_pages.RGB and len(values) >= 3 else 1
        alpha = _alpha(page)
        return Samples(
            values,
            colours=colours if len(values) in (colours, colours + (alpha is not None)) or colours == 3 else None,
            alpha=alpha,
            is_inverted=page.photometric == tiff_pages.WHITE_IS_ZERO,
            bits=page.bits,
        )

    def _checked(self, page: TiffPage) -> TiffPage:
        check_pixels(page.width, page.height, self._max_pixels)
        tile = page.segment_width * page.segment_height
        if tile * len(page.offsets) > 4 * self._max_pixels * page.samples + 2**26:
            raise InvalidInput("the TIFF has tiles that are far larger than its image: write it with smaller ones")
        return page


class TiffPicture:
    """The first page of a TIFF as a picture; InvalidInput if the file does not say what its channels are."""

    is_plain_jpeg = False

    def __init__(self, data: bytes | memoryview, max_pixels: int) -> None:
        self._file = TiffFile(data, max_pixels=max_pixels)
        check_meaning(self._file.first)
        if may_have_channels(self._file.first) and self._file.stack.channels > 1:
            raise InvalidInput(f"the TIFF has {self._file.stack.channels} channels, one per page: {_CHOOSE}")
        #: (width, height), upright.
        self.size = self._file.size

    def pixels(self) -> Image.Image:
        """The picture, mode RGB, upright, transparency on white."""
        return self._file.samples(self._file.first).rgb()


def check_meaning(page: TiffPage) -> None:
    """InvalidInput if the page's channels are not declared as grey or colours, or cannot be decoded."""
    tiff_decoder.check_decodable(page)
    if page.photometric in (tiff_pages.CMYK, tiff_pages.YCBCR):
        return
    if page.photometric == tiff_pages.RGB:
        if page.samples < 3:
            raise InvalidInput(f"the TIFF says that it is RGB but has {page.samples} channel(s): {_CHOOSE}")
        return
    if page.photometric == tiff_pages.PALETTE:
        if page.samples > 1 or page.bits > 16 or page.kind != "u":
            raise InvalidInput("the TIFF has a palette and several channels or deep samples: write it as RGB")
        return
    if page.photometric not in (tiff_pages.WHITE_IS_ZERO, tiff_pages.BLACK_IS_ZERO, tiff_pages.TRANSPARENCY_MASK):
        raise InvalidInput(f"the TIFF does not say whether its samples are grey or colours: {_CHOOSE}")
    if page.samples > (2 if _alpha(page) else 1):
        raise InvalidInput(f"the TIFF has {page.samples} channels that are not declared as colours: {_CHOOSE}")


def _refuse_raw_files(directory: Directory) -> None:
    """InvalidInput for a camera's raw file, whose first page is only a preview of it."""
    canon = bytes(directory.source.data[8:10]) == b"CR" and directory.number(259, 1) == 6
    if canon or (not directory.is_page and _SUBDIRECTORIES in directory.entries):
        raise InvalidInput(
            "this is a camera's raw file (DNG, NEF, ARW, CR2): develop it and save it as JPEG or 16-bit TIFF first"
        )


def upright_size(page: TiffPage) -> tuple[int, int]:
    """(width, height) after the orientation."""
    return (page.height, page.width) if page.orientation in _SIDES_SWAPPED else (page.width, page.height)


def upright(values: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """[C,H,W] as stored -> as a person sees it."""
    if orientation in _SIDES_SWAPPED:
        values = values.transpose(0, 2, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return values[:, ::rows, ::columns]


def _alpha(page: TiffPage) -> str | None:
    """How the sample after grey or RGB is transparency: "associated", "straight"; None if it is not."""
    colours = 3 if page.photometric == tiff_pages.RGB else 1
    if page.samples <= colours:
        return None
    if page.extra_samples is None:  # libtiff takes a fourth sample without the tag as transparency, and so do others
        return "associated" if (colours, page.samples) == (3, 4) else None
    kind = page.extra_samples[0] if page.extra_samples else 0
    return {tiff_pages.ASSOCIATED_ALPHA: "associated", tiff_pages.UNASSOCIATED_ALPHA: "straight"}.get(kind)


def _channels(page: TiffPage) -> int:
    if page.photometric in (tiff_pages.CMYK, tiff_pages.YCBCR, tiff_pages.PALETTE):
        return 3
    return page.samples


def _coloured(indices: npt.NDArray[Any], page: TiffPage) -> Bytes:
    """[H,W] of indices -> [3,H,W]."""
    table = page.directory.numbers(320)
    entries = 2**page.bits
    if table is None or len(table) < 3 * entries:
        raise ValueError("the TIFF has a palette without colours")
    colours = table[: 3 * entries].reshape(3, entries).astype(np.uint16)
    if colours.max() > 255:  # a few programs store 8 bits, where the format has 16
        colours >>= 8
    return colours.astype(np.uint8)[:, indices]
