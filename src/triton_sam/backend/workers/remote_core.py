"""The core of a Triton process whose model is computed by worker processes, one for each device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from triton_sam.backend.core import SESSION_KEY, Source, embedding_hash
from triton_sam.backend.following import Answer
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.replies import ModelInfo
from triton_sam.backend.video.store import unknown_session
from triton_sam.backend.workers.answering import Withdrawn
from triton_sam.backend.workers.device_link import DeviceLink, LinkEvents
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.routing import Router
from triton_sam.backend.workers.spare import SpareKeeper
from triton_sam.core.video.request import Do
from triton_sam.errors import ImageExpired, InternalError, TritonSamError, Unavailable


class DeviceMetrics(Protocol):
    """Takes what workers count."""

    def device_counts(self, index: int, counts: dict[str, int], levels: dict[str, float]) -> None:
        """Counts and gauges of one device."""

    def device_changed(self, index: int, ready: bool) -> None:
        """A device was lost, or is back."""


class WorkerCore:
    """See :class:`~triton_sam.backend.core.SegmenterCore`: passes requests to the worker that has their image."""

    def __init__(
        self, workers: Sequence[WorkerOptions], instance: int, metrics: DeviceMetrics, ready_seconds: float
    ) -> None:
        """
        Args:
            workers: one for each device.
            instance: number of this Triton process among those of its model.
            ready_seconds: how long the workers may take to load the model.
        """
        self._metrics = metrics
        events = LinkEvents(metrics.device_counts, self._session_moved, self._device_changed)
        # One process keeps it for all.
        self._spare = SpareKeeper() if instance == 0 else None
        self._links = [DeviceLink(options, instance, events, self._spare) for options in workers]
        self._router = Router(self._links)
        self._shared = len(self._links) > 1
        try:
            for link in self._links:
                link.start()
            for link in self._links:
                link.wait_ready(ready_seconds)
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> ModelInfo:
        """See :class:`~triton_sam.backend.core.SegmenterCore`."""
        info = self._links[0].info
        assert info is not None  # known since the first connection
        return info

    def submit(self, job: SegmentJob, source: Source) -> None:
        """See :class:`~triton_sam.backend.core.SegmenterCore`."""
        if not self._shared:
            self._links[0].submit(job, source, shared=False)
        elif job.video is not None:
            request = job.video.request
            key, new = SESSION_KEY + request.session, request.do is Do.OPEN
            self._router.find(key, new=new, then=lambda place: self._send(place, job, source))
        elif source.embedding is not None:
            name = embedding_hash(source.embedding)
            self._router.find_embedding(name, lambda place: self._send(place, job, source))
        else:
            self._router.find(
                job.image_key, new=source.image is not None, then=lambda place: self._send(place, job, source)
            )

    def cancel(self, session: str, before: int | None, only: int | None, done: Callable[[int], None]) -> None:
        """See :class:`~triton_sam.backend.core.SegmenterCore`."""
        withdrawn = Withdrawn(session, before, only)

        def answered(counts: dict[int, Any]) -> None:
            """What a worker had found before is here by now."""
            here = sum(link.answers.cancel(withdrawn) for link in self._links)
            done(here + sum(count or 0 for count in counts.values()))

        self._ask_ready({"is": "cancel", **withdrawn.as_header()}, answered)

    def ping(self, done: Callable[[dict[str, Any] | TritonSamError], None]) -> None:
        """See :class:`~triton_sam.backend.core.SegmenterCore`. A device that starts again is no failure."""

        def answered(answers: dict[int, Any]) -> None:
            known = {index: answer for index, answer in answers.items() if answer is not None}
            failed = [answer["failed"] for answer in known.values() if "failed" in answer]
            if failed:
                done(InternalError(failed[0]))
                return
            seconds = max((answer["encode_seconds"] for answer in known.values()), default=0.0)
            done({"encode_seconds": seconds, "devices": self._devices(known)})

        self._ask_ready({"is": "ping"}, answered)

    def follow(self, run: str, since: int, done: Answer) -> None:
        """See :class:`~triton_sam.backend.core.SegmenterCore`. The device that has the run knows it."""

        def answered(answers: dict[int, Any]) -> None:
            known = [answer for answer in answers.values() if answer is not None and "unknown" not in answer]
            done(known[0] if known else {"unknown": True})

        self._ask_ready({"is": "follow", "run": run, "since": since}, answered)

    def _devices(self, answers: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
        """The state of each device.

        Args:
            answers: index of the device -> its worker's answer to a ping; workers that have none start again.
        """
        found = []
        for index, link in enumerate(self._links):
            lost = {"device": link.options.device, "state": "starting", "in_flight": 0, "engine": None}
            found.append(answers[index]["devices"][0] if index in answers else lost)
        return found

    def embedding_of(self, job: SegmentJob) -> npt.NDArray[np.float32]:
        """See :class:`~triton_sam.backend.core.SegmenterCore`."""
        assert job.embedding is not None  # it came with the result
        return job.embedding.array("")

    def close(self) -> None:
        """See :class:`~triton_sam.backend.core.SegmenterCore`."""
        if self._spare is not None:
            self._spare.close()
        for link in self._links:
            link.close()

    def _send(self, place: int | None, job: SegmentJob, source: Source) -> None:
        """Submits a job to a device; called by any thread, so that a refusal is an answer."""
        try:
            if place is None:
                raise self._nowhere(job, source)
            self._links[place].submit(job, source, shared=True)
        except TritonSamError as error:
            job.reply.fail(error)

    def _nowhere(self, job: SegmentJob, source: Source) -> TritonSamError:
        if not self._router.ready or (source.image is not None and job.video is None):
            return Unavailable("no device is ready: send the request again in a moment")
        if job.video is not None:
            return unknown_session(job.video.request.session)
        return ImageExpired(f"image_key {job.image_key[:40]!r} is unknown here or has expired: send the image again")

    def _session_moved(self, to: int, session: str, sequence: int | None) -> None:
        for index, link in enumerate(self._links):
            if index != to:
                link.tell({"is": "moved", "session": session, "sequence": sequence})

    def _device_changed(self, index: int, ready: bool) -> None:
        if not ready:
            self._router.forget(index)
        self._metrics.device_changed(index, ready)

    def _ask_ready(self, question: dict[str, Any], then: Callable[[dict[int, Any]], None]) -> None:
        """Asks all ready devices, and calls ``then`` with index -> answer; None for one that was lost meanwhile."""
        links = {index: link for index, link in enumerate(self._links) if link.ready}
        answers: dict[int, Any] = {}
        lock = threading.Lock()
        if not links:
            then({})

        def take(index: int, answer: Any) -> None:
            with lock:
                answers[index] = answer
                complete = len(answers) == len(links)
            if complete:
                then(answers)

        for index, link in links.items():
            link.ask(dict(question), partial(take, index))
