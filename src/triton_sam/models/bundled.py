"""Files that are part of this package."""

from __future__ import annotations

from pathlib import Path

from triton_sam.errors import SetupError

_PACKAGE = Path(__file__).resolve().parents[1]
#: Folder in the package -> folder in a checkout, where it is used from where it stands.
_FOLDERS = {
    "memory": "training/memory/model",
    "memory/recipes": "training/memory/recipes",
    "concepts": "training/concepts/model",
    "concepts/recipes": "training/concepts/recipes",
}


def bundled_path(name: str) -> Path:
    """A bundled file or folder by its name in the package: ``memory/memory.safetensors``."""
    folder, _, file = name.rpartition("/")
    whole = name in _FOLDERS
    checkout = _PACKAGE.parent.parent / (_FOLDERS[name] if whole else f"{_FOLDERS[folder]}/{file}")
    for path in (_PACKAGE / "bundled" / name, checkout):
        if path.exists():
            return path
    raise SetupError(f"{name} is not in this installation: reinstall triton-sam")
