"""Several devices, acted out: two workers on CPUs, each told that it is a device of its own.

Under load one of them is killed again and again, or hangs: everybody is answered, and nothing is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.annotators import Annotators, Seen
from tests.faults.figures import record
from tests.faults.helpers import expect_ended, open_files, processes_of, status_field, zombies_of
from tests.server_readings import work_by_device, workers_of
from tests.waiting import eventually
from triton_sam.models.specs import ModelSpec
from triton_sam.server.host import SHARED_MEMORY, process_alive
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

SECONDS = float(os.environ.get("TRITON_SAM_TEST_KILL_SECONDS", "120"))
pytestmark = [pytest.mark.triton, pytest.mark.part("devices"), pytest.mark.timeout(SECONDS + 900)]
PROCESSES = 3
DEVICES = ("cpu", "cpu")
ANNOTATORS = 6
KILL_EVERY = 5.0
#: Generous: a worker loads within seconds, and a machine may be busy with other things.
BACK_WITHIN = 120.0
GROWTH_MB, FILES_MORE, THREADS_MORE = 60, 12, 6
#: Embeddings that a device keeps, so that its cache is soon full.
CACHED = 8
EMBEDDING = 17_000_000


@pytest.fixture
def running(repository: Path, spec: ModelSpec, tmp_path: Path) -> Iterator[RunningServer]:
    """Three Triton processes and two workers; at its end nothing of them is left."""
    environment = {
        "TRITON_SAM_PROCESSES": str(PROCESSES),
        "TRITON_SAM_DEVICES": ",".join(DEVICES),
        "TRITON_SAM_THREADS": "1",
        "TRITON_SAM_CACHE_BYTES": str(CACHED * EMBEDDING),
    }
    options = ServingOptions(
        repository,
        {"sam2": spec},
        Settings(home=tmp_path),
        ports=Ports(0, 0, 0, 0),
        with_service=False,
        environment=environment,
    )
    with serving(options) as running:
        regions = f"{running.supervisor.process.shm_prefix}*"
        yield running
        everything = processes_of(running)
        assert len(set(everything)) >= 1 + PROCESSES + len(DEVICES)
    expect_ended(everything)
    assert not list(SHARED_MEMORY.glob(regions))


def states(running: RunningServer) -> list[str]:
    """The state of each device, as one of the Triton processes sees it."""
    body = {"inputs": [], "outputs": [{"name": "result_json"}], "parameters": {"ping": True}}
    reply = running.supervisor.process.post("/v2/models/sam2/infer", body, timeout=120)
    return [device["state"] for device in json.loads(reply["outputs"][0]["data"][0])["devices"]]


def until_both_serve(running: RunningServer, device: int, killed: set[int]) -> float:
    """Waits until the device has a new worker and all Triton processes use both devices; the time of that."""
    steady, since = 0, 0.0

    def serve() -> bool:
        nonlocal steady, since
        is_back = any(index == device and pid not in killed for pid, index in workers_of(running).items())
        asked = time.monotonic()
        if is_back and states(running) == ["ready"] * len(DEVICES):
            since = asked if steady == 0 else since
            steady += 1
        else:
            steady = 0
        return steady == 2 * PROCESSES  # each process has answered

    eventually(serve, "both devices", patience=BACK_WITHIN)
    return since


@dataclass
class Sizes:
    """Memory (MB), open files and threads of processes that live through all kills; the memory of the workers."""

    memory: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def look(self, running: RunningServer) -> None:
        """Takes a sample."""
        process = running.supervisor.process
        pids = [process.process.pid, *process.model_pids]
        workers = list(workers_of(running))
        self.memory.append(sum(map(_megabytes, pids)))
        self.files.append(sum(map(open_files, pids)))
        self.threads.append(sum(status_field(pid, "Threads") for pid in pids))
        self.workers.append(sum(map(_megabytes, workers)) / len(workers))

    @staticmethod
    def growth(samples: list[float] | list[int]) -> float:
        """After the warm-up, between the medians of the first third and of the last."""
        warm = samples[len(samples) // 4 :]
        third = max(1, len(warm) // 3)
        return statistics.median(warm[-third:]) - statistics.median(warm[:third])


def _megabytes(pid: int) -> float:
    """What is only in memory: anonymous and shared, without mapped files."""
    return (status_field(pid, "RssAnon") + status_field(pid, "RssShmem")) / 1024


@dataclass
class Kills:
    """A worker is killed every few seconds, the devices in turn; not before both serve again and give right answers."""

    running: RunningServer
    seen: Seen
    back: list[float] = field(default_factory=list)
    """Seconds until both devices served again."""
    sizes: Sizes = field(default_factory=Sizes)
    seconds: float = 0.0

    def go_on(self, seconds: float) -> None:
        """Kills until the time is up; returns when both devices serve."""
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            device, killed, right = len(self.back) % len(DEVICES), time.monotonic(), self.seen.answers["right"]
            victims = {pid for pid, index in workers_of(self.running).items() if index == device}
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            self.back.append(until_both_serve(self.running, device, victims) - killed)
            eventually(lambda right=right: self.seen.answers["right"] >= right + ANNOTATORS, "right masks")  # type: ignore[misc]
            self.sizes.look(self.running)
            time.sleep(max(0.0, killed + KILL_EVERY - time.monotonic()))  # the rhythm of the kills
        self.seconds = time.monotonic() - begun


def share(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """What each device has done in between."""
    return {device: round(after[device] - before.get(device, 0.0)) for device in sorted(after)}


def test_a_worker_killed_every_few_seconds(running: RunningServer) -> None:
    process = running.supervisor.process
    triton, stubs = process.process.pid, set(process.model_pids)
    before = {kind: work_by_device(running, kind) for kind in ("encodes", "decodes")}
    with Annotators(running, ANNOTATORS) as annotators:
        seen = annotators.seen
        eventually(lambda: seen.answers["right"] >= ANNOTATORS, "right masks")
        kills = Kills(running, seen)
        kills.go_on(SECONDS)
    sizes = kills.sizes
    shares = {kind: share(before[kind], work_by_device(running, kind)) for kind in before}
    eventually(lambda: zombies_of(triton) == [], "the end of zombies")
    bar = f"<= {BACK_WITHIN:g}"
    figures: dict[str, tuple[object, str]] = {
        "kills": (len(kills.back), ""),
        "seconds between kills": (round(kills.seconds / len(kills.back), 1), ""),
        "answers": (dict(seen.answers), ""),
        "wrong, unclear or missing answers": (sum(seen.faults.values()), "0"),
        "slowest answer, s": (round(seen.slowest, 2), ""),
        "images encoded by each device": (shares["encodes"], ""),
        "prompts decoded by each device": (shares["decodes"], ""),
        "the whole server's start, s": (round(running.ready_seconds, 1), ""),
        "both devices again, s (median)": (round(statistics.median(kills.back), 2), ""),
        "both devices again, s (worst)": (round(max(kills.back), 2), bar),
        "growth of Triton's processes, MB": (round(sizes.growth(sizes.memory), 1), f"<= {GROWTH_MB}"),
        "a worker's memory, MB: first and last": (f"{sizes.workers[0]:.0f}, {sizes.workers[-1]:.0f}", ""),
        "more files, more threads": (
            f"{sizes.growth(sizes.files):g}, {sizes.growth(sizes.threads):g}",
            f"<= {FILES_MORE}, {THREADS_MORE}",
        ),
        "restarts of Triton": (running.supervisor.status["restarts"], "0"),
    }
    fault = f"kill -9 of one of two workers every {KILL_EVERY:g} s for {SECONDS:g} s, under load"
    record("devices-kills", fault, figures)
    print("\n".join(f"{what}: {value} {bar}" for what, (value, bar) in figures.items()))  # noqa: T201
    assert not seen.faults, seen.faults
    assert seen.answers["told"] > 0
    assert len(kills.back) >= 3, "enough to compare the beginning with the end"
    assert all(min(each.values()) > 0 for each in shares.values()), "both devices have worked"
    assert (process.process.pid, set(process.model_pids)) == (triton, stubs), "Triton goes on as it was"
    assert running.supervisor.status["restarts"] == 0
    assert sizes.growth(sizes.memory) <= GROWTH_MB
    assert sizes.growth(sizes.workers) <= GROWTH_MB
    assert sizes.growth(sizes.files) <= FILES_MORE
    assert sizes.growth(sizes.threads) <= THREADS_MORE


def test_a_worker_that_hangs(running: RunningServer) -> None:
    """Its requests are told, the other device goes on, and another worker comes in its place, all without Triton's
    restart."""
    process = running.supervisor.process
    triton, stubs = process.process.pid, set(process.model_pids)
    victim = next(pid for pid, index in workers_of(running).items() if index == 1)
    with Annotators(running, ANNOTATORS) as annotators:
        answers = annotators.seen.answers
        eventually(lambda: answers["right"] >= 10 * ANNOTATORS, "some right masks")
        stopped = time.monotonic()
        os.kill(victim, signal.SIGSTOP)
        eventually(lambda: not process_alive(victim), "the end of the worker that hangs")
        noticed = time.monotonic() - stopped
        until_both_serve(running, 1, {victim})
        after = answers["right"]
        eventually(lambda: answers["right"] >= after + 10 * ANNOTATORS, "right masks again")
    seen = annotators.seen
    figures: dict[str, tuple[object, str]] = {
        "killed after, s": (round(noticed, 1), ""),
        "answers": (dict(seen.answers), ""),
        "wrong, unclear or missing answers": (sum(seen.faults.values()), "0"),
        "slowest answer, s": (round(seen.slowest, 1), ""),
        "restarts of Triton": (running.supervisor.status["restarts"], "0"),
    }
    record("devices-hang", "SIGSTOP of one of two workers, under load", figures)
    print("\n".join(f"{what}: {value} {bar}" for what, (value, bar) in figures.items()))  # noqa: T201
    assert not seen.faults, seen.faults
    assert (process.process.pid, set(process.model_pids)) == (triton, stubs), "Triton goes on as it was"
    assert running.supervisor.status["restarts"] == 0
