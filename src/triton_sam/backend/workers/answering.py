"""The answers that a Triton process builds of what its worker has found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from triton_sam.backend.concept_queue import PromisedConcepts
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.responder import SUPERSEDED, internal_error
from triton_sam.errors import Cancelled, QueueFull, TritonSamError


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Which requests of a session are cancelled.

    Attributes:
        before: only those with a smaller sequence number.
        only: only the one with this number.
    """

    session: str
    before: int | None = None
    only: int | None = None

    def covers(self, job: SegmentJob) -> bool:
        """Whether a request is among them."""
        if job.session != self.session:
            return False
        if self.before is None and self.only is None:
            return True
        number = job.sequence
        return number is not None and (number == self.only or (self.before is not None and number < self.before))

    def as_header(self) -> dict[str, Any]:
        """The fields of a message."""
        return asdict(self)

    @classmethod
    def of_header(cls, header: dict[str, Any]) -> Withdrawn:
        """Of the message's fields."""
        return cls(header["session"], header["before"], header["only"])


class AnswersInHand:
    """Requests whose answer is being built, or waits to be. Those for concepts can be cancelled still."""

    def __init__(self, changed: threading.Condition) -> None:
        """
        Args:
            changed: notified after each answer; its lock guards what is here.
        """
        self._changed = changed
        self._jobs: set[SegmentJob] = set()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    # -- under the lock --------------------------------------------------------------------------------------

    def add(self, job: SegmentJob) -> None:
        """Takes a request whose result has arrived."""
        self._jobs.add(job)

    def refusal(self, job: SegmentJob) -> TritonSamError | None:
        """Why a request cannot be taken now: results for many concepts are in memory, because their masks take long."""
        if not job.wants_concepts:
            return None
        promised = PromisedConcepts()
        for other in self._jobs:
            promised.add(other)
        waiting = promised.refusal(job, [])
        return None if waiting is None else QueueFull(f"{waiting} concepts are waiting already: try again in a moment")

    # -- without the lock ------------------------------------------------------------------------------------

    def cancel(self, withdrawn: Withdrawn) -> int:
        """Answers CANCELLED to requests for concepts, whose threads then stop; returns how many there were."""
        return self._stop(withdrawn.covers)

    def supersede(self, newer: SegmentJob) -> None:
        """Answers CANCELLED to older requests for concepts of its session, if it replaces them."""
        if newer.session is not None and newer.latest_wins:
            self._stop(lambda job: job.session == newer.session and not _is_newer(job, newer))

    def build(self, job: SegmentJob, send: Callable[[], None], release: Callable[[], None]) -> None:
        """Formats and sends an answer.

        Args:
            release: gives the result's memory back.
        """
        try:
            if not job.answered:
                send()
        except TritonSamError as error:
            self._fail(job, error)
        except Exception as error:
            self._fail(job, internal_error("answering", error, [job]))
        finally:
            job.embedding, job.instances = None, ()  # they refer to memory that is used again
            release()
            with self._changed:
                self._jobs.remove(job)
                self._changed.notify_all()

    @staticmethod
    def _fail(job: SegmentJob, error: TritonSamError) -> None:
        if not job.answered:
            job.reply.fail(error)

    def _stop(self, unwanted: Callable[[SegmentJob], bool]) -> int:
        with self._changed:
            stopped = [job for job in self._jobs if job.wants_concepts and not job.answered and unwanted(job)]
            for job in stopped:
                job.answered = True
        for job in stopped:
            job.reply.fail(Cancelled(SUPERSEDED))
        return len(stopped)


def _is_newer(job: SegmentJob, than: SegmentJob) -> bool:
    """By sequence number; without numbers, what is here already is older."""
    return job.sequence is not None and than.sequence is not None and job.sequence > than.sequence
