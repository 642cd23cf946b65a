"""The executor of one machine: threads of this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from triton_sam.batch.executors.engine import Engine, MakeTransport, Read
from triton_sam.batch.executors.pacing import MOST_IN_FLIGHT
from triton_sam.batch.executors.segmenting import SizeOf
from triton_sam.batch.records import Outcome, SegmentOptions, Work

TIMEOUT, PATIENCE = 120.0, 600.0


class ThreadExecutor:
    """Segments images with threads of this process; see :class:`~triton_sam.batch.records.Executor`."""

    # Many parameters: settings of a job, and what tests replace.
    def __init__(
        self,
        urls: Sequence[str | None],
        options: SegmentOptions,
        *,
        read: Read,
        size_of: SizeOf,
        token: str | None = None,
        timeout: float = TIMEOUT,
        patience: float = PATIENCE,
        most: int = MOST_IN_FLIGHT,
        transport: MakeTransport | None = None,
    ) -> None:
        """
        Args:
            urls: of Triton or of the service; None for the settings' address.
            read: gives what is sent of an item; JobStopped from it ends the job, other errors fail the item.
            timeout: seconds for one request.
            patience: seconds without a response of any server after which the job stops.
            most: requests in flight at each server.
            transport: replaces the network, for tests.
        """
        self._outcomes: deque[Outcome] = deque()
        self._engine = Engine(
            urls,
            options,
            token=token,
            timeout=timeout,
            patience=patience,
            read=read,
            size_of=size_of,
            most=most,
            transport=transport,
        )

    def room(self) -> int:
        return self._engine.room

    def submit(self, work: Work) -> None:
        self._engine.submit(work, self._outcomes)

    def finished(self, timeout: float) -> Sequence[Outcome]:
        """As :meth:`Executor.finished`; after :meth:`close`, what had been sent."""
        return self._engine.collect(self._outcomes, timeout)

    def describe(self) -> str:
        return self._engine.describe()

    def close(self, *, at_once: bool) -> None:
        """Ends it. Images that were not sent yet are dropped, without an outcome.

        Those that were sent are waited for, at most as long as a request may take, or with ``at_once`` dropped.
        """
        self._engine.close(at_once=at_once)
