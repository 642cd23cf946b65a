"""What does half precision do to masks? The torch engine in half precision against float32, on photographs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from testkit.encoder_agreement import PHOTOGRAPHS, iou, pictures
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result
from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Row
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.export.checkpoint import fill, read_checkpoint
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec, exported_graphs
from triton_sam.networks.segmenters import build

#: Name -> dtype of the encoder, dtype of the embeddings and the decoder.
PRECISIONS = {
    "bfloat16 throughout": (torch.bfloat16, torch.bfloat16),
    "bfloat16, then float16": (torch.bfloat16, torch.float16),
    "float16 throughout": (torch.float16, torch.float16),
}
_LEAST_IOU = 0.99
_GRID = 6


def run_half_precision(model: str, checkpoint: Path, photographs: int, folder: Path | None = None) -> Result:
    """Measures a model of the catalogue with the weights of ``checkpoint``, on the first so many photographs.

    Args:
        folder: of the photographs; scikit-image's by default.
    """
    result = Result("half-precision", about={"model": model, "weights": checkpoint.name})
    result.figures += measure_half_precision(get_spec(model), checkpoint, photographs, folder)
    return result


def measure_half_precision(
    spec: ModelSpec, checkpoint: Path, photographs: int, folder: Path | None = None
) -> Iterator[Figure]:
    """Mean and worst IoU of single clicks, a grid of them on each photograph; on a GPU if there is one."""
    spec = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, spec.side))
    network = build(spec.architecture, spec.side)
    fill(network, map_keys(read_checkpoint(checkpoint)))
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    chosen = list(pictures(PHOTOGRAPHS[:photographs], folder))
    expected = _masks(spec, network, TorchOptions(device), chosen)
    for name, (encoder, rows) in PRECISIONS.items():
        found = _masks(spec, network, TorchOptions(device, encoder, rows), chosen)
        overlaps = iou(np.array(found), np.array(expected)).reshape(len(chosen), -1)
        means = ", ".join(
            f"{Path(file).stem} {mean:.4f}" for file, mean in zip(PHOTOGRAPHS, overlaps.mean(axis=1), strict=False)
        )
        detail = f"{device.type}; {means}; {int((overlaps < _LEAST_IOU).sum())} of {overlaps.size} clicks under 0.99"
        # Only this one has a bar: the engine uses it for this model on a GPU.
        least = _LEAST_IOU if name == "float16 throughout" else None
        yield Figure(f"mask IoU, {name}, mean", float(overlaps.mean()), "", None, detail, least)
        yield Figure(f"mask IoU, {name}, worst click", float(overlaps.min()), "")


def _masks(
    spec: ModelSpec, network: Any, options: TorchOptions, chosen: Sequence[Image.Image]
) -> list[npt.NDArray[np.bool_]]:
    """One low-resolution mask, [h,w], for each click on each picture."""
    engine = TorchEngine(spec, copy.deepcopy(network), options)
    engine.warm_up()
    fractions = (np.arange(_GRID) + 0.5) / _GRID
    masks = []
    for picture in chosen:
        file = EncodedImage(file_bytes(picture), max_bytes=2**30, max_pixels=2**28)
        (embedding,) = engine.encode([engine.prepare(file)])
        points = [(x * picture.width, y * picture.height) for y in fractions for x in fractions]
        prompts = [ObjectPrompt(np.array([point], np.float32), np.ones(1, np.int32)) for point in points]
        for decoded in engine.decode([Row(embedding, prompt) for prompt in prompts]):
            assert decoded.logits is not None  # rows request them by default
            masks.append(decoded.logits[0] > 0)
    return masks
