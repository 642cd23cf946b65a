"""Notes beside a plain graph in a repository: why it was not rewritten for CPUs. ``doctor`` reads them."""

from __future__ import annotations

from pathlib import Path

#: File names of the notes in a version folder.
ENCODER_NOTE, DECODER_NOTE = "encoder_cpu.txt", "decoder_cpu.txt"


def write_note(path: Path, why: str) -> bool:
    """Writes a note; False if that fails, which must not stop a set-up: the plain graph serves too."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{why}\n")
    except OSError:
        return False
    return True


def read_note(path: Path) -> str | None:
    """The note as one line; None if there is none."""
    try:
        return " ".join(path.read_text(errors="replace").split()) or None
    except OSError:
        return None
