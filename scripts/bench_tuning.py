"""Two settings against each other, in turns, for docs/tuning.md: `python scripts/bench_tuning.py docs/tuning.json`.

Two servers run at the same time and only one is asked, so that a machine that is slow for a minute is slow for both.
Clicks fall on one cached image, because only clicks on the same image are decoded together by an ONNX graph.
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
from triton_sam.bench.results import Result, write
from triton_sam.bench.target import Choice, Target, opened
from triton_sam.errors import TritonSamError

ROUNDS = 5
SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two values of one setting, compared with some clients at a time."""

    name: str
    first: str
    second: str
    clients: int


PAIRS = (
    Pair("CLICK_BATCH", "1", "8", 8),
    Pair("THREADS", "1", "2", 1),
)


def clicks_a_second(target: Target, clients: int) -> tuple[float, float]:
    """Clicks a second, and the 95th percentile of their latencies in milliseconds; no client waits."""
    image = target.pictures.jpeg(1)
    links = [target.client("HTTP") for _ in range(clients)]
    for client in links:
        client.set_image(image)
    latencies: list[float] = []
    begin = threading.Barrier(clients)

    def click(number: int) -> None:
        begin.wait()
        stop = time.perf_counter() + SECONDS
        x, y = target.pictures.point(number)
        while (asked := time.perf_counter()) < stop:
            links[number].segment([[x, y]], [1], format="bits")
            latencies.append((time.perf_counter() - asked) * 1e3)

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(click, range(clients)))
    seconds = time.perf_counter() - started
    for client in links:
        client.close()
    return len(latencies) / seconds, statistics.quantiles(latencies, n=20)[-1]


def compare(pair: Pair) -> Result:
    """Rates and latencies of both, and the ratio of rates, round by round."""
    rates: dict[str, list[float]] = {pair.first: [], pair.second: []}
    slow: dict[str, list[float]] = {pair.first: [], pair.second: []}
    with ExitStack() as stack:
        targets = {
            value: stack.enter_context(opened(Choice(), environment={f"TRITON_SAM_{pair.name}": value}))
            for value in rates
        }
        for target in targets.values():
            clicks_a_second(target, pair.clients)  # encodes the image, and settles
        for _ in range(ROUNDS):
            for value, target in targets.items():
                rate, latency = clicks_a_second(target, pair.clients)
                rates[value].append(rate)
                slow[value].append(latency)
        result = targets[pair.first].result("tuning")
    what = f"{pair.clients} client{'s' if pair.clients > 1 else ''}"
    result.figures += [
        Figure(
            f"{pair.name}={value}, {what}",
            statistics.median(rates[value]),
            "clicks/s",
            detail=f"p95 {statistics.median(slow[value]):.0f} ms; {min(rates[value]):.1f} to {max(rates[value]):.1f}",
        )
        for value in rates
    ]
    ratios = [second / first for first, second in zip(rates[pair.first], rates[pair.second], strict=True)]
    name = f"{pair.name}: {pair.second} / {pair.first}, {what}"
    spread = f"median of {ROUNDS} rounds in turns, {min(ratios):.2f} to {max(ratios):.2f}"
    result.figures.append(Figure(name, statistics.median(ratios), "x", detail=spread))
    return result


def main(output: Path) -> None:
    whole: Result | None = None
    for pair in PAIRS:
        result = compare(pair)
        for figure in result.figures:
            sys.stdout.write(f"{figure.name}: {figure.value:.3g} {figure.unit} ({figure.detail})\n")
        if whole is None:
            whole = result
            whole.command = "python scripts/bench_tuning.py docs/tuning.json"
        else:
            whole.figures += result.figures
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        whole.notes.append(f"load of the machine after {pair.name}: {load} over 1, 5 and 15 minutes")
        write(whole, output)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/bench_tuning.py FILE.json")
    try:
        main(Path(sys.argv[1]))
    except TritonSamError as error:
        sys.exit(f"error: {error}")
