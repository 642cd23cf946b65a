"""The engine in this process, without a server: what the server is compared with."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from triton_sam.bench.target import Target
from triton_sam.core import masks
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.core.rle import BoolArray
from triton_sam.engines.base import Embedding, Row
from triton_sam.engines.priority import run_lowered

NO_MODEL_FILES = "the bare engine was left out: the model's files are not on this machine; give --model-repository"


class LocalEngine:
    """The server's engine, loaded from the same folder with the same settings."""

    def __init__(self, target: Target) -> None:
        from triton_sam.engines.loading import load_engine

        assert target.folder is not None  # callers check, and add NO_MODEL_FILES to the notes
        self._engine = load_engine(target.spec, target.folder, target.settings)
        self._settings = target.settings
        self.most_images = self._engine.capacity.image_batches[-1]

    def prepare(self, data: bytes) -> Any:
        """Decodes and preprocesses a file for the encoder."""
        limits = self._settings
        image = EncodedImage(data, max_bytes=limits.max_image_bytes, max_pixels=limits.max_image_pixels)
        return self._engine.prepare(image)

    def encode(self, prepared: Any) -> Embedding:
        return self._engine.encode([prepared])[0]

    def encode_seconds(self, prepared: Any, images: int = 1) -> float:
        """Seconds per image of one call with so many images."""
        batch = [prepared] * images

        def spent() -> float:
            return device_seconds(lambda: self._engine.encode(batch)) / images

        # At the priority of the engine's own threads, as in the server: a caller with a higher priority waits for them
        # twice as long as soon as another process needs a core.
        return run_lowered(spent) if self._engine.capacity.on_cpu else spent()

    def click(self, embedding: Embedding, point: tuple[float, float]) -> BoolArray:
        """[H,W] bool: the best mask of one point at the image's size."""
        decoded = self._engine.decode([_row(embedding, point, logits=False, pixels=True)])[0]
        if decoded.packed is not None:
            full: BoolArray = masks.unpack_bits(decoded.packed, embedding.frame.width)[0]
            return full
        assert decoded.logits is not None
        return masks.full_size(decoded.logits[0], embedding.frame)

    def decode_seconds(self, embedding: Embedding, point: tuple[float, float]) -> float:
        """Seconds of one decoder run for one point, up to the low-resolution logits."""
        rows = [_row(embedding, point)]
        return device_seconds(lambda: self._engine.decode(rows))


def _row(embedding: Embedding, point: tuple[float, float], *, logits: bool = True, pixels: bool = False) -> Row:
    prompt = ObjectPrompt(np.array([point], np.float32), np.ones(1, np.int32))
    return Row(embedding, prompt, logits=logits, pixels=pixels)


def device_seconds(action: Callable[[], object]) -> float:
    """Seconds of a call, including the GPU work that it has queued."""
    started = time.perf_counter()
    action()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - started
