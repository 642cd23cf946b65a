"""Models that are put together of downloaded files and of files in this package; needs no torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton_sam.errors import SetupError
from triton_sam.installation import install_extra
from triton_sam.models.bundled import bundled_path
from triton_sam.models.specs import ASSEMBLED, CONCEPTS_FILE, MEMORY_FILE, Assembly, ModelSpec
from triton_sam.models.weights import ProgressFactory, WeightStore, locked


def assemble_graphs(spec: ModelSpec, store: WeightStore, progress: ProgressFactory, say: Callable[[str], None]) -> Path:
    """The folder with a model's graphs as an export leaves them, made once; missing files are downloaded."""
    run, parts = _parts(spec, store, progress)
    with locked(store.home, spec.id):
        folder: Path = run.assembled(spec, *parts, store.home / "exports", say)
    return folder


def assemble_checkpoint(spec: ModelSpec, store: WeightStore, progress: ProgressFactory) -> Path:
    """The model as one checkpoint, likewise."""
    run, parts = _parts(spec, store, progress)
    with locked(store.home, spec.id):
        checkpoint: Path = run.assembled_checkpoint(spec, *parts, store.home / "exports")
    return checkpoint


def is_outdated(spec: ModelSpec, version_folder: Path) -> bool:
    """Whether a version in a repository was put together of other files than this package and its catalogue have.

    False for one that was not put together: it is of a checkpoint.
    """
    if spec.assembly is None:
        return False
    from triton_sam.export.assembly.run import content_digest

    description = CONCEPTS_FILE if spec.assembly.tokenizer else MEMORY_FILE
    try:
        made_of = json.loads((version_folder / description).read_bytes()).get(ASSEMBLED)
    except (OSError, ValueError, AttributeError):
        return False
    return made_of is not None and made_of != content_digest(spec, _bundled(spec.assembly))


def _bundled(assembly: Assembly) -> tuple[Path, ...]:
    return tuple(bundled_path(name) for name in (assembly.weights, assembly.recipes, assembly.tokenizer) if name)


def _parts(spec: ModelSpec, store: WeightStore, progress: ProgressFactory) -> tuple[Any, tuple[Any, ...]]:
    """The module that puts models together, and what it needs."""
    try:
        from triton_sam.export.assembly import run
        from triton_sam.export.ort_to_onnx import as_onnx
    except ImportError:
        raise SetupError(f"onnxruntime is not installed: {install_extra('server')}") from None
    assert spec.assembly is not None
    bundled = _bundled(spec.assembly)
    files = store.pull(spec, progress)
    graphs = {role.value: as_onnx(file, store.home / "converted") for role, file in files.items()}
    return run, (graphs, bundled)
