"""Records what has been written, in groups: one wait for the disk for many images."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from triton_sam.batch.state.disk_errors import disk_stopped, sync_where_possible
from triton_sam.batch.state.store import Ended, JobStore

#: A group is as old or as large as this at most.
_SECONDS, _MOST = 0.25, 256


class _OnGroup(Protocol):
    def __call__(self, count: int, error: BaseException | None, done: int = 0, failed: int = 0) -> None: ...


class Recorder:
    """One thread that makes sure that files are on the disk, and then records them."""

    def __init__(self, store: JobStore, on_group: _OnGroup) -> None:
        """``on_group`` is told of each group that was recorded, or could not be."""
        self._store, self._on_group = store, on_group
        self._queue: queue.SimpleQueue[tuple[Ended, list[Path]] | None] = queue.SimpleQueue()
        self._known: set[Path] = set()
        self._thread = threading.Thread(target=self._record_all, daemon=True)
        self._thread.start()

    def put(self, ended: Ended, touched: list[Path]) -> None:
        """Records it, later; ``touched`` are the folders of its files."""
        self._queue.put((ended, touched))

    def end(self, patience: float) -> bool:
        """Records what is left; False if that took too long."""
        self._queue.put(None)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _record_all(self) -> None:
        is_last = False
        while not is_last:
            first = self._queue.get()
            if first is None:
                return
            group = [first]
            due = time.monotonic() + _SECONDS
            while len(group) < _MOST and not is_last:
                try:
                    entry = self._queue.get(timeout=max(due - time.monotonic(), 0.0))
                except queue.Empty:
                    break
                if entry is None:
                    is_last = True
                else:
                    group.append(entry)
            self._record(group)

    def _record(self, group: list[tuple[Ended, list[Path]]]) -> None:
        failed = sum(bool(ended.failure) for ended, _ in group)
        try:
            try:
                self._sync(folder for _, touched in group for folder in touched)
            except OSError as error:
                raise disk_stopped(self._store.folder, error) from error
            self._store.record([ended for ended, _ in group])
        except BaseException as error:  # also a bug of ours must end the job, not this thread alone
            self._on_group(len(group), error)
        else:
            self._on_group(len(group), None, len(group) - failed, failed)

    def _sync(self, touched: Iterable[Path]) -> None:
        """Their entries; of a folder that is new to this run, also its own entry, and so on up to the job's folder."""
        folders = set(touched)
        for folder in list(folders):
            while folder not in self._known and self._store.folder in folder.parents:
                self._known.add(folder)
                folder = folder.parent
                folders.add(folder)
        for folder in folders:
            sync_where_possible(folder)
