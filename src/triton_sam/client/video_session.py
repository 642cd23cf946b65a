"""One video session: numbered requests, several under way, and a way back if their server is lost. No I/O.

The session keeps a state that a server has given, and the requests since then. Whatever happens to the server, both
together bring the session back: on it, or on another one. An answer that was given already is not given again.

A state has what later frames need, and not what a correction of an earlier frame does. The session is therefore brought
back from a state so old that the frames since then give the server that again.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_sam.client import wire
from triton_sam.client.core import ClientCore, retry_pause
from triton_sam.client.flows import Pause
from triton_sam.client.video_log import Checkpoint, Entry, SessionLog
from triton_sam.client.video_steps import AskServer, CheckTriton, Collect, Start, Ticket, VideoFlow, at_server
from triton_sam.client.wire import Call, Outputs
from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    SessionExpired,
    TritonSamError,
    Unavailable,
)

log = logging.getLogger(__name__)

#: After these a session is brought back, or a request sent again.
_RECOVERABLE = (Unavailable, ServerUnreachable, SessionExpired, DeadlineExceeded, InternalError, Cancelled)
#: A server that was never reached is asked for so long only, and one that fails in itself so often.
_FIRST_RETRIES, _FAULT_RETRIES = 4, 3
#: A busy server is left for another one after so many refusals.
_MOVE_AFTER = 4
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session works.

    Attributes:
        window: requests that are under way at once.
        state_every: requests after which the state is asked for again, at the earliest.
        retries: failures in a row after which a request's error is raised.
    """

    window: int = 4
    state_every: int = 30
    retries: int = 30


