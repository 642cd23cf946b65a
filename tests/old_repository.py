"""Repositories that an older version wrote (``tests/data/old_repository``), with graphs put in."""

from __future__ import annotations

import shutil
from pathlib import Path

OLD_REPOSITORIES = Path(__file__).parent / "data" / "old_repository"


def copy_old_repository(name: str, target: Path, encoder: Path, decoder: Path) -> Path:
    """Copies a repository to ``target`` and adds the graphs that each of its folders needs."""
    shutil.copytree(OLD_REPOSITORIES / name, target)
    for folder in target.iterdir():
        version = folder / "1"
        version.mkdir(exist_ok=True)
        if (version / "graphs.json").is_file():
            shutil.copyfile(encoder, version / "encoder.onnx")
            shutil.copyfile(decoder, version / "decoder.onnx")
        elif not (version / "model.py").is_file():
            shutil.copyfile(decoder if folder.name.endswith("_decoder") else encoder, version / "model.onnx")
    return target


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Relative path -> content and time of change of each file."""
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
