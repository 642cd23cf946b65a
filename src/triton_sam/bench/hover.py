"""Moving mice: many sessions that hover faster than any server can decode, and what becomes of their last hover."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triton_sam.bench.figures import Figure
from triton_sam.bench.measure import SIDE, model_name, photograph
from triton_sam.bench.observe import counters, own_bytes, server_bytes
from triton_sam.serving import Running
from triton_sam.speculative import SpeculativeSAM2Client

#: Pools and arenas have grown to their size then: onnxruntime keeps memory for each number of prompts it has seen.
_WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Load:
    """How much is hovered: ``hovers`` per session, ``rate`` of them a second, on an image of ``size``."""

    sessions: int = 20
    hovers: int = 100
    rate: float = 60.0
    size: tuple[int, int] = (SIDE, SIDE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the hovers of one round came to.

    Attributes:
        last_seconds: for each session whose last hover was answered, how long that took.
        answered: hovers that got a mask; pending: those without any answer at the end.
    """

    requested: int
    answered: int
    pending: int
    last_seconds: list[float]


async def hover(client: SpeculativeSAM2Client, load: Load) -> Outcome:
    """All sessions at once, each a mouse on a path of its own; returns when every last hover has its answer."""
    tasks: list[asyncio.Task[bool]] = []

    async def one(x: float, y: float, session: str) -> bool:
        return await client.predict_async([[x, y]], [1], session) is not None

    async def mouse(number: int) -> float | None:
        session = f"mouse {number}"
        client.configure_session(session, latest_wins=True)
        begin = time.perf_counter() + number / load.sessions / load.rate  # mice are not in step
        for step in range(load.hovers):
            await asyncio.sleep(max(0.0, begin + step / load.rate - time.perf_counter()))
            angle = 2 * math.pi * (step / load.hovers + number / load.sessions)
            radius = 0.15 + 0.3 * number / load.sessions
            x, y = (side * (0.5 + radius * turn) for side, turn in zip(load.size, _on_circle(angle), strict=True))
            started = time.perf_counter()
            newest = asyncio.create_task(one(x, y, session))
            tasks.append(newest)
        return time.perf_counter() - started if await newest else None

    last = await asyncio.gather(*(mouse(number) for number in range(load.sessions)))
    await asyncio.wait(tasks, timeout=5.0)  # superseded ones end with the hover that superseded them
    done = [task for task in tasks if task.done()]
    answered = sum(task.result() for task in done)
    return Outcome(len(tasks), answered, len(tasks) - len(done), [spent for spent in last if spent is not None])


def _on_circle(angle: float) -> tuple[float, float]:
    return math.cos(angle), math.sin(angle)


def measure_hover(running: Running, sample: Path, load: Load, protocol: str) -> Iterator[Figure]:
    """Rounds to warm up and an equal one that counts; executed means decoded by the server, by its own counters."""
    model = model_name(running)

    async def rounds() -> tuple[Outcome, dict[str, float]]:
        client = SpeculativeSAM2Client(running.urls[protocol], model)
        try:
            client.set_image(photograph(sample))
            await client.image_ready()
            for _ in range(_WARM_UP_ROUNDS):
                await hover(client, load)
            before = counters(running, model) | {"server": server_bytes(running), "client": own_bytes()}
            outcome = await hover(client, load)
            after = counters(running, model) | {"server": server_bytes(running), "client": own_bytes()}
            return outcome, {name: after[name] - before[name] for name in after}
        finally:
            await client.aclose()

    outcome, grown = asyncio.run(rounds())
    detail = f"{load.sessions} sessions x {load.hovers} hovers, {load.rate:g} a second each, {protocol}"
    executed = grown["decodes_total"]
    yield Figure(
        f"executed / requested, {protocol}",
        executed / outcome.requested,
        "",
        None,
        f"{executed:.0f} of {outcome.requested}: {detail}",
    )
    unanswered = load.sessions - len(outcome.last_seconds)
    yield Figure(f"last hovers without an answer, {protocol}", unanswered, "", 0, f"of {load.sessions} sessions")
    if outcome.last_seconds:
        for percent in (50, 95):
            value = float(np.percentile(outcome.last_seconds, percent)) * 1e3
            yield Figure(f"last hover p{percent}, {protocol}", value, "ms", None, "from the move to the mask")
    yield Figure(f"tasks left pending, {protocol}", outcome.pending, "", 0, f"of {outcome.requested}")
    warm = f"after {_WARM_UP_ROUNDS} warm-up rounds"
    for side in ("server", "client"):
        yield Figure(f"memory growth of the {side}, {protocol}", grown[side] / 1e6, "MB", 50.0, warm)
