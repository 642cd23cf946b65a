"""Shares memory between the processes of vision-language models, through files in a folder.

Each loaded model has a file with its size and the time of its last use. A process holds a lock while it loads, so that
two never count the same memory as free. If its model does not fit, it asks the least recently used one to unload, and
waits for it.
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
        started: start time of its process, in kernel ticks; the pid alone may have been reused.
        used: time.monotonic() of its last request, a clock that all processes of a machine share; infinite while busy.
    """

    name: str
    pid: int
    started: int
    device: str
    nbytes: int
    used: float


class MemoryLedger:
    """A process's access to the folder, and its own entry in it."""

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
            budget: bytes that all models may use together; 0 means all free memory.
            evicts: whether other models are asked to unload if there is not enough memory.
            free: device -> free bytes.
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
        """Lets one process load at a time; others wait here."""
        with (self._folder / "lock").open("a") as handle:
            fcntl.flock(handle.fileno(), fcntl.LOCK_EX)
            yield

    def available(self, device: str) -> int:
        """Bytes that a model could use on a device, after evicting all others if that is allowed."""
        others = sum(other.nbytes for other in self.others() if other.device == device)
        gone = others if self._evicts else 0
        if self._budget:
            return self._budget - others + gone
        return self._free(device) + gone

    def make_room(self, device: str, nbytes: int, should_stop: Callable[[], bool] = lambda: False) -> list[str]:
        """Evicts models until there is enough memory, and returns their names. Call it within :meth:`loading`.

        Raises Unavailable, with the fix, if there is not enough memory.
        """
        left: list[str] = []
        if self._room(device) < nbytes and self.available(device) < nbytes:  # evict no model in vain
            raise Unavailable(self._refusal(device, nbytes, self._room(device)))
        while (room := self._room(device)) < nbytes:
            waiting = [other for other in self.others() if other.device == device and other.used != float("inf")]
            if not self._evicts or not waiting:
                raise Unavailable(self._refusal(device, nbytes, room))
            leaving = min(waiting, key=lambda other: other.used)
            self._ask_to_leave(leaving, should_stop)
            left.append(leaving.name)
        return left

    def arrive(self, device: str, nbytes: int) -> None:
        """Registers this process's model as loaded."""
        self._notice.unlink(missing_ok=True)
        self._resident = Resident(self._name, os.getpid(), _started(os.getpid()), device, nbytes, time.monotonic())
        self._write(self._resident.used)

    def touch(self, *, busy: bool) -> None:
        """Records a use. While it is ``busy`` it is not asked to unload."""
        self._write(float("inf") if busy else time.monotonic())

    def leave(self) -> None:
        """Removes this process's entry: its model is unloaded."""
        self._entry.unlink(missing_ok=True)
        self._notice.unlink(missing_ok=True)

    @property
    def asked_to_leave(self) -> bool:
        return self._notice.exists()

    def others(self) -> list[Resident]:
        """Models of other processes. Removes entries of dead processes."""
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

    def _ask_to_leave(self, resident: Resident, should_stop: Callable[[], bool]) -> None:
        notice = self._folder / f"{resident.name}.{resident.pid}.leave"
        notice.touch()
        deadline = time.monotonic() + _LEAVE_SECONDS
        while any(other.pid == resident.pid for other in self.others()):
            if should_stop() or time.monotonic() > deadline:
                notice.unlink(missing_ok=True)
                raise Unavailable(f"{resident.name} did not free the memory that {self._name} needs: try again later")
            time.sleep(_LOOK_SECONDS)

    def _refusal(self, device: str, nbytes: int, room: int) -> str:
        others = ", ".join(sorted(other.name for other in self.others())) or "no other model"
        fix = (
            "these models are busy, so try again in a moment"
            if self._evicts and self.others() and self.available(device) >= nbytes
            else "stop other programs, or serve it on a machine with more memory"
            if self._evicts or not self.others()
            else "set TRITON_SAM_VLM_WHEN_FULL=evict to unload the least recently used one"
        )
        return (
            f"{self._name} needs {nbytes / 1e6:,.0f} MB on {device} and {max(room, 0) / 1e6:,.0f} MB are free "
            f"(loaded: {others}): {fix}"
        )

    def _write(self, used: float) -> None:
        partial = self._entry.with_suffix(".part")
        partial.write_text(json.dumps({**asdict(self._resident), "used": used}))
        partial.replace(self._entry)


def _started(pid: int) -> int:
    """Start time of a process, in kernel ticks since boot; 0 if there is no such process."""
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
