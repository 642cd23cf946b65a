"""Hostile uploads of videos: what is sent, and what the service must say. Files are a few megabytes at most."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import tifffile
from PIL import Image

from tests.video_clips import claiming, picture, write_jpegs, write_video

#: Settings of the service that makes small files too large; decoding ends after so many seconds.
LIMITS: dict[str, Any] = {
    "video_upload_bytes": 12 * 2**20,
    "video_frames": 200,
    "video_frame_pixels": 20_000_000,
    "video_decode_seconds": 20.0,
    "video_decode_bytes": 1024 * 2**20,
    "video_clip_bytes": 32 * 2**20,
}
_PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
_DASH = (
    b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" profiles="urn:mpeg:dash:profile:isoff-live:2011" '
    b'type="static"><Period><AdaptationSet><Representation id="1" bandwidth="1"><BaseURL>file:///etc/passwd</BaseURL>'
    b"</Representation></AdaptationSet></Period></MPD>"
)
_FTYP = struct.pack(">I4s4sI4s", 20, b"ftyp", b"isom", 512, b"isom")
_KIND = "is not a video that is read here"


@dataclass(frozen=True)
class HostileUpload:
    """
    Attributes:
        make: writes into a folder, and returns the file's bytes.
        told: is in the answer's sentence.
        fields: others of the form.
        is_short: whether ``make test`` has it too.
    """

    make: Callable[[Path], bytes]
    status: int
    told: str
    name: str = "clip.mp4"
    fields: dict[str, str] = field(default_factory=dict)
    is_short: bool = False


def plain(folder: Path, count: int = 8) -> bytes:
    """A video that is right."""
    return write_video(folder / "plain.mp4", count).read_bytes()


def _constant(data: bytes) -> Callable[[Path], bytes]:
    return lambda folder: data


def _cut(folder: Path) -> bytes:
    data = plain(folder)
    return data[: len(data) // 2]


def _lying_table(folder: Path) -> bytes:
    """Its table of samples tells of two thousand million frames."""
    data = bytearray(plain(folder))
    place = data.index(b"stsz")
    struct.pack_into(">III", data, place + 4, 0, 0, 2**31 - 1)
    return bytes(data)


def _lying_places(folder: Path) -> bytes:
    """Its frames are far behind the end of the file."""
    data = bytearray(plain(folder))
    place = data.index(b"stco")
    (count,) = struct.unpack_from(">I", data, place + 8)
    for index in range(count):
        struct.pack_into(">I", data, place + 12 + 4 * index, 2**31)
    return bytes(data)


def _lying_boxes(folder: Path) -> bytes:
    """A box in the head is larger than the file."""
    data = bytearray(plain(folder))
    struct.pack_into(">I", data, data.index(b"moov") - 4, 2**31)
    return bytes(data)


def _endless_boxes(folder: Path) -> bytes:
    """Boxes in boxes in boxes."""
    inner = b""
    for _ in range(20_000):
        inner = struct.pack(">I4s", len(inner) + 8, b"moov") + inner
    return _FTYP + inner


def _with_attachment(folder: Path) -> bytes:
    """A Matroska file with another file in it, as muxers write it: an element before the clusters."""
    path = write_video(folder / "plain.mkv")
    data = path.read_bytes()

    def element(name: bytes, content: bytes) -> bytes:
        return name + (len(content) | 1 << 56).to_bytes(8, "big") + content

    attached = element(
        b"\x19\x41\xa4\x69",
        element(
            b"\x61\xa7",
            element(b"\x46\x6e", b"font.ttf")
            + element(b"\x46\x60", b"application/x-truetype-font")
            + element(b"\x46\x5c", b"#!/bin/sh\n" * 10)
            + element(b"\x46\xae", b"\1"),
        ),
    )
    place = data.index(b"\x1f\x43\xb6\x75")  # the first cluster
    # The segment has a size, behind which nothing is read: it is made larger.
    start = data.index(b"\x18\x53\x80\x67") + 4
    size = int.from_bytes(data[start : start + 8], "big") + len(attached)
    return data[:start] + size.to_bytes(8, "big") + data[start + 8 : place] + attached + data[place:]


def _sound(folder: Path) -> bytes:
    path = folder / "sound.mp4"
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("aac", rate=8000, layout="mono")
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        silence.sample_rate = 8000
        file.mux(stream.encode(silence))
        file.mux(stream.encode())
    return path.read_bytes()


def _empty_track(folder: Path) -> bytes:
    return write_video(folder / "none.mp4", 0).read_bytes()


def _many_frames(folder: Path) -> bytes:
    return write_video(folder / "many.mp4", 2000, size=(16, 16), options={"preset": "ultrafast"}).read_bytes()


def _endless_gif(folder: Path) -> bytes:
    """A frame, a hundred thousand times."""
    buffer = io.BytesIO()
    frames = [Image.fromarray(picture(index, 8, 8)).quantize(4) for index in range(2)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], loop=0, duration=40)
    data = buffer.getvalue()
    last = data.rindex(b"\x21\xf9\x04")
    return data[:last] + data[last:-1] * 100_000 + b";"


def _many_pictures(form: str) -> Callable[[Path], bytes]:
    def make(folder: Path) -> bytes:
        buffer = io.BytesIO()
        frames = [
            Image.fromarray(np.random.default_rng(index).integers(0, 255, (4, 4, 3), np.uint8)) for index in range(260)
        ]
        frames[0].save(buffer, form, save_all=True, append_images=frames[1:], loop=0, duration=40)
        return buffer.getvalue()

    return make


def _huge_gif(folder: Path) -> bytes:
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", 65535, 65535, 0xF0, 0, 0)
        + bytes(6)
        + (b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x44\x01\x00;")
    )


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _huge_apng(folder: Path) -> bytes:
    """60,000 x 60,000 pixels, all of them black."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    control = _chunk(b"acTL", struct.pack(">II", 2, 0))
    frame = _chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, 60_000, 60_000, 0, 0, 1, 25, 0, 0))
    rows = zlib.compress(bytes(60_001 * 64))
    return b"\x89PNG\r\n\x1a\n" + head + control + frame + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _huge_webp(folder: Path) -> bytes:
    """A canvas of 16,384 x 16,384 pixels around a frame of 4 x 4."""
    data = bytearray(_many_pictures("WEBP")(folder))
    place = data.index(b"VP8X")
    data[place + 12 : place + 18] = b"\xff\x3f\0\xff\x3f\0"
    return bytes(data)


