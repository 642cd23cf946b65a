"""The torch engine: half precision and CUDA graphs on a GPU; the same steps in float32 on a CPU, for comparison."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from triton_sam.core.everything.candidates import Candidates, Place
from triton_sam.core.everything.grids import Points
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.geometry import Frame
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Capacity, Decoded, Embedding, FloatArray, Row
from triton_sam.engines.device_list import own_gpu
from triton_sam.engines.readiness import AT_ONCE, Readiness
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.engines.torch.code_key import code_key
from triton_sam.engines.torch.compile_process import (
    DECODER,
    ENCODER,
    GRID,
    MEASURING,
    PACKING,
    RESIZING,
    TRACKING,
    TRACKING_KERNELS,
    CompileRequest,
)
from triton_sam.engines.torch.compiled_steps import is_near, load_compiled
from triton_sam.engines.torch.compiling import Compilation, cache_variables
from triton_sam.engines.torch.decoder import RowDecoder
from triton_sam.engines.torch.decoding import RowRunner
from triton_sam.engines.torch.device_images import PreparedImage, TorchEmbedding
from triton_sam.engines.torch.encoder import RowEncoder
from triton_sam.engines.torch.fetching import Fetcher
from triton_sam.engines.torch.finding import GridRunner
from triton_sam.engines.torch.graphs import Steps, bucket, new_stream
from triton_sam.engines.torch.layout import Layout
from triton_sam.engines.torch.memory_errors import out_of_memory_as_unavailable, switch
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.engines.torch.pictures import PictureReader
from triton_sam.engines.torch.tracking import TrackRunner, make_runner
from triton_sam.engines.torch.windows import load_kernel
from triton_sam.engines.tracking import Tracked, TrackRow
from triton_sam.errors import InternalError, InvalidInput, SetupError
from triton_sam.models.specs import ModelSpec
from triton_sam.scratch import scratch_folder

log = logging.getLogger(__name__)
_BATCHES = (1, 2, 4, 8)
#: The GPU's JPEG decoder works on one file at a time; several threads keep it busy.
_PREPARERS = 4
#: Of folders for compiled code that cannot be kept.
_SCRATCH = "triton-sam-compiled-"
_CLOSE_SECONDS = 10.0


class TorchEngine:
    """See :class:`~triton_sam.engines.base.Engine`. With a memory it is a
    :class:`~triton_sam.engines.tracking.TrackingEngine`.

    Encodes run on a stream of low priority and clicks on one of high priority, so that the GPU runs a click's kernels
    between those of an encode.
    """

    def __init__(self, spec: ModelSpec, network: Any, options: TorchOptions) -> None:
        self.spec = spec
        self.encoder_numbers = str(options.dtype).removeprefix("torch.")
        self.layout = Layout.of(spec)
        self._options = options
        self._batches = [size for size in _BATCHES if size <= options.encode_batch]
        on_gpu = options.device.type == "cuda"
        if on_gpu:
            # cuDNN builds a plan for every new shape, in the middle of a click.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.capacity = Capacity(
            image_batches=tuple(self._batches),
            ahead=3 * self._batches[-1] if on_gpu else 1,
            preparers=_PREPARERS if on_gpu else 1,
            rows=RowRunner.MOST_ROWS,
            mixes_images=True,
            on_cpu=not on_gpu,
            answers_at_once=on_gpu,
            overlaps=on_gpu,
            finds=on_gpu,
            find_points=GridRunner.MOST_POINTS,
            starts_slowly=True,
            tracks=spec.memory is not None,
        )
        decoder = RowDecoder(network, spec.architecture, self.layout).cast(options.device, options.row_dtype)
        fetcher = Fetcher(options.device, options.memory)
        # Before the encoder casts the layers that it keeps.
        self.tracker: TrackRunner | None = None
        if spec.memory is not None:
            self.tracker = make_runner(spec, network, decoder, fetcher, capture=options.graphs)
        # Our own kernels come with the compiled code: to compile them here would delay the start.
        self._kernels = options.compile_mode is None
        self._encoder = RowEncoder(network, spec, self.layout, options.row_dtype).cast(
            options.device, options.dtype, kernels=self._kernels
        )
        self.compilation: Compilation | None = None
        self._until_closed = contextlib.ExitStack()
        self._reader = PictureReader(spec, options.device, options.dtype, gpu_jpeg=options.gpu_jpeg)
        self._encode_lock = threading.Lock()
        self._threads = threading.local()
        self._encode_stream = new_stream(options.device) if on_gpu else None
        clicks = new_stream(options.device, priority=-1) if on_gpu else None
        side = spec.side
        self._pixels = torch.zeros(self._batches[-1], 3, side, side, dtype=options.dtype, device=options.device)
        self._encodes: dict[int, Steps] = {}
        self._encode_pool = torch.cuda.graph_pool_handle() if on_gpu else None
        self.rows = RowRunner(spec, decoder, self.layout, fetcher, clicks, capture=options.graphs)
        self.grids = GridRunner(spec, decoder, options.device, capture=options.graphs)

    # -- loading ---------------------------------------------------------------------------------------------

    @property
    def readiness(self) -> Readiness:
        return AT_ONCE if self.compilation is None else self.compilation.readiness

    def warm_up(self) -> None:
        """Captures everything that a request may need, uncompiled; tracking only if nothing will be compiled."""
        started = time.perf_counter()
        device = self._options.device
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
        for count in reversed(self._batches):  # the largest one allocates the memory that all share
            self._encodes[count] = self._captured(count, self._encoder)
            self._log_progress(where, f"encoder for {count} of {self._batches[-1]} images at a time", started)
        if self._kernels:
            self._reader.use_kernel()
            self.rows.use_packing_kernel()
            self.grids.use_kernels()
        for step in self.rows.warm_up():
            self._log_progress(where, step, started)
        if device.type == "cuda":
            finds = self.grids.warm_up()
            self.capacity = dataclasses.replace(self.capacity, finds=finds)
            self._log_progress(where, f"decoder for grids of {GridRunner.MOST_POINTS} points", started)
            self._run_once()
        if self.tracker is not None and self._kernels:
            self.tracker.use_kernels()
            self._log_progress(where, "tracking", started)

    def _run_once(self) -> None:
        """Encodes an image and decodes clicks, so that everything loaded or allocated at first use is ready."""
        buffer = io.BytesIO()
        Image.new("RGB", (1536, 1024), "grey").save(buffer, "JPEG")
        file = EncodedImage(buffer.getvalue(), max_bytes=2**24, max_pixels=2**24)
        point = ObjectPrompt(np.full((1, 2), 64, np.float32), np.ones(1, np.int32))
        for _ in range(2):
            (embedding,) = self.encode([self.prepare(file)])
            for multimask in (False, True):
                self.decode([Row(embedding, point, multimask, logits=True, pixels=True)])

    def _log_progress(self, where: str, what: str, started: float) -> None:
        log.info("%s on %s: %s ready after %.1f s", self.spec.id, where, what, time.perf_counter() - started)

    def _captured(self, count: int, function: Callable[..., Any]) -> Steps:
        stream = self._encode_stream if self._options.graphs else None
        return Steps(function, [self._pixels[:count]], stream, self._encode_pool)

    def speed_up(self, root: Path, started: float | None = None) -> None:
        """Starts to replace steps by compiled code, which is kept in ``root``; returns at once.

        Args:
            started: time.perf_counter() when loading began, for the log and ``readiness``.
        """
        options, spec = self._options, self.spec
        mode = options.compile_mode or "default"
        switches: dict[str, Callable[[Path], object]] = {
            f"{ENCODER}1": partial(self._use_compiled, 1),
            f"{DECODER}1": partial(self.rows.use_compiled, 1),
            **({PACKING: lambda _: self.rows.use_packing_kernel()} if self.rows.packs else {}),
            **({RESIZING: lambda _: self._reader.use_kernel()} if self._reader.may_use_kernel else {}),
            **{
                f"{DECODER}{count}": partial(self.rows.use_compiled, count) for count in self.rows.worth_compiling[::-1]
            },
            **{f"{ENCODER}{count}": partial(self._use_compiled, count) for count in reversed(self._batches)},
        }
        if self.capacity.finds:  # last: clicks and images come first
            switches[MEASURING] = lambda _: self.grids.use_kernels()
            switches[f"{GRID}{GridRunner.MOST_POINTS}"] = self.grids.use_compiled
        if self.tracker is not None and self.tracker.worth_compiling:
            tracker = self.tracker
            switches[TRACKING_KERNELS] = lambda _: tracker.use_kernels()
            switches |= {
                f"{TRACKING}{count}": partial(tracker.use_compiled, count) for count in tracker.worth_compiling
            }
        dtypes = options.dtype, options.row_dtype
        key = code_key(spec.architecture, spec.graphs, spec.memory, options.device, dtypes, mode)
        try:
            folder = CodeFolder(root, key)
        except SetupError as error:
            log.warning("%s compiles again at each start: %s", spec.id, error)
            folder = CodeFolder(self._until_closed.enter_context(scratch_folder(_SCRATCH)) / "compiled", key)
        os.environ.update(cache_variables(folder))
        device, dtype, row_dtype = (str(each).removeprefix("torch.") for each in (options.device, *dtypes))
        what = spec.architecture, spec.graphs, spec.memory
        request = CompileRequest(*what, device, dtype, row_dtype, mode, (), folder.root, folder.key)
        begun = time.perf_counter() if started is None else started
        name = f"{spec.id} on GPU {own_gpu()}" if options.device.type == "cuda" else spec.id
        checked = {step: partial(switch, use) for step, use in switches.items()}
        self.compilation = Compilation(name, folder, request, checked, begun)
        self.compilation.start()

    def close(self) -> None:
        """See :class:`~triton_sam.engines.base.Engine`. A step that is being replaced is waited for."""
        if self.compilation is not None:
            self.compilation.stop()
            self.compilation.wait(_CLOSE_SECONDS)
        self._until_closed.close()

    def _use_compiled(self, count: int, folder: Path) -> None:
        """Replaces the encoder for ``count`` images by compiled code, between two runs; SetupError if it is wrong."""
        device, side = self._options.device, self.spec.side
        load_kernel()  # compiled code may call its operator
        function = load_compiled(folder, self._encoder, device)
        stream = new_stream(device) if device.type == "cuda" else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            pixels = torch.randn(count, 3, side, side, device=device).to(self._options.dtype)
            if not is_near(function(pixels)[:1], self._encoder(pixels)[:1]):
                raise SetupError(f"the compiled encoder for {count} images gives other embeddings")
        with self._encode_lock:
            self._encodes[count] = self._captured(count, function).instead_of(self._encodes[count])
            if stream is not None:
                torch.cuda.empty_cache()  # the comparison's memory: the embedding cache counts on it

    # -- encoding --------------------------------------------------------------------------------------------

    def prepare(self, image: EncodedImage) -> PreparedImage:
        """See :class:`~triton_sam.engines.base.Engine`. Each thread has its own stream."""
        if self._encode_stream is None:
            with torch.inference_mode():
                return PreparedImage(*self._reader.read(image), None)
        if not hasattr(self._threads, "stream"):
            self._threads.stream = new_stream(self._options.device)
        stream = self._threads.stream
        with torch.inference_mode(), torch.cuda.stream(stream), out_of_memory_as_unavailable():
            # The JPEG decoder writes on its own stream, to memory that this thread's last picture may still be read
            # from. It is waited for here, not below: there the encoder waits for it on the device.
            stream.synchronize()
            frame, pixels = self._reader.read(image)
            return PreparedImage(frame, pixels, stream.record_event())

    def encode(self, prepared: Sequence[PreparedImage]) -> list[Embedding]:
        """See :class:`~triton_sam.engines.base.Engine`."""
        count = len(prepared)
        stream = self._encode_stream
        with self._encode_lock, torch.inference_mode(), torch.cuda.stream(stream), out_of_memory_as_unavailable():
            try:
                for slot, image in zip(self._pixels, prepared, strict=False):
                    if stream is not None and image.ready is not None:
                        stream.wait_event(image.ready)
                    slot.copy_(image.pixels)
                rows, finite = self._encodes[bucket(count, self._batches)].run()
                kept = [row.clone() for row in rows[:count]]  # the next run overwrites them
                all_finite = (
                    finite[:count].to("cpu", non_blocking=False)
                    if stream is None
                    else self.rows.to_host(finite[:count])
                )
            finally:
                if stream is not None:
                    stream.synchronize()  # pending work reads memory that is freed when this returns
        if not bool(all_finite.all()):
            wider = "bfloat16" if self._options.dtype is torch.float16 else "float32"
            raise InternalError(
                f"{self.spec.id} overflows its precision on this image: "
                f"set TRITON_SAM_TORCH_DTYPE={wider} on the server"
            )
        return [TorchEmbedding(image.frame, row, self.layout) for image, row in zip(prepared, kept, strict=True)]

    def adopt(self, frame: Frame, tensors: Mapping[str, FloatArray]) -> Embedding:
        """See :class:`~triton_sam.engines.base.Engine`."""
        with torch.inference_mode():
            to = self._options.device, self._options.row_dtype
            given = {name: torch.from_numpy(np.ascontiguousarray(array)).to(*to) for name, array in tensors.items()}
            row = self.layout.flatten(given)[0]
            if not bool(torch.isfinite(row).all()):  # waits for the row too: clicks read it on another stream
                raise InvalidInput(f"the embedding has values beyond the range of {self._options.row_dtype}")
        return TorchEmbedding(frame, row, self.layout)

    def decode(self, rows: Sequence[Row]) -> list[Decoded]:
        """See :class:`~triton_sam.engines.base.Engine`."""
        with out_of_memory_as_unavailable():
            return self.rows.decode(rows)

    def begin(self, rows: Sequence[Row]) -> Callable[[], list[Decoded]]:
        """See :class:`~triton_sam.engines.base.Engine`."""
        with out_of_memory_as_unavailable():
            result = self.rows.begin(rows)

        def finish() -> list[Decoded]:
            with out_of_memory_as_unavailable():
                return result()

        return finish

    def can_find(self, options: EverythingOptions) -> bool:
        """See :class:`~triton_sam.engines.base.FindingEngine`."""
        return not options.use_m2m

    def begin_find(
        self, embedding: Embedding, points: Points, place: Place, options: EverythingOptions
    ) -> Callable[[], Candidates]:
        """See :class:`~triton_sam.engines.base.FindingEngine`."""
        with out_of_memory_as_unavailable():
            result = self.grids.begin(embedding, points, place, options)

        def finish() -> Candidates:
            with out_of_memory_as_unavailable():
                return result()

        return finish

    # -- tracking --------------------------------------------------------------------------------------------

    @property
    def track_rows(self) -> int:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        return self._tracker.most_rows

    @property
    def memory_bytes(self) -> int:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        return self._tracker.memory_bytes

    def track(self, rows: Sequence[TrackRow]) -> list[Tracked]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        with out_of_memory_as_unavailable():
            return self._tracker.track(rows)

    def memory_to_host(self, features: Any, pointer: Any) -> tuple[npt.NDArray[np.uint16] | None, FloatArray]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        return self._tracker.memory_to_host(features, pointer)

    def memory_from_host(self, features: npt.NDArray[np.uint16] | None, pointer: FloatArray) -> tuple[Any, Any]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        with out_of_memory_as_unavailable():
            return self._tracker.memory_from_host(features, pointer)

    def memory_shape(self) -> tuple[int, int, int]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        return self._tracker.memory_shape

    @property
    def _tracker(self) -> TrackRunner:
        assert self.tracker is not None  # capacity.tracks tells
        return self.tracker
