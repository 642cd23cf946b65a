"""What Triton's scheduler cannot do for a process that answers later: admission, order, batching, cancelling.

All workers share one lock. The click worker decodes; those of :mod:`triton_sam.backend.encodes` encode; a click never
waits for somebody else's encode. Answers that take time (resized, packed, compressed) are finished on a small pool, so
a large PNG delays nobody's decode. Where an engine decodes in less than a thread takes to wake up, a lone user's click
is decoded and answered by the thread that brings it.
Every job that was accepted or refused is answered exactly once, also when an engine raises.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.crowd import Crowd
from triton_sam.backend.encodes import EncodePipeline, EncodeTask, failed
from triton_sam.backend.jobs import Job, Metrics, QueueLimits
from triton_sam.backend.sessions import SessionBook
from triton_sam.core.fair_queue import FairQueue
from triton_sam.core.images import EncodedImage
from triton_sam.engines.base import Decoded, Embedding, Engine
from triton_sam.engines.priority import CLICK_NICENESS, lower_this_thread
from triton_sam.errors import Cancelled, QueueFull, TritonSamError, Unavailable

log = logging.getLogger(__name__)
_FINISHERS = min(8, max(2, len(os.sched_getaffinity(0)) // 2))
_SUPERSEDED = "the request was cancelled or superseded by a newer one of its session"


class Scheduler:
    """Owns the workers of one model on one device."""

    def __init__(self, engine: Engine, cache: EmbeddingCache, metrics: Metrics, limits: QueueLimits) -> None:
        self._engine = engine
        self._cache = cache
        self._metrics = metrics
        self._limits = limits
        self._lock = threading.Lock()
        self._clicks_ready = threading.Condition(self._lock)
        self._clicks: FairQueue[Job] = FairQueue(limits.clicks)
        self._pings: list[Callable[[], None]] = []
        self._sessions = SessionBook()
        self._crowd = Crowd()
        self._decoding = False
        self._unanswered = 0
        self._closing = False
        self._last_click_is_in = False
        # Where decoding takes the cores, its arithmetic stands behind those who take requests in, refuse them and tell
        # how things are. Nothing else does: EncodePipeline says why.
        self._arithmetic: ThreadPoolExecutor | None = None
        if engine.capacity.lowers_encodes:
            self._arithmetic = ThreadPoolExecutor(1, "decode", lambda: lower_this_thread(CLICK_NICENESS))
        self._finishers = ThreadPoolExecutor(_FINISHERS, thread_name_prefix="finish")
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="send")
        self._going_out: list[Future[None]] = []
        self._encodes = EncodePipeline(engine, self._lock, self, waiting=limits.encodes, window=limits.window)
        self._clicker = threading.Thread(target=self._click_loop, name="clicks", daemon=True)
        self._clicker.start()

    def submit_click(self, job: Job) -> None:
        """A job whose embedding is known."""
        with self._lock:
            superseded, refusal = self._admit(job)
            alone = refusal is None and self._is_alone(job)
            if refusal is None and not alone:
                self._enqueue_decode(job)
            self._release_turn(job)
        self._cancel_all(superseded)
        if refusal is not None:
            self._refuse(job, refusal)
        if alone:
            self._decode([job])
            with self._lock:
                self._crowd.answered(time.perf_counter())

    def submit_image(self, job: Job, image: EncodedImage) -> None:
        """A job whose image has to be encoded first; equal images that wait or run are encoded once."""
        with self._lock:
            cached = self._cache.get(job.image_key)
            superseded, refusal = self._admit(job, new_image=cached is None)
            task = self._encodes.tasks.get(job.image_key)
            if refusal is not None:
                pass
            elif cached is not None:
                job.embedding = cached
                self._enqueue_decode(job)
            elif task is not None:
                task.waiters.append(job)
            else:
                self._encodes.add(EncodeTask(job.image_key, image, [job]), job.turn)
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
        """Whether all workers run."""
        return self._clicker.is_alive() and self._encodes.alive

    @property
    def encode_seconds(self) -> float:
        """For how long the present encode has been running; 0 when none is."""
        return self._encodes.encode_seconds

    def close(self) -> None:
        """Finishes what was accepted, refuses what comes, ends the workers."""
        with self._lock:
            self._closing = True
            self._encodes.stop_taking()
        self._encodes.join()  # encodes first: they still make clicks
        with self._lock:
            self._last_click_is_in = True
            self._clicks_ready.notify_all()
        self._clicker.join()
        for pool in (self._finishers, self._sender, self._arithmetic):
            if pool is not None:
                pool.shutdown(wait=True)

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
        images = self._encodes.waiting
        if new_image and job.image_key not in self._encodes.tasks and images.full:
            return superseded, QueueFull(f"{images.capacity} images are waiting already: try again in a moment")
        waiting = self._unanswered - len(superseded)
        if waiting >= self._limits.clicks + self._engine.capacity.rows:  # those waiting, and those being decoded
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

    def _is_alone(self, job: Job) -> bool:
        """Whether a job may be decoded by the thread that brings it."""
        if not self._engine.capacity.answers_at_once:
            return False
        alone = self._crowd.comes((job.session, job.image_key), job.received)
        return alone and len(job.rows()) == 1 and not (self._clicks or self._decoding)

    def _supersede(self, job: Job) -> list[Job]:
        """Takes out what a newer request makes worthless; the newer one may inherit the place in the round."""
        session = job.session
        if session is None or not job.latest_wins:
            return []
        self._clicks.keep_turn(session)
        self._encodes.waiting.keep_turn(session)
        return self._drop(lambda other: other.session == session and not _is_newer(other, job))

    def _release_turn(self, job: Job) -> None:
        """A place in the round that was kept for a newer request is given up where that took none."""
        self._clicks.release_turn(job.turn)
        self._encodes.waiting.release_turn(job.turn)

    def _drop(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Takes out waiting jobs, and encodes that nobody waits for any more."""
        return self._clicks.take(unwanted) + self._encodes.drop_waiters(unwanted)

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
            self._fail(job, failed("answering", error, [job]))
        else:
            self._settle(job)

    def _finish_all(self, answers: list[tuple[Job, list[Decoded]]]) -> None:
        for job, decoded in answers:
            self._finish(job, decoded)

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

    def still_wanted(self, jobs: list[Job]) -> list[Job]:
        """Answers those that nobody waits for or that waited too long; returns the others."""
        now = time.perf_counter()
        # Asking is a message to Triton and an answer: nobody leaves while his click is hardly in.
        gone = [job for job in jobs if now - job.received > self._limits.patience and job.reply.is_cancelled()]
        oldest = now - self._limits.seconds
        late = [job for job in jobs if job.received < oldest and job not in gone]
        self._cancel_all(gone)
        for job in late:
            self._fail(job, Unavailable(f"no turn came within {self._limits.seconds:g} s: try again in a moment"))
        self._count("rejected", len(late))
        return [job for job in jobs if job not in gone and job not in late]

    # -- encodes that are done -------------------------------------------------------------------------------

    def encoded(self, task: EncodeTask, embedding: Embedding) -> None:
        """Keeps an embedding and lets those who wait for it go on."""
        self._cache.put(task.key, embedding)
        with self._lock:
            waiters = self._encodes.finish(task)
            alone = self._engine.capacity.answers_at_once and self._encodes.has_one and len(waiters) == 1
            alone = alone and waiters[0].prompt is None
            for job in waiters:
                job.embedding = embedding
                job.timings["queue_encode"] = max(0.0, (task.begun - job.received) * 1e3)
                job.timings["image"] = (task.ready - task.begun) * 1e3
                job.mark("encode", task.ready)
                if not alone:
                    self._enqueue_decode(job)
        if alone:
            self._finish(waiters[0], [])
        self._count("encodes")
        self._count_turns([job.timings["queue_encode"] for job in waiters])
        self._gauge("cache_bytes", self._cache.bytes)

    def encode_failed(self, task: EncodeTask, error: TritonSamError) -> None:
        """Tells those who waited for an image why they get no mask."""
        for job in task.waiters:
            self._fail(job, error)

    # -- the click worker ------------------------------------------------------------------------------------

    def _click_loop(self) -> None:
        while True:
            with self._lock:
                while not (self._clicks or self._pings or self._last_click_is_in):
                    self._clicks_ready.wait()
                pings, self._pings = self._pings, []
                batch = self._next_batch() if self._clicks else []
                self._decoding = bool(batch)
                if not batch and not pings:
                    return
            for answer in pings:
                try:
                    answer()
                except Exception:
                    log.exception("a ping could not be answered")
            self._decode(batch)
            self._decoding = False
            pings, batch = [], []  # an idle worker keeps nothing alive

    def _decode(self, batch: list[Job]) -> None:
        """Decodes jobs and sees to it that each is answered, whatever happens."""
        try:
            self._decode_batch(batch)
        except Exception as error:
            told = error if isinstance(error, Unavailable) else failed("decoding", error, batch)
            left = [job for job in batch if not job.answered]
            if len(left) > 1 and told is not error:
                for job in left:  # one of them may be the reason: the others shall not pay for it
                    self._decode([job])
            else:
                for job in left:
                    self._fail(job, told)

    def _next_batch(self) -> list[Job]:
        """The job whose turn it is, and others that are decoded in the same run of the decoder."""
        capacity = self._engine.capacity
        first = self._clicks.pop()
        room = capacity.rows - len(first.rows())

        def fits(job: Job) -> bool:
            nonlocal room
            alike = capacity.mixes_images or (job.embedding is first.embedding and job.multimask == first.multimask)
            if not alike or len(job.rows()) > room:
                return False
            room -= len(job.rows())
            return True

        return [first, *(self._clicks.take(fits) if room > 0 else [])]

    def _count_turns(self, waits: list[float]) -> None:
        """Counts how long jobs waited, in milliseconds each: Triton's own queue is empty, as nothing waits there."""
        self._count("turns", len(waits))
        self._count("queue_microseconds", round(sum(max(0.0, wait) for wait in waits) * 1e3))

    def _decode_batch(self, batch: list[Job]) -> None:
        batch = self.still_wanted(batch)
        if not batch:
            return
        started = time.perf_counter()
        for job in batch:
            job.timings["queue"] = (started - job.received) * 1e3 - sum(job.timings.values())
        self._count_turns([job.timings["queue"] for job in batch])
        rows = [row for job in batch for row in job.rows()]
        decode = self._engine.decode
        decoded = decode(rows) if self._arithmetic is None else self._arithmetic.submit(decode, rows).result()
        self._count("decodes", len(decoded))
        for job in batch:
            job.mark("decode", started)
        light: list[tuple[Job, list[Decoded]]] = []
        for job in batch:
            count = len(job.rows())
            mine, decoded = decoded[:count], decoded[count:]
            if job.is_light(mine):
                light.append((job, mine))
            else:
                self._finishers.submit(self._finish, job, mine)
        self._finish_light(light)

    def _finish_light(self, answers: list[tuple[Job, list[Decoded]]]) -> None:
        """Answers that only have to be put together: one by itself here, for to wake a thread costs as much as it does;
        several by the one thread that does nothing else, while the next batch is decoded.

        That batch waits until these are out. Those who come meanwhile make it larger, which is worth more than an
        early start.
        """
        wait(self._going_out)
        self._going_out = []
        if len(answers) == 1:
            self._finish(*answers[0])
        elif answers:
            self._going_out = [self._sender.submit(self._finish_all, answers)]


def _is_newer(job: Job, than: Job) -> bool:
    """By their numbers; without them, whoever waits already is the older one."""
    return job.sequence is not None and than.sequence is not None and job.sequence > than.sequence