def _huge_pages(folder: Path) -> bytes:
    """16,384 x 16,384 pixels of zeros in each page."""
    path = folder / "pages.tif"
    with tifffile.TiffWriter(path) as writer:
        for _ in range(2):
            writer.write(
                (np.zeros((1024, 1024), np.uint16) for _ in range(256)),
                shape=(16384, 16384),
                dtype=np.uint16,
                tile=(1024, 1024),
                compression="zlib",
            )
    return path.read_bytes()


def _directory(following: int, side: int = 1, data: int = 8) -> bytes:
    entries = ((256, 4, side), (257, 4, side), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, data), (277, 3, 1))
    entries += ((278, 4, side), (279, 4, side * side))
    packed = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return struct.pack("<H", len(entries)) + packed + struct.pack("<I", following)


def _many_pages(folder: Path) -> bytes:
    """A hundred thousand pages of one pixel."""
    size, first, count = len(_directory(0)), 16, 100_000
    pages = [_directory(first + (index + 1) * size if index < count - 1 else 0) for index in range(count)]
    return b"II*\0" + struct.pack("<I", first) + bytes(8) + b"".join(pages)


def _looping_pages(folder: Path) -> bytes:
    """A page whose next page is itself."""
    return b"II*\0" + struct.pack("<I", 16) + bytes(8) + _directory(16)


def _changing(folder: Path) -> bytes:
    return write_jpegs(folder / "sizes.avi", [(64, 48), (64, 48), (80, 48), (64, 48)]).read_bytes()


def _claiming(folder: Path) -> bytes:
    return claiming(write_video(folder / "claims.mkv", size=(300, 260)), 60_000).read_bytes()


def slow(folder: Path) -> bytes:
    """One JPEG of 4,400 x 4,400 pixels, thirty times: each takes half a second to read."""
    buffer = io.BytesIO()
    Image.new("RGB", (4400, 4400), "grey").save(buffer, "JPEG", quality=10)
    path = folder / "slow.avi"
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 4400, 4400, "yuvj420p"
        for index in range(30):
            packet = av.Packet(buffer.getvalue())
            packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, index, index, True
            file.mux(packet)
    return path.read_bytes()


def _large_frames(folder: Path) -> bytes:
    """Noise that a video has in few bytes, and JPEG in many: its frames have more bytes than a video may have."""
    path = folder / "noise.mkv"
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 1600, 1200, "yuv420p"
        stream.options = {"crf": "18", "preset": "ultrafast", "keyint": "1000"}
        noise = np.random.default_rng(1).integers(0, 255, (1200, 1600, 3), np.uint8)
        for _ in range(60):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(noise, "rgb24")))
        file.mux(stream.encode())
    return path.read_bytes()


