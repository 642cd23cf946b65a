"""Admission, order, batching and cancellation of requests inside a model's process.

Triton's scheduler cannot do this for a process that answers later. All workers share one lock.
:mod:`triton_sam.backend.decodes` decodes clicks, :mod:`triton_sam.backend.background` what nobody waits for,
:mod:`triton_sam.backend.concepts` looks for words and examples, :mod:`triton_sam.backend.encodes` encodes images,
:mod:`triton_sam.backend.video.runner` tracks videos, and :mod:`triton_sam.backend.responder` sends the responses. A
click never waits for the encode of another image. Every job, admitted or refused, is answered exactly once, also if an
engine raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from triton_sam.backend.background import BackgroundDecodes
from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.concepts import ConceptRunner
from triton_sam.backend.crops import crop_job
from triton_sam.backend.decodes import DecodeWorker
from triton_sam.backend.encodes import EncodePipeline, EncodeTask
from triton_sam.backend.everything import EverythingRunner
from triton_sam.backend.following import Answer
from triton_sam.backend.jobs import Metrics, QueueLimits, SegmentJob
from triton_sam.backend.responder import SUPERSEDED, Responder, SafeMetrics
from triton_sam.backend.sessions import SessionBook
from triton_sam.backend.video.runner import VideoRunner
from triton_sam.core.everything.grids import CropBox
from triton_sam.core.fair_queue import background_share
from triton_sam.core.images import EncodedImage
from triton_sam.engines.base import Embedding, Engine
from triton_sam.errors import Cancelled, QueueFull, TritonSamError, Unavailable

if TYPE_CHECKING:
    from triton_sam.engines.tracking import TrackingEngine


class Scheduler:
    """Admits the requests of one model on one device and passes them to its workers."""

    def __init__(self, engine: Engine, cache: EmbeddingCache, metrics: Metrics, limits: QueueLimits) -> None:
        self._engine = engine
        self._cache = cache
        self._metrics = SafeMetrics(metrics)
        self._limits = limits
        self._lock = threading.Lock()
        self._sessions = SessionBook()
        self._closing = False
        self._responder = Responder(self._lock, self._metrics, limits)
        self._encodes = EncodePipeline(
            engine,
            self._lock,
            self._responder,
            self._on_encoded,
            lambda: self._background.has_room,
            capacity=limits.encodes,
            window=limits.window,
        )
        self._decodes = DecodeWorker(engine, self._lock, self._responder, self._metrics, capacity=limits.clicks)
        self._background = BackgroundDecodes(
            engine,
            self._lock,
            self._decodes,
            self._responder,
            self._metrics,
            self._encodes.may_prepare.notify,
            capacity=limits.clicks,
        )
        self._everything = EverythingRunner(engine, self._lock, self._decodes, self._responder, self._open_crop)
        self._concepts = ConceptRunner(
            engine, self._lock, self._decodes, self._everything, self._responder, self._metrics
        )
        #: In which sessions keep their turns.
        self._queues = (self._decodes.queue, self._encodes.waiting, self._concepts.queue)
        self.video: VideoRunner | None = None
        """Takes the steps of videos; None if the engine cannot track."""
        if engine.capacity.tracks:
            self.video = VideoRunner(
                cast("TrackingEngine", engine),
                self._lock,
                cache,
                self._encodes,
                self._responder,
                self._metrics,
                self._sessions,
                limits.video,
            )

    def submit_click(self, job: SegmentJob) -> None:
        """Takes a job whose embedding is known."""
        with self._lock:
            superseded, refusal = self._admit(job)
            decode_now = refusal is None and job.is_click and self._decodes.may_decode_now(job)
            if refusal is None and not decode_now:
                self._enqueue_decode(job)
            self._release_turn(job)
        self._responder.cancel(superseded)
        self._responder.refuse(job, refusal)
        if decode_now:
            self._decodes.decode_now(job)

    def submit_image(self, job: SegmentJob, image: EncodedImage) -> None:
        """Takes a job whose image has to be encoded first. Equal images that wait or run are encoded once."""
        with self._lock:
            cached = self._cache.get(job.image_key, background=job.background)
            superseded, refusal = self._admit(job, new_image=cached is None)
            task = self._encodes.tasks.get(job.image_key)
            if refusal is not None:
                pass
            elif cached is not None:
                job.embedding = cached
                self._enqueue_decode(job)
            elif task is not None:
                self._encodes.join_task(task, job)
            else:
                self._encodes.add(EncodeTask(job.image_key, image, [job]), job.turn)
            self._release_turn(job)
        self._responder.cancel(superseded)
        self._responder.refuse(job, refusal)

    def cancel_session(self, session: str, *, before: int | None = None, only: int | None = None) -> int:
        """Answers CANCELLED to a session's queued requests and returns their number.

        Args:
            before: only requests with a smaller sequence number, including those that have not arrived yet.
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
        self._responder.cancel(dropped)
        return len(dropped)

    def follow(self, run: str, since: int, answer: Answer) -> None:
        """See :meth:`Followed.ask`; ``{"unknown": true}`` for a run that has not begun or has ended."""
        followed = self._everything.follow(run)
        if followed is None:
            answer({"unknown": True})
        else:
            followed.ask(since, answer)

    def ping(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` from the decode worker between two batches; it must be quick."""
        self._decodes.ping(callback)

    @property
    def alive(self) -> bool:
        """Whether all worker threads run."""
        workers = (self._decodes, self._encodes, self._concepts, self._everything, self._background, self.video)
        return all(worker is None or worker.alive for worker in workers)

    @property
    def encode_seconds(self) -> float:
        """For how long the current encode, detection or tracking of frames has been running; 0 if there is none."""
        tracking = 0.0 if self.video is None else self.video.track_seconds
        return max(self._encodes.encode_seconds, self._concepts.seconds, tracking)

    @property
    def unanswered(self) -> int:
        """Number of admitted jobs without a response."""
        return self._responder.unanswered

    @property
    def unanswered_of_people(self) -> int:
        """The same without background jobs."""
        return self._responder.unanswered - self._responder.unanswered_background

    def close(self) -> None:
        """Finishes what was admitted, refuses new requests, and ends the workers."""
        with self._lock:
            self._closing = True
            self._encodes.stop_taking()
        if self.video is not None:
            self.video.close()
        self._encodes.join()  # encodes first: they still queue decodes
        for worker in (self._concepts, self._everything, self._background, self._decodes):
            worker.close()
        self._responder.close()

    # -- under the lock --------------------------------------------------------------------------------------

    def _admit(self, job: SegmentJob, *, new_image: bool = False) -> tuple[list[SegmentJob], TritonSamError | None]:
        """Admits a request, which counts as unanswered from here on, or refuses it.

        Returns:
            The jobs that it supersedes, to be answered CANCELLED without the lock; and the reason of a refusal.
        """
        if self._closing:
            return [], Unavailable("the server is stopping: try again on another one or in a moment")
        if job.session is not None and self._sessions.is_late(job.session, job.sequence, latest_wins=job.latest_wins):
            return [], Cancelled(SUPERSEDED)
        superseded = self._supersede(job)
        images = self._encodes.waiting.refusal(background=job.background)
        if new_image and job.image_key not in self._encodes.tasks and images is not None:
            return superseded, QueueFull(f"{images} images are waiting already: try again in a moment")
        waiting = self._crowd(job, superseded)
        if waiting is not None:
            return superseded, QueueFull(f"{waiting} requests are waiting already: try again in a moment")
        full = self._everything.refusal(background=job.background) if job.wants_everything else None
        full = self._concepts.refusal(job, superseded) if job.wants_concepts else full
        if full is None:
            self._responder.admit(job)
        return superseded, full

    def _crowd(self, job: SegmentJob, superseded: list[SegmentJob]) -> int | None:
        """How many requests wait already if a further one may not; None if it may.

        Background requests take no place from people, and at most half as many.
        """
        most = self._limits.clicks + self._engine.capacity.rows  # queued, and being decoded
        background = self._responder.unanswered_background - sum(old.background for old in superseded)
        waiting = self._responder.unanswered - len(superseded)
        if not job.background:
            waiting -= background
        elif background >= background_share(self._limits.clicks):
            return background
        return waiting if waiting >= most else None

    def _enqueue_decode(self, job: SegmentJob) -> None:
        """Queues an encoded job for the decoder, or for its response if there is nothing to decode."""
        if job.prompt is None:
            self._responder.finish_later(job, [])
        elif job.wants_concepts:
            self._concepts.add(job)
        elif job.wants_everything:
            self._everything.add(job)
        elif job.background:
            self._background.add(job)
        else:
            self._decodes.add(job)

    def _supersede(self, job: SegmentJob) -> list[SegmentJob]:
        """Removes the jobs that a newer one replaces. The newer one may inherit their turn."""
        session = job.session
        if session is None or not job.latest_wins:
            return []
        for queue in self._queues:
            queue.keep_turn(session)
        return self._drop(lambda other: other.session == session and not _is_newer(other, job))

    def _release_turn(self, job: SegmentJob) -> None:
        """Gives up a turn that was kept for a newer job, if that job did not take it."""
        for queue in self._queues:
            queue.release_turn(job.turn)

    def _drop(self, unwanted: Callable[[SegmentJob], bool]) -> list[SegmentJob]:
        """Removes queued jobs, and encodes that no job waits for any more."""
        waiting = self._decodes.queue.take(unwanted) + self._encodes.drop_waiters(unwanted)
        for runner in (self.video, self._concepts, self._everything, self._background):
            waiting += [] if runner is None else runner.drop(unwanted)
        return waiting

    # -- without the lock ------------------------------------------------------------------------------------

    def _open_crop(self, job: SegmentJob, crop: CropBox) -> Embedding:
        """Encodes a part of a job's image, as an image of its own; it is cached like one."""
        part, image, embedding = crop_job(job, crop)
        self.submit_image(part, image)
        return embedding.result()

    def _on_encoded(self, task: EncodeTask, embedding: Embedding) -> None:
        """Caches an embedding and passes on the jobs that wait for it."""
        with self._lock:
            background = task.background
        self._cache.put(task.key, embedding, background=background)
        with self._lock:
            waiters = self._encodes.finish(task)
            alone = self._engine.capacity.answers_at_once and self._encodes.has_one and len(waiters) == 1
            at_once = waiters if alone and waiters[0].prompt is None else [job for job in waiters if job.at_once]
            for job in waiters:
                job.embedding = embedding
                job.timings["queue_encode"] = max(0.0, (task.begun - job.received) * 1e3)
                job.timings["image"] = (task.ready - task.begun) * 1e3
                job.mark("encode", task.ready)
                if job not in at_once:
                    self._enqueue_decode(job)
        for job in at_once:
            self._responder.finish(job, [])
        self._metrics.count("encodes")
        self._metrics.count("background_encodes", int(background))
        self._metrics.count_waits(waiters, "queue_encode")
        self._metrics.set("cache_bytes", self._cache.bytes)


def _is_newer(job: SegmentJob, than: SegmentJob) -> bool:
    """By sequence number. Without numbers, a job that waits already is the older one."""
    return job.sequence is not None and than.sequence is not None and job.sequence > than.sequence
