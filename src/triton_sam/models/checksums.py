"""Checksums of cached files: detect files that changed after they were downloaded or made.

Files of the cache are hard-linked into model repositories, so a program that writes into a served file also changes the
cache. Names and sizes would not show that, and every later set-up would serve the damaged file again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

_DIGEST_DIGITS = 64


def digest_of(path: Path, progress: Callable[[int], None] = lambda _done: None) -> str:
    """SHA-256 of a file's content; ``progress`` is called with the bytes read so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as stream:
        while chunk := stream.read(4 * 1024 * 1024):
            digest.update(chunk)
            done += len(chunk)
            progress(done)
    return digest.hexdigest()


def checksum_file(path: Path) -> Path:
    """The file beside ``path`` that holds its checksum and size; files named after their checksum need none."""
    return path.with_name(f"{path.name}.sha256")


def write_checksum(path: Path, digest: str | None = None, *, of: Path | None = None) -> None:
    """Writes the checksum of ``path`` beside it, atomically and flushed to the disk.

    Args:
        digest: the checksum, if it is known already.
        of: the file that will become ``path``, if it has not been renamed yet.
    """
    content = of or path
    partial = content.with_name(f"{content.name}.{os.getpid()}.sha256.part")
    partial.write_text(f"{digest or digest_of(content)} {content.stat().st_size}\n")
    flush_to_disk(partial)
    partial.replace(checksum_file(path))


def read_checksum(path: Path) -> tuple[str, int] | None:
    """(checksum, size) that were recorded for a file; None if there are none."""
    try:
        digest, size = checksum_file(path).read_text().split()
        return (digest, int(size)) if len(digest) == _DIGEST_DIGITS else None
    except (OSError, ValueError):
        return None


def matches_checksum(path: Path) -> bool:
    """Whether a file has the content of its recorded checksum; False if it cannot be read."""
    recorded = read_checksum(path)
    try:
        return recorded is not None and path.stat().st_size == recorded[1] and digest_of(path) == recorded[0]
    except OSError:
        return False


def flush_to_disk(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
