"""Video files of every kind for tests, made by PyAV, with a red square that moves to the right."""

from __future__ import annotations

import io
import struct
import wave
import zlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

WIDTH, HEIGHT, COUNT = 64, 48, 8
BACKGROUND, RED = (90, 90, 90), (225, 40, 40)


def picture(index: int, width: int = WIDTH, height: int = HEIGHT) -> npt.NDArray[np.uint8]:
    """[H,W,3]; the square begins in the left upper corner."""
    pixels = np.full((height, width, 3), BACKGROUND, np.uint8)
    side = max(1, min(width, height) // 3)
    left = min(3 * index, width - side)
    pixels[:side, left : left + side] = RED
    return pixels


def red_square(image: bytes, name: int, memory: int, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """What a perfect model finds in a frame."""
    from triton_sam.core.images import EncodedImage

    shown = EncodedImage(image, max_bytes=2**30, max_pixels=2**30)
    assert shown.size == size
    pixels = np.asarray(shown.pixels()).astype(np.int64)
    found: npt.NDArray[np.bool_] = (pixels[..., 0] > 150) & (pixels[..., 1] < 110)
    return found


# Many parameters: what makes files differ.
def write_video(
    path: Path,
    count: int = COUNT,
    *,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    codec: str = "libx264",
    pixels: str = "yuv420p",
    container: str | None = None,
    times: Sequence[int] | None = None,
    turned: int = 0,
    options: dict[str, str] | None = None,
    alpha: bool = False,
    faststart: bool = False,
) -> Path:
    """
    Args:
        times: of each frame, in milliseconds; default 25 a second.
        turned: degrees by which a player turns it, counterclockwise.
        alpha: frames are opaque in the square only.
    """
    muxing = {"movflags": "+faststart"} if faststart else {}
    with av.open(str(path), "w", format=container, options=muxing) as file:
        stream: Any = file.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        stream.options = options or {}
        if turned:
            stream.set_display_rotation(turned)
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index in range(count):
            frame = _frame(index, size, alpha=alpha)
            if times is not None:
                frame.pts, frame.time_base = times[index], Fraction(1, 1000)
            file.mux(stream.encode(frame))
        if not count:
            file.start_encoding()
        file.mux(stream.encode())
    return path


def by_object(image: bytes, name: int, memory: int, size: tuple[int, int]) -> Any:
    """Object 1 is the red square, others are what is below it."""
    found = red_square(image, name, memory, size)
    return found if name == 1 else np.roll(found, HEIGHT // 2, axis=0)


def _frame(index: int, size: tuple[int, int], *, alpha: bool) -> Any:
    rgb = picture(index, *size)
    if not alpha:
        return av.VideoFrame.from_ndarray(rgb, "rgb24")
    opaque = np.where((rgb == RED).all(axis=2), 255, 0).astype(np.uint8)
    return av.VideoFrame.from_ndarray(
        np.dstack([np.where(opaque[..., None] > 0, rgb, 0).astype(np.uint8), opaque]), "rgba"
    )


def write_jpegs(path: Path, sizes: Sequence[tuple[int, int]], orientation: int = 1) -> Path:
    """A Motion JPEG file whose frames have these sizes, and EXIF's orientation."""
    about = Image.Exif()
    about[0x0112] = orientation
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = *sizes[0], "yuvj420p"
        for index, size in enumerate(sizes):
            buffer = io.BytesIO()
            Image.fromarray(picture(index, *size)).save(buffer, "JPEG", quality=95, exif=about)
            packet = av.Packet(buffer.getvalue())
            packet.stream = stream
            packet.pts = packet.dts = index
            packet.time_base = Fraction(1, 25)
            packet.is_keyframe = True
            file.mux(packet)
    return path


def claiming(path: Path, side: int) -> Path:
    """Makes the header of a Matroska file of 300 x 260 pixels tell another size."""
    data = path.read_bytes()
    for element, value in ((b"\xb0", 300), (b"\xba", 260)):
        old, told = (element + b"\x82" + number.to_bytes(2, "big") for number in (value, side))
        assert old in data
        data = data.replace(old, told, 1)
    path.write_bytes(data)
    return path


def write_sound(path: Path) -> Path:
    """A WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(8000))
    return path


def write_cover(path: Path) -> Path:
    """An MP3 file with the picture of an album."""
    buffer = io.BytesIO()
    Image.new("RGB", (300, 300), RED).save(buffer, "JPEG")
    name = b"image/jpeg"
    body = b"\0" + name + b"\0\x03\0" + buffer.getvalue()
    tag = b"APIC" + len(body).to_bytes(4, "big") + b"\0\0" + body
    size = bytes(len(tag) >> shift & 127 for shift in (21, 14, 7, 0))
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libmp3lame", rate=44_100)
        sound = av.AudioFrame.from_ndarray(np.zeros((2, 1152), np.int16), "s16p", "stereo")
        sound.sample_rate = 44_100
        for _ in range(20):
            file.mux(stream.encode(sound))
        file.mux(stream.encode())
    path.write_bytes(b"ID3\x03\0\0" + size + tag + path.read_bytes())
    return path


def write_two_streams(path: Path) -> Path:
    """A small picture and a larger one side by side."""
    with av.open(str(path), "w") as file:
        streams: list[Any] = []
        for size in ((32, 24), (WIDTH, HEIGHT)):
            stream: Any = file.add_stream("libx264", rate=25)
            stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
            streams.append((stream, size))
        for index in range(COUNT):
            for stream, size in streams:
                file.mux(stream.encode(_frame(index, size, alpha=False)))
        for stream, _ in streams:
            file.mux(stream.encode())
    return path


def write_folder(folder: Path, names: Sequence[str], size: tuple[int, int] = (WIDTH, HEIGHT)) -> Path:
    """Images in the order of names."""
    folder.mkdir(exist_ok=True)
    for index, name in enumerate(names):
        Image.fromarray(picture(index, *size)).save(folder / name)
    return folder


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims this size, and has one row of data."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(3 * width + 1))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def cut(path: Path, share: float) -> Path:
    """Keeps the first part of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path
