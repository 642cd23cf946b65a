"""Video files and streams through PyAV: opening them, frames as a person sees them, and one sentence for each fault."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.core.images import to_rgb
from triton_sam.errors import InvalidInput, SetupError, TooLarge
from triton_sam.installation import install_extra
from triton_sam.video.clip import ClipLimits

#: Of the JPEG files that decoded frames are sent as.
JPEG_QUALITY = 95
#: The format's own limit.
_LONGEST_JPEG_SIDE = 65_500
#: FFmpeg's AV_DISPOSITION_ATTACHED_PIC.
_ATTACHED_PICTURE = 0x400
#: Of a file that cannot be read at some places; demuxers may repeat one for ever.
_MOST_FAULTS = 32

log = logging.getLogger(__name__)
_converters = threading.local()


def faults() -> tuple[type[Exception], ...]:
    """What PyAV raises for bad data: its own errors, most of which are Python's too, and Python's."""
    return (pyav().error.FFmpegError, OSError, ValueError, RuntimeError, MemoryError)


def pyav() -> Any:
    """The module; SetupError with the command that installs it."""
    try:
        import av
    except ImportError:
        raise SetupError(f"video files need PyAV: {install_extra('video')}") from None
    return av


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A container and the stream of its pictures."""

    container: Any
    stream: Any
    name: str

    @property
    def rate(self) -> float | None:
        """Frames a second, on average."""
        rate = self.stream.average_rate or self.stream.guessed_rate
        return float(rate) if rate else None

    @property
    def ends(self) -> float | None:
        """Seconds behind the first frame at which the file says that it ends; None if it says nothing certain."""
        stream, others = self.stream, len(self.container.streams) - 1
        if stream.duration and stream.time_base:
            return float(stream.duration * stream.time_base)
        if others or not self.container.duration:
            return None
        # Some formats count from zero, also in a file that begins later.
        return float(self.container.duration - max(0, self.container.start_time or 0)) / 1e6

    @property
    def expected(self) -> int | None:
        """About how many frames there are."""
        if self.stream.frames:
            return int(self.stream.frames)
        if self.container.duration and self.rate:
            return max(1, round(float(self.container.duration) / 1e6 * self.rate))
        return None

    def decoded(self) -> Iterator[Any]:
        """PyAV's frames in the order in which they are shown.

        Raises:
            Damaged: data before the next frame cannot be decoded.
            CutShort: data behind the last frame cannot be decoded.
        """
        reason = ""
        for packet in self._packets():
            if packet is None:
                reason = "it cannot be read"
                continue
            try:
                frames = packet.decode()
            except EOFError:
                break
            except faults() as error:
                reason = reason or _reason(error)
                continue
            if frames and reason:
                raise Damaged(reason)
            yield from frames
        if reason:
            raise CutShort

    def _packets(self) -> Iterator[Any]:
        """The packets; None for one that cannot be read."""
        packets = self.container.demux(self.stream)
        for _ in range(_MOST_FAULTS):
            try:
                yield from packets
                return
            except EOFError:
                return
            except faults() as error:
                log.debug("%s: %s", self.name, error)
                yield None
                packets = self.container.demux(self.stream)


class Damaged(Exception):
    """Data in the middle cannot be decoded."""


class CutShort(Exception):
    """Data at the end cannot be decoded."""


def open_video(source: str | IO[bytes], name: str, limits: ClipLimits) -> Opened:
    """Opens a file or a stream; nothing is decoded yet.

    Args:
        source: a path, or a binary file that need not be seekable.
        name: for messages.

    Raises:
        InvalidInput: it is no video, or has no pictures that can be decoded.
    """
    av = pyav()
    where: Any = f"file:{source}" if isinstance(source, str) else source
    # Playlists must not lead to other files and hosts.
    options = {"protocol_whitelist": "file"}
    if limits.formats:  # also not to other files of this machine, and no playlist is read at all
        options |= {"format_whitelist": limits.formats, "codec_whitelist": limits.decoders}
    try:
        container = av.open(where, options=options, metadata_errors="ignore")
    except faults() as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise InvalidInput(f"{name} cannot be read: {error.strerror}") from None
        raise InvalidInput(f"{name} is not a video that can be read, or it is cut short ({_reason(error)})") from None
    try:
        return _chosen(container, name, limits)
    except BaseException:
        container.close()
        raise


