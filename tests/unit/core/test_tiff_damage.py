"""Damaged and hostile TIFF files: one sentence, little memory, and an end."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.unit.core.image_helpers import open_image
from triton_sam.core.image_planes import ImagePlanes
from triton_sam.errors import InvalidInput, TooLarge

Tags = dict[int, tuple[int, tuple[int, ...]]]
SHORT, LONG = 3, 4
_PLAIN: Tags = {
    256: (LONG, (8,)),
    257: (LONG, (8,)),
    258: (SHORT, (8,)),
    259: (SHORT, (1,)),
    262: (SHORT, (1,)),
    273: (LONG, (8,)),
    277: (SHORT, (1,)),
    278: (LONG, (8,)),
    279: (LONG, (64,)),
}


def written(tags: Tags, body: bytes = bytes(64), following: int = 0) -> bytes:
    """A little-endian TIFF of one directory after its body."""
    start = 8 + len(body)
    end = start + 2 + 12 * len(tags) + 4
    entries, tail = b"", b""
    for tag, (kind, values) in sorted(tags.items()):
        raw = struct.pack(f"<{len(values)}{'H' if kind == SHORT else 'I'}", *values)
        field = raw.ljust(4, b"\0") if len(raw) <= 4 else struct.pack("<I", end + len(tail))
        entries += struct.pack("<HHI", tag, kind, len(values)) + field
        tail += raw if len(raw) > 4 else b""
    head = b"II*\0" + struct.pack("<I", start)
    return head + body + struct.pack("<H", len(tags)) + entries + struct.pack("<I", following) + tail


def refused(data: bytes, **limits: int) -> str:
    with pytest.raises(InvalidInput) as caught:
        open_image(data, **limits).pixels()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def planes(data: bytes) -> ImagePlanes:
    return ImagePlanes(data, max_bytes=10**8, max_pixels=10**8)


def tiff(values: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **options)
    return buffer.getvalue()


def test_the_plain_file_of_these_tests_is_read() -> None:
    assert open_image(written(_PLAIN)).pixels().size == (8, 8)


@pytest.mark.parametrize(
    "change",
    [
        {256: (LONG, (0,))},
        {256: (LONG, (2**32 - 1,)), 257: (LONG, (2**32 - 1,))},
        {258: (SHORT, (0,))},
        {258: (SHORT, (200,))},
        {277: (SHORT, (0,))},
        {277: (SHORT, (65535,))},
        {273: (LONG, (2**32 - 1,))},
        {273: (LONG, (2**31,))},
        {278: (LONG, (0,))},
        {278: (LONG, (1,))},
        {279: (LONG, (10,))},
        {279: (LONG, (2**32 - 1,)), 259: (SHORT, (8,))},
        {322: (LONG, (0,)), 323: (LONG, (0,))},
        {322: (LONG, (2**31,)), 323: (LONG, (2**31,))},
        {339: (SHORT, (77,))},
        {317: (SHORT, (9,)), 259: (SHORT, (8,))},
        {262: (SHORT, (3,))},
        {262: (SHORT, (99,))},
        {259: (SHORT, (7,))},
        {259: (SHORT, (6,))},
        {32997: (LONG, (2**31,))},
    ],
    ids=str,
)
def test_tags_that_cannot_be(change: Tags) -> None:
    refused(written(_PLAIN | change))


@pytest.mark.parametrize("tag", sorted(_PLAIN))
def test_a_tag_whose_value_lies_outside_the_file(tag: int) -> None:
    data = written(_PLAIN)
    place = data.index(struct.pack("<HH", tag, _PLAIN[tag][0]), 72)
    broken = data[: place + 4] + struct.pack("<II", 2**31, 2**31) + data[place + 12 :]
    refused(broken)


def test_every_length_of_a_cut_file() -> None:
    data = tiff(np.arange(600, dtype=np.uint16).reshape(20, 30), compression="deflate")
    assert open_image(data).pixels().size == (30, 20)
    for length in range(4, len(data) - 16, 7):
        refused(data[:length])


@pytest.mark.parametrize("compression", [None, "deflate", "lzw", "zstd", "packbits", "jpeg"])
def test_random_damage_is_a_sentence_or_a_picture(compression: str | None) -> None:
    values = np.random.default_rng(1).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    data = tiff(values, compression=compression, photometric="rgb", tile=(16, 16))
    random = np.random.default_rng(2)
    for _ in range(60):
        broken = bytearray(data)
        for place in random.integers(0, len(broken), 4):
            broken[place] = int(random.integers(0, 256))
        sentence = ""
        try:
            assert open_image(bytes(broken), max_pixels=10**6).pixels().mode == "RGB"
            planes(bytes(broken)).describe()
        except InvalidInput as error:
            sentence = str(error)
        assert "\n" not in sentence


def test_a_small_file_that_inflates_to_much_more() -> None:
    body = zlib.compress(bytes(200_000_000), 9)
    change: Tags = {259: (SHORT, (8,)), 279: (LONG, (len(body),))}
    data = written(_PLAIN | change, body)
    tracemalloc.start()
    try:
        assert open_image(data).pixels().size == (8, 8)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_too_many_pixels_before_anything_is_allocated() -> None:
    change: Tags = {256: (LONG, (60_000,)), 257: (LONG, (60_000,)), 278: (LONG, (60_000,))}
    with pytest.raises(TooLarge, match="60000 x 60000"):
        open_image(written(_PLAIN | change))


def test_tiles_far_larger_than_their_image() -> None:
    change: Tags = {322: (LONG, (60_000,)), 323: (LONG, (60_000,))}
    assert "tiles" in refused(written(_PLAIN | change))


def test_many_strips_at_one_place() -> None:
    """Each strip is the whole file: together they are far more than it has."""
    rows = 50_000
    change: Tags = {
        256: (LONG, (8,)),
        257: (LONG, (rows,)),
        278: (LONG, (1,)),
        259: (SHORT, (7,)),
        273: (LONG, (8,) * rows),
        279: (LONG, (64,) * rows),
    }
    assert "overlap" in refused(written(_PLAIN | change))


def test_pages_in_a_circle() -> None:
    body = bytes(64)
    data = written(_PLAIN, body, following=8 + len(body))
    assert open_image(data).pixels().size == (8, 8), "the first page is enough for a model"
    with pytest.raises(InvalidInput, match="circle"):
        planes(data).describe()


def test_a_long_chain_of_pages_has_an_end() -> None:
    count = 70_000
    directory = struct.pack("<HHHI", 1, 254, LONG, 1) + bytes(4)
    size = len(directory) + 4
    first = written(_PLAIN)
    chain = b"".join(directory + struct.pack("<I", len(first) + size * (index + 1)) for index in range(count))
    data = written(_PLAIN, following=len(first)) + chain + directory + bytes(4)
    with pytest.raises(InvalidInput, match="65,536 pages"):
        planes(data).describe()


def test_a_description_of_megabytes_takes_no_time() -> None:
    text = '<OME><Pixels SizeC="2" ' + 'a="' * 2_000_000
    data = tiff(np.zeros((8, 8), np.uint8), description=text, metadata=None)
    assert planes(data).describe().channels == 1


def test_sizes_of_a_stack_that_contradict_its_pages_are_ignored() -> None:
    text = "ImageJ=1.53\nimages=4000000000\nchannels=99999999\nslices=99999999\n"
    data = tiff(np.zeros((8, 8), np.uint8), description=text, metadata=None)
    found = planes(data).describe()
    assert (found.pages, found.channels) == (1, 1)
