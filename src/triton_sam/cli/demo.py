"""``triton-sam demo``: from nothing to a mask that a person can look at."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.core.masks import overlay
from triton_sam.core.samples import sample_photograph

SAMPLE_CLICK = (365.0, 290.0)
"""On the spoon."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What happened, for printing."""

    sample: Path
    size: tuple[int, int]
    score: float
    share: float
    encode_seconds: float
    click_seconds: float
    overlay: Path
    mask: Path


def run_demo(url: str, model: str, folder: Path) -> DemoResult:
    """One image, one click, over the network; writes ``overlay.png`` and ``mask.png`` into ``folder``."""
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
