"""Models that are put together of downloaded files and of files in this package; needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton_sam.errors import SetupError
from triton_sam.installation import install_extra
from triton_sam.models.bundled import bundled_path
from triton_sam.models.specs import ModelSpec, Role
from triton_sam.models.weights import ProgressFactory, WeightStore


def assemble_graphs(spec: ModelSpec, store: WeightStore, progress: ProgressFactory, say: Callable[[str], None]) -> Path:
    """The folder with a model's graphs as an export leaves them, made once; missing files are downloaded."""
    run, parts = _parts(spec, store, progress)
    folder: Path = run.assembled(spec, *parts, store.home / "exports", say)
    return folder


def assemble_checkpoint(spec: ModelSpec, store: WeightStore, progress: ProgressFactory) -> Path:
    """The model as one checkpoint, likewise."""
    run, parts = _parts(spec, store, progress)
    checkpoint: Path = run.assembled_checkpoint(spec, *parts, store.home / "exports")
    return checkpoint


def _parts(spec: ModelSpec, store: WeightStore, progress: ProgressFactory) -> tuple[Any, tuple[Any, Any]]:
    """The module that puts models together, and what it needs."""
    try:
        from triton_sam.export.assembly import run
        from triton_sam.export.ort_to_onnx import as_onnx
    except ImportError:
        raise SetupError(f"onnxruntime is not installed: {install_extra('server')}") from None
    assert spec.assembly is not None
    bundled = bundled_path(spec.assembly.weights), bundled_path(spec.assembly.recipes)
    files = store.pull(spec, progress)
    graphs = {role.value: as_onnx(files[role], store.home / "converted") for role in (Role.ENCODER, Role.DECODER)}
    return run, (graphs, bundled)
