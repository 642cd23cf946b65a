"""From a model's id, or an export, to a model repository: pull, convert where needed, write."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.export_cache import ExportRequest, Say, export_model, forget_exports
from triton_sam.model_folders import GRAPHS_FILE
from triton_sam.repository import choose_name, remove_models, write_models
from triton_sam.specs import ModelSpec, Role, graphs_from_json
from triton_sam.weights import ProgressFactory, WeightStore, silent


def set_up(
    spec: ModelSpec,
    store: WeightStore,
    repository: Path,
    progress: ProgressFactory | None = None,
    *,
    request: ExportRequest | None = None,
    make_default: bool = False,
    say: Say = lambda _: None,
) -> list[str]:
    """Makes ``spec`` ready to serve and returns the Triton names that were written.

    Ready-made graphs are taken where there are any and the request asks for nothing else; else the model is exported.

    Args:
        make_default: gives it its family's name, whichever model has that now.
    """
    request = request or ExportRequest()
    if not (spec.files and request.is_plain):
        folder, _ = export_model(spec, store, request, progress or silent, say=say)
        return write_exported(spec, folder, repository, make_default=make_default)
    try:
        from triton_sam.export.convert import as_onnx
    except ImportError:
        raise SetupError("onnxruntime is not installed: pip install 'triton-sam[server]'") from None
    files = store.pull(spec, progress) if progress is not None else store.pull(spec)
    converted = store.home / "converted"
    encoder, decoder = (as_onnx(files[role], converted) for role in (Role.ENCODER, Role.DECODER))
    return write_models(spec, encoder, decoder, repository, name=choose_name(spec, repository, make_default))


def write_exported(spec: ModelSpec, folder: Path, repository: Path, *, make_default: bool = False) -> list[str]:
    """Writes an exported model to a repository and returns the Triton names that were written.

    Args:
        folder: what an export leaves: ``encoder.onnx``, ``decoder.onnx``, their external data and ``graphs.json``.
        make_default: gives it its family's name, whichever model has that now.
    """
    description, encoder, decoder = (folder / name for name in (GRAPHS_FILE, "encoder.onnx", "decoder.onnx"))
    try:
        graphs = graphs_from_json(description.read_bytes())
    except OSError as error:
        raise SetupError(
            f"{folder} is no export ({description.name}: {error.strerror}): export the model there"
        ) from None
    except ValueError:
        raise SetupError(f"{description} is damaged: export the model again") from None
    for graph in (encoder, decoder):
        if not graph.is_file():
            raise SetupError(f"{folder} is no whole export, {graph.name} is missing: export the model again")
    served = dataclasses.replace(spec, graphs=graphs)
    return write_models(served, encoder, decoder, repository, name=choose_name(spec, repository, make_default))


def tear_down(spec: ModelSpec, store: WeightStore, repository: Path) -> int:
    """Removes a model's files, conversions and repository folders; returns the bytes of the removed files."""
    converted = store.home / "converted"
    for file in spec.files:
        (converted / f"{store.path(file).stem}.onnx").unlink(missing_ok=True)
    remove_models(spec, repository)
    return store.remove(spec) + forget_exports(spec, store)