def _bomb(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("film.mp4", bytes(200 * 2**20))
    return buffer.getvalue()


def _program(folder: Path) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + Path("/proc/self/exe").read_bytes()[16:4096]


_SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
UPLOADS: dict[str, HostileUpload] = {
    "cut short": HostileUpload(_cut, 400, "it is cut short", is_short=True),
    "0 bytes": HostileUpload(_constant(b""), 400, "the file is empty", is_short=True),
    "a playlist": HostileUpload(_constant(_PLAYLIST), 415, _KIND, is_short=True),
    "a playlist behind a head": HostileUpload(_constant(_FTYP + _PLAYLIST), 400, "not a video"),
    "a list of files": HostileUpload(_constant(b"ffconcat version 1.0\nfile /etc/passwd\n"), 415, _KIND, is_short=True),
    "a DASH manifest": HostileUpload(_constant(_DASH), 415, _KIND),
    "a DASH manifest behind a head": HostileUpload(_constant(_FTYP + _DASH), 400, "not a video", is_short=True),
    "a session description": HostileUpload(_constant(b"v=0\nc=IN IP4 10.0.0.1\nm=video 5004 RTP/AVP 96\n"), 415, _KIND),
    "a picture that names files": HostileUpload(_constant(_SVG), 415, _KIND),
    "a page": HostileUpload(_constant(b"<!doctype html><video src=file:///etc/passwd>"), 415, _KIND),
    "a program": HostileUpload(_program, 415, _KIND),
    "a zip bomb": HostileUpload(_bomb, 415, _KIND, is_short=True),
    "with an attachment": HostileUpload(_with_attachment, 400, "attached file", is_short=True),
    "sound only": HostileUpload(_sound, 400, "is only sound"),
    "no frames": HostileUpload(_empty_track, 400, "no frames"),
    "two thousand frames": HostileUpload(_many_frames, 413, "200 are allowed", is_short=True),
    "a GIF of a hundred thousand frames": HostileUpload(_endless_gif, 413, "200 are allowed"),
    "an endless WebP": HostileUpload(_many_pictures("WEBP"), 413, "than the 200"),
    "an endless APNG": HostileUpload(_many_pictures("PNG"), 413, "than the 200"),
    "a GIF of 65,535 x 65,535": HostileUpload(_huge_gif, 400, "no frames in clip.mp4"),
    "an APNG of 60,000 x 60,000": HostileUpload(_huge_apng, 400, "is not a video"),
    "a WebP of 16,384 x 16,384": HostileUpload(_huge_webp, 413, "more pixels than allowed"),
    "pages of 16,384 x 16,384": HostileUpload(_huge_pages, 413, "20,000,000 are allowed"),
    "a hundred thousand pages": HostileUpload(_many_pages, 400, "more than 65,536 pages"),
    "pages in a circle": HostileUpload(_looping_pages, 400, "damaged"),
    "Y4M of 30,000 x 30,000": HostileUpload(
        _constant(b"YUV4MPEG2 W30000 H30000 F25:1 Ip A1:1 C420\nFRAME\n" + bytes(1000)), 400, "is not a video"
    ),
    "frames that change their size": HostileUpload(
        _changing, 400, "frame 2 of clip.mp4 has 80 x 48 pixels", is_short=True
    ),
    "a table of two thousand million frames": HostileUpload(_lying_table, 400, "clip.mp4"),
    "frames behind the end": HostileUpload(_lying_places, 400, "no frames in clip.mp4"),
    "boxes in boxes": HostileUpload(_endless_boxes, 400, "clip.mp4"),
    "more bytes than allowed": HostileUpload(
        _constant(_FTYP + bytes(13 * 2**20)), 413, "bytes: send less", is_short=True
    ),
    "a bad axis": HostileUpload(plain, 400, "axis is t", fields={"axis": "q"}, is_short=True),
    "a bad place": HostileUpload(plain, 400, "at holds", fields={"at": "../../x"}),
    "a model that is not there": HostileUpload(
        plain, 404, "there is no model", fields={"model": "../../sam9"}, is_short=True
    ),
    "an unknown field": HostileUpload(plain, 400, "unknown field", fields={"path": "/etc/passwd"}, is_short=True),
    "frames of many bytes": HostileUpload(_large_frames, 413, "33,554,432 bytes"),
}


def _loop(form: str) -> Callable[[Path], bytes]:
    """Eight pictures that a player shows for ever."""

    def make(folder: Path) -> bytes:
        buffer = io.BytesIO()
        frames = [Image.fromarray(picture(index)) for index in range(8)]
        frames[0].save(buffer, form, save_all=True, append_images=frames[1:], loop=0, duration=40)
        return buffer.getvalue()

    return make


#: Files that look as if they were hostile, and are read as the eight frames that they have.
HARMLESS: dict[str, Callable[[Path], bytes]] = {
    "a GIF that loops": _loop("GIF"),
    "a WebP that loops": _loop("WEBP"),
    "an APNG that loops": _loop("PNG"),
    "a head larger than the file": _lying_boxes,
    "Matroska that tells 60,000 x 60,000": _claiming,
}
