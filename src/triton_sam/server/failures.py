"""Detects failures of a running server: a dead tritonserver, dead model processes, unanswered pings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triton_sam.server.host import process_alive
from triton_sam.server.in_flight import requests_in_flight
from triton_sam.server.pings import Pinger
from triton_sam.server.process import TritonProcess


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed, and what recovers it."""

    reason: str
    reload: Mapping[int, str] | None = None
    """pid -> Triton name of processes that died idle, if a reload of their models is enough; None: a restart."""


def find_failure(process: TritonProcess, pinger: Pinger) -> Failure | None:
    """The present failure; None if all is well.

    Processes that ended after a newer version replaced them are no longer watched after this call.
    """
    if not process.alive:
        return Failure(f"tritonserver ended with code {process.process.returncode}")
    dead = dead_processes(process)
    folder = process.in_flight_folder
    ended = {pid: model for pid, model in process.retiring.items() if not process_alive(pid)}
    process.forget_retired(ended)
    # A process that a newer version replaces ends by itself, but only after it has answered everything.
    cut_off = {pid: model for pid, model in ended.items() if requests_in_flight(folder, model, pid)}
    if dead or cut_off:
        idle = not cut_off and all(requests_in_flight(folder, model, pid) == 0 for pid, model in dead.items())
        models = ", ".join(sorted({*dead.values(), *cut_off.values()}))
        state = "idle" if idle else "with requests in flight"
        return Failure(f"the process of {models} died {state}", dead if idle else None)
    if pinger.has_hung:
        return Failure(f"no answer to {pinger.missed} pings")
    return None


def dead_processes(process: TritonProcess) -> dict[int, str]:
    """pid -> Triton name of the model processes that have died."""
    return {pid: model for pid, model in process.model_pids.items() if not process_alive(pid)}
