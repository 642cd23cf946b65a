"""A model in transformers' eager mode, to compare with: used as in the documentation of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate, pad

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.rle import BoolArray
from triton_sam.export.checkpoint import load_weights
from triton_sam.export.random_weights import randomise
from triton_sam.models.specs import ModelSpec
from triton_sam.networks.segmenters import build, normalisation


class TransformersModel:
    """One network, on the GPU in bfloat16 if there is one, otherwise on the CPU in float32."""

    def __init__(self, spec: ModelSpec, checkpoint: Path | None, name: str = "") -> None:
        """
        Args:
            checkpoint: None for random weights.
            name: of the checkpoint in the table; default: its file name.
        """
        self._spec = spec
        self._network = build(spec.architecture, spec.side)
        if checkpoint is None:
            randomise(self._network)
        else:
            load_weights(self._network, checkpoint, spec)
        on_gpu = torch.cuda.is_available()
        self._device = "cuda" if on_gpu else "cpu"
        self._dtype = torch.bfloat16 if on_gpu else torch.float32
        self._network = self._network.to(self._device, self._dtype)
        self._mean, self._std = (part.to(self._device) for part in normalisation(spec.architecture))
        self._frame = Frame(1, 1, spec.side, spec.resize)
        self._embeddings: Any = None
        weights = "random weights" if checkpoint is None else f"weights of {name or checkpoint.name}"
        self.about = f"{str(self._dtype).removeprefix('torch.')} on {self._device}, {weights}"

    @torch.inference_mode()
    def set_image(self, picture: Image.Image) -> None:
        """Encodes a picture, mode RGB; the embeddings stay on the device."""
        frame = self._frame = Frame(*picture.size, self._spec.side, self._spec.resize)
        small = np.array(picture.resize(frame.resized, Image.Resampling.BILINEAR))
        pixels = torch.from_numpy(small).to(self._device).permute(2, 0, 1) / 255
        pixels = (pixels - self._mean) / self._std
        pixels = pad(pixels, (0, frame.side - pixels.shape[2], 0, frame.side - pixels.shape[1]))
        self._embeddings = self._network.get_image_embeddings(pixels[None].to(self._dtype))
        if self._device == "cuda":
            torch.cuda.synchronize()

    @torch.inference_mode()
    def click(self, point: tuple[float, float]) -> BoolArray:
        """[H,W] bool: the mask of one point."""
        frame = self._frame
        points = torch.from_numpy(frame.to_model([[[point]]])).to(self._device, self._dtype)
        labels = torch.ones(1, 1, 1, dtype=torch.int64, device=self._device)
        output = self._network(
            image_embeddings=self._embeddings, input_points=points, input_labels=labels, multimask_output=False
        )
        planes = output.pred_masks[0].float()
        if frame.policy is ResizePolicy.PAD:
            across, down = frame.resized
            square = (frame.side, frame.side)
            planes = interpolate(planes, square, mode="bilinear", align_corners=False)[..., :down, :across]
        full = interpolate(planes, (frame.height, frame.width), mode="bilinear", align_corners=False)
        mask: BoolArray = (full[0, 0] > 0).cpu().numpy()
        return mask
