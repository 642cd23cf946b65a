"""Odd and hostile videos and folders, and what `triton-sam track` makes of them."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.video_clips import (
    COUNT,
    HEIGHT,
    WIDTH,
    claiming,
    cut,
    picture,
    png_header,
    write_cover,
    write_folder,
    write_jpegs,
    write_sound,
    write_two_streams,
    write_video,
)

SIZE = (WIDTH, HEIGHT)
SIDE = HEIGHT // 3


@dataclass(frozen=True)
class Right:
    """A file that is tracked.

    Attributes:
        told: is said on stderr.
        has_square: whether it has the red square in frames of 64 x 48 pixels.
        turned: degrees by which it is shown turned, counterclockwise.
        skipped: frames of the square's way before the first one.
    """

    make: Callable[[Path], Path]
    frames: int = COUNT
    size: tuple[int, int] = SIZE
    told: str = ""
    has_square: bool = True
    prompt: str = "0,4,4"
    turned: int = 0
    skipped: int = 0

    def corner(self, index: int) -> tuple[int, int]:
        """The square's left upper corner in a frame as it is shown."""
        along = min(3 * (index + self.skipped), WIDTH - SIDE)
        return {
            0: (along, 0),
            90: (0, WIDTH - SIDE - along),
            180: (WIDTH - SIDE - along, HEIGHT - SIDE),
            270: (HEIGHT - SIDE, along),
        }[self.turned]


@dataclass(frozen=True)
class Wrong:
    make: Callable[[Path], Path]
    told: str
    prompt: str = "0,4,4"
    options: tuple[str, ...] = ()


def linked(folder: Path) -> Path:
    write_folder(folder / "real", [f"{index}.png" for index in range(3)])
    (folder / "links").mkdir()
    for index in range(3):
        (folder / "links" / f"{index}.png").symlink_to(folder / "real" / f"{index}.png")
    return folder / "links"


def with_dead_link(folder: Path) -> Path:
    found = write_folder(folder / "f", ["0.png", "1.png"])
    (found / "2.png").symlink_to("nowhere.png")
    return found


def cut_image(folder: Path) -> Path:
    cut(folder / "1.png", 0.6)
    return folder


def with_others(folder: Path) -> Path:
    found = write_folder(folder / "f", ["a2.png", "a10.png", "b1.jpg"])
    (found / "notes.txt").write_text("text")
    (found / ".hidden.png").write_text("text")
    (found / "inner.png").mkdir()
    return found


