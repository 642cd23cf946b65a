"""Progress bars."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from triton_sam.client.everything import EverythingProgress, OnProgress
from triton_sam.console import err
from triton_sam.models.fetch.sources import Progress as Report
from triton_sam.models.specs import ModelFile
from triton_sam.models.weights import ProgressFactory


@contextlib.contextmanager
def download_progress() -> Iterator[ProgressFactory]:
    """A display with a bar for each step of each file, on stderr."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=err)

    def start(file: ModelFile, step: str) -> Report:
        progress.start()  # not before: without a file the display would be an empty line
        for earlier in progress.tasks:  # hides the bar of a source that failed
            progress.update(earlier.id, visible=earlier.finished)
        task = progress.add_task(f"{step} {file.name}", total=None)

        def report(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total)

        return report

    try:
        yield start
    finally:
        if progress.live.is_started:
            progress.stop()


@contextlib.contextmanager
def points_progress() -> Iterator[OnProgress]:
    """A bar of points with the number of masks so far, on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err) as progress:
        task = progress.add_task("encoding", total=None)

        def report(step: EverythingProgress) -> None:
            progress.update(task, description=f"{step.masks} masks, points", completed=step.done, total=step.of or None)

        yield report
