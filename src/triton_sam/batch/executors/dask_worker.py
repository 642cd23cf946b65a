"""What a Dask worker does: the images of one chunk, by an engine that its process keeps for the job."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from triton_sam.batch.executors.engine import Engine, MakeTransport, Read
from triton_sam.batch.executors.segmenting import SizeOf
from triton_sam.batch.records import Outcome, SegmentOptions, Work
from triton_sam.errors import InternalError, JobStopped

_WAIT_SECONDS = 1.0
#: An engine that has had no chunk for so long is one of a job that is over, or of which the client is gone.
_IDLE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a worker needs to know of a job.

    Attributes:
        run: names the job's run; a process keeps an engine for each.
        token: not shown, because Dask's pages show what tasks are given.
    """

    run: str
    urls: tuple[str | None, ...]
    options: SegmentOptions
    timeout: float
    patience: float
    most: int
    read: Read
    size_of: SizeOf
    token: str | None = field(default=None, repr=False)
    transport: MakeTransport | None = None


@dataclass(frozen=True, slots=True)
class ChunkAnswer:
    """What became of a chunk.

    Attributes:
        outcomes: of its images, in any order; not of all of them if it was stopped.
        stopped: why the job cannot go on.
    """

    outcomes: list[Outcome]
    stopped: str = ""


_lock = threading.Lock()
_engines: dict[str, Engine] = {}
#: Run -> when its engine was last used.
_used: dict[str, float] = {}


def run_chunk(works: Sequence[Work], settings: EngineSettings) -> ChunkAnswer:
    """Segments the images of a chunk. Doing it twice does no harm."""
    _let_others_in()
    missing = _missing_folder(works)
    if missing:
        return ChunkAnswer([], missing)
    into: deque[Outcome] = deque()
    outcomes: list[Outcome] = []
    try:
        engine = _engine(settings)
        try:
            for work in works:
                engine.submit(work, into)
        except InternalError:
            if not engine.is_closed:  # it may end at any time; what it did not take is sent again
                raise
        while len(outcomes) < len(works):
            _used[settings.run] = time.monotonic()
            outcomes += engine.collect(into, _WAIT_SECONDS)
            if engine.is_closed:
                break
    except JobStopped as error:
        drop_engine(settings.run)
        return ChunkAnswer(outcomes, str(error))
    return ChunkAnswer(outcomes)


def drop_engine(run: str) -> None:
    """Ends the engine of a run, if this process has it."""
    with _lock:
        engine = _engines.pop(run, None)
        _used.pop(run, None)
    if engine is not None:
        engine.close(at_once=True)


def _engine(settings: EngineSettings) -> Engine:
    with _lock:
        now = time.monotonic()
        old = [run for run in _engines if run != settings.run and now - _used[run] > _IDLE_SECONDS]
        _used[settings.run] = now
        engine = _engines.get(settings.run)
        if engine is None:
            engine = _engines[settings.run] = Engine(
                settings.urls,
                settings.options,
                token=settings.token,
                timeout=settings.timeout,
                patience=settings.patience,
                read=settings.read,
                size_of=settings.size_of,
                most=settings.most,
                transport=settings.transport,
            )
    for run in old:
        drop_engine(run)
    return engine


def _let_others_in() -> None:
    """Lets this worker begin the next chunk while this one waits for its servers."""
    from distributed import secede

    secede()


def _missing_folder(works: Sequence[Work]) -> str:
    """The sentence for a chunk of which no image can be there; empty if one can."""
    folders = {work.item.path.parent for work in works}
    if any(folder.is_dir() for folder in folders):
        return ""
    import socket

    return (
        f"the Dask worker on {socket.gethostname()} has no folder {min(folders)}: "
        "mount the images at the same path on every worker"
    )