def with_file(name: str, data: bytes, *before: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        found = write_folder(folder / "f", before)
        (found / name).write_bytes(data)
        return found

    return make


def one_file(name: str, data: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return make


def other_sizes(folder: Path) -> Path:
    found = write_folder(folder / "f", ["0.png", "1.png"])
    Image.fromarray(picture(2, 32, 24)).save(found / "2.png")
    return found


def damaged(name: str, **how: Any) -> Callable[[Path], Path]:
    """300 bytes in the middle are zero."""

    def make(folder: Path) -> Path:
        path = write_video(folder / name, 40, size=(320, 240), **how)
        data = bytearray(path.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 300] = bytes(300)
        path.write_bytes(data)
        return path

    return make


def pages(name: str, **how: Any) -> Callable[[Path], Path]:
    """Saved by Pillow as one file."""

    def make(folder: Path) -> Path:
        frames = [Image.fromarray(picture(index)) for index in range(COUNT)]
        frames[0].save(folder / name, save_all=True, append_images=frames[1:], **how)
        return folder / name

    return make


def deep_pages(folder: Path) -> Path:
    frames = [Image.fromarray(picture(index)[..., 0].astype(np.uint16) * 20) for index in range(COUNT)]
    frames[0].save(folder / "v.tif", save_all=True, append_images=frames[1:])
    return folder / "v.tif"


def other_pages(folder: Path) -> Path:
    frames = [Image.fromarray(picture(index, *size)) for index, size in enumerate((SIZE, SIZE, (32, 24)))]
    frames[0].save(folder / "v.tif", save_all=True, append_images=frames[1:])
    return folder / "v.tif"


def edited(folder: Path) -> Path:
    """A file whose edit list begins at its fourth frame."""
    path = write_video(folder / "v.mp4", options={"bf": "0"})
    data = bytearray(path.read_bytes())
    place = data.index(b"elst") + 16  # behind version, count and duration
    assert data[place : place + 4] == bytes(4)
    data[place : place + 4] = (3 * 512).to_bytes(4, "big")
    path.write_bytes(data)
    return path


def link(folder: Path) -> Path:
    (folder / "link.mp4").symlink_to(write_video(folder / "v.mp4"))
    return folder / "link.mp4"


def link_to_itself(folder: Path) -> Path:
    (folder / "v.mp4").symlink_to(folder / "v.mp4")
    return folder / "v.mp4"


def raw_jpegs(folder: Path) -> Path:
    buffer = io.BytesIO()
    for index in range(COUNT):
        Image.fromarray(picture(index)).save(buffer, "JPEG", quality=95)
    return one_file("v.mjpeg", buffer.getvalue())(folder)


def video(name: str, **how: Any) -> Callable[[Path], Path]:
    return lambda folder: write_video(folder / name, **how)


def cut_video(share: float, name: str, **how: Any) -> Callable[[Path], Path]:
    return lambda folder: cut(write_video(folder / name, **how), share)


TIMES = [0, 40, 80, 500, 1000, 1040, 3000, 3040]
PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n/etc/passwd\n#EXT-X-ENDLIST\n"

RIGHT = {
    "variable frame rate": Right(video("v.mp4", times=TIMES)),
    "begins late": Right(video("v.mkv", times=[10_000 + 40 * index for index in range(COUNT)])),
    "turned by a quarter": Right(video("v.mp4", turned=90), size=(HEIGHT, WIDTH), turned=90),
    "turned by a half": Right(video("v.mp4", turned=180), turned=180),
    "10 bits": Right(video("v.mkv", codec="libx265", pixels="yuv420p10le", options={"x265-params": "log-level=none"})),
    "12 bits": Right(video("v.mkv", codec="ffv1", pixels="yuv444p12le")),
    "grey of 16 bits": Right(video("v.mkv", codec="ffv1", pixels="gray16le"), has_square=False),
    "alpha": Right(video("v.mov", codec="qtrle", pixels="argb", alpha=True)),
    "alpha of a PNG stream": Right(video("v.mov", codec="png", pixels="rgba", alpha=True)),
    "an animated GIF": Right(pages("v.gif", duration=40)),
    "an animated WebP": Right(pages("v.webp", duration=40, lossless=True)),
    "an animated PNG": Right(pages("v.png", duration=40)),
    "a TIFF stack": Right(pages("v.tif"), told="frames run along t, because"),
    "a TIFF stack of 16 bits": Right(deep_pages, has_square=False, told="--contrast LOW,HIGH sets it"),
    "interlaced": Right(video("v.mp4", count=30, options={"flags": "+ilme+ildct", "x264-params": "tff=1"}), 30),
    "4:4:4": Right(video("v.mp4", pixels="yuv444p")),
    "grey": Right(video("v.mkv", codec="ffv1", pixels="gray"), has_square=False),
    "begins before zero": Right(video("v.mkv", times=[40 * index - 400 for index in range(COUNT)])),
    "an edit list": Right(edited, COUNT - 3, skipped=3),
    "Motion JPEG": Right(lambda folder: write_jpegs(folder / "v.avi", [SIZE] * COUNT)),
    "turned by EXIF": Right(
        lambda folder: write_jpegs(folder / "v.avi", [SIZE] * COUNT, orientation=6), size=(HEIGHT, WIDTH), turned=270
    ),
    "JPEG files one behind the other": Right(raw_jpegs),
    "MPEG-2": Right(video("v.mpg", codec="mpeg2video", options={"qscale": "2"})),
    "ProRes": Right(video("v.mov", codec="prores_ks", pixels="yuva444p10le")),
    "a link to a video": Right(link),
    "a strange name": Right(video("ré 'sumé' \n%d.mp4")),
    "WebM": Right(video("v.webm", codec="libvpx-vp9")),
    "AVI": Right(video("v.avi", codec="mpeg4")),
    "MPEG-TS": Right(video("v.ts")),
    "H.264 without times": Right(video("v.h264", container="h264", count=30, options={"bf": "2"}), 30),
    "B-frames and long groups": Right(video("v.mp4", count=60, options={"bf": "3", "g": "250"}), 60, prompt="50,63,4"),
    "one frame": Right(video("v.mp4", count=1), 1),
    "one pixel": Right(
        video("v.mkv", size=(1, 1), codec="ffv1", pixels="bgr0"), size=(1, 1), has_square=False, prompt="0,0,0"
    ),
    "odd sides": Right(video("v.mkv", size=(33, 17), codec="ffv1", pixels="bgr0"), size=(33, 17), has_square=False),
    "65,000 pixels wide": Right(
        video("v.mkv", count=2, size=(65_000, 6), codec="ffv1", pixels="bgr0"), 2, (65_000, 6), has_square=False
    ),
    "images, 65,000 pixels wide": Right(
        lambda f: write_folder(f / "f", ["0.png"], (65_000, 6)), 1, (65_000, 6), has_square=False
    ),
    "two streams": Right(lambda folder: write_two_streams(folder / "v.mkv")),
    "a name like an address": Right(video("concat:a|b.mkv")),
    "a name without a suffix": Right(video("video", container="matroska")),
    "a PNG named mp4": Right(lambda f: write_folder(f, ["v.png"]).joinpath("v.png").rename(f / "v.mp4"), 1),
    "cut short, times first": Right(
        cut_video(0.5, "v.mkv", count=60, codec="ffv1", pixels="bgr0"), -1, told="is cut short"
    ),
    "cut short, index first": Right(
        cut_video(0.6, "v.mp4", count=60, codec="mjpeg", pixels="yuvj420p", faststart=True), -1, told="is cut short"
    ),
    "links": Right(linked, 3),
    "other files beside": Right(with_others, 3, told="1 file of", has_square=False),
    "natural order": Right(lambda f: write_folder(f / "f", [f"x{n}.png" for n in range(12)]), 12),
    "a folder named mp4": Right(lambda folder: write_folder(folder / "v.mp4", ["0.png", "1.png"]), 2),
    "TIFFs": Right(lambda folder: write_folder(folder / "f", ["0.tif", "1.tiff"]), 2),
}
WRONG = {
    "no frames": Wrong(video("v.mov", count=0), "there are no frames in"),
    "sound only": Wrong(lambda folder: write_sound(folder / "v.wav"), "there is only sound in"),
    "cut short": Wrong(cut_video(0.5, "v.mp4"), "is not a video that can be read, or it is cut short"),
    "damaged in the middle": Wrong(damaged("v.mov", codec="png", pixels="rgb24"), "frame 20 of {0} is damaged"),
    "a frame size that changes": Wrong(
        lambda folder: write_jpegs(folder / "v.avi", [SIZE, SIZE, (32, 24)]),
        "frame 2 of {0} has 32 x 24 pixels and the first frame 64 x 48",
    ),
    "images of two sizes": Wrong(other_sizes, "frame 2 (2.png) has 32 x 24 pixels and the first frame 64 x 48"),
    "pages of two sizes": Wrong(
        other_pages, "frame 2 of {0} has 32 x 24 pixels and the first frame 64 x 48", options=("--axis", "t")
    ),
    "a TIFF cut short": Wrong(lambda folder: cut(pages("v.tif")(folder), 0.5), "{0} cannot be used"),
    "sound with a picture": Wrong(lambda folder: write_cover(folder / "v.mp3"), "there is only sound in"),
    "a link to itself": Wrong(link_to_itself, "cannot be read: Too many levels of symbolic links"),
    "text": Wrong(one_file("v.mp4", b"no video\n" * 99), "is not a video that can be read"),
    "random bytes": Wrong(one_file("v.mkv", np.random.default_rng(3).bytes(9000)), "is not a video that can be read"),
    "zip": Wrong(one_file("v.mp4", b"PK\x03\x04" + bytes(999)), "is not a video that can be read"),
    "an empty file": Wrong(one_file("v.mp4", b""), "is not a video that can be read"),
    "a playlist of another file": Wrong(one_file("v.m3u8", PLAYLIST), "is not a video that can be read"),
    "a huge picture in a video": Wrong(one_file("v.png", png_header(60_000, 60_000)), "none that can be decoded"),
    "a video that would be large": Wrong(
        lambda folder: claiming(write_video(folder / "v.mkv", size=(300, 260), codec="ffv1", pixels="bgr0"), 15_000),
        "{0} has frames of 15000 x 15000 = 225,000,000 pixels and 100,000,000 are allowed: scale it down",
    ),
    "a video that would be huge": Wrong(
        lambda folder: claiming(write_video(folder / "v.mkv", size=(300, 260), codec="ffv1", pixels="bgr0"), 65_000),
        "there are no frames in {0}, or none that can be decoded: convert it",
    ),
    "an image that would be huge": Wrong(
        with_file("0.png", png_header(60_000, 60_000)), "frame 0 (0.png) cannot be used"
    ),
    "a frame that would be huge": Wrong(with_file("1.png", png_header(60_000, 60_000), "0.png"), "frame 1 (1.png)"),
    "an image cut short": Wrong(lambda folder: cut_image(write_folder(folder / "f", ["0.png", "1.png"])), "cut short"),
    "text named png": Wrong(with_file("0.png", b"text"), "frame 0 (0.png) cannot be used: the image format is unknown"),
    "an empty folder": Wrong(lambda folder: write_folder(folder / "f", []), "there are no frames in {0}: it is empty"),
    "a folder of text": Wrong(with_file("a.txt", b"text"), "there are no frames in {0}, only other files: a.txt"),
    "an image cut short before the prompt": Wrong(
        lambda folder: cut_image(write_folder(folder / "f", ["0.png", "1.png", "2.png", "3.png"])),
        "frame 1 cannot be used: the image is damaged or cut short",
        "2,4,4",
    ),
    "a link to nothing": Wrong(with_dead_link, "frame 2 (2.png) cannot be read: No such file"),
    "nothing": Wrong(lambda folder: folder / "v.mp4", "cannot be read: No such file or directory"),
    "a device": Wrong(lambda _: Path("/dev/null"), "is neither a file nor a folder"),
}
