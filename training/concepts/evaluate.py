"""How well concepts are found: ``python -m training.concepts.evaluate``.

Whatever can find concepts can be judged: the committed weights in torch, an ONNX engine, a server through its client.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.concepts.evaluation_scenes import COUNT, Asked, Scene, make_scene

#: A mask is right from this IoU on, and an instance is an answer above this score.
IOU, THRESHOLD = 0.5, 0.5
_Masks = npt.NDArray[np.bool_]
#: A picture [H,W,3] uint8 and a concept -> masks [K,H,W], scores [K] and boxes [K,4] xyxy in pixels, above THRESHOLD.
Segmenter = Callable[[npt.NDArray[np.uint8], Asked], tuple[_Masks, npt.NDArray[Any], npt.NDArray[Any]]]
#: A picture, points [P,2] in pixels with labels [P] or else a box xyxy -> the best mask [H,W].
Clicker = Callable[[npt.NDArray[np.uint8], list[tuple[float, float]], list[int], list[float] | None], _Masks]


@dataclass
class Counts:
    """Of some concepts: right instances, wrong ones, missed ones, and what each concept alone came to.

    Attributes:
        each: F1 of each concept of something.
        silent: for each concept of nothing, whether nothing was answered.
        overlaps: IoU of the right instances.
        corners: IoU of their boxes with the true ones.
    """

    right: int = 0
    wrong: int = 0
    missed: int = 0
    each: list[float] = field(default_factory=list)
    silent: list[bool] = field(default_factory=list)
    overlaps: list[float] = field(default_factory=list)
    corners: list[float] = field(default_factory=list)

    @property
    def f1(self) -> float:
        """Of all instances together."""
        return 2 * self.right / max(1, 2 * self.right + self.wrong + self.missed)

    def figures(self) -> dict[str, Any]:
        """What is reported, rounded."""
        told: dict[str, Any] = {"concepts": len(self.each) + len(self.silent)}
        if self.each:
            told |= {
                "f1": round(self.f1, 4),
                "mean_f1": round(float(np.mean(self.each)), 4),
                "mask_iou": round(float(np.mean(self.overlaps or [0])), 4),
                "box_iou": round(float(np.mean(self.corners or [0])), 4),
            }
        if self.silent:
            told |= {"answered_with_nothing": round(float(np.mean(self.silent)), 4)}
        return told


def judge(segment: Segmenter, scenes: Iterable[Scene]) -> dict[str, Any]:
    """F1 at IoU 0.5 of what is found, and how often concepts of nothing are answered with nothing; by kind as well."""
    whole = {"all": Counts(), "words": Counts(), "exemplars alone": Counts(), "words and exemplars": Counts()}
    kinds: defaultdict[str, Counts] = defaultdict(Counts)
    for scene in scenes:
        for asked in scene.asked:
            masks, _, boxes = segment(scene.picture, asked)
            part = "exemplars alone" if asked.text is None else "words and exemplars" if asked.labels else "words"
            for counts in (whole["all"], whole[part], kinds[asked.kind]):
                _count(counts, scene, asked, masks, boxes)
    told = {name: counts.figures() for name, counts in whole.items()}
    return told | {"kinds": {name: kinds[name].figures() for name in sorted(kinds)}}


def judge_clicks(click: Clicker, scenes: Iterable[Scene]) -> dict[str, float]:
    """Mean IoU of the best mask of one click, and of a box."""
    overlaps: dict[str, list[float]] = {"click": [], "box": []}
    for scene in scenes:
        for number, x, y in scene.clicks:
            thing = scene.things[number]
            overlaps["click"].append(_iou(click(scene.picture, [(x, y)], [1], None), thing.mask))
            overlaps["box"].append(_iou(click(scene.picture, [], [], list(thing.box)), thing.mask))
    return {f"{name}_iou": round(float(np.mean(values)), 4) for name, values in overlaps.items()}


def _count(counts: Counts, scene: Scene, asked: Asked, masks: _Masks, boxes: npt.NDArray[Any]) -> None:
    if not asked.found:
        counts.silent.append(len(masks) == 0)
        counts.wrong += len(masks)
        return
    true = np.stack([scene.things[number].mask for number in asked.found]).reshape(len(asked.found), -1)
    overlap = np.zeros((len(masks), len(true)))
    if len(masks):
        said = masks.reshape(len(masks), -1)
        both = said.astype(np.float32) @ true.T.astype(np.float32)
        overlap = both / np.maximum(said.sum(1)[:, None] + true.sum(1)[None] - both, 1)
    right = 0
    # The best pairs first; at an IoU of 0.5, of things that do not overlap, a mask fits one thing only.
    while overlap.size and overlap.max() >= IOU:
        found, thing = np.unravel_index(overlap.argmax(), overlap.shape)
        counts.overlaps.append(float(overlap[found, thing]))
        counts.corners.append(_box_iou(boxes[found], scene.things[asked.found[thing]].box))
        overlap[found], overlap[:, thing] = 0, 0
        right += 1
    counts.right += right
    counts.wrong += len(masks) - right
    counts.missed += len(true) - right
    counts.each.append(2 * right / (len(masks) + len(true)))


def _iou(one: _Masks, other: _Masks) -> float:
    return float((one & other).sum() / max(1, (one | other).sum()))


def _box_iou(one: Iterable[float], other: Iterable[float]) -> float:
    (a0, b0, a1, b1), (c0, d0, c1, d1) = one, other
    both = max(0.0, min(a1, c1) - max(a0, c0)) * max(0.0, min(b1, d1) - max(b0, d0))
    return float(both / max(1e-9, (a1 - a0) * (b1 - b0) + (c1 - c0) * (d1 - d0) - both))


def main() -> int:
    from training.concepts.inference import TorchSegmenter

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=Path(__file__).parent / "model")
    parser.add_argument("--scenes", type=int, default=COUNT)
    options = parser.parse_args()
    segmenter = TorchSegmenter(options.model)
    scenes = [make_scene(number) for number in range(options.scenes)]
    figures = {"scenes": len(scenes)} | judge(segmenter, scenes) | judge_clicks(segmenter.click, scenes)
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
