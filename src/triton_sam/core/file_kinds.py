"""Names files that are no images for a model, by their first bytes, and says what to do with them."""

from __future__ import annotations

import re

from triton_sam.errors import InvalidInput

_CONVERT = "save it as PNG, JPEG or TIFF first"
_EXPORT = "export the plane that you want as TIFF first"
#: (first bytes, their offset, what it is, the fix).
_KINDS: tuple[tuple[bytes, int, str, str], ...] = (
    (b"%PDF-", 0, "a PDF", "export the page that you want as PNG first"),
    (b"DICM", 128, "a DICOM file", "export the frame that you want as PNG or TIFF first"),
    (b"\x5c\x01\x00\x00", 0, "a NIfTI volume", _EXPORT),
    (b"\x00\x00\x01\x5c", 0, "a NIfTI volume", _EXPORT),
    (b"n+1\0", 344, "a NIfTI volume", _EXPORT),
    (b"ni1\0", 344, "a NIfTI volume", _EXPORT),
    (b"\xda\xce\xbe\x0a", 0, "a Nikon ND2 file", _EXPORT),
    (b"\x6a\x50\x20\x20", 4, "", ""),  # JPEG 2000, which Pillow reads; some ND2 files begin so too
    (b"ZISRAWFILE", 0, "a Zeiss CZI file", _EXPORT),
    (b"\x70\x00\x00\x00", 0, "a Leica LIF file", _EXPORT),
    (b"\x89HDF\r\n\x1a\n", 0, "an HDF5 file (Imaris, ilastik and others)", _EXPORT),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 0, "a Microsoft or Olympus container (OIB, ZVI, Office)", _EXPORT),
    (b"\x93NUMPY", 0, "a numpy file", "load it with numpy.load and give the array to set_image"),
    (b"SIMPLE  =", 0, "a FITS file", _EXPORT),
    (b"NRRD", 0, "an NRRD volume", _EXPORT),
    (b"FUJIFILMCCD-RAW", 0, "a camera's raw file (RAF)", "develop it and save it as JPEG or 16-bit TIFF first"),
    (b"FOVb", 0, "a camera's raw file (X3F)", "develop it and save it as JPEG or 16-bit TIFF first"),
    (b"IIU\0", 0, "a camera's raw file (RW2)", "develop it and save it as JPEG or 16-bit TIFF first"),
    (b"IIRO", 0, "a camera's raw file (ORF)", "develop it and save it as JPEG or 16-bit TIFF first"),
    (b"HEAPCCDR", 6, "a camera's raw file (CRW)", "develop it and save it as JPEG or 16-bit TIFF first"),
    (b"8BPS", 0, "a Photoshop file", _CONVERT),
    (b"gimp xcf", 0, "a GIMP file", _CONVERT),
    (b"\x00\x00\x01\x00", 0, "an icon (ICO)", _CONVERT),
    (b"\xff\x0a", 0, "a JPEG XL image", _CONVERT),
    (b"\x00\x00\x00\x0cJXL ", 0, "a JPEG XL image", _CONVERT),
    (b"II\xbc\x01", 0, "a JPEG XR image", _CONVERT),
    (b"v/1\x01", 0, "an OpenEXR image", _CONVERT),
    (b"#?RADIANCE", 0, "a Radiance HDR image", _CONVERT),
    (b"%!PS", 0, "a PostScript file", _CONVERT),
    (b"\xc5\xd0\xd3\xc6", 0, "a PostScript file", _CONVERT),
    (b"AT&TFORM", 0, "a DjVu file", _CONVERT),
    (b"\x1aE\xdf\xa3", 0, "a video (Matroska or WebM)", "save the frame that you want as PNG first"),
    (b"AVI ", 8, "a video (AVI)", "save the frame that you want as PNG first"),
    (b"\x00\x00\x01\xba", 0, "a video (MPEG)", "save the frame that you want as PNG first"),
    (b"\x00\x00\x01\xb3", 0, "a video (MPEG)", "save the frame that you want as PNG first"),
    (b"PK\x03\x04", 0, "a ZIP file (a zipped folder, Zarr store or Office document)", "unpack it and send an image"),
    (b"\x1f\x8b", 0, "a gzip file (.nii.gz, .tar.gz and others)", "unpack it and send an image"),
    (b"\xfd7zXZ\0", 0, "an xz file", "unpack it and send an image"),
    (b"BZh", 0, "a bzip2 file", "unpack it and send an image"),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7z file", "unpack it and send an image"),
    (b"Rar!", 0, "a RAR file", "unpack it and send an image"),
)
#: Brands of ISO media files: HEIC, AVIF, raw files and videos.
_BRANDS = {
    b"heic": "a HEIC image (an iPhone's photograph)",
    b"heix": "a HEIC image (an iPhone's photograph)",
    b"heim": "a HEIC image",
    b"heis": "a HEIC image",
    b"hevc": "a HEIC image sequence",
    b"hevx": "a HEIC image sequence",
    b"mif1": "a HEIF image",
    b"msf1": "a HEIF image sequence",
    b"avif": "an AVIF image",
    b"avis": "an AVIF image sequence",
    b"crx ": "a camera's raw file (CR3)",
}
_TEXT = re.compile(rb"^(?:\xef\xbb\xbf)?\s{0,200}(<\?xml|<!--|<!DOCTYPE|<svg|<html|\{)", re.IGNORECASE)


def refuse_known_kinds(data: bytes | memoryview) -> None:
    """InvalidInput names a file of a kind that is known and cannot be read."""
    head = bytes(data[:1024])
    kind, fix = _kind(head)
    if kind:
        raise InvalidInput(f"this is {kind}, which cannot be read here: {fix}")


def _kind(head: bytes) -> tuple[str, str]:
    """(what it is, the fix), or empty strings."""
    if head[4:8] == b"ftyp":
        brand = _BRANDS.get(head[8:12])
        if brand is not None:
            raw = "raw" in brand
            return brand, "develop it and save it as JPEG or 16-bit TIFF first" if raw else _CONVERT
        return (
            ("", "")
            if head[8:12] == b"jp2 "
            else (
                "a video (MP4 or QuickTime)",
                "save the frame that you want as PNG first",
            )
        )
    for magic, offset, kind, fix in _KINDS:
        if head[offset : offset + len(magic)] == magic:
            return kind, fix
    text = _TEXT.match(head)
    if text is None:
        return "", ""
    if b"<svg" in head.lower():
        return "an SVG drawing", "export it as PNG first"
    if text[1] == b"{":
        zarr = b"zarr_format" in head
        return ("the description of a Zarr store", _EXPORT) if zarr else ("a JSON file", "send an image file")
    return "a text file (HTML or XML)", "send an image file"
