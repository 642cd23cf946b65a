"""A reference for served masks: the same two graph files, run directly.

Independent of the package on purpose: nothing of triton_sam is imported here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

_MEAN = np.array([0.485, 0.456, 0.406])
_STD = np.array([0.229, 0.224, 0.225])


class DirectSam2:
    """SAM2-tiny by hand: squash to 1024, normalise, encode, decode, resize bilinearly, threshold."""

    def __init__(self, encoder: Path, decoder: Path) -> None:
        self._encoder = onnxruntime.InferenceSession(str(encoder), providers=["CPUExecutionProvider"])
        self._decoder = onnxruntime.InferenceSession(str(decoder), providers=["CPUExecutionProvider"])
        self._features: dict[bytes, dict[str, np.ndarray]] = {}

    def features(self, picture: Image.Image) -> dict[str, np.ndarray]:
        key = hashlib.sha256(picture.tobytes()).digest()
        if key not in self._features:
            squashed = np.asarray(picture.convert("RGB").resize((1024, 1024), Image.Resampling.BILINEAR))
            pixels = ((squashed / 255.0 - _MEAN) / _STD).transpose(2, 0, 1)[None].astype(np.float32)
            names = [output.name for output in self._encoder.get_outputs()]
            self._features[key] = dict(zip(names, self._encoder.run(names, {"image": pixels}), strict=True))
        return self._features[key]

    def logits(
        self,
        picture: Image.Image,
        points: list[list[float]] | None = None,
        labels: list[int] | None = None,
        box: list[float] | None = None,
        mask_input: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """([3,256,256] logits, [3] scores) for one object; coordinates in original pixels."""
        corners = [] if box is None else [box[:2], box[2:]]
        coords = np.array([*corners, *(points or [])], np.float64).reshape(-1, 2)
        kinds = ([] if box is None else [2, 3]) + list(labels or [1] * len(points or []))
        scaled = coords / np.array(picture.size) * 1024
        mask = np.zeros((1, 1, 256, 256), np.float32)
        if mask_input is not None:
            mask[0, 0] = np.clip(mask_input, -32, 32)
        masks, scores = self._decoder.run(
            ["masks", "iou_predictions"],
            {
                **self.features(picture),
                "point_coords": scaled[None].astype(np.float32),
                "point_labels": np.array([kinds], np.float32),
                "mask_input": mask,
                "has_mask_input": np.array([mask_input is not None], np.float32),
            },
        )
        return masks[0], scores[0]

    def mask(self, picture: Image.Image, **prompt: object) -> np.ndarray:
        """[H,W] bool: the best of the three, at the original size."""
        logits, scores = self.logits(picture, **prompt)  # type: ignore[arg-type]
        return bilinear(logits[int(scores.argmax())], *picture.size) > 0


def bilinear(values: np.ndarray, width: int, height: int) -> np.ndarray:
    """[h,w] -> [height,width], pixel centres at 0.5, borders repeated (torch: align_corners=False)."""
    rows, row_next, row_share = _taps(values.shape[0], height)
    columns, column_next, column_share = _taps(values.shape[1], width)
    vertical = values[rows] * (1 - row_share)[:, None] + values[row_next] * row_share[:, None]
    return vertical[:, columns] * (1 - column_share) + vertical[:, column_next] * column_share


def _taps(source: int, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    centres = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    first = np.floor(centres).astype(int)
    return first, np.minimum(first + 1, source - 1), (centres - first).astype(np.float32)


def iou(first: np.ndarray, second: np.ndarray) -> float:
    """Intersection over union; two empty masks are equal."""
    union = np.logical_or(first, second).sum()
    return 1.0 if union == 0 else float(np.logical_and(first, second).sum() / union)
