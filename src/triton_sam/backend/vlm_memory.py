"""Who has which vision-language model in memory: the processes of one server agree through a folder.

Each loaded model has a file there with its size and when it was last used. A process that wants to load holds a lock
until it has loaded, so that two never count the same memory as free; where its model does not fit, it asks the one that
has not been used the longest to leave, and waits for that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from triton_sam.errors import Unavailable
from triton_sam.server.host import process_alive

_LEAVE_SECONDS = 60.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Resident:
    """A model in memory.

    Attributes:
        started: when its process did, in the kernel's ticks: a pid alone may be another process's by now.
        used: time.monotonic() of its last request, which all processes of a machine share; infinite while it answers.
    """

    name: str
    pid: int
    started: int
    device: str
    nbytes: int
    used: float


class MemoryLedger:
    """One process's view of the folder, and its own entry in it."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        budget: int,
        evicts: bool,
        free: Callable[[str], int],
    ) -> None:
        """
        Args:
            budget: bytes that all models may take together; 0 for what is free.
            evicts: whether others are asked to leave where there is no room.
            free: device -> free bytes there.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = name
        self._budget = budget
        self._evicts = evicts
        self._free = free
        self._entry = folder / f"{name}.{os.getpid()}.json"
        self._notice = folder / f"{name}.{os.getpid()}.leave"

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """One model at a time: whoever comes later waits here until the one before has loaded."""
        with (self._folder / "lock").open("a") as handle:
            fcntl.flock(handle.fileno(), fcntl.LOCK_EX)
            yield

    def available(self, device: str) -> int:
        """Bytes that a model could take on a device, were all others asked to leave where that is allowed."""
        others = sum(other.nbytes for other in self.others() if other.device == device)
        gone = others if self._evicts else 0
        if self._budget:
            return self._budget - others + gone
        return self._free(device) + gone

    def make_room(self, device: str, nbytes: int, shall_stop: Callable[[], bool] = lambda: False) -> list[str]:
        """Names of those who left; Unavailable with the mend where there is no room. Only while loading."""
        left: list[str] = []
        if self._room(device) < nbytes and self.available(device) < nbytes:  # nobody shall leave for nothing
            raise Unavailable(self._refusal(device, nbytes, self._room(device)))
        while (room := self._room(device)) < nbytes:
            waiting = [other for other in self.others() if other.device == device and other.used != float("inf")]
            if not self._evicts or not waiting:
                raise Unavailable(self._refusal(device, nbytes, room))
            leaving = min(waiting, key=lambda other: other.used)
            self._ask_to_leave(leaving, shall_stop)
            left.append(leaving.name)
        return left

    def arrive(self, device: str, nbytes: int) -> None:
        """This process has its model in memory."""
        self._notice.unlink(missing_ok=True)
        self._resident = Resident(self._name, os.getpid(), _started(os.getpid()), device, nbytes, time.monotonic())
        self._write(self._resident.used)

    def touch(self, *, busy: bool) -> None:
        """It is used now; ``busy`` while it answers and may not be asked to leave."""
        self._write(float("inf") if busy else time.monotonic())

    def leave(self) -> None:
        """It is gone."""
        self._entry.unlink(missing_ok=True)
        self._notice.unlink(missing_ok=True)

    @property
    def asked_to_leave(self) -> bool:
        return self._notice.exists()

    def others(self) -> list[Resident]:
        """Models in other processes; what a killed process left behind is cleared away."""
        found = []
        for path in self._folder.glob("*.json"):
            if path == self._entry:
                continue
            with contextlib.suppress(OSError, ValueError, TypeError):
                resident = Resident(**json.loads(path.read_text()))
                if process_alive(resident.pid) and _started(resident.pid) == resident.started:
                    found.append(resident)
                else:
                    path.unlink(missing_ok=True)
        return found

    def _room(self, device: str) -> int:
        if self._budget:
            return self._budget - sum(other.nbytes for other in self.others() if other.device == device)
        return self._free(device)

    def _ask_to_leave(self, resident: Resident, shall_stop: Callable[[], bool]) -> None:
        notice = self._folder / f"{resident.name}.{resident.pid}.leave"
        notice.touch()
        deadline = time.monotonic() + _LEAVE_SECONDS
        while any(other.pid == resident.pid for other in self.others()):
            if shall_stop() or time.monotonic() > deadline:
                notice.unlink(missing_ok=True)
                raise Unavailable(f"{resident.name} does not leave the memory that {self._name} needs: try again later")
            time.sleep(_LOOK_SECONDS)

    def _refusal(self, device: str, nbytes: int, room: int) -> str:
        others = ", ".join(sorted(other.name for other in self.others())) or "nothing of ours"
        mend = (
            "they answer just now, so try again in a moment"
            if self._evicts and self.others() and self.available(device) >= nbytes
            else "stop other programs, or serve it where there is more memory"
            if self._evicts or not self.others()
            else "set TRITON_SAM_VLM_WHEN_FULL=evict to let the least used one go"
        )
        return (
            f"{self._name} needs {nbytes / 1e6:,.0f} MB on {device} and {max(room, 0) / 1e6:,.0f} MB are free "
            f"(loaded: {others}): {mend}"
        )

    def _write(self, used: float) -> None:
        partial = self._entry.with_suffix(".part")
        partial.write_text(json.dumps({**asdict(self._resident), "used": used}))
        partial.replace(self._entry)


def _started(pid: int) -> int:
    """When a process started, in ticks since the machine did; 0 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def free_memory(device: str) -> int:
    """Free bytes of a GPU, or of the machine."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
