"""Video files from people that nobody knows: which are opened at all, and what FFmpeg may use for them.

FFmpeg looks into a file to find its format, and some formats are playlists that name other files and hosts. So a file's
beginning must be that of a format without such references, and FFmpeg may use no other format for it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from triton_sam.errors import InvalidInput, TritonSamError
from triton_sam.video.clip import Clip, ClipLimits
from triton_sam.video.containers import faults, pyav
from triton_sam.video.opening import open_clip

#: Bytes that :func:`file_kind` looks at.
HEAD_BYTES = 400
#: By name of a kind: FFmpeg's names of its formats; empty for what Pillow and tifffile read.
_FORMATS = {
    "MP4": "mov,mp4,m4a,3gp,3g2,mj2",
    "Matroska": "matroska,webm",
    "AVI": "avi",
    "MPEG-TS": "mpegts",
    "MPEG": "mpeg,mpegvideo",
    "FLV": "flv",
    "Ogg": "ogg",
    "ASF": "asf",
    "GIF": "gif",
    "PNG": "apng",
    "Y4M": "yuv4mpegpipe",
    "IVF": "ivf",
    "JPEG": "mjpeg",
    "TIFF": "",
    "WebP": "",
}
_DECODERS = (
    *("h264", "hevc", "av1", "libdav1d", "vp8", "vp9", "libvpx", "libvpx-vp9", "mpeg4", "msmpeg4v2", "msmpeg4"),
    *("mpeg1video", "mpeg2video", "mpegvideo", "mjpeg", "h263", "flv", "theora", "vc1", "wmv1", "wmv2", "wmv3"),
    *("prores", "dnxhd", "ffv1", "huffyuv", "ffvhuff", "utvideo", "rawvideo", "gif", "apng", "png"),
    *("qtrle", "cinepak", "dvvideo", "jpeg2000", "libopenjpeg"),
)
_BEGINNINGS: tuple[tuple[int, bytes, str], ...] = (
    *((4, atom, "MP4") for atom in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")),
    (0, b"\x1a\x45\xdf\xa3", "Matroska"),
    (0, b"\0\0\1\xba", "MPEG"),
    (0, b"\0\0\1\xb3", "MPEG"),
    (0, b"FLV\1", "FLV"),
    (0, b"OggS", "Ogg"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "ASF"),
    (0, b"GIF8", "GIF"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"YUV4MPEG2 ", "Y4M"),
    (0, b"DKIF", "IVF"),
    (0, b"\xff\xd8\xff", "JPEG"),
    *((0, head, "TIFF") for head in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
)
_SYNC = 0x47


def file_kind(head: bytes) -> str | None:
    """The kind of a video file by its first :data:`HEAD_BYTES`; None if it is none that is taken."""
    for place, beginning, kind in _BEGINNINGS:
        if head[place : place + len(beginning)] == beginning:
            return kind
    if head[:4] == b"RIFF":
        return {b"AVI ": "AVI", b"WEBP": "WebP"}.get(head[8:12])
    for first, step in ((0, 188), (4, 192), (0, 204)):
        if len(head) > first + step and head[first] == head[first + step] == _SYNC:
            return "MPEG-TS"
    return None


def untrusted_limits(kind: str, limits: ClipLimits) -> ClipLimits:
    """The limits with what FFmpeg may use for a kind of file."""
    return dataclasses.replace(limits, formats=_FORMATS[kind] or "none", decoders=",".join(_DECODERS))


def open_untrusted(path: Path, limits: ClipLimits, **options: Any) -> Clip:
    """A clip of a file of a known kind. It may take any time and memory: only for a process with limits.

    Args:
        options: of :func:`~triton_sam.video.opening.open_clip`.
    """
    with path.open("rb") as file:
        kind = file_kind(file.read(HEAD_BYTES))
    if kind is None:
        raise InvalidInput(f"{path} is not a video that can be read: convert it to H.264 in MP4")
    limits = untrusted_limits(kind, limits)
    if limits.formats != "none":
        _check_streams(path, limits)
    return open_clip(path, limits, **options)


def _check_streams(path: Path, limits: ClipLimits) -> None:
    """InvalidInput for a file with other files in it."""
    options = {"protocol_whitelist": "file", "format_whitelist": limits.formats, "codec_whitelist": limits.decoders}
    try:
        with pyav().open(f"file:{path}", options=options, metadata_errors="ignore") as container:
            attached = sum(stream.type == "attachment" for stream in container.streams)
    except TritonSamError:
        raise
    except faults():
        return  # opening it for its frames says what is wrong
    if attached:
        raise InvalidInput(
            f"{path} has {attached} attached file{'s' * (attached > 1)}: leave them out "
            "(`ffmpeg -i in.mkv -map 0:v -c copy out.mkv`)"
        )
