"""The executor on Dask: chunks of images as tasks, on a cluster that is there or on processes of this machine."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from triton_sam.batch.executors import dask_worker
from triton_sam.batch.executors.dask_worker import ChunkAnswer, EngineSettings
from triton_sam.batch.executors.engine import MakeTransport, Read
from triton_sam.batch.executors.pacing import MOST_IN_FLIGHT
from triton_sam.batch.executors.segmenting import SizeOf, check_options
from triton_sam.batch.executors.thread_executor import PATIENCE, TIMEOUT
from triton_sam.batch.records import Outcome, SegmentOptions, Work
from triton_sam.errors import InvalidInput, JobStopped, SetupError
from triton_sam.installation import install_extra

CHUNK = 16
#: Chunks of each worker: one or two in work, and one that it can begin at once.
_CHUNKS_EACH = 3
_CONNECT_SECONDS = 8.0
_COUNT_SECONDS = 2.0
_CLOSE_SECONDS = 5.0
_RUNNING = "running"


class DaskExecutor:
    """Segments images on Dask; see :class:`~triton_sam.batch.records.Executor`.

    A task is a chunk of images, and its result their outcomes, which are fetched at once and then forgotten. A bounded
    number is on the way. Dask itself repeats the tasks of a worker that is lost.
    """

    # Many parameters: settings of a job, and what tests replace.
    def __init__(
        self,
        urls: Sequence[str | None],
        options: SegmentOptions,
        *,
        read: Read,
        size_of: SizeOf,
        scheduler: str | None = None,
        workers: int | None = None,
        cluster: Any = None,
        token: str | None = None,
        timeout: float = TIMEOUT,
        patience: float = PATIENCE,
        most: int = MOST_IN_FLIGHT,
        chunk: int = CHUNK,
        transport: MakeTransport | None = None,
    ) -> None:
        """
        Args:
            scheduler: address of a running one, ``tcp://host:8786``; the images' paths must be there on its workers.
            workers: processes to start on this machine instead.
            cluster: a cluster object of Dask instead, for example of dask-jobqueue; it is left running.
            chunk: images of one task.
            read, size_of, transport: functions of modules that the workers can import.
            token, timeout, patience, most: as for :class:`ThreadExecutor`, in each worker.
        """
        if sum(given is not None for given in (scheduler, workers, cluster)) != 1:
            raise InvalidInput("give either a scheduler's address or a number of workers")
        if chunk < 1 or (workers is not None and workers < 1):
            raise InvalidInput("chunk and workers must be 1 or more")
        check_options(options)
        self._settings = EngineSettings(
            uuid.uuid4().hex, tuple(urls), options, timeout, patience, most, read, size_of, token, transport
        )
        self._chunk = chunk
        self._patience = patience
        self._own_cluster = None if workers is None else _local_cluster(workers)
        try:
            self._client = _connect(self._own_cluster or cluster or scheduler)
        except BaseException:
            if self._own_cluster is not None:
                self._own_cluster.close()
            raise
        self._buffer: deque[Work] = deque()
        self._suspects: deque[Work] = deque()
        self._tested: set[int] = set()
        self._running: dict[Any, list[Work]] = {}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._tasks = 0
        self._workers = workers or 1
        self._counted_at = float("-inf")
        self._without_workers_since: float | None = None
        self._stopped: JobStopped | None = None
        self._closed = False
        self._look()  # a cluster that runs already has its workers

    # -- Executor ------------------------------------------------------------------------------------------------

    def room(self) -> int:
        if self._stopped is not None or self._closed:
            return 0
        chunks = _CHUNKS_EACH * max(1, self._workers)
        return max(0, chunks * self._chunk - self._held)

    def submit(self, work: Work) -> None:
        self._buffer.append(work)
        self._send_chunks(least=self._chunk)

    def finished(self, timeout: float) -> Sequence[Outcome]:
        deadline = time.monotonic() + timeout
        while True:
            self._look()
            self._send_chunks(least=1)
            outcomes = self._collect(max(0.0, min(_COUNT_SECONDS, deadline - time.monotonic())))
            if outcomes:
                return outcomes
            if self._stopped is not None and not self._closed:
                raise self._stopped
            if time.monotonic() >= deadline or not self._held:
                return ()

    def describe(self) -> str:
        return f"{self._held} in flight on {self._workers} Dask worker{'' if self._workers == 1 else 's'}"

    def close(self, *, at_once: bool) -> None:
        """Ends it. Images that no worker has are dropped; chunks on the way are waited for, or dropped too."""
        if self._closed:
            return
        kept: list[Outcome] = []
        self._buffer.clear()
        self._suspects.clear()
        while not at_once and self._running and self._stopped is None:
            kept += self._collect(_COUNT_SECONDS)
            self._look()
        self._closed = True
        for outcome in kept:
            self._ended.put(outcome)
        futures = list(self._running)
        self._running.clear()
        with contextlib.suppress(Exception), _quiet():
            if futures:
                self._client.cancel(futures, force=True)
            if self._client.status == _RUNNING:
                self._client.run(dask_worker.drop_engine, self._settings.run, on_error="ignore")
        with contextlib.suppress(Exception), _quiet():
            self._client.close(_CLOSE_SECONDS)
        if self._own_cluster is not None:
            with contextlib.suppress(Exception), _quiet():
                self._own_cluster.close(_CLOSE_SECONDS)

    # -- chunks --------------------------------------------------------------------------------------------------

    @property
    def _held(self) -> int:
        return len(self._buffer) + len(self._suspects) + sum(map(len, self._running.values()))

    def _send_chunks(self, least: int) -> None:
        """Sends chunks that are full, and those of at least so many images if a worker has nothing to do.

        A suspect is sent when nothing else is on the way: whatever shares its worker would share its end.
        """
        if any(work.item.index in self._tested for works in self._running.values() for work in works):
            return
        if self._suspects:
            if not self._running and self._stopped is None:
                work = self._suspects.popleft()
                self._tested.add(work.item.index)
                self._send([work])
            return
        while self._buffer and self._stopped is None:
            is_idle = len(self._running) < max(1, self._workers)
            if len(self._buffer) < (least if is_idle else self._chunk):
                return
            self._send([self._buffer.popleft() for _ in range(min(self._chunk, len(self._buffer)))])

    def _send(self, works: list[Work]) -> None:
        self._tasks += 1
        try:
            future = self._client.submit(
                dask_worker.run_chunk,
                works,
                self._settings,
                key=f"triton-sam-{self._settings.run[:8]}-{self._tasks}",
                pure=False,
            )
        except Exception as error:
            lost = self._client.status != _RUNNING or isinstance(error, OSError | TimeoutError)
            self._stop(self._lost(error) if lost else _cannot_run(error))
            return
        self._running[future] = works
        future.add_done_callback(self._ended.put)

    def _collect(self, timeout: float) -> list[Outcome]:
        """The outcomes of chunks that have ended; waits for the first."""
        outcomes: list[Outcome] = []
        with contextlib.suppress(queue.Empty):
            ended = self._ended.get(timeout=timeout) if timeout > 0 else self._ended.get_nowait()
            while True:
                outcomes += [ended] if isinstance(ended, Outcome) else self._fetch(ended)
                ended = self._ended.get_nowait()
        return outcomes

    def _fetch(self, future: Any) -> list[Outcome]:
        """The outcomes of a chunk. It is forgotten then, by the scheduler and the worker too."""
        works = self._running.pop(future, None)
        if works is None:
            return []
        from distributed import KilledWorker

        try:
            answer: ChunkAnswer = future.result(timeout=self._settings.timeout)
        except KilledWorker as error:
            return self._killed(works, error)
        except JobStopped as error:
            self._stop(error)
            return []
        except Exception as error:
            self._interrupted(works, error)
            return []
        finally:
            future.release()
        if answer.stopped:
            self._stop(JobStopped(answer.stopped))
        done = {outcome.work.item.index for outcome in answer.outcomes}
        left = [work for work in works if work.item.index not in done]
        if left and self._stopped is None:
            self._send(left)
        return answer.outcomes

    def _killed(self, works: list[Work], error: Exception) -> list[Outcome]:
        """Several workers died with a chunk: its images are tried one by one, each alone, to find the one."""
        if len(works) == 1 and works[0].item.index in self._tested:
            return [Outcome(works[0], failure=f"several Dask workers ended while they had this image ({error})")]
        self._suspects += works
        return []

    def _interrupted(self, works: list[Work], error: Exception) -> None:
        """A chunk was lost with the scheduler or with a worker that had its result, or raised by mistake."""
        if self._client.status != _RUNNING:
            self._stop(self._lost(error))
        elif type(error).__module__.partition(".")[0] in ("distributed", "asyncio", "concurrent"):
            self._send(works)
        else:
            self._stop(_cannot_run(error))

    # -- the cluster ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Counts the workers now and then, and notices a lost scheduler."""
        if self._client.status not in (_RUNNING, "connecting"):
            self._stop(self._lost(None))
            return
        now = time.monotonic()
        if now < self._counted_at + _COUNT_SECONDS:
            return
        self._counted_at = now
        try:
            count = len(self._client.nthreads())
        except Exception as error:
            self._note_absence(now, self._lost(error))
            return
        self._workers = count
        if count:
            self._without_workers_since = None
        else:
            self._note_absence(now, JobStopped(f"no Dask worker has joined for {self._patience:.0f} s: start some"))

    def _note_absence(self, now: float, error: JobStopped) -> None:
        if self._without_workers_since is None:
            self._without_workers_since = now
        elif now - self._without_workers_since >= self._patience:
            self._stop(error)

    def _stop(self, error: JobStopped) -> None:
        if self._stopped is None:
            self._stopped = error

    def _lost(self, error: Exception | None) -> JobStopped:
        why = f" ({type(error).__name__})" if error is not None else ""
        return JobStopped(f"the Dask scheduler no longer responds{why}: start it and run the same command again")


def _cannot_run(error: Exception) -> JobStopped:
    text = " ".join(str(error).split())[:300]
    return JobStopped(f"Dask cannot run the job ({type(error).__name__}: {text}): its workers need the same triton-sam")


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise SetupError(f"Dask is not installed: {install_extra('batch')}") from None
    # Importing it makes it tell each step of a cluster's start on the console, between the lines of the progress.
    logging.getLogger("distributed").setLevel(logging.WARNING)
    return distributed


def _local_cluster(workers: int) -> Any:
    """Processes of this machine, one thread each: a chunk's own threads wait for the servers."""
    distributed = _distributed()
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=logging.ERROR
    )


def _connect(to: Any) -> Any:
    """The client of a scheduler or cluster; JobStopped if nothing answers there."""
    distributed = _distributed()
    try:
        with _quiet():
            return distributed.Client(to, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError):
        raise JobStopped(f"no Dask scheduler responds at {to}: start one with `dask scheduler`, or check it") from None
    except ValueError as error:
        raise InvalidInput(f"{to!r} is not a scheduler's address ({error}): use tcp://host:8786") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without distributed's log lines about a connection that was lost or could not be made."""
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
