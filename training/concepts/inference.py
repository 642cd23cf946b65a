"""Finds concepts with the network in torch, as a server would: the reference for whatever serves these weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from training.concepts.evaluation_scenes import Asked
from training.concepts.network import MASK_SIDE, SIDE, ConceptNetwork, load_weights
from training.concepts.words import VISUAL

_Pixels = npt.NDArray[np.uint8]


class TorchSegmenter:
    """Masks, scores and boxes above the threshold; the last picture's features are kept."""

    def __init__(self, model: Path, threshold: float = 0.5) -> None:
        self._network = ConceptNetwork().eval()
        weights = load_file(model / "network.safetensors")
        load_weights(self._network, {name: one.float() for name, one in weights.items()})
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._threshold = threshold
        self._picture: _Pixels | None = None
        self._features = torch.empty(0)

    @torch.inference_mode()
    def __call__(
        self, picture: _Pixels, asked: Asked
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any], npt.NDArray[Any]]:
        """[K,H,W], [K] and [K,4] xyxy in pixels, the best first."""
        network, (high, wide) = self._network, picture.shape[:2]
        encoded = self._tokenizer.encode(VISUAL if asked.text is None else asked.text)
        ids, mask = torch.tensor([encoded.ids]), torch.tensor([encoded.attention_mask])
        boxes = torch.tensor(asked.exemplars, dtype=torch.float32).reshape(1, -1, 4) / torch.tensor([wide, high] * 2)
        boxes = boxes.clamp(0, 1)
        boxes = torch.cat([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)
        labels = torch.tensor(asked.labels, dtype=torch.int64).reshape(1, -1)
        maps, positions = network.pyramid(self._encode(picture))
        found = network.find(maps[-1], positions, network.text(ids), mask, boxes, labels)
        scores = found.logits[-1, 0].sigmoid() * found.presence[-1, 0].sigmoid()
        order = scores.argsort(descending=True, stable=True)
        order = order[scores[order] > self._threshold]
        pixels, _ = network.pixels(maps, found.fused, found.prompt, found.prompt_mask)
        logits = network.masks(found.queries[-1][:, order], pixels)
        centre, size = found.boxes[-1, 0, order].split(2, -1)
        corners = torch.cat([centre - size / 2, centre + size / 2], -1) * torch.tensor([wide, high] * 2)
        return _resized(logits, high, wide)[0], scores[order].numpy(), corners.numpy()

    @torch.inference_mode()
    def click(
        self, picture: _Pixels, points: list[tuple[float, float]], labels: list[int], box: list[float] | None
    ) -> npt.NDArray[np.bool_]:
        """The best of three masks of one point, or else the single mask, [H,W]."""
        high, wide = picture.shape[:2]
        coords = [*points, *([] if box is None else [(box[0], box[1]), (box[2], box[3])])]
        known = [*labels, *([] if box is None else [2, 3])]
        scale = torch.tensor([SIDE / wide, SIDE / high])
        maps = self._network.click_maps(self._encode(picture))
        masks, scores, _ = self._network.click(
            maps, torch.tensor([coords]) * scale, torch.tensor([known]), None, torch.zeros(1)
        )
        best = 0 if len(known) > 1 else 1 + int(scores[0, 1:].argmax())
        return _resized(masks[:, best : best + 1], high, wide)[0, 0]

    def _encode(self, picture: _Pixels) -> Tensor:
        if self._picture is not picture:
            small = Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            pixels = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1)[None].float() / 255
            self._picture, self._features = picture, self._network.backbone(pixels)
        return self._features


def _resized(logits: Tensor, high: int, wide: int) -> npt.NDArray[np.bool_]:
    if not logits.shape[1]:
        return np.zeros((1, 0, high, wide), dtype=bool)
    assert logits.shape[-1] == MASK_SIDE
    return (functional.interpolate(logits, (high, wide), mode="bilinear", align_corners=False) > 0).numpy()
