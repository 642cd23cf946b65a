"""``triton-sam demo``: one click on a sample photograph, and a picture of its mask."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from triton_sam.cli.demo_vlm import VLM_DEMO_MODEL
from triton_sam.cli.demo_words import WORDS_DEMO_MODEL
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.core.masks import overlay
from triton_sam.core.samples import sample_photograph
from triton_sam.errors import InvalidInput
from triton_sam.models.catalog import DEFAULT_MODEL
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.repository.video_choice import video_model
from triton_sam.server import host
from triton_sam.settings import Settings
from triton_sam.video.containers import pyav

SAMPLE_CLICK = (365.0, 290.0)
"""On the spoon."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Timings and files of a demonstration."""

    sample: Path
    size: tuple[int, int]
    score: float
    share: float
    encode_seconds: float
    click_seconds: float
    overlay: Path
    mask: Path

    @property
    def text(self) -> str:
        """Two lines for the terminal."""
        x, y = SAMPLE_CLICK
        return (
            f"{self.sample.name} ({self.size[0]} x {self.size[1]}) encoded in {self.encode_seconds:.2f} s, "
            f"click at ({x:g}, {y:g}) answered in {self.click_seconds * 1e3:.0f} ms: "
            f"score {self.score:.3f}, {self.share:.0%} of the picture\n"
            f"look at {self.overlay} and {self.mask}"
        )


def choose_models(settings: Settings, *, vlm: bool, video: bool = False, text: bool = False) -> list[str]:
    """Ids of the segmenters that are set up, or of the default model; with ``vlm`` also the toy model for questions.

    Args:
        video: the one model that tracks best instead; else the one whose memory is only for trying is left out.
        text: the toy model for words instead.
    """
    if video and text:
        raise InvalidInput("--video and --text are two demonstrations: give one of them")
    there = find_segmenters(settings.repository).values()
    if text:
        segmenters = [WORDS_DEMO_MODEL]
    elif video:
        host.check_platform()
        pyav()  # before anything is downloaded
        segmenters = [video_model(settings.repository)]
    else:
        segmenters = [spec.id for spec in there if spec.assembly is None] or [DEFAULT_MODEL]
    return [*segmenters, VLM_DEMO_MODEL] if vlm else segmenters


def run_video_demo(url: str, name: str, model: str, folder: Path) -> str:
    """Tracks an object through a generated clip on a server; returns lines for the terminal."""
    from triton_sam.cli.demo_video import run_video_demo as run

    return run(url, name, model, folder).text


def run_demo(url: str, model: str, folder: Path) -> DemoResult:
    """Sends one image and one click to a server; writes ``overlay.png`` and ``mask.png`` into ``folder``."""
    sample = sample_photograph()
    folder.mkdir(parents=True, exist_ok=True)
    with SAM2TritonClient(url, model) as client:
        started = time.perf_counter()
        client.set_image(sample)
        encoded = time.perf_counter()
        found = client.segment(points=[list(SAMPLE_CLICK)], labels=[1]).masks
        clicked = time.perf_counter()
    (folder / "mask.png").write_bytes(found.png())
    with Image.open(sample) as picture:
        overlay(picture.convert("RGB"), found.masks, [(*SAMPLE_CLICK, 1)]).save(folder / "overlay.png")
    return DemoResult(
        sample,
        (found.masks.shape[2], found.masks.shape[1]),
        float(found.scores[0]),
        float(found.masks[0].mean()),
        encoded - started,
        clicked - encoded,
        folder / "overlay.png",
        folder / "mask.png",
    )
