"""The folder in which a process of the service keeps its videos, and how many bytes they may have."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from triton_sam.errors import QueueFull
from triton_sam.scratch import scratch_folder
from triton_sam.service.admission.capacity import LocalTally, Tally

_PREFIX = "triton-sam-videos-"
_BYTES = "video bytes"
_MIB = 1024 * 1024
#: Of what is free when the service starts.
_SHARE_OF_DISK = 0.9


class DiskBudget:
    """Bytes of all videos, over all processes of the service. Belongs to the event loop."""

    def __init__(self, most: int, tally: Tally | None = None) -> None:
        self._most = most
        self._tally: Tally = tally or LocalTally()
        self._of_callers: Counter[str] = Counter()

    @property
    def used(self) -> int:
        """By all processes."""
        return self._tally.total(_BYTES)

    def cap(self, free: int) -> None:
        """Leaves some of the disk's free bytes to others."""
        self._most = min(self._most, self.used + int(_SHARE_OF_DISK * free))

    def take(self, caller: str, nbytes: int) -> None:
        """Adds bytes (negative: gives back). QueueFull if there is no room for them, and none are added then."""
        used = self._tally.add(_BYTES, nbytes)
        self._of_callers[caller] += nbytes
        if nbytes > 0:
            # Half of it for one: nobody alone can keep others out.
            if used > self._most or self._of_callers[caller] > self._most // 2:
                self.take(caller, -nbytes)
                raise QueueFull(
                    f"there is no room for more videos ({used // _MIB:,} of {self._most // _MIB:,} MiB): delete one "
                    "that you do not need any more, or try again later"
                )
        elif not self._of_callers[caller]:
            del self._of_callers[caller]


class VideoFolder:
    """The files of one video, and what of the budget they have. Removed as a whole."""

    def __init__(self, path: Path, budget: DiskBudget, caller: str) -> None:
        self.path = path
        self._budget, self._caller = budget, caller
        self._counted: dict[str, int] = {}
        path.mkdir(mode=0o700)

    @property
    def bytes(self) -> int:
        return sum(self._counted.values())

    def count(self, name: str, nbytes: int) -> None:
        """Tells how large a file is now; QueueFull if there is no room for its growth."""
        self._budget.take(self._caller, nbytes - self._counted.get(name, 0))
        self._counted[name] = nbytes
        if not nbytes:
            del self._counted[name]

    def unlink(self, name: str) -> None:
        """Removes a file, if it is there."""
        with contextlib.suppress(OSError):
            (self.path / name).unlink(missing_ok=True)
        self.count(name, 0)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        for name in list(self._counted):
            self.count(name, 0)


class Spool:
    """A folder of this process alone. What a killed process has left is removed when the next one starts."""

    def __init__(self, folder: Path, budget: DiskBudget) -> None:
        self._folder, self._budget = folder, budget

    def new(self, caller: str) -> VideoFolder:
        """A folder for a video of this caller."""
        return VideoFolder(self._folder / uuid.uuid4().hex, self._budget, caller)


@contextlib.contextmanager
def opened_spool(budget: DiskBudget) -> Iterator[Spool]:
    """The spool for the duration of the block."""
    with scratch_folder(_PREFIX) as folder:
        folder.chmod(0o700)
        budget.cap(shutil.disk_usage(folder).free)
        yield Spool(folder, budget)
