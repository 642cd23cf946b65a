"""Checksums beside files: whether what was fetched or made once is still what it was.

Files of the cache are linked into model repositories, so whoever writes into a served file writes into the cache too. A
set-up that believed the cache by its names and sizes would serve the damage again, however often it is run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

_DIGEST_DIGITS = 64


def digest_of(path: Path, progress: Callable[[int], None] = lambda _done: None) -> str:
    """SHA-256 of a file's content; ``progress`` is told the bytes read so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as stream:
        while chunk := stream.read(4 * 1024 * 1024):
            digest.update(chunk)
            done += len(chunk)
            progress(done)
    return digest.hexdigest()


def checksum_file(path: Path) -> Path:
    """What stands beside a file that is not named after its checksum: that checksum, and the size."""
    return path.with_name(f"{path.name}.sha256")


def write_checksum(path: Path, digest: str | None = None, *, of: Path | None = None) -> None:
    """Puts the checksum of ``path`` beside it, at once and on the disk.

    Args:
        digest: where it is known already.
        of: the file that will become ``path``, where it has not been renamed yet.
    """
    content = of or path
    note = content.with_name(f"{content.name}.{os.getpid()}.seal")
    note.write_text(f"{digest or digest_of(content)} {content.stat().st_size}\n")
    flush_to_disk(note)
    note.replace(checksum_file(path))


def read_checksum(path: Path) -> tuple[str, int] | None:
    """(checksum, size) that a file had when it was sealed; None where it was not."""
    try:
        digest, size = checksum_file(path).read_text().split()
        return (digest, int(size)) if len(digest) == _DIGEST_DIGITS else None
    except (OSError, ValueError):
        return None


def matches_checksum(path: Path) -> bool:
    """Whether a file has the content that it was sealed with; one that cannot be read has not."""
    seal = read_checksum(path)
    try:
        return seal is not None and path.stat().st_size == seal[1] and digest_of(path) == seal[0]
    except OSError:
        return False


def flush_to_disk(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
