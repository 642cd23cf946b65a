"""Compiles an engine's steps, of a network with random weights: compiled code does not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from triton_sam.core.geometry import ResizePolicy
from triton_sam.engines.torch.compile_process import (
    CONCEPT_IMAGE,
    CONCEPTS,
    ENCODER,
    EXAMPLES,
    GRID,
    MEASURING,
    PACKING,
    RESIZING,
    TEXT,
    TRACKING,
    TRACKING_KERNELS,
    CompileRequest,
)
from triton_sam.engines.torch.compiled_steps import compile_module
from triton_sam.engines.torch.concepts import MOST_EXAMPLES, example_concepts, make_steps
from triton_sam.engines.torch.decoder import DecoderStep, RowDecoder
from triton_sam.engines.torch.encoder import RowEncoder
from triton_sam.engines.torch.grid_decoder import GridStep
from triton_sam.engines.torch.layout import Layout
from triton_sam.engines.torch.measure_trial import kernel_measures
from triton_sam.engines.torch.packing import kernel_packs
from triton_sam.engines.torch.resizing import kernel_resizes, normal_of
from triton_sam.engines.torch.tracking import example, make_step, tracked_shape
from triton_sam.engines.torch.tracking_trial import kernel_tracks
from triton_sam.models.specs import ModelSpec
from triton_sam.networks.segmenters import build_layers

#: A step, and its inputs.
Compiled = tuple[nn.Module, tuple[Tensor, ...]]


class StepCompiler:
    """The steps of a request, on its device."""

    def __init__(self, request: CompileRequest) -> None:
        self._mode = request.mode
        self._device = device = torch.device(request.device)
        self._dtype, row_dtype = getattr(torch, request.dtype), getattr(torch, request.row_dtype)
        what = request.architecture, request.graphs
        spec = ModelSpec("", "", "", "", ResizePolicy.SQUASH, *what, memory=request.memory, concepts=request.concepts)
        self._spec, layout = spec, Layout.of(spec)
        if device.type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(False)  # as in the engine
        network = build_layers(spec.architecture, spec.side, spec.memory, concepts=spec.concepts is not None)
        self._decoder = DecoderStep(RowDecoder(network, spec.architecture, layout).cast(device, row_dtype))
        self._tracking = None
        if spec.memory is not None:
            self._tracking = make_step(spec, network, self._decoder.decoder, device)
        self._concepts = None if spec.concepts is None else make_steps(spec, network, device, self._dtype)
        self._encoder = RowEncoder(network, spec, layout, row_dtype).cast(device, self._dtype)
        # Triton keeps these in its own cache.
        self._kernels: dict[str, Callable[[], object]] = {
            PACKING: lambda: kernel_packs(device) and kernel_packs(device, columns=True),
            RESIZING: lambda: kernel_resizes(normal_of(request.architecture, device), self._dtype),
            MEASURING: lambda: kernel_measures(device, row_dtype),
            TRACKING_KERNELS: self._try_tracking,
        }

    def compile_step(self, step: str, folder: Path) -> None:
        """Compiles a step into an empty folder."""
        if step in self._kernels:
            self._kernels[step]()
            (folder / step).touch()
            return
        compile_module(*self._module(step), self._mode, folder)

    def _module(self, step: str) -> Compiled:
        if step == CONCEPT_IMAGE or step.startswith((TEXT, CONCEPTS, EXAMPLES)):
            return self._of_concepts(step)
        count, device = int(step.rpartition("-")[2]), self._device
        if step.startswith(TRACKING):
            assert self._tracking is not None
            self._try_tracking()
            return self._tracking, example(self._tracking, tracked_shape(count), device)
        if step.startswith(ENCODER):
            side = self._spec.side
            return self._encoder, (torch.zeros(count, 3, side, side, dtype=self._dtype, device=device),)
        rows = GridStep(self._decoder.decoder) if step.startswith(GRID) else self._decoder
        return rows, rows.inputs(count, device)

    def _of_concepts(self, step: str) -> Compiled:
        assert self._concepts is not None
        text, image, detector = self._concepts
        if step == CONCEPT_IMAGE:
            return image, image.inputs(self._device)
        count = int(step.rpartition("-")[2])
        if step.startswith(TEXT):
            return text, text.inputs(count, self._device)
        examples = MOST_EXAMPLES if step.startswith(EXAMPLES) else 0
        return detector, example_concepts(detector, image, count, examples, len(text.places))

    def _try_tracking(self) -> None:
        assert self._tracking is not None
        memory = self._tracking.memory
        memory.by_kernel = kernel_tracks(self._device, memory.dtype, self._tracking.width)
