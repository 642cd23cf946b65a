"""The shape of the server under test: how many processes a model has, and where it computes."""

from __future__ import annotations

from dataclasses import dataclass

from tests.server_readings import workers_of
from triton_sam.server.in_flight import requests_in_flight
from triton_sam.serving import RunningServer
from triton_sam.settings import get_settings


@dataclass(frozen=True)
class Shape:
    """What a fault can hit.

    Attributes:
        processes: Triton processes of the model ``sam2``.
        workers: its devices, each with a worker process that has the images; 0 if they are in Triton's one process.
    """

    processes: int
    workers: int

    @classmethod
    def of(cls, running: RunningServer) -> Shape:
        """The shape of a server; fails if the settings want another one."""
        shape = cls(len(stubs_of(running)), len(set(workers_of(running).values())))
        settings = get_settings()
        assert shape.processes == (settings.processes or shape.processes)
        devices = [device for device in settings.devices.split(",") if device]
        assert shape.workers == (len(devices) if shape.processes > 1 or len(devices) > 1 else 0)
        return shape

    @property
    def keeps_images(self) -> bool:
        """Whether the images outlive a Triton process."""
        return self.workers > 0


def stubs_of(running: RunningServer, model: str = "sam2") -> list[int]:
    """The Triton processes of a model."""
    return [pid for pid, name in running.supervisor.process.model_pids.items() if name == model]


def busiest_stub(running: RunningServer) -> tuple[int, int]:
    """The Triton process with the most requests, and their number."""
    folder = running.supervisor.process.in_flight_folder
    held = {pid: requests_in_flight(folder, "sam2", pid) or 0 for pid in stubs_of(running)}
    pid = max(held, key=lambda pid: held[pid])
    return pid, held[pid]
