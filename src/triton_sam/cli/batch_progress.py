"""What ``triton-sam batch`` shows while it runs, and its reaction to Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from triton_sam.batch.job import BatchJob
from triton_sam.batch.progress import JobProgress
from triton_sam.batch.state.status import JobStatus
from triton_sam.console import err, out

#: Between two lines where there is no terminal for a bar: the log of a job that runs for a night stays readable.
_LINE_SECONDS = 60.0
_SHOWN_FAILURES = 10


@contextlib.contextmanager
def job_progress() -> Iterator[Callable[[JobProgress], None]]:
    """A bar with rate, rest and failures on stderr; where that is no terminal, a line a minute."""
    if not err.is_terminal:
        yield _Lines().report
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err) as progress:
        task = progress.add_task("images", total=None, rate="")

        def report(step: JobProgress) -> None:
            progress.update(task, completed=step.done + step.failed, total=step.of, rate=_rate(step))

        yield report


class _Lines:
    def __init__(self) -> None:
        self._next = 0.0

    def report(self, step: JobProgress) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LINE_SECONDS
            err.print(f"{step.done + step.failed:,} of {step.of:,} images, {_rate(step)}")


def _rate(step: JobProgress | JobStatus) -> str:
    """``12.3 images/s, 1:02:10 left, 3 failed``."""
    parts = []
    if step.rate:
        parts.append(f"{step.rate:.1f} images/s" if step.rate >= 1 else f"{step.rate * 60:.1f} images/min")
    if step.rest_seconds is not None:
        parts.append(f"{timedelta(seconds=round(step.rest_seconds))} left")
    if step.failed:
        parts.append(f"{step.failed:,} failed")
    if isinstance(step, JobProgress) and step.doing:
        parts.append(step.doing)
    return ", ".join(parts)


@contextlib.contextmanager
def stop_on_interrupt(job: BatchJob) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM finishes what is in flight, the second one drops it."""

    def stop(number: int, _frame: FrameType | None) -> None:
        if job.stop():
            err.print("finishing what is in flight; Ctrl-C again drops it")
        else:
            err.print("stopping at once")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_status(status: JobStatus) -> None:
    """Counts, rate and the newest failures, on stdout."""
    if status.running:
        state = "running" if status.pid is None else f"running in process {status.pid}"
    else:
        state = "finished" if status.is_finished else "stopped, the same command goes on"
    if not status.is_set_up:
        out.print(f"{state}: its images are not listed yet")
        return
    counts = f"{status.done:,} of {status.of:,} images done, {status.failed:,} failed, {status.waiting:,} left"
    out.print(f"{state}: {counts}")
    if status.running and (rate := _rate(status)):
        out.print(rate)
    show_failures(status)


def show_failures(status: JobStatus) -> None:
    """The newest failures with their reasons, on stdout."""
    for failure in status.failures[:_SHOWN_FAILURES]:
        out.print(f"  {failure.name}: {failure.reason}")
    if status.failed > _SHOWN_FAILURES:
        out.print(f"  and {status.failed - _SHOWN_FAILURES:,} more, which the report counts by reason")
