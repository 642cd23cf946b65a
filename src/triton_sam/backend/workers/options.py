"""What a worker process is started with."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from triton_sam.backend.workers.channel import address_of
from triton_sam.engines.device_list import AUTO
from triton_sam.server.worker_processes import SPARE, WORKER_MODULE


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What a worker computes, as its command line has it.

    Attributes:
        server: pid of tritonserver.
        model: Triton name.
        model_id: of the catalogue.
        folder: of the version, with its graphs or weights.
        index: of the device among the model's devices.
        device: a GPU's number or UUID, ``cpu``, or ``auto`` for the engine's choice.
    """

    server: int
    model: str
    version: str
    model_id: str
    folder: str
    index: int
    device: str

    @property
    def address(self) -> str:
        """Of the worker's socket."""
        return address_of(self.server, self.model, self.version, self.index)

    @property
    def name(self) -> str:
        """For logs and messages: ``sam2 on GPU 0``."""
        return f"{self.model} on {self.device if self.device in ('cpu', AUTO) else f'GPU {self.device}'}"

    @property
    def command(self) -> list[str]:
        """The command line that starts it."""
        return [_python(), "-m", WORKER_MODULE, json.dumps(asdict(self))]

    @property
    def spare_command(self) -> list[str]:
        """The command line of a process that may become a worker of this model, on any of its devices."""
        known = {"server": self.server, "model_id": self.model_id}
        return [_python(), "-m", WORKER_MODULE, json.dumps(known), SPARE]


def _python() -> str:
    """The interpreter of this environment; inside Triton ``sys.executable`` may name another program."""
    own = Path(sys.executable or "")
    return str(own) if own.name.startswith("python") and own.exists() else shutil.which("python3") or "python3"
