"""How the command line talks: progress bars, tables, one-sentence errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from triton_sam.fetch import Progress as Report
from triton_sam.specs import ModelFile
from triton_sam.weights import ProgressFactory

#: Text is printed as it is: paths, addresses and `triton-sam[server]` are no markup.
out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


@contextlib.contextmanager
def download_progress() -> Iterator[ProgressFactory]:
    """A bar for every step of every file, on stderr."""
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
        progress.start()  # only now: a bar for nothing would be an empty line
        for earlier in progress.tasks:  # a source that failed goes on spinning otherwise
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
