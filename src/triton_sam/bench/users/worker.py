"""One load-generating process with many people on one event loop. Imports only the standard library.

Standard input, a line of JSON each: first a :class:`Job`, then ``{"begin": seconds}`` of the monotonic clock, which all
processes of a machine share. Standard output, a line each: ``{"ready": true}`` when all have their first image, then
the result; or ``{"failed": "one sentence"}``, which ends the process.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from triton_sam.bench.users.channels import HoverChannel, HttpChannel, SocketChannel
from triton_sam.bench.users.http_pool import HttpPool
from triton_sam.bench.users.messages import Messages, ServiceMessages, Site, TritonMessages
from triton_sam.bench.users.person import Person, Surroundings, Watch
from triton_sam.bench.users.schedule import Behaviour, schedule
from triton_sam.bench.users.tally import ANSWERED, UNREACHABLE, Outcome, Tally
from triton_sam.errors import InvalidInput, ServerUnreachable, TritonSamError

SERVICE, TRITON = "service", "triton"
#: First images that a process has encoded at a time: a start, not a crowd.
_FIRST_IMAGES_AT_A_TIME = 2
#: Errors that pass; with any other, a first image would fail again.
_PASSING = frozenset({"queue_full", "unavailable", "rate_limited", "connection_lost", "deadline_exceeded"})
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does.

    Attributes:
        through: ``service`` or ``triton``.
        people: numbers of its people, of ``users`` in all processes.
        seconds: how long actions count, after ``ramp`` seconds in which they do not.
        session: begins the names of all sessions of a run; first_number: of its images.
        away_seconds: without a connection for so long, the server is gone.
        prepare_seconds, drain_seconds: limits for the first images, and for the last answers.
    """

    site: Site
    size: tuple[int, int]
    through: str
    people: Sequence[int]
    users: int
    behaviour: Behaviour
    seconds: float
    ramp: float
    in_flight: int
    seed: int
    session: str
    first_number: int
    error_pause: float = 1.0
    away_seconds: float = 10.0
    prepare_seconds: float = 300.0
    drain_seconds: float = 10.0

    def as_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["site"]["image"] = base64.b64encode(self.site.image).decode()
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Job:
        site = Site(**document["site"])
        behaviour: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in document["behaviour"].items()
        }
        parts = {
            "site": replace(site, image=base64.b64decode(site.image)),
            "size": tuple(document["size"]),
            "behaviour": Behaviour(**behaviour),
        }
        return cls(**{**document, **parts})


class Workplace:
    """The people of one process, with their connections."""

    def __init__(self, job: Job) -> None:
        self._job = job
        site = job.site
        self._pool = HttpPool(site.host, site.port)
        self.watch = Watch(job.away_seconds, site.authority)
        self._around = Surroundings(
            site,
            job.size,
            itertools.count(job.first_number),
            self._pool,
            self.watch,
            Tally(),
            job.in_flight,
            job.error_pause,
        )
        self._channels: list[HoverChannel] = []
        self._people = [self._person(number) for number in job.people]

    def _person(self, number: int) -> Person:
        job = self._job
        steps = schedule(number, job.users, job.ramp + job.seconds, job.behaviour, job.seed)
        session = f"{job.session} {number}"
        messages: Messages
        if job.through == SERVICE:
            messages = ServiceMessages(job.site, session)
            self._channels.append(SocketChannel(messages))
        else:
            messages = TritonMessages(job.site, session)
            self._channels.append(HttpChannel(self._pool))
        return Person(steps, messages, self._channels[-1], self._around)

    async def prepare(self) -> None:
        """Opens everybody's WebSocket and first image; raises the error of one that cannot be opened."""
        turns = asyncio.Semaphore(_FIRST_IMAGES_AT_A_TIME)

        async def sit_down(person: Person, channel: HoverChannel) -> None:
            async with turns:
                if isinstance(channel, SocketChannel):
                    _raise(await channel.open(), self._job.site)
                await _first_image(person, self._job.site)

        arriving = asyncio.gather(*map(sit_down, self._people, self._channels))
        try:
            await asyncio.wait_for(arriving, self._job.prepare_seconds)
        except asyncio.TimeoutError:
            raise InvalidInput(
                f"the first images of {len(self._people)} users took over {self._job.prepare_seconds:.0f} s: "
                "give fewer --users"
            ) from None

    async def run(self, begin: float) -> dict[str, Any]:
        """Everybody works from ``begin`` on, in seconds of the monotonic clock; returns the result."""
        loop = asyncio.get_running_loop()  # its clock is the monotonic one
        job, start = self._job, begin + self._job.ramp
        stop = start + job.seconds
        self._around.counts = (start, stop)
        cpu: list[float] = []
        for moment in (start, stop):
            loop.call_at(moment, lambda: cpu.append(time.process_time()))
        for person in self._people:
            person.begin(begin)
        await self._until(stop)
        while len(cpu) < 2 or (loop.time() < stop + job.drain_seconds and not self._is_done):
            await self._until(loop.time() + _POLL_SECONDS)
        for person in self._people:
            person.give_up()
        return {"tally": self._around.tally.as_json(), "cpu_seconds": cpu[1] - cpu[0], "seconds": job.seconds}

    @property
    def _is_done(self) -> bool:
        return all(person.is_done for person in self._people)

    async def _until(self, moment: float) -> None:
        """Waits; raises ServerUnreachable as soon as the server is gone."""
        left = max(0.0, moment - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait([self.watch.gone], timeout=left)
        for future in done:
            future.result()

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
        await self._pool.close()


async def _first_image(person: Person, site: Site) -> None:
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(outcome: Outcome) -> None:
        if opened.done() or outcome.kind in _PASSING:
            return
        try:
            _raise(outcome, site)
        except TritonSamError as error:
            opened.set_exception(error)
        else:
            opened.set_result(None)

    person.on_image = tell
    try:
        person.sit_down()
        await opened
    finally:
        person.on_image = None


def _raise(outcome: Outcome, site: Site) -> None:
    if outcome.kind == UNREACHABLE:
        raise ServerUnreachable(f"no server responds at {site.authority} ({outcome.message}): start one, or omit --url")
    if outcome.kind != ANSWERED:
        raise InvalidInput(f"the server at {site.authority} does not take the requests ({outcome.message})")


async def work(job: Job) -> None:
    """Prepares, waits for the command to begin, and reports."""
    place = Workplace(job)
    try:
        await place.prepare()
        _write({"ready": True})
        command = await asyncio.to_thread(sys.stdin.readline)
        if command:  # without one, the parent has ended
            gc.collect()
            gc.freeze()  # what was made before the run is not searched during it
            _write(await place.run(json.loads(command)["begin"]))
    except TritonSamError as error:
        _write({"failed": str(error), "kind": type(error).__name__})
    finally:
        place.watch.gone.cancel()
        await place.close()


def _write(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> None:
    line = sys.stdin.readline()
    if line:
        with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
            asyncio.run(work(Job.from_json(json.loads(line))))


if __name__ == "__main__":
    main()
