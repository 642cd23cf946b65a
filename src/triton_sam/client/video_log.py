"""The requests of a video session since a state that a server has given, and these states. No I/O."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_sam.client.video_steps import Ticket
from triton_sam.client.wire import Outputs
from triton_sam.errors import Cancelled, TritonSamError

log = logging.getLogger(__name__)

#: Requests since the newest state may have so many bytes before the next one is asked for; all that are kept, twice.
_MOST_BYTES = 64 * 2**20
#: So many requests are kept if the server has given no state that it was asked for.
_MOST_REQUESTS = 4096
#: A state is asked for after so many of its bytes for each request, if that is later: many objects have a hundred
#: megabytes, which take as long as thirty frames.
_STATE_BYTES = 512 * 1024
#: How many frames back a server can correct as it could if it had tracked the video from its start.
_HISTORY = 32


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A session's state behind one of its steps, as the server's opaque bytes."""

    step: int
    data: bytes


@dataclass(eq=False, slots=True)
class Entry:
    """A request of the session.

    Attributes:
        keeps_state: whether its answer brings the session's state.
        answer: the outputs without the state, once they have come for the first time.
        error: why there will be no answer.
        ticket: of the request that is under way.
        taken: whether the present server has taken it into its session.
    """

    step: int
    document: dict[str, Any]
    image: bytes | None = None
    keeps_state: bool = False
    answer: Outputs | None = None
    error: TritonSamError | None = None
    ticket: Ticket | None = None
    taken: bool = False


class SessionLog:
    """What brings a session back.

    Attributes:
        checkpoints: states, the oldest first; None is the session's start.
        entries: all requests since the oldest.
        next: number of the next request.
        has_gap: whether requests behind the oldest state are missing, so that it does not help.
    """

    def __init__(self, state_every: int, checkpoint: Checkpoint | None) -> None:
        """
        Args:
            state_every: requests after which a state is asked for again, at the earliest.
            checkpoint: of an earlier session, to go on from.
        """
        self._state_every = state_every
        self.checkpoints: list[Checkpoint | None] = [checkpoint]
        self.entries: deque[Entry] = deque()
        self.next = 1 if checkpoint is None else checkpoint.step + 1
        self.has_gap = False
        #: Whether the server left out the last state that it was asked for.
        self._is_left_out = False

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest state."""
        return self.checkpoints[-1]

    def add(self, do: str, image: bytes | None, fields: Mapping[str, Any]) -> Entry:
        """A further request. One for the state comes before it if that is due and it cannot bring the state itself."""
        wanted = self._wants_state(image)
        if wanted and do not in ("track", "state"):
            self.add("state", None, {})
            wanted = False
        document = {"do": do, **fields}
        if do == "track":
            document["state"] = wanted
        entry = Entry(self.next, document, image, keeps_state=wanted or do == "state")
        self.next += 1
        self.entries.append(entry)
        return entry

    def take(self, entry: Entry, outputs: Outputs) -> bool:
        """Notes an answer and the state that came with it. Returns whether it is the request's first one."""
        entry.ticket, entry.taken = None, True
        state = outputs.get("video_state") if entry.keeps_state else None
        if state is not None and state.size:
            self._is_left_out = False
            self._keep(Checkpoint(entry.step, state.tobytes()))
        elif entry.answer is None and entry.keeps_state:
            self._is_left_out = True
        is_first = entry.answer is None
        if is_first:
            # Without the state, which may be large: the checkpoint has it.
            entry.answer = {name: array for name, array in outputs.items() if name != "video_state"}
        if self._is_left_out:
            self._shorten()
        return is_first

    def _keep(self, state: Checkpoint) -> None:
        """Takes a state, and drops what is too old to be needed."""
        kept = self.checkpoints
        if kept[-1] is not None and state.step <= kept[-1].step:
            return
        # Not all in between: each may be large.
        if len(kept) > 1 and self._frames(kept[-2], kept[-1]) < _HISTORY // 2:
            kept.pop()
        kept.append(state)
        while len(kept) > 1 and (
            self.has_gap or self._frames(kept[1], state) >= _HISTORY or self._bytes() > 2 * _MOST_BYTES
        ):
            self._drop_oldest_state()
        self.has_gap = False

    def _drop_oldest_state(self) -> None:
        kept = self.checkpoints
        kept.pop(0)
        while self.entries and kept[0] is not None and self.entries[0].step <= kept[0].step:
            self.entries.popleft()

    def _bytes(self) -> int:
        return sum(len(entry.image or b"") for entry in self.entries)

    def _shorten(self) -> None:
        """Keeps the log from growing while the server gives no state; then the session may not be brought back."""
        most = max(_MOST_REQUESTS, 2 * self._state_due())
        while len(self.entries) > most or self._bytes() > 2 * _MOST_BYTES:
            if len(self.checkpoints) > 1:
                self._drop_oldest_state()
                continue
            oldest = self.entries[0]
            if oldest.answer is None or not oldest.taken:
                return
            self.entries.popleft()
            if not self.has_gap:
                self.has_gap = True
                log.warning(
                    "the server leaves the video's state out, so that a failure would end the video: "
                    "give the server more room in /dev/shm"
                )

    def _frames(self, older: Checkpoint | None, newer: Checkpoint | None) -> int:
        """Number of frames that were tracked between two states."""
        first, last = 0 if older is None else older.step, 0 if newer is None else newer.step
        return sum(first < entry.step <= last and entry.document["do"] == "track" for entry in self.entries)

    def withdraw(self, entries: Sequence[Entry]) -> None:
        """Takes back those of these requests that were not sent; the numbers of those behind them are free again."""
        if not entries:
            return
        unsent: list[Entry] = []
        while self.entries and self.entries[-1].answer is None and self.entries[-1].ticket is None:
            unsent.append(self.entries.pop())
        self.next -= len(unsent)
        for entry in reversed(unsent):
            if entry in entries:
                entry.error = Cancelled("the request was withdrawn, because nobody waited for it any more")
                continue
            entry.step = self.next
            self.next += 1
            self.entries.append(entry)

    def refuse(self, error: TritonSamError) -> None:
        """Takes all requests without an answer out of the session."""
        while self.entries and self.entries[-1].answer is None:
            entry = self.entries.pop()
            entry.error = error
            self.next = entry.step

    def _wants_state(self, image: bytes | None) -> bool:
        count, size = 1, len(image or b"")
        for entry in reversed(self.entries):
            if entry.keeps_state:
                break
            count += 1
            size += len(entry.image or b"")
        return count >= self._state_due() or size > _MOST_BYTES

    def _state_due(self) -> int:
        """Requests after which the next state is asked for."""
        newest = self.checkpoint
        worth = 0 if newest is None else len(newest.data) // _STATE_BYTES
        return max(self._state_every, worth)
