"""From a model's id to a model repository: pull, convert where needed, write."""

from __future__ import annotations

import shutil
from pathlib import Path

from triton_sam.catalog import ModelSpec, Role
from triton_sam.errors import SetupError
from triton_sam.repository import raw_names, segmenter_name, write_models
from triton_sam.weights import ProgressFactory, WeightStore


def set_up(spec: ModelSpec, store: WeightStore, repository: Path, progress: ProgressFactory | None = None) -> list[str]:
    """Makes ``spec`` ready to serve and returns the Triton names that were written."""
    try:
        from triton_sam.export.convert import as_onnx
    except ImportError:
        raise SetupError("onnxruntime is not installed: pip install 'triton-sam[server]'") from None
    files = store.pull(spec, progress) if progress is not None else store.pull(spec)
    converted = store.home / "converted"
    return write_models(
        spec, as_onnx(files[Role.ENCODER], converted), as_onnx(files[Role.DECODER], converted), repository
    )


def tear_down(spec: ModelSpec, store: WeightStore, repository: Path) -> int:
    """Removes a model's files, conversions and repository folders; returns the bytes of the removed files."""
    converted = store.home / "converted"
    for file in spec.files:
        (converted / f"{store.path(file).stem}.onnx").unlink(missing_ok=True)
    for name in (segmenter_name(spec), *raw_names(spec)):
        shutil.rmtree(repository / name, ignore_errors=True)
    return store.remove(spec)
