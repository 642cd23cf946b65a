"""The folder of compiled code: private, one sub-folder for each combination of GPU, software and network.

What is in it is executed: it is never downloaded, and nothing is loaded that another user could have written.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from triton_sam.errors import SetupError

log = logging.getLogger(__name__)
_PRIVATE = 0o700
#: Others can add nothing any more, and if this process is killed now, the next one empties the folder again.
_CLOSING = 0o711
#: Sub-folders that are kept, the most recently used ones: several models, and one or two versions of each.
_KEPT = 12
_KEY_LENGTH = 20
_KEY_FILE, _LOCK_FILE, _CACHE = "key.json", ".lock", "cache"
_NEW, _OLD = ".new-", ".old-"


class CodeFolder:
    """The compiled steps of one key.

    A step is a folder that is complete when it has its name: it is written under another one and renamed. So processes
    that start at the same time never see half of it.
    """

    def __init__(self, root: Path, key: Mapping[str, Any]) -> None:
        """
        Args:
            root: created if it is not there; SetupError if other users may write to it, or it cannot be written.
            key: everything that the code depends on, as JSON.
        """
        text = json.dumps(key, indent=1, sort_keys=True)
        self.root = root
        self.key = dict(key)
        self.path = root / hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]
        try:
            _make_private(root)
            _make_private(self.path)
            _make_private(self.cache)
            if not (self.path / _KEY_FILE).exists():  # for people who look into the folder
                (self.path / _KEY_FILE).write_text(text + "\n")
            os.utime(self.path)
        except OSError as error:
            raise SetupError(f"{root} cannot hold compiled code: {error}") from None

    @property
    def cache(self) -> Path:
        """Where torch and Triton keep their own files of this key."""
        return self.path / _CACHE

    @property
    def inductor(self) -> Path:
        """The cache of Inductor, whose linkers write libraries in place."""
        return self.cache / "inductor"

    def find(self, step: str) -> Path | None:
        """The folder of a compiled step; None if there is none, or if another user could have written it."""
        place = self.path / step
        if not place.is_dir():
            return None
        try:
            for each in (self.root, self.path, place, *place.iterdir()):
                _check_private(each)
        except (SetupError, OSError) as error:
            log.warning("compiled code is not used: %s", error)
            return None
        return place

    def identity(self, step: str) -> tuple[int, int] | None:
        """Tells a compiled step from one that replaces it; None if there is none."""
        try:
            found = (self.path / step).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    @contextlib.contextmanager
    def writing(self, step: str) -> Iterator[Path]:
        """An empty folder; it becomes the step's if nothing is raised. Only for the holder of :meth:`lock`."""
        with self.scratch() as new:
            yield new
            for file in new.iterdir():
                file.chmod(0o600)
            _remove(self.path / step)  # one that does not load
            new.rename(self.path / step)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder, removed afterwards; if its process is killed, by the next holder of :meth:`lock`."""
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.path))
        try:
            yield new
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def remove(self, step: str) -> None:
        """Removes a step that does not load. Only for the holder of :meth:`lock`."""
        _remove(self.path / step)

    @contextlib.contextmanager
    def lock(self) -> Iterator[int | None]:
        """The descriptor of the lock, which one process at a time has; None if another one compiles for this key.

        A process that inherits the descriptor shares the lock. The kernel frees it when the last of them has ended.
        """
        with (self.path / _LOCK_FILE).open("a+") as file:
            if not _lock_now(file.fileno()):
                yield None
                return
            file.seek(0)
            if file.read():  # the last holder was killed, or has killed its compilers: they may have left half a file
                shutil.rmtree(self.inductor, ignore_errors=True)
            self.sweep()
            file.write("compiling")
            file.flush()
            try:
                yield file.fileno()
            finally:
                self.sweep()
            file.truncate(0)

    def sweep(self) -> None:
        """Removes what was not finished, whoever began it. Only for the holder of :meth:`lock`."""
        for new in self.path.glob(f"{_NEW}*"):
            _remove(new)
        for old in self.path.glob(f"{_OLD}*"):
            shutil.rmtree(old, ignore_errors=True)

    def remove_stale(self) -> None:
        """Keeps the most recently used keys, this one always, and those that are being compiled."""
        with contextlib.suppress(OSError):  # another process removes them too
            for left in self.root.glob(f"{_OLD}*"):
                shutil.rmtree(left, ignore_errors=True)
            others = [each for each in self.root.iterdir() if each.is_dir() and each != self.path]
            others.sort(key=lambda each: each.stat().st_mtime, reverse=True)
            for stale in others[_KEPT - 1 :]:
                with (stale / _LOCK_FILE).open("a") as file:
                    if _lock_now(file.fileno()):
                        _remove(stale)


def _lock_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(folder: Path) -> None:
    """Renames a folder first, so that nobody loads from it while it is being removed."""
    if not folder.exists():
        return
    with contextlib.suppress(OSError):
        old = Path(tempfile.mkdtemp(prefix=_OLD, dir=folder.parent))
        folder.rename(old)
        shutil.rmtree(old, ignore_errors=True)


def _make_private(folder: Path) -> None:
    """Creates a folder, or empties one of ours that others could have written to.

    Raises:
        SetupError: it is another user's, or its file system has no permissions.
    """
    folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode) and _open_to_others(found):
        _empty(folder)
    _check_private(folder)


def _empty(folder: Path) -> None:
    """Empties a folder that is open to others, and closes it. Of several processes that start now, one does it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not _open_to_others(os.fstat(descriptor)):
            return
        log.info("%s was open to other users: what is in it is removed", folder)
        os.fchmod(descriptor, _CLOSING)
        for each in folder.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)
        os.fchmod(descriptor, _PRIVATE)
    finally:
        os.close(descriptor)


def _check_private(path: Path) -> None:
    found = path.lstat()
    if found.st_uid != os.geteuid():
        raise SetupError(f"{path} belongs to another user")
    if stat.S_ISLNK(found.st_mode) or _open_to_others(found):
        raise SetupError(f"other users can change {path}: remove it")


def _open_to_others(found: os.stat_result) -> bool:
    return bool(stat.S_IMODE(found.st_mode) & 0o077)
