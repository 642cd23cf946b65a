"""A Triton process's connection to the worker of one device; starts the worker, and starts it again if it ends."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from triton_sam.backend.core import Source
from triton_sam.backend.finishers import Finishers
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.replies import ModelInfo
from triton_sam.backend.workers.answering import AnswersInHand, Withdrawn
from triton_sam.backend.workers.cancel_watcher import CancelWatcher
from triton_sam.backend.workers.channel import Channel, Message
from triton_sam.backend.workers.connecting import WorkerConnector
from triton_sam.backend.workers.hang_watcher import HangWatcher
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.spare import SpareKeeper
from triton_sam.backend.workers.wire import pack_job, unpack_error, unpack_found, unpack_result
from triton_sam.errors import SetupError, Unavailable

log = logging.getLogger(__name__)
_FINISHERS = min(4, max(2, len(os.sched_getaffinity(0)) // 2))
#: Between two starts of a worker that does not come up.
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LinkEvents:
    """What a link reports.

    Attributes:
        metrics: (index of the device, counts, gauges) of the worker.
        took: (index of the device, session, sequence number): a session's newest request came to this device.
        changed: (index of the device, whether it is ready).
    """

    metrics: Callable[[int, dict[str, int], dict[str, float]], None]
    took: Callable[[int, str, int | None], None]
    changed: Callable[[int, bool], None]


class DeviceLink:
    """See the module. Every request that was accepted is answered, also if the worker is lost."""

    def __init__(
        self, options: WorkerOptions, instance: int, events: LinkEvents, spare: SpareKeeper | None = None
    ) -> None:
        """
        Args:
            instance: number of this Triton process among those of its model.
            spare: shared by the links of this process; None in processes that keep none.
        """
        self.options = options
        self.info: ModelInfo | None = None
        self._reported_load = 0
        self._connector = WorkerConnector(options, instance, spare)
        self._events = events
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._numbers = itertools.count(1)
        self._jobs: dict[int, SegmentJob] = {}
        self.answers = AnswersInHand(self._idle)
        self._questions: dict[int, Callable[[Any], None]] = {}
        self._closing = False
        self._finishers = Finishers(_FINISHERS)
        self._first = threading.Event()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"device-{options.index}", daemon=True)
        self._watcher = CancelWatcher(self._waiting, lambda number: self.tell({"is": "gone", "number": number}))
        self._hang_watcher = HangWatcher(self._owing, self._kill)

    @property
    def ready(self) -> bool:
        """Whether the worker has loaded the model and is connected."""
        return self._channel is not None

    @property
    def load(self) -> int:
        """Unanswered requests of the worker: of all Triton processes when it last sent something, or of this one."""
        return max(self._reported_load, len(self._jobs))

    def start(self) -> None:
        """Connects, on a thread of its own."""
        self._thread.start()
        self._watcher.start()
        self._hang_watcher.start()

    def wait_ready(self, seconds: float) -> None:
        """Returns when the worker is ready; SetupError with its reason if it cannot load the model."""
        if not self._first.wait(seconds):
            raise SetupError(f"{self.options.name} was not ready after {seconds:.0f} s")
        if self._failure is not None:
            raise SetupError(self._failure)

    def submit(self, job: SegmentJob, source: Source, *, shared: bool) -> None:
        """Sends a request to the worker; Unavailable if there is none now, QueueFull if too many answers wait here.

        Args:
            shared: whether requests of its session may be on other devices.
        """
        header, parts = pack_job(job, source)
        self.answers.supersede(job)
        with self._lock:
            channel = self._channel
            if channel is None or self._closing:
                raise self._lost()
            refusal = self.answers.refusal(job)
            if refusal is not None:
                raise refusal
            number = next(self._numbers)
            self._jobs[number] = job
        try:
            channel.send({"is": "work", "number": number, "shared": shared, "job": header}, parts)
        except OSError:
            with self._lock:
                mine = self._jobs.pop(number, None) is not None
            if mine:  # otherwise the thread that noticed the loss has answered it
                raise self._lost() from None

    def ask(self, header: dict[str, Any], done: Callable[[Any], None]) -> None:
        """Sends a question; ``done`` gets the answer, or None if the worker is lost."""
        with self._lock:
            channel = self._channel
            number = next(self._numbers)
            if channel is not None:
                self._questions[number] = done
        try:
            if channel is None:
                raise ConnectionError
            channel.send(header | {"number": number})
        except OSError:
            with self._lock:
                unanswered = self._questions.pop(number, None) is not None or channel is None
            if unanswered:
                done(None)

    def tell(self, header: dict[str, Any]) -> None:
        """Sends a message that has no answer; it is dropped if the worker is lost."""
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.send(header)

    def close(self) -> None:
        """Waits for the answers of all requests, then leaves the worker."""
        with self._lock:
            self._closing = True
            while self._jobs or self.answers:
                self._idle.wait()
            channel, self._channel = self._channel, None
            self._idle.notify_all()
        self._hang_watcher.stop()
        self._finishers.close()
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.send({"is": "goodbye"})
            channel.close()
        if self._thread.ident is not None:
            self._thread.join(_PAUSE_SECONDS)

    # -- the link's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            begun = time.monotonic()
            try:
                connected = self._connector.connect()
            except SetupError as error:
                if not self._first.is_set():
                    self._failure = str(error)
                    self._first.set()
                    return
                log.error("%s", error)
                threading.Event().wait(max(0.0, begun + _PAUSE_SECONDS - time.monotonic()))
                continue
            if connected is not None:
                self.info = connected.info
                self._serve(connected.channel, connected.messages)

    def _serve(self, channel: Channel, messages: Iterator[Message]) -> None:
        with self._lock:
            self._reported_load = 0
            self._channel = channel
        self._events.changed(self.options.index, True)
        if self._first.is_set():
            log.warning("%s serves again", self.options.name)
        self._first.set()
        for message in messages:
            try:
                self._take(message)
            except Exception:
                log.exception("a message of %s could not be read", self.options.name)
                message.release()
        with self._lock:
            lost = self._channel is channel
            self._channel = None
            jobs, self._jobs = list(self._jobs.values()), {}
            questions, self._questions = list(self._questions.values()), {}
            self._idle.notify_all()
        channel.close()
        if lost and not self._closing:
            log.error("the worker of %s was lost with %d requests: it starts again", self.options.name, len(jobs))
            self._events.changed(self.options.index, False)
        for job in jobs:
            job.reply.fail(self._lost())
        for done in questions:
            done(None)

    def _take(self, message: Message) -> None:
        header = message.header
        self._reported_load = header.get("load", self._reported_load)
        kind = header["is"]
        if kind in ("result", "found"):
            self._finish(header, message)
        elif kind == "error":
            job = self._pop(header["number"])
            if job is not None:
                job.reply.fail(unpack_error(header))
        elif kind == "done":
            with self._lock:
                done = self._questions.pop(header["number"], None)
            if done is not None:
                done(header["value"])
        elif kind == "withdrawn":
            self.answers.cancel(Withdrawn.of_header(header))
        elif kind == "metrics":
            self._events.metrics(self.options.index, header["counts"], header["levels"])
        elif kind == "took":
            self._events.took(self.options.index, header["session"], header["sequence"])

    def _finish(self, header: dict[str, Any], message: Message) -> None:
        with self._lock:
            job = self._jobs.pop(header["number"], None)
            if job is not None:
                self.answers.add(job)
        if job is None:
            message.release()
            return
        found = unpack_found(header["result"], job) if header["is"] == "found" else None
        decoded = [] if found is not None else unpack_result(header["result"], message.body, job)

        def send() -> None:
            if found is not None:
                job.reply.found(job, found)
            else:
                job.reply.succeed(job, decoded)

        def answer() -> None:
            self.answers.build(job, send, message.release)

        nothing_to_build = job.prompt is None and not job.needs.embedding
        if nothing_to_build or (found is None and job.is_light(decoded)):
            answer()
        else:
            self._finishers.submit(job, answer)

    def _pop(self, number: int) -> SegmentJob | None:
        with self._lock:
            job = self._jobs.pop(number, None)
            if not self._jobs:
                self._idle.notify_all()
            return job

    def _waiting(self, count: int) -> list[tuple[int, SegmentJob]] | None:
        """The oldest unanswered requests by number, as soon as there are any; None at the end."""
        with self._lock:
            while not self._jobs:
                if self._closing:
                    return None
                self._idle.wait(1.0)
            return list(itertools.islice(self._jobs.items(), count))

    def _owing(self) -> Channel | None:
        """The connection if the worker owes answers on it."""
        with self._lock:
            return self._channel if self._jobs or self._questions else None

    def _kill(self, channel: Channel) -> None:
        """Ends a worker that hangs; the link's thread answers its requests and starts another one."""
        log.error("the worker of %s does not respond: it is killed", self.options.name)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(channel.peer, signal.SIGKILL)
        channel.end()  # a process that waits for a driver cannot even be killed

    def _lost(self) -> Unavailable:
        return Unavailable(f"{self.options.name} was lost and starts again: send the request again in a moment")
