"""The cache of exports below TRITON_SAM_HOME; an export is reused if the checkpoint's checksum is the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.errors import SetupError
from triton_sam.installation import install_extra
from triton_sam.models.checksums import matches_checksum, write_checksum
from triton_sam.models.specs import GRAPHS_FILE, NETWORK_FILE, ModelSpec, Precision
from triton_sam.models.weights import ProgressFactory, WeightStore
from triton_sam.repository.assembling import assemble_checkpoint

Say = Callable[[str], None]
_REPORT = "report.json"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Options of an export.

    Attributes:
        checkpoint: the user's own file or folder; None downloads the official one.
        image_size: side of the square model input; None for that of the training.
        seed: of the images and prompts on which graphs are compared with torch; None accepts any cached export.
    """

    checkpoint: Path | None = None
    image_size: int | None = None
    device: str = "cpu"
    precision: Precision = Precision.FP32
    seed: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether ready-made graphs satisfy the request."""
        return self.checkpoint is None and self.image_size is None and self.precision is Precision.FP32


def export_model(
    spec: ModelSpec | None,
    store: WeightStore,
    request: ExportRequest,
    progress: ProgressFactory,
    output_dir: Path | None = None,
    say: Say = lambda _: None,
) -> tuple[Path, dict[str, Any]]:
    """Exports a model and returns (folder, report); an equal export in the cache is reused.

    Args:
        spec: None detects the model from the checkpoint.
        output_dir: default: the cache below the store's home.
    """
    try:
        from triton_sam.export.run import (
            AUTO,
            EXPORTER,
            ExportOptions,
            check_options,
            checkpoint_sha256,
            export_checkpoint,
        )
    except ImportError as error:
        ready = None if spec is None or output_dir is not None else _usable_without_torch(spec, store, request)
        if ready is not None:
            say(f"already exported, in {ready[0]}")
            return ready
        raise SetupError(f"an export needs {error.name}: {install_extra('export')}") from None
    options = ExportOptions(request.image_size, request.device, request.precision, request.seed or 0)
    check_options(options, spec)  # before gigabytes are downloaded
    checkpoint = _checkpoint(spec, store, request, progress)
    if output_dir is not None or spec is None:
        folder = output_dir or store.home / "exports" / _own_name(checkpoint)
    else:
        folder = _folder(spec, store, request)
        present = _present(folder)
        if present is not None and checkpoint.exists():
            known = (present["checkpoint"]["sha256"], present.get("exporter"))
            checked = request.seed in (None, (present.get("parity") or {}).get("seed"))
            if checked and known == (checkpoint_sha256(checkpoint), EXPORTER):
                say(f"already exported, in {folder}")
                return folder, present
    exported = export_checkpoint(spec or AUTO, checkpoint, folder, options, say)
    if output_dir is None and spec is not None:  # others are not in the cache
        _write_checksums(folder, exported.report)
    return exported.folder, exported.report


def write_network(
    spec: ModelSpec, store: WeightStore, request: ExportRequest, progress: ProgressFactory, say: Say = lambda _: None
) -> Path:
    """Writes a model's weights for the torch engine and returns the file; exports no graphs."""
    try:
        from triton_sam.export.network_file import write_checkpoint_network
    except ImportError as error:
        raise SetupError(f"the weights for torch need {error.name}: {install_extra('export')}") from None
    checkpoint = _checkpoint(spec, store, request, progress)
    say("writing the weights for torch")
    return write_checkpoint_network(spec, checkpoint, _folder(spec, store, request) / NETWORK_FILE, request.image_size)


def _checkpoint(spec: ModelSpec | None, store: WeightStore, request: ExportRequest, progress: ProgressFactory) -> Path:
    """The user's own file or folder, or the official one, downloaded or put together if needed."""
    if request.checkpoint is not None:
        return request.checkpoint.expanduser()
    if spec is None:
        raise SetupError("there is nothing to download without an id: name a checkpoint")
    if spec.assembly is not None:
        return assemble_checkpoint(spec, store, progress)
    return store.pull_checkpoint(spec, progress)


def cached_export(spec: ModelSpec, store: WeightStore) -> Path | None:
    """The cache's plain export of the official checkpoint, which needs no torch any more; None if there is none.

    Quick: files are looked for, not verified.
    """
    folder = _folder(spec, store, ExportRequest())
    report = _read_report(folder)
    if report is None or not all((folder / name).is_file() for name in _files_of(report)):
        return None
    official = {store.checksum(file) for file in spec.checkpoints}
    return folder if report["checkpoint"]["sha256"] in official else None


def _usable_without_torch(
    spec: ModelSpec, store: WeightStore, request: ExportRequest
) -> tuple[Path, dict[str, Any]] | None:
    """(folder, report) of an unchanged export that satisfies the request; None if torch has to make one."""
    folder = cached_export(spec, store) if request.is_plain and request.seed is None else None
    report = None if folder is None else _present(folder)
    return None if folder is None or report is None else (folder, report)


def forget_exports(spec: ModelSpec, store: WeightStore) -> int:
    """Removes a model's exports; returns the bytes that are free again."""
    freed = 0
    for folder in (store.home / "exports").glob(f"{spec.variant_name}-*"):
        freed += sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        shutil.rmtree(folder)
    return freed


def _own_name(checkpoint: Path) -> str:
    whole = checkpoint.resolve()  # "." has no name
    return whole.name if whole.is_dir() else whole.stem


def _folder(spec: ModelSpec, store: WeightStore, request: ExportRequest) -> Path:
    size = "" if request.image_size is None else f"-{request.image_size}px"
    return store.home / "exports" / f"{spec.variant_name}-{request.precision.value}{size}"


def _files_of(report: dict[str, Any]) -> list[str]:
    return [GRAPHS_FILE, *report["files"]]


def _write_checksums(folder: Path, report: dict[str, Any]) -> None:
    try:
        for name in _files_of(report):
            write_checksum(folder / name)
    except OSError as error:
        raise SetupError(
            f"{folder} cannot be written ({error.strerror}): make room and export the model again"
        ) from None


def _present(folder: Path) -> dict[str, Any] | None:
    """The report of a complete, unchanged export in a folder; None if there is none."""
    report = _read_report(folder)
    if report is None or not all(matches_checksum(folder / name) for name in _files_of(report)):
        return None
    return report


def _read_report(folder: Path) -> dict[str, Any] | None:
    """The report of an export, with its files and the checkpoint's checksum; None if there is none."""
    try:
        report: dict[str, Any] = json.loads((folder / _REPORT).read_text())
        return report if list(report["files"]) and "sha256" in report["checkpoint"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
