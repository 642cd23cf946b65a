"""``triton-sam demo --video``: one click on an object of a generated clip, whose masks are known."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from triton_sam.client.video_client import SAM2VideoClient
from triton_sam.core.label_overlay import label_overlay
from triton_sam.errors import SetupError
from triton_sam.files import whole_file
from triton_sam.video.demo_clip import CLICK, HEIGHT, RATE, WIDTH, DrawnFrame, drawn_frames
from triton_sam.video.found import VideoFrame
from triton_sam.video.overlays import OverlayVideo

_OBJECT = 1
#: Of labels, the one that is least like what is in the clip.
_COLOUR = 2
_COLUMNS, _ROWS = 4, 3
_TILE = (WIDTH // 2, HEIGHT // 2)
_DOT = 7


@dataclass(frozen=True, slots=True)
class VideoDemoResult:
    """Timings, overlaps and files of the demonstration.

    Attributes:
        overlaps: of each frame: the mask's IoU (J) with what is visible of the object.
        click_seconds: from the click to its mask, the encoder of the first frame included.
        frame_seconds: of a tracked frame, on average.
    """

    model: str
    overlaps: list[float]
    click_seconds: float
    frame_seconds: float
    clip: Path
    overlay: Path
    sheet: Path

    @property
    def text(self) -> str:
        """Lines for the terminal."""
        later = self.overlaps[1:]
        x, y = CLICK
        return (
            f"{self.model}: {len(self.overlaps)} frames, {WIDTH} x {HEIGHT}, one click at {x:g}, {y:g} of the first\n"
            f"J against the known masks: {self.overlaps[0]:.2f} in the first frame, {sum(later) / len(later):.2f} on "
            f"average in the others, {min(later):.2f} in the worst\n"
            f"the click was answered in {self.click_seconds:.1f} s, tracking took {self.frame_seconds:.2f} s a frame\n"
            f"look at {self.sheet} and {self.overlay} (made of {self.clip})"
        )


def run_video_demo(url: str, name: str, model: str, folder: Path) -> VideoDemoResult:
    """Writes ``clip.mp4``, ``overlay.mp4`` and ``frames.png`` into ``folder``.

    Args:
        url: of Triton; name: of the model there; model: its id.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{folder} cannot be written ({error.strerror}): give another --folder") from None
    drawn = list(drawn_frames())
    clip = folder / "clip.mp4"
    with OverlayVideo(clip, (WIDTH, HEIGHT), RATE) as video:
        for frame in drawn:
            video.add(frame.picture, None, {}, None)
    with SAM2VideoClient(url, name) as client:
        state = client.init_state(clip)
        started = time.perf_counter()
        client.add_new_points_or_box(state, 0, _OBJECT, points=[list(CLICK)], labels=[1])
        clicked = time.perf_counter()
        found = list(client.track_frames(state))
        tracked = time.perf_counter()
    overlay = folder / "overlay.mp4"
    with OverlayVideo(overlay, (WIDTH, HEIGHT), RATE) as video:
        for frame, result in zip(drawn, found, strict=True):
            video.add(frame.picture, result, {_OBJECT: _COLOUR}, None)
    overlaps = [overlap(frame, result) for frame, result in zip(drawn, found, strict=True)]
    sheet = folder / "frames.png"
    with whole_file(sheet) as file:
        contact_sheet(drawn, found, overlaps).save(file, "PNG")
    return VideoDemoResult(model, overlaps, clicked - started, (tracked - clicked) / len(found), clip, overlay, sheet)


def overlap(frame: DrawnFrame, result: VideoFrame) -> float:
    """IoU of the tracked mask and the known one; 1 if both are empty."""
    mask = result.masks([_OBJECT])[0, 0]
    union = np.count_nonzero(mask | frame.mask)
    return np.count_nonzero(mask & frame.mask) / union if union else 1.0


def contact_sheet(drawn: list[DrawnFrame], found: list[VideoFrame], overlaps: list[float]) -> Image.Image:
    """Frames from all over the clip with their masks; the first one shows the click."""
    width, height = _TILE
    sheet = Image.new("RGB", (_COLUMNS * width, _ROWS * height))
    for place, number in enumerate(np.linspace(0, len(drawn) - 1, _COLUMNS * _ROWS).round().astype(int)):
        tile = label_overlay(drawn[number].picture, found[number].labels({_OBJECT: _COLOUR}))
        draw = ImageDraw.Draw(tile)
        if number == 0:
            x, y = CLICK
            draw.ellipse((x - _DOT, y - _DOT, x + _DOT, y + _DOT), fill="lime", outline="black", width=2)
        tile = tile.resize(_TILE, Image.Resampling.BOX)
        text = f"frame {number}: J {overlaps[number]:.2f}"
        draw = ImageDraw.Draw(tile)
        draw.rectangle((0, 0, 8 + draw.textlength(text), 16), fill="black")
        draw.text((4, 2), text, fill="white")
        sheet.paste(tile, (place % _COLUMNS * width, place // _COLUMNS * height))
    return sheet
