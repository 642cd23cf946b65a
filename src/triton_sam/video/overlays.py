"""Overlay videos: the frames with the objects tinted in their colours."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.label_overlay import label_overlay
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.video.containers import pyav
from triton_sam.video.found import VideoFrame

log = logging.getLogger(__name__)

#: Suffix -> FFmpeg's name of the container.
CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
#: In the order in which they are tried: codec, pixel format, options.
_ENCODERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("libx264", "yuv420p", {"preset": "veryfast", "crf": "20"}),
    ("libopenh264", "yuv420p", {}),
    ("mpeg4", "yuv420p", {"qscale": "3"}),
    ("mjpeg", "yuvj420p", {"qscale": "3"}),
)
#: Of a second; holds the usual frame rates, and no encoder here knows a finer one.
_UNIT = Fraction(1, 60_000)
_LONGEST_SIDE = 3840


class OverlayVideo:
    """Writes a video, which is there when the context ends without an error; one frame is in memory at a time.

    Sides become even, and frames with a side above 3840 pixels are scaled down, because players expect that.
    """

    def __init__(self, path: Path, size: tuple[int, int], rate: float | None) -> None:
        """
        Args:
            size: (width, height) of the frames.
            rate: frames a second, for frames without times; default 25.
        """
        self._path = path
        self._unfinished = path.with_name(f".{path.name}.unfinished")
        self._size = size
        shrink = min(1.0, _LONGEST_SIDE / max(size))
        self._inner = max(1, round(size[0] * shrink)), max(1, round(size[1] * shrink))
        self._rate = rate if rate and 0 < rate <= 1000 else 25.0
        self._last = -1
        self._container: Any = None
        self._stream: Any = None

    def __enter__(self) -> OverlayVideo:
        av = pyav()
        form = CONTAINERS[self._path.suffix.lower()]
        try:
            self._container = av.open(
                str(self._unfinished),
                "w",
                format=form,
                options={"movflags": "+faststart"} if form != "matroska" else {},
            )
            self._stream = self._first_encoder()
        except BaseException as error:
            self._discard()
            if isinstance(error, OSError):
                raise InvalidInput(f"{self._path} cannot be written: {error.strerror or error}") from None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or self._last < 0:
            self._discard()
            return
        try:
            self._write(None)
            with _as_os_error(self._path):
                self._container.close()
            self._container = None
            self._unfinished.replace(self._path)
        except BaseException:
            self._discard()
            raise

    def add(
        self, picture: Image.Image, frame: VideoFrame | None, values: Mapping[int, int], seconds: float | None
    ) -> None:
        """Writes the next frame.

        Args:
            picture: the frame, mode RGB.
            values: object -> number of its colour, from 1 on.
            seconds: when it is shown; None: as the frame rate says.
        """
        if picture.size != self._inner:  # first, because borders of a huge picture would take long
            picture = picture.resize(self._inner, Image.Resampling.BILINEAR)
        if frame is not None and frame.objects:
            labels = frame.labels(values)
            if (labels.shape[1], labels.shape[0]) != self._inner:
                labels = np.asarray(Image.fromarray(labels).resize(self._inner, Image.Resampling.NEAREST))
            picture = label_overlay(picture, labels)
        av = pyav()
        shown = av.VideoFrame.from_ndarray(_even(np.asarray(picture)), format="rgb24")
        planned = self._last + Fraction(1) / Fraction(self._rate).limit_denominator(1001) / _UNIT
        wanted = (0 if self._last < 0 else round(planned)) if seconds is None else round(seconds / _UNIT)
        self._last = shown.pts = max(self._last + 1, wanted)
        shown.time_base = _UNIT
        self._write(shown)

    def _write(self, frame: Any) -> None:
        """None at the end."""
        with _as_os_error(self._path):
            for packet in self._stream.encode(frame):
                self._container.mux(packet)

    def _first_encoder(self) -> Any:
        av = pyav()
        for name, pixels, options in _ENCODERS:
            try:
                av.codec.Codec(name, "w")
                stream = self._container.add_stream(name, rate=Fraction(self._rate).limit_denominator(1001))
            except (ValueError, RuntimeError, OSError) as error:
                log.debug("no encoder %s: %s", name, error)
                continue
            width, height = self._inner
            stream.width, stream.height = width + width % 2, height + height % 2
            stream.pix_fmt = pixels
            stream.codec_context.time_base = _UNIT
            stream.options = options
            return stream
        raise SetupError("PyAV was built without an encoder for video here: install its wheel from PyPI")

    def _discard(self) -> None:
        with contextlib.suppress(Exception):
            if self._container is not None:
                self._container.close()
        with contextlib.suppress(OSError):
            self._unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _as_os_error(path: Path) -> Iterator[None]:
    """A full disk is an OSError, as for every other file; most of PyAV's errors are none."""
    try:
        yield
    except pyav().error.FFmpegError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _even(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[H,W,3] with its last row or column repeated if there is an odd number of them."""
    height, width = pixels.shape[:2]
    return np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
