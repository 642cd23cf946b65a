"""Helpers of the fault tests: the processes of a server, their files and memory, and its restarts."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.server_readings import workers_of
from tests.waiting import eventually
from triton_sam.server.host import SHARED_MEMORY, process_alive
from triton_sam.server.in_flight import requests_in_flight
from triton_sam.serving import RunningServer

#: On the spoon of the coffee.
POINT = [365, 290]
PATIENCE = 60.0


def stub_of(running: RunningServer, model: str = "sam2") -> int:
    return next(pid for pid, name in running.supervisor.process.model_pids.items() if name == model)


def held_by(running: RunningServer) -> int | None:
    return requests_in_flight(running.supervisor.process.in_flight_folder, "sam2")


def restarts_of(running: RunningServer) -> int:
    return int(str(running.supervisor.status["restarts"]))


def recoveries_of(running: RunningServer) -> tuple[object, object]:
    """(restarts, reloads) so far; the pair changes when the supervisor has completed a recovery."""
    status = running.supervisor.status
    return status["restarts"], status["reloads"]


def regions_of(running: RunningServer) -> set[str]:
    """Names of the shared memory regions of the current server process."""
    return {path.name for path in SHARED_MEMORY.glob(f"{running.supervisor.process.shm_prefix}*")}


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def status_field(pid: int, name: str) -> int:
    """A number of /proc's status: ``VmRSS`` in kB, ``Threads``."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])


# -- processes ---------------------------------------------------------------------------------------------------


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread of it has
                found += [int(child) for child in path.read_text().split()]
    return found


def family_of(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for member in found:  # grows during the iteration
        found += children_of(member)
    return found


def processes_of(running: RunningServer) -> list[int]:
    """tritonserver, the models' processes and their workers, which outlive the process that started them."""
    return [*family_of(running.supervisor.process.process.pid), *workers_of(running)]


def expect_ended(pids: list[int]) -> None:
    eventually(lambda: not any(map(process_alive, pids)), f"the end of the processes {pids}")


def marked_processes(mark: str) -> dict[int, str]:
    """Processes with ``NAME=value`` in their environment: pid -> what it runs, and for which test."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            environment = (folder / "environ").read_text(errors="replace").split("\0")
            if mark in environment and process_alive(int(folder.name)):
                test = next((entry for entry in environment if entry.startswith("PYTEST_CURRENT_TEST=")), "")
                command = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
                found[int(folder.name)] = f"{command[:120]} ({test.partition('=')[2]})"
    return found


def zombies_of(pid: int) -> list[int]:
    """Descendants that have ended and were not reaped."""
    found = []
    for child in children_of(pid):
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [child] if state == "Z" else zombies_of(child)
    return found
