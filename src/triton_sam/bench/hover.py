"""Moving mice: many sessions that hover faster than any server can decode, and what becomes of their last hover."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Better, Figure
from triton_sam.bench.observe import counters, own_bytes, server_bytes
from triton_sam.bench.pictures import SIDE
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Series
from triton_sam.bench.target import Target
from triton_sam.client.speculative import SpeculativeSAM2Client

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


def measure_hover(target: Target, load: Load, protocols: Sequence[str]) -> Result:
    """Rounds to warm up and an equal one that counts; executed means decoded by the server, by its own counters."""
    target.own("hovering")
    result = target.result("hover")
    for protocol in protocols:
        outcome, grown = asyncio.run(_rounds(target, load, protocol))
        _report(result, load, protocol, outcome, grown)
    panel = Panel(
        "share of the sessions, %",
        "time from the last move to its mask, ms",
        [
            Curve(series.name, sorted(series.values), list(np.linspace(0, 100, len(series.values) + 1)[1:]))
            for series in result.series
        ],
    )
    title = f"The last hover of each of {load.sessions} mice, {load.rate:g} moves a second each: {target.spec.id}"
    result.charts.append(Chart("hover", title, [panel]))
    return result


async def _rounds(target: Target, load: Load, protocol: str) -> tuple[Outcome, dict[str, float]]:
    """The round that counts, and by how much the server's counters and the memory of both sides grew in it."""
    running = target.own("hovering")

    def look() -> dict[str, float]:
        return counters(running, target.name) | {"server": server_bytes(running), "client": own_bytes()}

    client = SpeculativeSAM2Client(target.urls[protocol], target.name)
    try:
        client.set_image(target.pictures.jpeg())
        await client.image_ready()
        for _ in range(_WARM_UP_ROUNDS):
            await hover(client, load)
        before = look()
        outcome = await hover(client, load)
        after = look()
        return outcome, {name: after[name] - before[name] for name in after}
    finally:
        await client.aclose()


def _report(result: Result, load: Load, protocol: str, outcome: Outcome, grown: dict[str, float]) -> None:
    detail = f"{load.sessions} sessions x {load.hovers} hovers, {load.rate:g} a second each, {protocol}"
    executed = grown["decodes_total"]
    share, said = executed / outcome.requested, f"{executed:.0f} of {outcome.requested}: {detail}"
    unanswered = load.sessions - len(outcome.last_seconds)
    result.figures += [
        Figure(f"executed / requested, {protocol}", share, "", None, said),
        Figure(f"last hovers without an answer, {protocol}", unanswered, "", 0, f"of {load.sessions} sessions"),
    ]
    if outcome.last_seconds:
        last = Series(protocol, "ms", (tuple(spent * 1e3 for spent in outcome.last_seconds),))
        result.series.append(last)
        for percent in (50, 95):
            name, value = f"last hover p{percent}, {protocol}", last.percentile(percent)
            better: Better | None = "lower" if percent == 50 else None
            result.figures.append(Figure(name, value, "ms", None, "from the move to the mask", better=better))
    result.figures.append(Figure(f"tasks left pending, {protocol}", outcome.pending, "", 0, f"of {outcome.requested}"))
    warm = f"after {_WARM_UP_ROUNDS} warm-up rounds"
    for side in ("server", "client"):
        result.figures.append(Figure(f"memory growth of the {side}, {protocol}", grown[side] / 1e6, "MB", 50.0, warm))
