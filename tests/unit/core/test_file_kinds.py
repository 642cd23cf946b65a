"""Files that are no images for a model are named by their first bytes, with what to do."""

from __future__ import annotations

import pytest

from tests.unit.core.image_helpers import open_image
from triton_sam.errors import InvalidInput


def _media(brand: bytes) -> bytes:
    return b"\0\0\0\x18ftyp" + brand + bytes(100)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (_media(b"heic"), "HEIC"),
        (_media(b"mif1"), "HEIF"),
        (_media(b"avif"), "AVIF"),
        (_media(b"crx "), "raw file (CR3)"),
        (_media(b"isom"), "video (MP4"),
        (_media(b"qt  "), "video (MP4 or QuickTime)"),
        (b"%PDF-1.7\n", "PDF"),
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b"<svg/>", "SVG"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (bytes(128) + b"DICM" + bytes(100), "DICOM"),
        (b"\x5c\x01\0\0" + bytes(400), "NIfTI"),
        (b"\x1f\x8b\x08" + bytes(100), "gzip"),
        (b"PK\x03\x04" + bytes(100), "ZIP"),
        (b'{"zarr_format": 2}', "Zarr"),
        (b'{"a": 2}', "JSON"),
        (b"\xda\xce\xbe\x0a" + bytes(100), "ND2"),
        (b"ZISRAWFILE" + bytes(100), "CZI"),
        (b"\x70\0\0\0" + bytes(100), "LIF"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
        (b"\x93NUMPY\x01\0" + bytes(100), "numpy.load"),
        (b"SIMPLE  =                    T", "FITS"),
        (b"FUJIFILMCCD-RAW 0201", "raw file (RAF)"),
        (b"8BPS\0\x01", "Photoshop"),
        (b"\xff\x0a" + bytes(100), "JPEG XL"),
        (b"v/1\x01" + bytes(100), "OpenEXR"),
        (b"\x1aE\xdf\xa3" + bytes(100), "video (Matroska"),
        (b"RIFF\0\0\0\0AVI LIST", "video (AVI)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_is_and_what_to_do(data: bytes, name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_image(data)
    sentence = str(caught.value)
    assert name in sentence
    assert "which cannot be read here: " in sentence
    assert "\n" not in sentence
