"""Encodes images: pictures to the device, several at a time through the encoder, on a stream of low priority."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from triton_sam.core.images import EncodedImage
from triton_sam.engines.base import Embedding
from triton_sam.engines.torch.compiled_steps import is_near, load_compiled
from triton_sam.engines.torch.device_images import PreparedImage, TorchEmbedding
from triton_sam.engines.torch.encoder import RowEncoder
from triton_sam.engines.torch.fetching import Fetcher
from triton_sam.engines.torch.graphs import Steps, bucket, new_stream
from triton_sam.engines.torch.layout import Layout
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.engines.torch.pictures import PictureReader
from triton_sam.engines.torch.windows import load_kernel
from triton_sam.errors import InternalError, SetupError
from triton_sam.models.specs import ModelSpec

_BATCHES = (1, 2, 4, 8)


class ImageRunner:
    """The image encoder with fixed numbers of images."""

    def __init__(
        self, spec: ModelSpec, network: Any, layout: Layout, options: TorchOptions, fetcher: Fetcher, *, kernels: bool
    ) -> None:
        """
        Args:
            network: its layers are cast, and so belong to the encoder from now on.
            kernels: whether our own are used at once.
        """
        self._spec, self._layout, self._options, self._fetcher = spec, layout, options, fetcher
        device, dtype = options.device, options.dtype
        #: Numbers of images, from one to the most at a time.
        self.batches = [size for size in _BATCHES if size <= options.encode_batch]
        self._encoder = RowEncoder(network, spec, layout, options.row_dtype).cast(device, dtype, kernels=kernels)
        self.reader = PictureReader(spec, device, dtype, gpu_jpeg=options.gpu_jpeg)
        self._lock = threading.Lock()
        self._threads = threading.local()
        self._stream = new_stream(device) if device.type == "cuda" else None
        self._pixels = torch.zeros(self.batches[-1], 3, spec.side, spec.side, dtype=dtype, device=device)
        self._steps: dict[int, Steps] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def warm_up(self) -> Iterator[str]:
        """Captures every number of images, and yields a description of each."""
        for count in reversed(self.batches):  # the largest one allocates the memory that all share
            self._steps[count] = self._captured(count, self._encoder)
            yield f"encoder for {count} of {self.batches[-1]} images at a time"

    def _captured(self, count: int, function: Callable[..., Any]) -> Steps:
        stream = self._stream if self._options.graphs else None
        return Steps(function, [self._pixels[:count]], stream, self._pool)

    def use_compiled(self, count: int, folder: Path) -> None:
        """Replaces the encoder for ``count`` images by compiled code, between two runs; SetupError if it is wrong."""
        device, side = self._options.device, self._spec.side
        load_kernel()  # compiled code may call its operator
        function = load_compiled(folder, self._encoder, device)
        stream = new_stream(device) if device.type == "cuda" else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            pixels = torch.randn(count, 3, side, side, device=device).to(self._options.dtype)
            (rows, _, *others), (known, _, *expected) = function(pixels), self._encoder(pixels)
            if not is_near((rows, *others), (known, *expected)):
                raise SetupError(f"the compiled encoder for {count} images gives other embeddings")
        with self._lock:
            self._steps[count] = self._captured(count, function).instead_of(self._steps[count])
            if stream is not None:
                torch.cuda.empty_cache()  # the comparison's memory: the embedding cache counts on it

    def prepare(self, image: EncodedImage) -> PreparedImage:
        """See :meth:`~triton_sam.engines.base.Engine.prepare`. Each thread has its own stream."""
        if self._stream is None:
            with torch.inference_mode():
                return PreparedImage(*self.reader.read(image), None)
        if not hasattr(self._threads, "stream"):
            self._threads.stream = new_stream(self._options.device)
        stream = self._threads.stream
        with torch.inference_mode(), torch.cuda.stream(stream):
            # The JPEG decoder writes on its own stream, to memory that this thread's last picture may still be read
            # from. It is waited for here, not below: there the encoder waits for it on the device.
            stream.synchronize()
            frame, pixels = self.reader.read(image)
            return PreparedImage(frame, pixels, stream.record_event())

    def encode(self, prepared: Sequence[PreparedImage]) -> list[Embedding]:
        """See :meth:`~triton_sam.engines.base.Engine.encode`."""
        count = len(prepared)
        stream = self._stream
        with self._lock, torch.inference_mode(), torch.cuda.stream(stream):
            try:
                for slot, image in zip(self._pixels, prepared, strict=False):
                    if stream is not None and image.ready is not None:
                        stream.wait_event(image.ready)
                    slot.copy_(image.pixels)
                rows, finite, *features = self._steps[bucket(count, self.batches)].run()
                kept = [row.clone() for row in rows[:count]]  # the next run overwrites them
                shown = [one.clone() for one in features[0][:count]] if features else [None] * count
                all_finite = self._fetcher.to_host(finite[:count])
            finally:
                if stream is not None:
                    stream.synchronize()  # pending work reads memory that is freed when this returns
        if not bool(all_finite.all()):
            wider = "bfloat16" if self._options.dtype is torch.float16 else "float32"
            raise InternalError(
                f"{self._spec.id} overflows its precision on this image: "
                f"set TRITON_SAM_TORCH_DTYPE={wider} on the server"
            )
        return [
            TorchEmbedding(image.frame, row, self._layout, its)
            for image, row, its in zip(prepared, kept, shown, strict=True)
        ]
