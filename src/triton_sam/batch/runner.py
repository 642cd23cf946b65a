"""The loop of a job: keeps the executor full, and hands on what has ended."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton_sam.batch.progress import JobProgress, Rate, rest_seconds
from triton_sam.batch.records import Executor, Item, Outcome, Work
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.store import JobStore
from triton_sam.batch.state.writing import ItemWriter, Writing
from triton_sam.batch.stopping import StopRequest

#: Results that are not recorded yet, and those whose masks are in memory. The executor limits what is in flight.
_MOST_UNRECORDED, _MOST_UNWRITTEN = 512, 64
#: Works with their prompts that are read ahead.
_AHEAD = 16
#: Seconds: between two looks at the wish to stop, and between two reports.
_LOOK, _REPORT = 0.1, 0.25
#: Seconds for what has ended to get to the disk: when the job stops, and when its user does not want to wait.
_PATIENCE, _SHORT_PATIENCE = 60.0, 10.0

log = logging.getLogger(__name__)
OnProgress = Callable[[JobProgress], object]


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run of a job ended.

    Attributes:
        done, failed, waiting: images of the job, in this run and before.
        now: images that ended in this run.
        seconds: of this run.
    """

    done: int
    failed: int
    waiting: int
    now: int
    seconds: float

    @property
    def of(self) -> int:
        return self.done + self.failed + self.waiting

    @property
    def text(self) -> str:
        """``1,998 of 2,000 images done, 2 failed, 0 left; 1,500 in 75 s (20.0 images/s)``."""
        rate = f" ({self.now / self.seconds:.1f} images/s)" if self.seconds > 0 and self.now else ""
        return (
            f"{self.done:,} of {self.of:,} images done, {self.failed:,} failed, {self.waiting:,} left; "
            f"{self.now:,} in {self.seconds:.0f} s{rate}"
        )


def run_job(
    store: JobStore,
    files: ResultFiles,
    executor: Executor,
    writers: Sequence[ItemWriter],
    on_progress: OnProgress | None = None,
    stop: StopRequest | None = None,
    *,
    read_image: Callable[[Item], bytes],
) -> Summary:
    """Segments all images that wait, and records each. It closes the executor.

    Args:
        on_progress: called a few times a second, and at the end, by this thread.
        stop: a job that is stopped returns its summary, with images that wait.
        read_image: for writers that draw on it.

    Raises:
        JobStopped: it cannot go on now. What had ended is recorded, if the disk can take it.
    """
    return _Run(store, executor, Writing(store, files, writers, read_image), on_progress, stop or StopRequest()).run()


class _Run:
    def __init__(
        self, store: JobStore, executor: Executor, writing: Writing, on_progress: OnProgress | None, stop: StopRequest
    ) -> None:
        self._store, self._executor, self._writing = store, executor, writing
        self._on_progress, self._stop = on_progress, stop
        self._ahead: deque[Work] = deque()
        self._last = -1
        self._is_exhausted = False
        self._in_flight: set[int] = set()
        self._rate = Rate()
        self._next_report = 0.0

    def run(self) -> Summary:
        begun = time.monotonic()
        is_closed = False
        try:
            self._store.begin_run()
            self._before = self._store.counts()
            self._report()
            while self._step():
                self._report_if_due()
            self._executor.close(at_once=self._stop.drops)
            is_closed = True
        except BaseException as error:
            self._end(is_closed, error)
            raise
        if not self._writing.end(_SHORT_PATIENCE if self._stop.drops else _PATIENCE):
            log.warning("the disk takes too long: some images that have ended are not recorded, and are made again")
        if not self._stop.drops:
            self._writing.check()
        self._report()
        done, failed = self._writing.counts
        counts = self._store.counts()
        return Summary(counts.done, counts.failed, counts.waiting, done + failed, time.monotonic() - begun)

    def _step(self) -> bool:
        """One turn; False when there is nothing more to do."""
        self._writing.check()
        if self._stop.drops:
            return False
        if not self._stop.is_asked:
            self._submit()
        is_over = self._stop.is_asked or (self._is_exhausted and not self._ahead)
        if is_over and not self._in_flight:
            if not self._writing.unrecorded:
                self._writing.check()
                return False
            self._writing.wait(_LOOK)
        elif self._writing.unwritten >= _MOST_UNWRITTEN:
            self._writing.wait(_LOOK)
        else:
            self._take()
        return True

    def _submit(self) -> None:
        while self._writing.unrecorded < _MOST_UNRECORDED and self._executor.room() > 0:
            if not self._ahead and not self._is_exhausted:
                works = self._store.waiting(_AHEAD, self._last)
                self._is_exhausted = not works
                self._ahead.extend(works)
            if not self._ahead:
                return
            work = self._ahead.popleft()
            self._last = work.item.index
            self._in_flight.add(work.item.index)
            self._executor.submit(work)

    def _take(self) -> None:
        begun = time.monotonic()
        outcomes = self._executor.finished(_LOOK)
        self._pass_on(outcomes)
        rest = _LOOK - (time.monotonic() - begun)
        if not outcomes and rest > _LOOK / 2:  # an executor that does not wait must not keep this thread busy
            time.sleep(rest)

    def _pass_on(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.work.item.index in self._in_flight:
                self._in_flight.discard(outcome.work.item.index)
                self._writing.take(outcome)

    def _end(self, is_closed: bool, error: BaseException) -> None:
        """After an error: what has ended is still written and recorded. Nothing here may hide that error."""
        try:
            if not is_closed and isinstance(error, Exception):  # a Ctrl-C may have met the executor anywhere
                with contextlib.suppress(Exception):
                    while outcomes := self._executor.finished(0.0):
                        self._pass_on(outcomes)
        finally:
            try:
                if not is_closed:
                    self._executor.close(at_once=True)
            except Exception:
                log.warning("the executor did not end cleanly", exc_info=True)
            finally:
                self._writing.end(_SHORT_PATIENCE if self._stop.drops else _PATIENCE)

    def _report_if_due(self) -> None:
        if time.monotonic() >= self._next_report:
            self._report()

    def _report(self) -> None:
        self._next_report = time.monotonic() + _REPORT
        if self._on_progress is None:
            return
        done, failed = self._writing.counts
        rate = self._rate.at(done + failed)
        waiting = self._before.waiting - done - failed
        self._on_progress(
            JobProgress(
                self._before.done + done,
                self._before.failed + failed,
                self._before.of,
                rate,
                rest_seconds(waiting, rate),
                self._executor.describe(),
            )
        )
