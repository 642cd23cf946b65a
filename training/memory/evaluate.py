"""Judges a served model by the evaluation clips: ``python -m training.memory.evaluate --address localhost:8000``.

The first frame's true mask is given, or one click on it, and the object is tracked to the last frame.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from training.memory.clips import CLIPS, FRAMES, Clip, evaluation_clip
from training.memory.judge import jaccard, mean_jaccard
from triton_sam import SAM2VideoClient


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="localhost:8000", help="of Triton")
    parser.add_argument("--model", default="sam2:tiny_video")
    parser.add_argument("--clips", type=int, nargs="*", default=list(range(CLIPS)), help="their numbers")
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--click", action="store_true", help="one click instead of the mask")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    rows = []
    with SAM2VideoClient(options.address, options.model) as client:
        for number in options.clips:
            rows.append(follow(client, evaluation_clip(number), options.frames, clicked=options.click))
            sys.stdout.write(f"{rows[-1]['clip']}: J {rows[-1]['J']:.3f}, {rows[-1]['seconds']:.2f} s a frame\n")
            sys.stdout.flush()
    result = {
        "prompt": "click" if options.click else "mask",
        "J": mean(rows, "J"),
        "J first frame": mean(rows, "J first frame"),
        "J of clips with a hidden object": mean([row for row in rows if row["hidden"]], "J"),
        "seconds a frame": mean(rows, "seconds"),
        "clips": rows,
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    sys.stdout.write(text)
    return 0


def follow(client: SAM2VideoClient, clip: Clip, frames: int, *, clicked: bool) -> dict[str, object]:
    """Tracks the clip's object; J of the frames after the first, and of the first alone."""
    state = client.init_state(clip.frames[:frames])
    if clicked:
        client.add_new_points_or_box(state, 0, 1, points=[clip.click()], labels=[1])
    else:
        client.add_new_mask(state, 0, 1, clip.masks[0])
    started = time.perf_counter()
    found = np.zeros(clip.masks[:frames].shape, bool)
    for number, _, masks in client.propagate_in_video(state):
        found[number] = masks[0, 0] > 0
    seconds = (time.perf_counter() - started) / frames
    true = clip.masks[:frames]
    return {
        "clip": clip.name,
        "hidden": clip.hidden,
        "J": round(mean_jaccard(found, true), 4),
        "J first frame": round(jaccard(found[0], true[0]), 4),
        "seconds": round(seconds, 3),
    }


def mean(rows: list[dict[str, object]], name: str) -> float:
    """NaN without rows."""
    return round(float(np.mean([float(str(row[name])) for row in rows])), 4) if rows else float("nan")


if __name__ == "__main__":
    sys.exit(main())
