"""One person at work: carries out a schedule on one server, and counts what comes of it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from triton_sam.bench.users.channels import HoverChannel, outcome_of
from triton_sam.bench.users.http_pool import HttpPool, Response
from triton_sam.bench.users.messages import Messages, Prompts, Site, image_key
from triton_sam.bench.users.schedule import Kind, Step
from triton_sam.bench.users.tally import NO_ANSWER, SUPERSEDED, UNREACHABLE, Actions, Outcome, Tally
from triton_sam.errors import ServerUnreachable

_UNREADABLE, _EXPIRED = "internal_error", "image_expired"


class Watch:
    """Notices, for all people of a process, that the server is gone: no connection, and no answer for a while."""

    def __init__(self, away_seconds: float, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._away_seconds = away_seconds
        self._address = address
        self._answered = self._loop.time()
        #: Gets a ServerUnreachable when the server is gone.
        self.gone: asyncio.Future[None] = self._loop.create_future()

    def saw(self, outcome: Outcome) -> None:
        """Every outcome of every request comes here."""
        if outcome.kind != UNREACHABLE:
            self._answered = self._loop.time()
        elif self._loop.time() - self._answered >= self._away_seconds and not self.gone.done():
            self.gone.set_exception(
                ServerUnreachable(f"the server at {self._address} went away during the run ({outcome.message})")
            )


@dataclass(eq=False, slots=True)
class Surroundings:
    """What all people of a process share.

    Attributes:
        size: width and height of the image, in pixels.
        numbers: numbers of images that nobody has sent yet.
        in_flight: the most hovers in flight of one person; of more only the newest waits.
        error_pause: seconds that a person waits after an error.
        counts: from when to when actions count, in seconds of the loop's clock; set before the run.
    """

    site: Site
    size: tuple[int, int]
    numbers: Iterator[int]
    pool: HttpPool
    watch: Watch
    tally: Tally
    in_flight: int = 3
    error_pause: float = 1.0
    counts: tuple[float, float] = (0.0, 0.0)


@dataclass(eq=False, slots=True)
class _Pending:
    """An action without an outcome; ``actions`` is empty if it does not count."""

    made: float
    actions: Sequence[Actions]


class Person:
    """Belongs to one event loop. First :meth:`sit_down`, then :meth:`begin`, at the end :meth:`give_up`."""

    def __init__(self, steps: Sequence[Step], messages: Messages, channel: HoverChannel, around: Surroundings) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps = steps
        self._messages = messages
        self._channel = channel
        self._around = around
        self._next = 0
        self._number = 0
        self._prompts: Prompts | None = None
        self._needs_image = False
        self._is_opening = False
        self._is_clicking = False
        self._in_flight = 0
        self._waiting: tuple[_Pending, Step] | None = None
        self._pending: set[_Pending] = set()
        self._paused_until = 0.0
        self._ended = False
        #: Is told the outcome of every image, if it is set.
        self.on_image: Callable[[Outcome], None] | None = None

    @property
    def is_done(self) -> bool:
        """Whether every action has its outcome."""
        return not self._pending

    def sit_down(self) -> None:
        """Opens the first image, and again after an error."""
        self._needs_image = True
        self._open_needed_image()

    def begin(self, at: float) -> None:
        """Carries out the steps; ``at``: the loop's time of the schedule's start."""
        if self._next < len(self._steps):
            self._loop.call_at(at + self._steps[self._next].at, self._act, at)

    def give_up(self) -> None:
        """Ends: actions without an outcome are counted as errors, and later outcomes as nothing."""
        self._ended = True
        for pending in list(self._pending):
            self._end(pending, Outcome(NO_ANSWER, "no answer until the end of the run"))

    # -- the schedule ------------------------------------------------------------------------------------------

    def _act(self, begun: float) -> None:
        step = self._steps[self._next]
        self._next += 1
        self.begin(begun)
        now = self._loop.time()
        if self._ended or now >= self._around.counts[1]:  # a late step would not count and delay the end
            return
        tally = self._around.tally
        is_counted = self._is_counted(now)
        if is_counted:
            tally.late.append(now - begun - step.at)
        if step.kind is Kind.IMAGE:
            self._needs_image = True
            self._open_needed_image()
        elif self._needs_image or self._is_opening or now < self._paused_until or self._prompts is None:
            tally.skipped += is_counted
        elif step.kind is Kind.CLICK:
            self._click(step)
        else:
            self._hover(step)

    def _is_counted(self, now: float) -> bool:
        start, stop = self._around.counts
        return start <= now < stop

    def _made(self, *actions: Actions) -> _Pending:
        now = self._loop.time()
        pending = _Pending(now, actions if self._is_counted(now) else ())
        for each in pending.actions:
            each.made += 1
        self._pending.add(pending)
        return pending

    def _end(self, pending: _Pending, outcome: Outcome) -> None:
        if pending not in self._pending:
            return
        self._pending.remove(pending)
        for each in pending.actions:
            each.end(outcome, self._loop.time() - pending.made)
        if not outcome.is_error:
            return
        if pending.actions:
            self._around.tally.messages.setdefault(outcome.kind, outcome.message)
        if self._ended:
            return
        self._needs_image |= outcome.kind == _EXPIRED
        self._paused_until = self._loop.time() + self._around.error_pause
        self._loop.call_at(self._paused_until, self._open_needed_image)

    # -- images ------------------------------------------------------------------------------------------------

    def _open_image(self) -> None:
        self._is_opening = True
        self._number += 1
        data = self._around.site.new_image(next(self._around.numbers))
        pending = self._made(self._around.tally.images)
        request = self._messages.image(data, self._number)
        self._around.pool.send(request, functools.partial(self._opened, pending, data), keep_body=True)

    def _opened(self, pending: _Pending, data: bytes, response: Response) -> None:
        outcome = outcome_of(response)
        self._around.watch.saw(outcome)
        self._is_opening = False
        if not outcome.is_error:
            try:
                self._prompts = self._messages.prompts(image_key(response.body), data)
            except ValueError as error:
                outcome = Outcome(_UNREADABLE, str(error))
        self._needs_image = outcome.is_error
        self._end(pending, outcome)
        if self.on_image is not None:
            self.on_image(outcome)

    def _open_needed_image(self) -> None:
        is_free = not self._is_opening and self._loop.time() >= self._paused_until
        if self._needs_image and is_free and not self._ended:
            self._open_image()

    # -- prompts -----------------------------------------------------------------------------------------------

    def _click(self, step: Step) -> None:
        if self._is_clicking:  # nobody clicks again before the last click has its mask
            self._around.tally.skipped += self._is_counted(self._loop.time())
            return
        assert self._prompts is not None
        self._is_clicking = True
        self._number += 1
        pending = self._made(self._around.tally.clicks)
        request = self._prompts.click.filled(*self._pixels(step), self._number)
        self._around.pool.send(request, functools.partial(self._clicked, pending))

    def _clicked(self, pending: _Pending, response: Response) -> None:
        self._is_clicking = False
        outcome = outcome_of(response)
        self._around.watch.saw(outcome)
        self._end(pending, outcome)

    def _hover(self, step: Step) -> None:
        tally = self._around.tally
        is_last = step.kind is Kind.LAST_HOVER
        pending = self._made(tally.hovers, *([tally.last_hovers] if is_last else ()))
        if self._in_flight < self._around.in_flight:
            self._send_hover(pending, step)
            return
        if self._waiting is not None:
            tally.unsent += bool(self._waiting[0].actions)
            self._end(self._waiting[0], Outcome(SUPERSEDED))
        self._waiting = (pending, step)

    def _send_hover(self, pending: _Pending, step: Step) -> None:
        assert self._prompts is not None
        self._in_flight += 1
        self._number += 1
        request = self._prompts.hover.filled(*self._pixels(step), self._number)
        self._channel.send(self._number, request, functools.partial(self._hovered, pending))

    def _hovered(self, pending: _Pending, outcome: Outcome) -> None:
        self._in_flight -= 1
        self._around.watch.saw(outcome)
        self._end(pending, outcome)
        if self._waiting is not None and not self._ended:
            (waiting, step), self._waiting = self._waiting, None
            self._send_hover(waiting, step)

    def _pixels(self, step: Step) -> tuple[float, float]:
        width, height = self._around.size
        return step.x * (width - 1), step.y * (height - 1)
