"""The load-generating processes: starts them, gives the command to begin, and collects what they counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_sam import errors
from triton_sam.bench.pictures import Pictures, fresh_numbers, number_at
from triton_sam.bench.users.messages import Site
from triton_sam.bench.users.schedule import Behaviour
from triton_sam.bench.users.tally import Tally, merged
from triton_sam.bench.users.worker import SERVICE, Job
from triton_sam.errors import InternalError, TritonSamError

_SOURCES = Path(__file__).parents[3]
#: The process may have other paths than this one, for example without a PYTHONPATH that was set by hand.
_WORKER = "import sys; sys.path.append(sys.argv[1]); from triton_sam.bench.users.worker import main; main()"
#: From the command to the first step: enough for the slowest process to read the command.
_NOTICE_SECONDS = 0.3
_START_SECONDS, _SLACK_SECONDS = 60.0, 30.0
#: A process that is asked to end has so long before it is terminated.
_END_SECONDS = 1.0
#: One line holds all latencies of a process.
_LINE_BYTES = 2**28
_MOST_PROCESSES = 4
_CORES_PER_PROCESS = 4
#: Numbers of images for each process.
_EACH = 1_000_000


@dataclass(frozen=True, slots=True)
class UsersLoad:
    """How many people work, for how long, and how.

    Attributes:
        through: ``service`` (hover WebSocket) or ``triton`` (HTTP, sessions with latest_wins).
        processes: load-generating ones; None: one for every four cores, at most four.
        in_flight: the most hovers in flight of one person, as in SpeculativeSAM2Client; the web page has 1.
        most_p95: a bar on the newest hover's p95, in milliseconds.
        form: how Triton returns masks; the service sends run lengths instead of bits.
        ramp: seconds before, in which people work and nothing counts.
    """

    users: int = 100
    seconds: float = 30.0
    through: str = SERVICE
    processes: int | None = None
    in_flight: int = 3
    behaviour: Behaviour = field(default_factory=Behaviour)
    most_p95: float | None = None
    form: str = "bits"
    seed: int = 0
    ramp: float = 2.0

    @property
    def process_count(self) -> int:
        wanted = self.processes or min(_MOST_PROCESSES, max(1, len(os.sched_getaffinity(0)) // _CORES_PER_PROCESS))
        return min(wanted, self.users)

    @property
    def environment(self) -> dict[str, str]:
        """Settings of a server: everybody's image and the one before it must fit into the cache."""
        return {"TRITON_SAM_CACHE_BYTES": str(max(2**30, 2 * self.users * 40_000_000))}


@dataclass(frozen=True, slots=True)
class Generated:
    """What all processes counted; ``cpu``: of each, seconds of CPU time a second."""

    tally: Tally
    cpu: Sequence[float]


def let_work(load: UsersLoad, address: tuple[str, int], model: str, pictures: Pictures, token: str = "") -> Generated:
    """As :func:`generate`, for a model at an address. ``model``: the name that :func:`running.find_model` finds."""
    data = pictures.jpeg()
    at = number_at(data)
    site = Site(*address, model, data, at.start, at.stop - at.start, load.form, token)
    return generate(load, site, (pictures.width, pictures.height), next(fresh_numbers()))


def generate(load: UsersLoad, site: Site, size: tuple[int, int], first_number: int, **limits: float) -> Generated:
    """Lets everybody work; returns when the last answer is there, or raises the error that ended the run.

    Args:
        size: width and height of the image, in pixels.
        first_number: of the images; no other run may have used the numbers from there on.
        limits: other values of the time limits of :class:`Job`.
    """
    session = uuid.uuid4().hex[:12]  # other runs on the same server must have other sessions
    count = load.process_count
    jobs = [
        Job(
            site,
            size,
            load.through,
            list(range(number, load.users, count)),
            load.users,
            load.behaviour,
            load.seconds,
            load.ramp,
            load.in_flight,
            load.seed,
            session,
            first_number + number * _EACH,
            **limits,
        )
        for number in range(count)
    ]
    return asyncio.run(_run(jobs))


async def _run(jobs: Sequence[Job]) -> Generated:
    processes: list[asyncio.subprocess.Process] = []
    try:
        for job in jobs:
            processes.append(await _start())
            await _write(processes[-1], job.as_json())
        await _lines(processes, _START_SECONDS + job.prepare_seconds)
        begin = time.monotonic() + _NOTICE_SECONDS
        for process in processes:
            await _write(process, {"begin": begin})
        limit = _NOTICE_SECONDS + job.ramp + job.seconds + job.drain_seconds + _SLACK_SECONDS
        results = await _lines(processes, limit)
    finally:
        await asyncio.gather(*map(_stop, processes))
    tallies = [Tally.from_json(result["tally"]) for result in results]
    return Generated(merged(tallies), [result["cpu_seconds"] / result["seconds"] for result in results])


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _WORKER,
        str(_SOURCES),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
        start_new_session=True,  # Ctrl-C reaches this process only, which then ends the others
    )


async def _stop(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()  # the command to end, unless it is in the middle of a run
    try:
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _write(process: asyncio.subprocess.Process, document: dict[str, Any]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # its last line says why it ended
        process.stdin.write(json.dumps(document).encode() + b"\n")
        await process.stdin.drain()


async def _lines(processes: Sequence[asyncio.subprocess.Process], seconds: float) -> list[dict[str, Any]]:
    """The next line of every process; raises the first failure that one of them reports, without the others' lines."""
    reading = [asyncio.ensure_future(_line(process)) for process in processes]
    try:
        return list(await asyncio.wait_for(asyncio.gather(*reading), seconds))
    except asyncio.TimeoutError:
        raise InternalError(f"a load-generating process did not report within {seconds:.0f} s") from None
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise InternalError(f"a load-generating process ended with code {await process.wait()}")
    document: dict[str, Any] = json.loads(line)
    if "failed" in document:
        raise _error(document)
    return document


def _error(document: dict[str, Any]) -> TritonSamError:
    cls = getattr(errors, document["kind"], InternalError)
    error: TritonSamError = cls(document["failed"])
    return error
