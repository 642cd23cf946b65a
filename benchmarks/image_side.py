"""What do masks lose at a smaller input side? Real weights at both sides, with the same boxes, on photographs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn import functional

from testkit.encoder_agreement import PHOTOGRAPHS, iou, pictures
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result
from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import FloatArray, Row
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.export.checkpoint import fill, read_checkpoint
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec, exported_graphs
from triton_sam.networks.segmenters import build

_GRID = 10
#: Masks of clicks count as objects if the model says so, and if they are neither specks nor the whole picture.
_LEAST_SCORE, _LEAST_SHARE, _MOST_SHARE = 0.8, 0.0005, 0.6
#: Two masks that overlap so much are one object.
_SAME = 0.8
#: Limits of the groups of objects, as shares of the picture.
_GROUPS = ((0.0, 0.005), (0.005, 0.03), (0.03, 1.0))
#: Masks are compared at this side: neither side's own.
_COMPARED = 768
_NO_POINTS = np.zeros((0, 2), np.float32), np.zeros(0, np.int32)


def run_image_side(model: str, checkpoint: Path, photographs: int, side: int) -> Result:
    """Measures a model of the catalogue with the weights of ``checkpoint``, on the first so many photographs."""
    result = Result("image-side", about={"model": model, "weights": checkpoint.name, "side": str(side)})
    result.figures += measure_image_side(get_spec(model), checkpoint, photographs, side)
    return result


def measure_image_side(spec: ModelSpec, checkpoint: Path, photographs: int, side: int) -> Iterator[Figure]:
    """Mean IoU, by size of the object, of masks at ``side`` with those at the side that the model was trained with."""
    chosen = list(pictures(PHOTOGRAPHS[:photographs]))
    trained, small = _engine(spec, checkpoint, spec.side), _engine(spec, checkpoint, side)
    overlaps: list[float] = []
    shares: list[float] = []
    for picture in chosen:
        boxes = _objects(trained, picture)
        expected, found = _masks(trained, picture, boxes), _masks(small, picture, boxes)
        overlaps += iou(found, expected).tolist()
        shares += expected.mean(axis=(1, 2)).tolist()
    measured, sizes = np.array(overlaps), np.array(shares)
    for least, most in _GROUPS:
        group = measured[(sizes >= least) & (sizes < most)]
        if len(group):
            name = (
                f"mask IoU at {side} to {spec.side} px, objects of {100 * least:g} to {100 * most:g} % of the picture"
            )
            detail = f"{len(group)} objects; a tenth under {np.quantile(group, 0.1):.2f}"
            yield Figure(name, float(group.mean()), "", None, detail)


def _engine(spec: ModelSpec, checkpoint: Path, side: int) -> TorchEngine:
    network = build(spec.architecture, side)
    fill(network, map_keys(read_checkpoint(checkpoint)))
    sized = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, side))
    engine = TorchEngine(sized, network, TorchOptions(torch.device("cpu")))
    engine.warm_up()
    return engine


def _objects(engine: TorchEngine, picture: Image.Image) -> list[FloatArray]:
    """Boxes [4] in pixels around what clicks find, each object once."""
    fractions = (np.arange(_GRID) + 0.5) / _GRID
    points = [(x * picture.width, y * picture.height) for y in fractions for x in fractions]
    prompts = [ObjectPrompt(np.array([point], np.float32), np.ones(1, np.int32)) for point in points]
    boxes: list[FloatArray] = []
    kept: list[npt.NDArray[np.bool_]] = []
    for scores, masks in _decoded(engine, picture, prompts, multimask=True):
        for score, mask in zip(scores, masks, strict=True):
            if score < _LEAST_SCORE or not _LEAST_SHARE <= mask.mean() <= _MOST_SHARE:
                continue
            if kept and iou(np.array(kept), np.repeat(mask[None], len(kept), 0)).max() > _SAME:
                continue
            kept.append(mask)
            rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
            corners = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], np.float32)
            boxes.append(corners / _COMPARED * np.tile(np.array(picture.size, np.float32), 2))
    return boxes


def _masks(engine: TorchEngine, picture: Image.Image, boxes: Sequence[FloatArray]) -> npt.NDArray[np.bool_]:
    """[N,side,side] of the compared side."""
    prompts = [ObjectPrompt(*_NO_POINTS, box) for box in boxes]
    return np.array([masks[0] for _, masks in _decoded(engine, picture, prompts, multimask=False)])


def _decoded(
    engine: TorchEngine, picture: Image.Image, prompts: Sequence[ObjectPrompt], *, multimask: bool
) -> Iterator[tuple[FloatArray, npt.NDArray[np.bool_]]]:
    """Scores [M] and masks [M,side,side] of the compared side, for each prompt."""
    file = EncodedImage(file_bytes(picture), max_bytes=2**30, max_pixels=2**28)
    (embedding,) = engine.encode([engine.prepare(file)])
    for decoded in engine.decode([Row(embedding, prompt, multimask) for prompt in prompts]):
        assert decoded.logits is not None  # rows request them by default
        logits = torch.from_numpy(decoded.logits)[None]
        large = functional.interpolate(logits, (_COMPARED, _COMPARED), mode="bilinear", align_corners=False)
        yield decoded.scores, (large[0] > 0).numpy()
