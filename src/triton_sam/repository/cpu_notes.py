"""A line beside a plain graph in a repository: why there is no rewritten one for CPUs. ``doctor`` reads it later."""

from __future__ import annotations

from pathlib import Path

#: What the lines are called in a version of a repository.
ENCODER_NOTE, DECODER_NOTE = "encoder_cpu.txt", "decoder_cpu.txt"


def write_note(path: Path, why: str) -> bool:
    """Keeps a line; False where it cannot be written, which must not stop a set-up: the plain graph serves too."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{why}\n")
    except OSError:
        return False
    return True


def read_note(path: Path) -> str | None:
    """The line that was kept; None where there is none."""
    try:
        return " ".join(path.read_text(errors="replace").split()) or None
    except OSError:
        return None