def _chosen(container: Any, name: str, limits: ClipLimits) -> Opened:
    av = pyav()
    pictures = [stream for stream in container.streams.video if not _is_cover(stream)]
    if not pictures:
        found = "is only sound" if any(stream.type == "audio" for stream in container.streams) else "are no frames"
        raise InvalidInput(f"there {found} in {name}: give a file with a video stream")
    stream = max(pictures, key=lambda one: (one.codec_context.width or 0) * (one.codec_context.height or 0))
    context = stream.codec_context
    width, height = context.width or 0, context.height or 0
    check_stream_size(width, height, name, limits)
    # The decoder itself refuses what comes later; twice, because it adds a margin for its blocks.
    context.options = {"max_pixels": str(2 * limits.pixels + 2**20)}
    if limits.decoders:
        context.options |= {"codec_whitelist": limits.decoders}
    with contextlib.suppress(av.error.FFmpegError, ValueError, RuntimeError):
        context.thread_type = "AUTO"
    return Opened(container, stream, name)


def check_stream_size(width: int, height: int, name: str, limits: ClipLimits) -> None:
    """TooLarge before a pixel is decoded."""
    if width * height > limits.pixels:
        raise TooLarge(
            f"{name} has frames of {width} x {height} = {width * height:,} pixels and {limits.pixels:,} are allowed: "
            "scale it down"
        )


def _is_cover(stream: Any) -> bool:
    """Whether it is a picture beside sound, such as the cover of an album."""
    return bool(int(stream.disposition) & _ATTACHED_PICTURE)


def upright_picture(frame: Any) -> Image.Image:
    """A decoded frame -> RGB as a person sees it: turned as the file says, transparency on white, 8 bits."""
    transparent = any(component.is_alpha for component in frame.format.components) or "pal" in frame.format.name
    pixels = _converter().reformat(frame, format="rgba" if transparent else "rgb24").to_ndarray()
    turned = np.ascontiguousarray(_turned(pixels, _matrix(frame)))
    return to_rgb(Image.fromarray(turned))


def _converter() -> Any:
    """One a thread: that of a frame has threads of its own, which stay until Python looks for cycles."""
    known = getattr(_converters, "one", None)
    if known is None:
        known = _converters.one = pyav().video.reformatter.VideoReformatter()
    return known


def upright_size_of(frame: Any) -> tuple[int, int]:
    """(width, height) of :func:`upright_picture`."""
    a, b, c, d = _matrix(frame)
    sideways = abs(a) + abs(d) < abs(b) + abs(c)
    return (frame.height, frame.width) if sideways else (frame.width, frame.height)


def frame_file(picture: Image.Image) -> bytes:
    """A decoded frame as it is sent: JPEG of quality 95, or PNG where that is too wide or high for JPEG."""
    buffer = io.BytesIO()
    if max(picture.size) > _LONGEST_JPEG_SIDE:
        picture.save(buffer, "PNG", compress_level=1)
    else:
        picture.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def _matrix(frame: Any) -> tuple[int, int, int, int]:
    """(a, b, c, d) of the file's display matrix: x' = a x + c y, y' = b x + d y."""
    try:
        beside = list(frame.side_data)
    except ValueError:  # a kind that PyAV has no name for, such as EXIF; of the matrix it then tells the angle only
        angle = np.deg2rad(frame.rotation)
        cosine, sine = round(2**16 * np.cos(angle)), round(2**16 * np.sin(angle))
        return cosine, -sine, sine, cosine
    for entry in beside:
        if getattr(entry.type, "name", "") == "DISPLAYMATRIX":
            a, b, _, c, d = (int(value) for value in np.frombuffer(bytes(entry), np.int32, 5))
            return a, b, c, d
    return 1, 0, 0, 1


def _turned(pixels: npt.NDArray[np.uint8], matrix: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
    """[H,W,C] by quarter turns and flips; other angles are left as they are."""
    a, b, c, d = matrix
    if abs(a) + abs(d) < abs(b) + abs(c):
        pixels, a, d = pixels.transpose(1, 0, 2), c, b
    if a < 0:
        pixels = pixels[:, ::-1]
    return pixels[::-1] if d < 0 else pixels


def _reason(error: BaseException) -> str:
    text = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
    return text[:120]
