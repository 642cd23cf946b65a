"""What do settings change? Two values of one against each other, in turns, for docs/guides/slow.md.

Two servers run at the same time and one is called at a time, so that a slow minute of the machine slows down both.
All clicks are on one cached image, because an ONNX graph batches only clicks on the same image.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result, command_line, write
from triton_sam.bench.target import Target, TargetOptions, open_target

ROUNDS = 5
SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class SettingPair:
    """Two values of one setting, compared with a number of concurrent clients."""

    name: str
    first: str
    second: str
    clients: int


PAIRS = (
    SettingPair("CLICK_BATCH", "1", "8", 8),
    SettingPair("THREADS", "1", "2", 1),
)


def clicks_a_second(target: Target, clients: int) -> tuple[float, float]:
    """Clicks a second, and the 95th percentile of their latencies in milliseconds; clients do not pause."""
    image = target.pictures.jpeg(1)
    connections = [target.client("HTTP") for _ in range(clients)]
    for client in connections:
        client.set_image(image)
    latencies: list[float] = []
    begin = threading.Barrier(clients)

    def click(number: int) -> None:
        begin.wait()
        stop = time.perf_counter() + SECONDS
        x, y = target.pictures.point(number)
        while (sent := time.perf_counter()) < stop:
            connections[number].segment([[x, y]], [1], format="bits")
            latencies.append((time.perf_counter() - sent) * 1e3)

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(click, range(clients)))
    seconds = time.perf_counter() - started
    for client in connections:
        client.close()
    return len(latencies) / seconds, statistics.quantiles(latencies, n=20)[-1]


def compare(pair: SettingPair) -> Result:
    """Rates and latencies of both values, and the ratio of the rates, round by round."""
    rates: dict[str, list[float]] = {pair.first: [], pair.second: []}
    p95: dict[str, list[float]] = {pair.first: [], pair.second: []}
    with ExitStack() as stack:
        targets = {
            value: stack.enter_context(open_target(TargetOptions(), environment={f"TRITON_SAM_{pair.name}": value}))
            for value in rates
        }
        for target in targets.values():
            clicks_a_second(target, pair.clients)  # encodes the image, and warms up
        for _ in range(ROUNDS):
            for value, target in targets.items():
                rate, latency = clicks_a_second(target, pair.clients)
                rates[value].append(rate)
                p95[value].append(latency)
        result = targets[pair.first].result("tuning")
    what = f"{pair.clients} client{'s' if pair.clients > 1 else ''}"
    result.figures += [
        Figure(
            f"{pair.name}={value}, {what}",
            statistics.median(rates[value]),
            "clicks/s",
            detail=f"p95 {statistics.median(p95[value]):.0f} ms; {min(rates[value]):.1f} to {max(rates[value]):.1f}",
        )
        for value in rates
    ]
    ratios = [second / first for first, second in zip(rates[pair.first], rates[pair.second], strict=True)]
    name = f"{pair.name}: {pair.second} / {pair.first}, {what}"
    spread = f"median of {ROUNDS} rounds in turns, {min(ratios):.2f} to {max(ratios):.2f}"
    result.figures.append(Figure(name, statistics.median(ratios), "x", detail=spread))
    return result


def run_tuning(output: Path) -> None:
    """Compares all pairs, and writes the result after each."""
    whole: Result | None = None
    for pair in PAIRS:
        result = compare(pair)
        for figure in result.figures:
            sys.stdout.write(f"{figure.name}: {figure.value:.3g} {figure.unit} ({figure.detail})\n")
        if whole is None:
            whole = result
            whole.command = command_line("python -m benchmarks")
        else:
            whole.figures += result.figures
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        whole.notes.append(f"load of the machine after {pair.name}: {load} over 1, 5 and 15 minutes")
        write(whole, output)
