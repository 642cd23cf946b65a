"""What compiled code depends on: anything that differs here is compiled anew."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from triton_sam.core.concepts.traits import ConceptTraits
from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.models.architecture import Architecture
from triton_sam.models.specs import Graphs

_DRIVER = Path("/proc/driver/nvidia/version")
_PACKAGE = Path(__file__).parents[2]
#: Our code that is compiled; between two releases its version stays the same.
_SOURCES = ("engines/torch", "networks")


def code_key(
    architecture: Architecture,
    graphs: Graphs,
    memory: MemoryTraits | None,
    device: torch.device,
    dtypes: tuple[torch.dtype, torch.dtype],
    mode: str,
    concepts: ConceptTraits | None = None,
) -> dict[str, Any]:
    """The key of :class:`~triton_sam.engines.torch.code_folder.CodeFolder`, for JSON.

    Args:
        dtypes: of the encoder, and of rows and decoder.
        mode: of torch.compile.
    """
    return {
        "device": _device_facts(device),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "triton", "transformers", "triton-sam")},
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, {torch.version.git_version}",
        "sources": source_digest(),
        "architecture": _plain(architecture),
        "graphs": _plain(graphs),
        "memory": None if memory is None else _plain(memory),
        "concepts": None if concepts is None else _plain(concepts),
        "dtypes": [str(dtype) for dtype in dtypes],
        "mode": mode,
    }


def source_digest(package: Path = _PACKAGE) -> str:
    """A digest of the modules that are compiled."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for file in sorted((package / folder).glob("*.py")):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _device_facts(device: torch.device) -> list[object]:
    if device.type != "cuda":
        return [platform.machine(), torch.backends.cpu.get_cpu_capability(), sys.byteorder]
    driver = _DRIVER.read_text().partition("\n")[0] if _DRIVER.is_file() else ""
    return [torch.cuda.get_device_name(device), *torch.cuda.get_device_capability(device), driver]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _plain(row: Any) -> Any:
    return dataclasses.asdict(row)
