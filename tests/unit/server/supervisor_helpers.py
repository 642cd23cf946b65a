"""A server without processes, for the tests of the supervisor."""

from __future__ import annotations

import queue
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

from triton_sam.repository.model_folders import ModelState
from triton_sam.server.command import ServerOptions
from triton_sam.server.in_flight import counter_file
from triton_sam.server.pings import PingPolicy

WAIT = 20.0
MODEL_PID = 4711
#: No ping in the time that a test takes.
NO_PINGS = PingPolicy(every=1000.0, first=1000.0)


class FakeProcess:
    """A server process that exists only here."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.alive = True
        self.process = SimpleNamespace(returncode=-9)
        self.model_pids = {MODEL_PID + number: "sam2", 100_000 + number: "other"}
        self.retiring: dict[int, str] = {}
        self.in_flight_folder = folder
        self.log_path = folder / "triton.log"
        self.steps: list[str] = []
        self.not_ready: BaseException | None = None
        self.load_error: BaseException | None = None
        self.pins: dict[str, ModelState] = {}
        self.failed: dict[str, str] = {}

    def versions(self) -> dict[str, str]:
        return {"sam2": "1", "other": "1", "not served": "1"}

    def forget_retired(self, pids: Iterable[int]) -> None:
        self.retiring = {pid: name for pid, name in self.retiring.items() if pid not in set(pids)}

    def wait_ready(self, should_stop: Callable[[], bool]) -> None:
        assert not should_stop()
        if self.not_ready is not None:
            raise self.not_ready
        self.steps.append("ready")

    def unload(self, model: str) -> None:
        self.steps.append(f"unload {model}")
        self.retiring |= {pid: name for pid, name in self.model_pids.items() if name == model}
        self.model_pids = {pid: name for pid, name in self.model_pids.items() if name != model}

    def load(self, model: str, pinned: ModelState | None = None) -> None:
        if self.load_error is not None:
            raise self.load_error
        self.steps.append(f"load {model}" + (f" version {pinned.version}" if pinned else ""))
        self.model_pids[200_000 + len(self.steps)] = model

    def stop(self, *, drain: bool = True) -> None:
        self.alive = False
        self.steps.append("drain" if drain else "kill")


class FakeServers:
    """All processes that a supervisor has started; ``on_start`` may change one before it begins."""

    def __init__(self, folder: Path) -> None:
        self.processes: list[FakeProcess] = []
        self.dead: set[int] = set()
        self.zombies: set[int] = set()
        self.on_start: Callable[[FakeProcess], None] = lambda _: None
        self.recovered: queue.Queue[dict[str, object]] = queue.Queue()
        self._folder = folder

    def start(self, _options: ServerOptions, pins: dict[str, ModelState]) -> FakeProcess:
        started = FakeProcess(len(self.processes), self._folder)
        started.pins = pins
        self.processes.append(started)
        self.on_start(started)
        return started

    def hold_requests(self, model: str, count: int, pid: int | None = None) -> None:
        """Lets the model's process in the first server hold requests, or the process ``pid``."""
        pid = pid or {"sam2": MODEL_PID, "other": 100_000}[model]
        counter_file(self._folder, model, pid).write_bytes(struct.pack("<q", count))


def status_of(**changes: object) -> dict[str, object]:
    """The status of a server that serves."""
    quiet = {"state": "ready", "restarts": 0, "reloads": 0, "reason": "", "lost": ()}
    return {**quiet, "versions": {"sam2": "1", "other": "1"}, "problems": {}, "missing": (), "devices": {}, **changes}
