"""The torch engine: half precision and CUDA graphs on a GPU; the same steps in float32 on a CPU, for comparison."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from triton_sam.core.concepts.request import ConceptPrompt
from triton_sam.core.everything.candidates import Candidates, Place
from triton_sam.core.everything.grids import Points
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.geometry import Frame
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Capacity, Decoded, Embedding, FloatArray, Row
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.engines.device_list import own_gpu
from triton_sam.engines.readiness import AT_ONCE, Readiness
from triton_sam.engines.tokenizing import TextTokenizer
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.engines.torch.code_key import code_key
from triton_sam.engines.torch.compile_process import CompileRequest
from triton_sam.engines.torch.compiling import Compilation, cache_variables
from triton_sam.engines.torch.concepts import ConceptRunner
from triton_sam.engines.torch.decoder import RowDecoder
from triton_sam.engines.torch.decoding import RowRunner
from triton_sam.engines.torch.device_images import PreparedImage, TorchEmbedding
from triton_sam.engines.torch.encoding import ImageRunner
from triton_sam.engines.torch.fetching import Fetcher
from triton_sam.engines.torch.finding import GridRunner
from triton_sam.engines.torch.graphs import new_stream
from triton_sam.engines.torch.layout import Layout
from triton_sam.engines.torch.memory_errors import begun, out_of_memory_as_unavailable
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.engines.torch.switches import switches
from triton_sam.engines.torch.tracking import TrackRunner, make_runner
from triton_sam.engines.tracking import HostMemory, Tracked, TrackRow
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.models.specs import ModelSpec
from triton_sam.scratch import scratch_folder

log = logging.getLogger(__name__)
#: The GPU's JPEG decoder works on one file at a time; several threads keep it busy.
_PREPARERS = 4
#: Of folders for compiled code that cannot be kept.
_SCRATCH = "triton-sam-compiled-"
_CLOSE_SECONDS = 10.0
_ANYTHING = ConceptPrompt(None, np.zeros((0, 4), np.float32), np.zeros(0, np.int32))


class TorchEngine:
    """See :class:`~triton_sam.engines.base.Engine`. With a memory it is a
    :class:`~triton_sam.engines.tracking.TrackingEngine`, with words a
    :class:`~triton_sam.engines.concepts.ConceptEngine`.

    Encodes run on a stream of low priority and clicks on one of high priority, so that the GPU runs a click's kernels
    between those of an encode.
    """

    def __init__(
        self, spec: ModelSpec, network: Any, options: TorchOptions, tokenizer: TextTokenizer | None = None
    ) -> None:
        """
        Args:
            network: its layers are cast, and so belong to the engine from now on.
            tokenizer: of a model that finds concepts.
        """
        self.spec = spec
        self.encoder_numbers = str(options.dtype).removeprefix("torch.")
        self.layout = Layout.of(spec)
        self._options = options
        on_gpu = options.device.type == "cuda"
        if on_gpu:
            # cuDNN builds a plan for every new shape, in the middle of a click.
            torch.backends.cuda.enable_cudnn_sdp(False)
        decoder = RowDecoder(network, spec.architecture, self.layout).cast(options.device, options.row_dtype)
        fetcher = Fetcher(options.device, options.memory)
        self.tracker: TrackRunner | None = None
        if spec.memory is not None:  # before the image encoder, which casts the network's layers
            self.tracker = make_runner(spec, network, decoder, fetcher, capture=options.graphs)
        self.concepts: ConceptRunner | None = None
        if spec.concepts is not None:
            assert tokenizer is not None
            self.concepts = ConceptRunner(spec, network, tokenizer, fetcher, options.dtype, capture=options.graphs)
        # Our own kernels come with the compiled code: to compile them here would delay the start.
        self._kernels = options.compile_mode is None
        self.images = ImageRunner(spec, network, self.layout, options, fetcher, kernels=self._kernels)
        clicks = new_stream(options.device, priority=-1) if on_gpu else None
        self.rows = RowRunner(spec, decoder, self.layout, fetcher, clicks, capture=options.graphs)
        self.grids = GridRunner(spec, decoder, options.device, capture=options.graphs)
        batches = self.images.batches
        self.capacity = Capacity(
            image_batches=tuple(batches),
            ahead=3 * batches[-1] if on_gpu else 1,
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
            concepts=self.concepts is not None,
            concept_rows=ConceptRunner.MOST_ROWS if on_gpu else 1,
        )
        self.compilation: Compilation | None = None
        self._until_closed = contextlib.ExitStack()

    # -- loading ---------------------------------------------------------------------------------------------

    @property
    def readiness(self) -> Readiness:
        return AT_ONCE if self.compilation is None else self.compilation.readiness

    def warm_up(self) -> None:
        """Captures everything that a request may need, uncompiled; tracking only if nothing will be compiled."""
        started = time.perf_counter()
        device = self._options.device
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
        for step in self.images.warm_up():
            self._log_progress(where, step, started)
        if self._kernels:
            self.images.reader.use_kernel()
            self.rows.use_packing_kernel()
            self.grids.use_kernels()
        for step in self.rows.warm_up():
            self._log_progress(where, step, started)
        for step in () if self.concepts is None else self.concepts.warm_up():
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
            if self.concepts is not None:
                self.begin_concepts([ConceptRow(embedding, _ANYTHING, -1.0, 2, pixels=True, columns=True)])()

    def _log_progress(self, where: str, what: str, started: float) -> None:
        log.info("%s on %s: %s ready after %.1f s", self.spec.id, where, what, time.perf_counter() - started)

    def speed_up(self, root: Path, started: float | None = None) -> None:
        """Starts to replace steps by compiled code, which is kept in ``root``; returns at once.

        Args:
            started: time.perf_counter() when loading began, for the log and ``readiness``.
        """
        options, spec, mode = self._options, self.spec, self._options.compile_mode or "default"
        dtypes = options.dtype, options.row_dtype
        what = spec.architecture, spec.graphs, spec.memory
        key = code_key(*what, options.device, dtypes, mode, spec.concepts)
        try:
            folder = CodeFolder(root, key)
        except SetupError as error:
            log.warning("%s compiles again at each start: %s", spec.id, error)
            folder = CodeFolder(self._until_closed.enter_context(scratch_folder(_SCRATCH)) / "compiled", key)
        os.environ.update(cache_variables(folder))
        device, dtype, row_dtype = (str(each).removeprefix("torch.") for each in (options.device, *dtypes))
        request = CompileRequest(*what, device, dtype, row_dtype, mode, (), folder.root, folder.key, spec.concepts)
        begun = time.perf_counter() if started is None else started
        name = f"{spec.id} on GPU {own_gpu()}" if options.device.type == "cuda" else spec.id
        self.compilation = Compilation(name, folder, request, switches(self), begun)
        self.compilation.start()

    def close(self) -> None:
        """See :class:`~triton_sam.engines.base.Engine`. A step that is being replaced is waited for."""
        if self.compilation is not None:
            self.compilation.stop()
            self.compilation.wait(_CLOSE_SECONDS)
        self._until_closed.close()

    @property
    def bytes_each(self) -> int:
        """Of an image in the cache."""
        features = 0 if self.concepts is None else self.concepts.feature_values * self._options.dtype.itemsize
        return self.layout.length * self._options.row_dtype.itemsize + features

    # -- encoding --------------------------------------------------------------------------------------------

    def prepare(self, image: EncodedImage) -> PreparedImage:
        """See :class:`~triton_sam.engines.base.Engine`."""
        with out_of_memory_as_unavailable():
            return self.images.prepare(image)

    def encode(self, prepared: Sequence[PreparedImage]) -> list[Embedding]:
        """See :class:`~triton_sam.engines.base.Engine`."""
        with out_of_memory_as_unavailable():
            return self.images.encode(prepared)

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
        return begun(lambda: self.rows.begin(rows))

    def can_find(self, options: EverythingOptions) -> bool:
        """See :class:`~triton_sam.engines.base.FindingEngine`."""
        return not options.use_m2m

    def begin_find(
        self, embedding: Embedding, points: Points, place: Place, options: EverythingOptions
    ) -> Callable[[], Candidates]:
        """See :class:`~triton_sam.engines.base.FindingEngine`."""
        return begun(lambda: self.grids.begin(embedding, points, place, options))

    # -- concepts --------------------------------------------------------------------------------------------

    def check_text(self, text: str) -> None:
        """See :class:`~triton_sam.engines.concepts.ConceptEngine`."""
        self._finder.check(text)

    def begin_concepts(self, rows: Sequence[ConceptRow]) -> Callable[[], list[Instances]]:
        """See :class:`~triton_sam.engines.concepts.ConceptEngine`."""
        return begun(lambda: self._finder.begin(rows))

    @property
    def _finder(self) -> ConceptRunner:
        assert self.concepts is not None  # capacity.concepts tells
        return self.concepts

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

    def memories_to_host(self, memories: Sequence[tuple[Any, Any]]) -> list[HostMemory]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        with out_of_memory_as_unavailable():
            return self._tracker.memories_to_host(memories)

    def memory_from_host(self, memory: HostMemory) -> tuple[Any, Any]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        with out_of_memory_as_unavailable():
            return self._tracker.memory_from_host(memory)

    def memory_shape(self) -> tuple[int, int, int]:
        """See :class:`~triton_sam.engines.tracking.TrackingEngine`."""
        return self._tracker.memory_shape

    @property
    def _tracker(self) -> TrackRunner:
        assert self.tracker is not None  # capacity.tracks tells
        return self.tracker
