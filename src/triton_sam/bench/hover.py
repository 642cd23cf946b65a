"""Hovering: many sessions move the mouse faster than a server can decode; when is each last hover answered?"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.figures import Better, Figure
from triton_sam.bench.pictures import SIDE
from triton_sam.bench.results import Result
from triton_sam.bench.samples import Series
from triton_sam.bench.target import Target
from triton_sam.client.speculative import SpeculativeSAM2Client
from triton_sam.server.metrics_reader import resident_bytes, server_bytes, settled_counters

#: Until pools and arenas have their final size: onnxruntime keeps memory for each number of prompts it has seen.
_WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class HoverLoad:
    """How much to hover: ``hovers`` per session, ``rate`` of them a second, on an image of ``size`` (width, height)."""

    sessions: int = 20
    hovers: int = 100
    rate: float = 60.0
    size: tuple[int, int] = (SIDE, SIDE)


@dataclass(frozen=True, slots=True)
class HoverOutcome:
    """The outcome of one round of hovers.

    Attributes:
        last_seconds: seconds from the last hover to its mask, for each session whose last hover was answered.
        answered: hovers that got a mask.
        pending: hovers that had not ended at the end of the round.
    """

    requested: int
    answered: int
    pending: int
    last_seconds: list[float]


async def hover(client: SpeculativeSAM2Client, load: HoverLoad) -> HoverOutcome:
    """Runs all sessions at once, each a mouse on its own circle; returns when every last hover is answered."""
    tasks: list[asyncio.Task[bool]] = []

    async def one(x: float, y: float, session: str) -> bool:
        return await client.predict_async([[x, y]], [1], session) is not None

    async def mouse(number: int) -> float | None:
        session = f"mouse {number}"
        client.configure_session(session, latest_wins=True)
        begin = (
            time.perf_counter() + number / load.sessions / load.rate
        )  # so that the mice do not move at the same moments
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
    await asyncio.wait(tasks, timeout=5.0)  # a superseded hover ends with the one that superseded it
    done = [task for task in tasks if task.done()]
    answered = sum(task.result() for task in done)
    return HoverOutcome(len(tasks), answered, len(tasks) - len(done), [spent for spent in last if spent is not None])


def _on_circle(angle: float) -> tuple[float, float]:
    return math.cos(angle), math.sin(angle)


def measure_hover(target: Target, load: HoverLoad, protocols: Sequence[str]) -> Result:
    """Warm-up rounds and one that counts. "Executed" means decoded, according to the server's counters."""
    target.started_server("hovering")
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
    title = f"The last hover of each of {load.sessions} pointers, {load.rate:g} moves a second each: {target.spec.id}"
    result.charts.append(Chart("hover", title, [panel]))
    return result


async def _rounds(target: Target, load: HoverLoad, protocol: str) -> tuple[HoverOutcome, dict[str, float]]:
    """The round that counts, and the growth of the server's counters and of both processes' memory in it."""
    running = target.started_server("hovering")

    def readings() -> dict[str, float]:
        memory = {"server": server_bytes(running.supervisor.process), "client": resident_bytes(os.getpid())}
        return settled_counters(running.urls["metrics"], target.name) | memory

    client = SpeculativeSAM2Client(target.urls[protocol], target.name)
    try:
        client.set_image(target.pictures.jpeg())
        await client.image_ready()
        for _ in range(_WARM_UP_ROUNDS):
            await hover(client, load)
        before = readings()
        outcome = await hover(client, load)
        after = readings()
        return outcome, {name: after[name] - before[name] for name in after}
    finally:
        await client.aclose()


def _report(result: Result, load: HoverLoad, protocol: str, outcome: HoverOutcome, grown: dict[str, float]) -> None:
    detail = f"{load.sessions} sessions x {load.hovers} hovers, {load.rate:g} a second each, {protocol}"
    executed = grown["decodes_total"]
    share, counts = executed / outcome.requested, f"{executed:.0f} of {outcome.requested}: {detail}"
    unanswered = load.sessions - len(outcome.last_seconds)
    result.figures += [
        Figure(f"executed / requested, {protocol}", share, "", None, counts),
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
