"""A reference for served masks: the torch network of an exported model, run directly.

Of the package only the network and the loading of its weights are used. The scaling of pictures, points and masks is
implemented here again, and prompts go through transformers' own ``forward``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate, pad

from triton_sam.export.checkpoint import load_weights
from triton_sam.models.catalog import get_spec
from triton_sam.networks.segmenters import build

_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
_STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class TorchReference:
    """A network with the parameters of :meth:`triton_sam.SAM2TritonClient.segment`.

    Args:
        side: side of its square input, pixels.
        keeps_aspect: whether a picture's longest side becomes the model's and the rest is padded (SAM 1), or both
            sides become the model's (SAM 2).
    """

    def __init__(self, network: Any, side: int, *, keeps_aspect: bool) -> None:
        self._network = network
        self._side = side
        self._keeps_aspect = keeps_aspect
        self._embeddings: dict[bytes, Any] = {}

    @classmethod
    def of_checkpoint(cls, model_id: str, checkpoint: Path, *, keeps_aspect: bool) -> TorchReference:
        spec = get_spec(model_id)
        network = build(spec.architecture, spec.side)
        load_weights(network, checkpoint, spec)
        return cls(network, spec.side, keeps_aspect=keeps_aspect)

    @torch.inference_mode()
    def logits(
        self,
        picture: Image.Image,
        points: list[list[float]] | None = None,
        labels: list[int] | None = None,
        box: list[float] | None = None,
        mask_input: np.ndarray | None = None,
        multimask: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """([M,h,w] logits, [M] scores) for one object; coordinates in original pixels."""
        across, down = self._inner_size(picture)
        scale = torch.tensor([across / picture.width, down / picture.height], dtype=torch.float64)

        def in_model(coordinates: Any) -> torch.Tensor:
            return (torch.tensor(coordinates, dtype=torch.float64).reshape(-1, 2) * scale).float()

        prompt: dict[str, torch.Tensor] = {}
        if points:
            prompt["input_points"] = in_model(points)[None, None]
            prompt["input_labels"] = torch.tensor([[labels or [1] * len(points)]])
        if box is not None:
            prompt["input_boxes"] = in_model(box).reshape(1, 1, 4)
        if mask_input is not None:
            prompt["input_masks"] = torch.from_numpy(mask_input).clip(-32, 32)[None, None]
        answer = self._network(image_embeddings=self._encode(picture), multimask_output=multimask, **prompt)
        return answer.pred_masks[0, 0].numpy(), answer.iou_scores[0, 0].numpy()

    def masks(self, picture: Image.Image, **prompt: Any) -> np.ndarray:
        """[M,H,W] bool at the original size; M is 1, or 3 with ``multimask``."""
        return self.large_logits(picture, **prompt) > 0

    def large_logits(self, picture: Image.Image, **prompt: Any) -> np.ndarray:
        """[M,H,W] at the original size."""
        planes = torch.from_numpy(self.logits(picture, **prompt)[0])[None]
        if self._keeps_aspect:
            across, down = self._inner_size(picture)
            planes = interpolate(planes, (self._side, self._side), mode="bilinear", align_corners=False)[
                ..., :down, :across
            ]
        size = (picture.height, picture.width)
        large: np.ndarray = interpolate(planes, size, mode="bilinear", align_corners=False)[0].numpy()
        return large

    def _encode(self, picture: Image.Image) -> Any:
        key = picture.tobytes()
        if key not in self._embeddings:
            across, down = self._inner_size(picture)
            small = np.array(picture.convert("RGB").resize((across, down), Image.Resampling.BILINEAR))
            pixels = (torch.from_numpy(small).permute(2, 0, 1) / 255 - _MEAN) / _STD
            pixels = pad(pixels, (0, self._side - across, 0, self._side - down))
            self._embeddings[key] = self._network.get_image_embeddings(pixels[None])
        return self._embeddings[key]

    def _inner_size(self, picture: Image.Image) -> tuple[int, int]:
        """(width, height) of a picture in the model's square."""
        if not self._keeps_aspect:
            return self._side, self._side
        longest = max(picture.size)
        # Rounded half up, in whole numbers.
        return tuple((2 * side * self._side + longest) // (2 * longest) for side in picture.size)  # type: ignore[return-value]
