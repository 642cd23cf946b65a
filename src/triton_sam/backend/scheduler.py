"""What Triton's scheduler cannot do for a process that answers later: admission, order, batching, cancelling.

Two workers share one lock. The click worker decodes; the encode worker encodes; a click never waits for somebody
else's encode. Answers are finished (resized, packed, sent) on a small pool, so a large PNG delays nobody's decode.
Every job that was accepted or refused is answered exactly once, also when an engine raises.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.jobs import Job, Metrics, QueueLimits
from triton_sam.backend.sessions import SessionBook
from triton_sam.engines.base import Decoded, Engine
from triton_sam.engines.priority import lower_this_thread
from triton_sam.errors import Cancelled, InternalError, QueueFull, TritonSamError, Unavailable
from triton_sam.fairqueue import FairQueue
from triton_sam.images import EncodedImage

log = logging.getLogger(__name__)
_FINISHERS = 2
_SUPERSEDED = "the request was cancelled or superseded by a newer one of its session"


@dataclass(eq=False, slots=True)
class _EncodeTask:
    key: str
    image: EncodedImage
    waiters: list[Job]


class Scheduler:
    """Owns the workers of one model on one device."""

    def __init__(self, engine: Engine, cache: EmbeddingCache, metrics: Metrics, limits: QueueLimits) -> None:
        self._engine = engine
        self._cache = cache
        self._metrics = metrics
        self._limits = limits
        self._lock = threading.Lock()
        self._clicks_ready = threading.Condition(self._lock)
        self._encodes_ready = threading.Condition(self._lock)
        self._clicks: FairQueue[Job] = FairQueue(limits.clicks)
        self._pings: list[Callable[[], None]] = []
        self._encodes: FairQueue[_EncodeTask] = FairQueue(limits.encodes)
        self._encoding: dict[str, _EncodeTask] = {}
        self._sessions = SessionBook()
        self._encode_started: float | None = None
        self._unanswered = 0
        self._closing = False
        self._finishers = ThreadPoolExecutor(_FINISHERS, thread_name_prefix="finish")
        # Only the arithmetic of an encode yields to clicks. Whoever talks to Triton holds its locks meanwhile, and a
        # thread of low priority that is put aside in that moment would make all others wait.
        self._background = ThreadPoolExecutor(1, thread_name_prefix="background", initializer=lower_this_thread)
        self._workers = [
            threading.Thread(target=self._click_loop, name="clicks", daemon=True),
            threading.Thread(target=self._encode_loop, name="encodes", daemon=True),
        ]
        for worker in self._workers:
            worker.start()

    def submit_click(self, job: Job) -> None:
        """A job whose embedding is known."""
        with self._lock:
            superseded, refusal = self._admit(job)
            if refusal is None:
                self._enqueue_decode(job)
            self._release_turn(job)
        self._cancel_all(superseded)
        if refusal is not None:
            self._refuse(job, refusal)

    def submit_image(self, job: Job, image: EncodedImage) -> None:
        """A job whose image has to be encoded first; equal images that wait or run are encoded once."""
        with self._lock:
            cached = self._cache.get(job.image_key)
            superseded, refusal = self._admit(job, new_image=cached is None)
            task = self._encoding.get(job.image_key)
            if refusal is not None:
                pass
            elif cached is not None:
                job.embedding = cached
                self._enqueue_decode(job)
            elif task is not None:
                task.waiters.append(job)
            else:
                task = self._encoding[job.image_key] = _EncodeTask(job.image_key, image, [job])
                self._encodes.put(task, job.turn)
                self._encodes_ready.notify()
            self._release_turn(job)
        self._cancel_all(superseded)
        if refusal is not None:
            self._refuse(job, refusal)

    def cancel_session(self, session: str, *, before: int | None = None, only: int | None = None) -> int:
        """Answers CANCELLED to what a session has waiting and was not begun; returns how many requests that were.

        Args:
            before: only requests with a smaller number, those that are still on their way here included.
            only: only the request with this number.
        """
        with self._lock:
            self._sessions.cancel(session, before=before, only=only)
            everything = before is None and only is None
            dropped = self._drop(
                lambda job: (
                    job.session == session and (everything or self._sessions.is_cancelled(session, job.sequence))
                )
            )
        self._cancel_all(dropped)
        return len(dropped)

    def ping(self, answer: Callable[[], None]) -> None:
        """Calls ``answer`` from the click worker as soon as it is between two batches; it must be quick."""
        with self._lock:
            self._pings.append(answer)
            self._clicks_ready.notify()

    @property
    def alive(self) -> bool:
        """Whether both workers run."""
        return all(worker.is_alive() for worker in self._workers)

    @property
    def encode_seconds(self) -> float:
        """For how long the present encode has been running; 0 when none is."""
        started = self._encode_started
        return 0.0 if started is None else time.perf_counter() - started

    def close(self) -> None:
        """Finishes what was accepted, refuses what comes, ends the workers."""
        with self._lock:
            self._closing = True
            self._clicks_ready.notify_all()
            self._encodes_ready.notify_all()
        for worker in reversed(self._workers):  # encodes first: they still make clicks
            worker.join()
        self._background.shutdown(wait=True)
        self._finishers.shutdown(wait=True)

    # -- admission and cancelling, under the lock ------------------------------------------------------------

    def _admit(self, job: Job, *, new_image: bool = False) -> tuple[list[Job], TritonSamError | None]:
        """Takes a request in, which from here on counts until it is answered, or says why not.

        Returns:
            What it supersedes, to be answered CANCELLED without the lock; and the reason of a refusal.
        """
        if self._closing:
            return [], Unavailable("the server is stopping: try again on another one or in a moment")
        if job.session is not None and self._sessions.is_late(job.session, job.sequence, latest_wins=job.latest_wins):
            return [], Cancelled(_SUPERSEDED)
        superseded = self._supersede(job)
        if new_image and job.image_key not in self._encoding and self._encodes.full:
            return superseded, QueueFull(f"{self._encodes.capacity} images are waiting already: try again in a moment")
        waiting = self._unanswered - len(superseded)
        if waiting >= self._limits.clicks + self._limits.batch:  # those waiting, and those being decoded
            return superseded, QueueFull(f"{waiting} requests are waiting already: try again in a moment")
        self._unanswered += 1
        return superseded, None

    def _enqueue_decode(self, job: Job) -> None:
        """Lets an encoded job go on: straight to its answer when there is nothing to decode."""
        if job.prompt is None:
            self._finishers.submit(self._finish, job, [])
        else:
            self._clicks.put(job, job.turn)
            self._clicks_ready.notify()

    def _supersede(self, job: Job) -> list[Job]:
        """Takes out what a newer request makes worthless; the newer one may inherit the place in the round."""
        session = job.session
        if session is None or not job.latest_wins:
            return []
        self._clicks.keep_turn(session)
        self._encodes.keep_turn(session)
        return self._drop(lambda other: other.session == session and not _is_newer(other, job))

    def _release_turn(self, job: Job) -> None:
        """A place in the round that was kept for a newer request is given up where that took none."""
        self._clicks.release_turn(job.turn)
        self._encodes.release_turn(job.turn)

    def _drop(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Takes out waiting jobs, and encodes that nobody waits for any more."""
        dropped = self._clicks.take(unwanted)
        for task in self._encoding.values():
            dropped += [job for job in task.waiters if unwanted(job)]
            task.waiters = [job for job in task.waiters if not unwanted(job)]
        for task in self._encodes.take(lambda task: not task.waiters):
            del self._encoding[task.key]
        return dropped

    # -- answers ---------------------------------------------------------------------------------------------

    def _cancel_all(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._fail(job, Cancelled(_SUPERSEDED))
        self._count("cancelled", len(jobs))

    def _refuse(self, job: Job, refusal: TritonSamError) -> None:
        """Answers a request that was not let in."""
        job.reply.fail(refusal)
        self._count("cancelled" if isinstance(refusal, Cancelled) else "rejected")

    def _fail(self, job: Job, error: TritonSamError) -> None:
        """Answers a request that was let in, unless it has its answer already."""
        if self._settle(job):
            job.reply.fail(error)

    def _settle(self, job: Job) -> bool:
        """Counts a request out; False where that was done before."""
        with self._lock:
            if job.answered:
                return False
            job.answered = True
            self._unanswered -= 1
            return True

    def _finish(self, job: Job, decoded: list[Decoded]) -> None:
        try:
            job.reply.succeed(job, decoded)
        except TritonSamError as error:
            self._fail(job, error)
        except Exception as error:
            log.exception("answering failed")
            self._fail(job, _internal("answering", error))
        else:
            self._settle(job)

    def _count(self, name: str, amount: int = 1) -> None:
        """Counts; a metric that cannot be kept is no reason to stop working."""
        try:
            if amount:
                self._metrics.count(name, amount)
        except Exception:
            log.exception("counting %s failed", name)

    def _gauge(self, name: str, value: float) -> None:
        try:
            self._metrics.set(name, value)
        except Exception:
            log.exception("keeping %s failed", name)

    def _drop_gone_and_late(self, jobs: list[Job]) -> list[Job]:
        """Answers those that nobody waits for or that waited too long; returns the others."""
        gone = [job for job in jobs if job.reply.is_cancelled()]
        oldest = time.perf_counter() - self._limits.seconds
        late = [job for job in jobs if job.received < oldest and job not in gone]
        self._cancel_all(gone)
        for job in late:
            self._fail(job, Unavailable(f"no turn came within {self._limits.seconds:g} s: try again in a moment"))
        self._count("rejected", len(late))
        return [job for job in jobs if job not in gone and job not in late]

    # -- the workers -----------------------------------------------------------------------------------------

    def _click_loop(self) -> None:
        while True:
            with self._lock:
                while not (self._clicks or self._pings or (self._closing and not self._workers[1].is_alive())):
                    self._clicks_ready.wait(timeout=0.2 if self._closing else None)
                pings, self._pings = self._pings, []
                batch = self._next_batch() if self._clicks else []
                if not batch and not pings:
                    return
            try:
                for answer in pings:
                    answer()
                self._decode_batch(batch)
            except Exception as error:
                log.exception("the click worker goes on after an error")
                for job in batch:
                    self._fail(job, _internal("decoding", error))
            pings, batch = [], []  # an idle worker keeps nothing alive

    def _next_batch(self) -> list[Job]:
        """The job whose turn it is, and the others that wait for the same image and the same kind of answer."""
        first = self._clicks.pop()
        like_first = self._clicks.take(
            lambda job: job.embedding is first.embedding and _multimask(job) == _multimask(first),
            self._limits.batch - 1,
        )
        return [first, *like_first]

    def _decode_batch(self, batch: list[Job]) -> None:
        batch = self._drop_gone_and_late(batch)
        if not batch:
            return
        started = time.perf_counter()
        for job in batch:
            job.timings["queue"] = (started - job.received) * 1e3 - sum(job.timings.values())
        prompts = [prompt for job in batch if job.prompt is not None for prompt in job.prompt.objects]
        try:
            assert batch[0].embedding is not None  # only encoded jobs come here
            decoded = self._engine.decode(batch[0].embedding, prompts, multimask=_multimask(batch[0]))
        except Exception as error:
            log.exception("decoding failed")
            for job in batch:
                self._fail(job, _internal("decoding", error))
            return
        for job in batch:
            job.mark("decode", started)
            count = len(job.prompt.objects) if job.prompt is not None else 0
            self._finishers.submit(self._finish, job, decoded[:count])
            decoded = decoded[count:]
        self._count("decodes", len(prompts))

    def _encode_loop(self) -> None:
        while True:
            with self._lock:
                while not (self._encodes or self._closing):
                    self._encodes_ready.wait()
                if not self._encodes:
                    return
                task = self._encodes.pop()
            self._encode_started = time.perf_counter()
            try:
                self._encode(task)
            except Exception as error:
                log.exception("the encode worker goes on after an error")
                with self._lock:
                    self._encoding.pop(task.key, None)
                for job in task.waiters:
                    self._fail(job, _internal("encoding", error))
            finally:
                self._encode_started = None
            del task  # an idle worker keeps no image alive

    def _encode(self, task: _EncodeTask) -> None:
        with self._lock:
            asked = list(task.waiters)
        staying = self._drop_gone_and_late(asked)
        with self._lock:
            task.waiters = [job for job in task.waiters if job in staying or job not in asked]
            if not task.waiters:
                del self._encoding[task.key]
                return
        started = time.perf_counter()
        embedding, failure = None, None
        try:
            picture = self._background.submit(task.image.pixels).result()
            decoded_at = time.perf_counter()
            embedding = self._background.submit(self._engine.encode, picture).result()
            self._cache.put(task.key, embedding)
        except TritonSamError as error:
            failure = error
        except Exception as error:
            log.exception("encoding failed")
            failure = _internal("encoding", error)
        with self._lock:
            del self._encoding[task.key]
            waiters = task.waiters
            for job in waiters if embedding is not None else []:
                job.embedding = embedding
                job.timings["queue_encode"] = max(0.0, (started - job.received) * 1e3)
                job.timings["image"] = (decoded_at - started) * 1e3
                job.mark("encode", decoded_at)
                self._enqueue_decode(job)
        if embedding is None:
            for job in waiters:
                self._fail(job, failure or InternalError("encoding failed"))
            return
        self._count("encodes")
        self._gauge("cache_bytes", self._cache.bytes)


def _is_newer(job: Job, than: Job) -> bool:
    """By their numbers; without them, whoever waits already is the older one."""
    return job.sequence is not None and than.sequence is not None and job.sequence > than.sequence


def _multimask(job: Job) -> bool:
    return job.prompt is not None and job.prompt.multimask


def _internal(step: str, error: Exception) -> InternalError:
    return InternalError(f"{step} failed on the server ({type(error).__name__}); its log says why")