class VideoSession:
    """One at a time may run its flows."""

    def __init__(
        self,
        servers: Sequence[ClientCore],
        video: Mapping[str, Any],
        options: SessionOptions | None = None,
        *,
        routed: bool = True,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """
        Args:
            servers: the look-ups of the model's name on each server.
            video: ``length``, ``width`` and ``height``.
            routed: whether a header tells proxies to send all requests to one server.
            checkpoint: of an earlier session, to go on from.
        """
        self._servers = servers
        self._video = dict(video)
        self._options = options or SessionOptions()
        self._log = SessionLog(self._options.state_every, checkpoint)
        self._headers = {wire.IMAGE_HEADER: uuid.uuid4().hex} if routed else {}
        self.name = ""
        self._model = ""
        self._server = 0
        self._is_open = self._was_open = False
        self._failures = 0
        self._sent_again = False

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest state."""
        return self._log.checkpoint

    @property
    def states(self) -> list[Checkpoint]:
        """All that are kept, the oldest first."""
        return [state for state in self._log.checkpoints if state is not None]

    def replace_states(self, states: Iterable[Checkpoint]) -> None:
        """The same states with their bytes elsewhere; those that are not kept any more are left out."""
        others = {state.step: state for state in states}
        kept = self._log.checkpoints
        kept[:] = [state if state is None else others.get(state.step, state) for state in kept]

    # -- requests --------------------------------------------------------------------------------------------

    def submit(self, do: str, image: bytes | None = None, **fields: Any) -> Entry:
        """Adds a request to the session; :meth:`answer` and :meth:`send` send it."""
        return self._log.add(do, image, fields)

    def answer(self, entry: Entry) -> VideoFlow[Outputs]:
        """Waits for a request's answer; brings the session back as often as it takes."""
        while entry.answer is None:
            if entry.error is not None:
                raise entry.error
            try:
                yield from self._send()
                oldest = next(one for one in self._log.entries if one.ticket is not None)
                assert oldest.ticket is not None
                outputs: Outputs = yield Collect(oldest.ticket)
                if self._log.take(oldest, outputs):
                    self._failures, self._sent_again = 0, False
            except TritonSamError as error:
                yield from self._recover(error)
        return entry.answer

    def send(self) -> VideoFlow[None]:
        """Sends what has not been sent, as far as the window allows."""
        try:
            yield from self._send()
        except TritonSamError as error:
            yield from self._recover(error)

    def withdraw(self, entries: Sequence[Entry]) -> None:
        """Takes back those of these requests that were not sent; the numbers of those behind them are free again."""
        self._log.withdraw(entries)

    def close(self) -> VideoFlow[None]:
        """Tells the server that the session is over; errors do not matter."""
        if self._is_open:
            self._is_open = False
            ticket = Ticket()
            yield Start(ticket, self._server, self._call({"do": "close", "step": self._log.next}))
            try:
                yield Collect(ticket, _CLOSE_SECONDS)
            except TritonSamError as error:
                log.debug("the session could not be closed: %s", error)

    def _send(self) -> VideoFlow[None]:
        if not self._is_open:
            yield from self._open()
        under_way = sum(entry.ticket is not None for entry in self._log.entries)
        for entry in list(self._log.entries):
            if under_way >= self._options.window:
                return
            if entry.taken or entry.ticket is not None:
                continue
            entry.ticket = Ticket()
            under_way += 1
            document, keeps_state = {"step": entry.step, **entry.document}, entry.keeps_state
            if entry.answer is not None and document.get("state"):  # it is known
                document["state"] = keeps_state = False
            yield Start(entry.ticket, self._server, self._call(document, entry.image, keeps_state=keeps_state))

    def _open(self) -> VideoFlow[None]:
        """Opens a session of its own name, so that requests which an earlier one left behind cannot disturb it."""
        if self._log.has_gap:
            raise SessionExpired(
                "the video cannot be brought back after a failure of its server, which had left its state out for too "
                "long: give the server more room in /dev/shm, and begin the video again"
            )
        for entry in self._log.entries:
            entry.taken, entry.ticket = False, None
        self._sent_again = False
        yield AskServer(self._server, CheckTriton())
        self._model = yield from at_server(self._server, self._servers[self._server].name())
        self.name = uuid.uuid4().hex
        state = self._log.checkpoints[0]
        document = {"do": "open", "step": 0 if state is None else state.step, **self._video}
        ticket = Ticket()
        yield Start(ticket, self._server, self._call(document, state=None if state is None else state.data))
        yield Collect(ticket)
        self._is_open = self._was_open = True

    def _call(
        self,
        document: Mapping[str, Any],
        image: bytes | None = None,
        *,
        state: bytes | None = None,
        keeps_state: bool = False,
    ) -> Call:
        inputs = {} if image is None else wire.image_inputs(image)
        if state is not None:
            inputs["video_state"] = np.frombuffer(state, np.uint8)
        request = {"video": {"session": self.name, **document}, "format": "rle"}
        inputs["prompt_json"] = wire.text_tensor(json.dumps(request))
        outputs = ("result_json", "video_state") if keeps_state else ("result_json",)
        return Call(self._model, inputs, outputs, {"session_id": self.name}, headers=self._headers)

    # -- the way back ----------------------------------------------------------------------------------------

    def _recover(self, error: TritonSamError) -> VideoFlow[None]:
        """Prepares the next attempt, or raises the error.

        A refusal does not count as a step: its number is free again, and requests behind it have failed with it.
        """
        failed = next((entry for entry in self._log.entries if entry.ticket is not None), None)
        is_open, self._is_open = self._is_open, False  # after Ctrl-C in between, nobody knows what was taken
        others_taken = yield from self._settle(failed)
        self._is_open = is_open
        # A server that starts again does not know its models yet.
        lost = not isinstance(error, (*_RECOVERABLE, NotFound) if self._was_open else _RECOVERABLE)
        lost = lost or (self._log.has_gap and not self._is_open)
        if lost and isinstance(error, InvalidInput) and failed is not None and self._sent_again:
            lost = False  # the first attempt may have been taken after all, so that the second one is refused
            self._is_open = False
        self._failures += 1
        if lost or self._failures > self._patience(error):
            self._is_open = self._is_open and lost and not others_taken
            self._log.refuse(error)
            self._failures = 0
            raise error
        stays = (
            isinstance(error, Unavailable | Cancelled)
            and self._is_open
            and failed is not None
            and not others_taken
            and (len(self._servers) == 1 or self._failures < _MOVE_AFTER)
        )
        moved = False
        if stays:
            self._sent_again = True
        else:
            self._is_open = False
            if not isinstance(error, SessionExpired | InvalidInput) and len(self._servers) > 1:
                self._server = (self._server + 1) % len(self._servers)
                moved = self._failures < len(self._servers)
        log.info("a video session goes on after failure %d (%s)", self._failures, error)
        if not moved and not (isinstance(error, SessionExpired) and self._failures == 1):
            yield Pause(max(retry_pause(self._failures), error.retry_after or 0.0))

    def _settle(self, failed: Entry | None) -> VideoFlow[bool]:
        """Waits for the requests behind one that has failed; returns whether any of them was taken."""
        others_taken = False
        for entry in [one for one in self._log.entries if one.ticket is not None]:
            ticket, entry.ticket = entry.ticket, None
            if entry is failed or ticket is None:
                continue
            try:
                yield Collect(ticket)
                others_taken = True
            except TritonSamError:
                continue
        return others_taken

    def _patience(self, error: TritonSamError) -> int:
        """Failures in a row that are put up with."""
        if isinstance(error, InternalError | DeadlineExceeded):
            return min(_FAULT_RETRIES, self._options.retries)
        if self._was_open:
            return self._options.retries
        if isinstance(error, Unavailable):
            return min(_FIRST_RETRIES, self._options.retries)
        return len(self._servers) - 1
