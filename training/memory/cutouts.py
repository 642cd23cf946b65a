"""Finds things that can be cut out: ``python -m training.memory.cutouts PHOTOGRAPHS CHECKPOINT OUT.npz``.

The published image model is clicked at a grid of points, and masks that it is sure of are kept, each thing once.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.nn import functional

from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Row
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.export.checkpoint import fill, read_checkpoint
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import exported_graphs
from triton_sam.networks.segmenters import build

#: Side of the model's input and of the masks.
SIDE = 512
_GRID = 9
_LEAST_SCORE, _LEAST_SHARE, _MOST_SHARE = 0.85, 0.004, 0.35
#: Two masks that overlap so much are one thing; a mask that touches so much of the border was cut off there.
_SAME, _MOST_BORDER = 0.7, 0.04


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    engine = _engine(options.checkpoint)
    numbers: list[int] = []
    masks: list[npt.NDArray[np.bool_]] = []
    for number, path in enumerate(sorted(options.photographs.glob("*.jpg"))):
        with Image.open(path) as photograph:
            found = list(things(engine, photograph.convert("RGB")))
        numbers += [number] * len(found)
        masks += found
        sys.stdout.write(f"{path.name}: {len(found)}\n")
        sys.stdout.flush()
    np.savez_compressed(options.out, photographs=np.array(numbers), masks=np.packbits(np.array(masks), axis=2))
    return 0


def things(engine: TorchEngine, photograph: Image.Image) -> Iterator[npt.NDArray[np.bool_]]:
    """Masks [512,512] of a photograph that is made square."""
    file = EncodedImage(file_bytes(photograph), max_bytes=2**30, max_pixels=2**28)
    (embedding,) = engine.encode([engine.prepare(file)])
    fractions = (np.arange(_GRID) + 0.5) / _GRID
    points = [(x * photograph.width, y * photograph.height) for y in fractions for x in fractions]
    prompts = [ObjectPrompt(np.array([point], np.float32), np.ones(1, np.int32)) for point in points]
    kept: list[npt.NDArray[np.bool_]] = []
    for decoded in engine.decode([Row(embedding, prompt, multimask=True) for prompt in prompts]):
        assert decoded.logits is not None  # rows request them by default
        large = functional.interpolate(torch.from_numpy(decoded.logits)[None], (SIDE, SIDE), mode="bilinear")[0]
        for score, mask in zip(decoded.scores, (large > 0).numpy(), strict=True):
            if score < _LEAST_SCORE or not _LEAST_SHARE <= mask.mean() <= _MOST_SHARE:
                continue
            border = mask[0].sum() + mask[-1].sum() + mask[:, 0].sum() + mask[:, -1].sum()
            if border > _MOST_BORDER * 4 * SIDE or any(_overlap(mask, other) > _SAME for other in kept):
                continue
            kept.append(mask)
            yield mask


def _overlap(first: npt.NDArray[np.bool_], second: npt.NDArray[np.bool_]) -> float:
    return float((first & second).sum() / (first | second).sum())


def _engine(checkpoint: Path) -> TorchEngine:
    spec = get_spec("sam2:tiny")
    network = build(spec.architecture, SIDE)
    fill(network, map_keys(read_checkpoint(checkpoint)))
    sized = dataclasses.replace(spec, graphs=exported_graphs(spec.architecture, SIDE))
    engine = TorchEngine(sized, network, TorchOptions(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    engine.warm_up()
    return engine


if __name__ == "__main__":
    sys.exit(main())
