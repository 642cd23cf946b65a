"""Writes results to the disk and records them: threads that write, and one that records in groups."""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from triton_sam.batch.records import Item, ItemResult, Outcome
from triton_sam.batch.state.database import shown
from triton_sam.batch.state.disk_errors import disk_stopped, ends_the_job
from triton_sam.batch.state.recording import Recorder
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.store import Ended, JobStore
from triton_sam.errors import JobStopped, TritonSamError

#: Each waits for the disk mostly.
_THREADS = 6
#: For the last group, also where a write takes for ever.
_RECORD_SECONDS = 5.0

log = logging.getLogger(__name__)


class ItemWriter(Protocol):
    """Writes one more file for each result: a label image, an overlay."""

    def write(self, result: ItemResult, data: Callable[[], bytes]) -> Path | None:
        """Writes it, whole or not at all. Several threads call it at a time, for different images.

        Args:
            data: reads what was sent to the server.

        Returns:
            The file, so that its folder is on the disk before the result is recorded.

        Raises:
            JobStopped: other images would fail too. So does an OSError of the disk; all else is this image's failure.
        """


class Writing:
    """Outcomes on their way to the disk. Its threads do not keep the process from ending."""

    def __init__(
        self, store: JobStore, files: ResultFiles, writers: Sequence[ItemWriter], read_image: Callable[[Item], bytes]
    ) -> None:
        self._files, self._writers, self._read_image = files, writers, read_image
        self._recorder = Recorder(store, self._forget)
        self._queue: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._unwritten = self._unrecorded = self._done = self._failed = 0
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._write_all, daemon=True) for _ in range(_THREADS)]
        for thread in self._threads:
            thread.start()

    def take(self, outcome: Outcome) -> None:
        """Writes and records it, later."""
        with self._changed:
            self._unwritten += 1
            self._unrecorded += 1
        self._queue.put(outcome)

    @property
    def unwritten(self) -> int:
        """How many are in memory with their masks."""
        return self._unwritten

    @property
    def unrecorded(self) -> int:
        return self._unrecorded

    @property
    def counts(self) -> tuple[int, int]:
        """How many were recorded: with a result, and as failed."""
        with self._changed:
            return self._done, self._failed

    def check(self) -> None:
        """Raises what ended the writing, if something has."""
        with self._changed:
            error = self._error
        if error is not None:
            raise error

    def wait(self, seconds: float) -> None:
        """Until something has been written or recorded, at most so long."""
        with self._changed:
            if self._unrecorded:
                self._changed.wait(seconds)

    def end(self, patience: float) -> bool:
        """Writes and records what was taken, and ends the threads.

        Args:
            patience: seconds; a share that is gone may hold a write for ever.

        Returns:
            Whether all of it has been handled.
        """
        deadline = time.monotonic() + patience
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        is_written = not any(thread.is_alive() for thread in self._threads)
        return self._recorder.end(max(deadline - time.monotonic(), _RECORD_SECONDS)) and is_written

    def _write_all(self) -> None:
        while (outcome := self._queue.get()) is not None:
            try:
                ended, touched = self._written(outcome)
            except BaseException as error:  # also a bug of ours must end the job, not this thread alone
                self._forget(1, error)
            else:
                self._recorder.put(ended, touched)
            with self._changed:
                self._unwritten -= 1
                self._changed.notify_all()

    def _written(self, outcome: Outcome) -> tuple[Ended, list[Path]]:
        """What to record of it, and the folders that were written to."""
        item, result = outcome.work.item, outcome.result
        if result is None:
            return _failed(item, outcome.failure or "it has neither a result nor a reason"), []
        touched: list[Path] = []
        data = functools.lru_cache(1)(lambda: self._read_image(item))
        try:
            for writer in self._writers:
                if (path := writer.write(result, data)) is not None:
                    touched.append(path.parent)
        except JobStopped:
            raise
        except OSError as error:
            if ends_the_job(self._files.folder, error):
                raise disk_stopped(self._files.folder, error) from error
            return _failed(item, f"its files cannot be written: {error}"), []
        except TritonSamError as error:
            return _failed(item, str(error)), []
        except Exception as error:
            log.warning("%s: its files cannot be written", shown(item.name), exc_info=True)
            return _failed(item, f"its files cannot be written: {type(error).__name__}: {error}"), []
        try:  # last: an image that failed has no result
            size = self._files.write(result)
        except OSError as error:
            raise disk_stopped(self._files.folder, error) from error
        except (TypeError, ValueError) as error:
            return _failed(item, f"its result cannot be written: {error}"), []
        touched.append(self._files.path(item.index).parent)
        return Ended(item.index, len(result.masks), size, result.seconds), touched

    def _forget(self, count: int, error: BaseException | None, done: int = 0, failed: int = 0) -> None:
        """So many are recorded, or never will be."""
        with self._changed:
            self._unrecorded -= count
            self._done += done
            self._failed += failed
            self._error = self._error or error
            self._changed.notify_all()


def _failed(item: Item, reason: str) -> Ended:
    log.info("%s failed: %s", shown(item.name), shown(reason))
    return Ended(item.index, failure=reason)
