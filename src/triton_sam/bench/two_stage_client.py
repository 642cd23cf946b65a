"""A client of the two-stage design, to compare with: encoder and decoder are separate Triton models.

It decodes, resizes and normalises the image, keeps the embeddings, sends them with each click and computes the mask
from the logits. It shares no code with the engines on purpose: users of that design have to write this themselves.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.client import wire
from triton_sam.client.transport import connect
from triton_sam.core import masks
from triton_sam.core.geometry import Frame
from triton_sam.core.rle import BoolArray
from triton_sam.models.specs import ModelSpec, raw_graphs
from triton_sam.repository.configs import raw_names

_TIMEOUT_SECONDS = 300.0


class TwoStageClient:
    """One connection to the two models; it holds the embeddings of one image, which are megabytes."""

    def __init__(self, url: str, segmenter: str, spec: ModelSpec) -> None:
        self._transport = connect(wire.Address.parse(url), _TIMEOUT_SECONDS, {})
        self._encoder, self._decoder = raw_names(segmenter)
        self._spec = replace(spec, graphs=raw_graphs(spec))
        self._frame = Frame(1, 1, spec.side, spec.resize)
        self._embeddings: Mapping[str, npt.NDArray[Any]] = {}

    def set_image(self, data: bytes) -> None:
        """Encodes a file's bytes, and keeps the embeddings."""
        spec = self._spec
        with Image.open(io.BytesIO(data)) as opened:
            picture = opened.convert("RGB")
        self._frame = Frame(picture.width, picture.height, spec.side, spec.resize)
        names = [name for name, _ in spec.encoder.outputs]
        call = wire.Call(self._encoder, {spec.encoder.image: _pixels(picture, self._frame, spec)}, names)
        self._embeddings = self._transport.infer(call)

    def click(self, point: tuple[float, float]) -> BoolArray:
        """[H,W] bool: the best mask of one point."""
        names = self._spec.decoder
        side = names.mask_side
        inputs: dict[str, npt.NDArray[Any]] = {
            **self._embeddings,
            names.points: self._frame.to_model([[point]]),
            names.labels: np.ones((1, 1), np.float32),
        }
        if names.mask not in names.optional:
            inputs[names.mask] = np.zeros((1, 1, side, side), np.float32)
        if names.mask_flag not in names.optional:
            inputs[names.mask_flag] = np.zeros(1, np.float32)
        outputs = self._transport.infer(wire.Call(self._decoder, inputs, (names.masks, names.scores)))
        best = int(np.argmax(outputs[names.scores][0]))
        return masks.full_size(np.ascontiguousarray(outputs[names.masks][0, best]), self._frame)

    def close(self) -> None:
        self._transport.close()


def _pixels(picture: Image.Image, frame: Frame, spec: ModelSpec) -> npt.NDArray[np.float32]:
    """[1,3,side,side] float32, the input of the raw encoder."""
    small = np.asarray(picture.resize(frame.resized, Image.Resampling.BILINEAR), np.float32) / 255
    if spec.encoder.mean is not None and spec.encoder.std is not None:
        small = (small - np.array(spec.encoder.mean, np.float32)) / np.array(spec.encoder.std, np.float32)
    square = np.empty((frame.side, frame.side, 3), np.float32)
    square[:] = np.array(spec.encoder.padding, np.float32)
    square[: small.shape[0], : small.shape[1]] = small
    return np.ascontiguousarray(square.transpose(2, 0, 1))[None]
