"""Limits that are one for all processes of a service, in a small file that each of them maps into its memory.

Counts need no lock: each process writes only its own row, and a total is the sum of a column. A caller adds itself
first and withdraws if the total is too large, so a limit is never exceeded; at most, two processes that reach for the
last place at the same moment are both refused. A row of a process that was killed is cleared by the parent.

Rates need a lock, because all processes change the same number. It is a POSIX lock on the bytes of a few buckets, held
for some microseconds: other buckets do not wait for it, and the kernel releases it if its holder is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from triton_sam.service.rate_limits import Clock, Rate, check_wait

#: Paths with a limit of their own; a few more than there are.
_PARTS = 8
#: The counts of a process, in the order of their columns; "part 0" and so on belong to those paths.
COUNTS = (
    *("working", "arriving", "bytes", "sockets", "connections", "decoding"),
    *(f"part {index}" for index in range(_PARTS)),
    *("videos", "video bytes", "videos read", "videos exported"),
)
MAX_PROCESSES = 64
_COUNT = struct.calcsize("q")
_COUNTS_BYTES = MAX_PROCESSES * len(COUNTS) * _COUNT
#: The key of a bucket, and the time when it is full again.
_BUCKET = struct.Struct("=16sd")
_BUCKETS_OF_SET = 8
_SET_BYTES = _BUCKETS_OF_SET * _BUCKET.size
#: A thousand tokens are allowed: with eight places for each, no bucket of a token is pushed out.
_CALLER_SETS = 1024
_ADDRESS_SETS = 2048
_CALLERS_AT = _COUNTS_BYTES
_ADDRESSES_AT = _CALLERS_AT + _CALLER_SETS * _SET_BYTES
_FILE_BYTES = _ADDRESSES_AT + _ADDRESS_SETS * _SET_BYTES
#: Of a token: sums of floating-point times may be a little less than 1.
_ROUNDING = 1e-9


class SharedLimits:
    """The mapped file. Each process opens it once: closing any descriptor of it would release the process's locks."""

    def __init__(self, path: Path, processes: int) -> None:
        """Creates the file if it does not exist, with every count 0 and every bucket full.

        Args:
            processes: how many there are, at most MAX_PROCESSES.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.truncate(self._file, _FILE_BYTES)
        self._map = mmap.mmap(self._file, _FILE_BYTES)
        self._counts = memoryview(self._map)[: processes * len(COUNTS) * _COUNT].cast("q")

    def tally(self, row: int) -> SharedTally:
        """The counts of one process; each has its own row."""
        return SharedTally(self._counts, row)

    def caller_buckets(self, clock: Clock = time.monotonic) -> SharedBuckets:
        return SharedBuckets(self._file, self._map, _CALLERS_AT, _CALLER_SETS, clock)

    def address_buckets(self, clock: Clock = time.monotonic) -> SharedBuckets:
        """Separate from those of callers, so that a client with many addresses cannot push out a token's bucket."""
        return SharedBuckets(self._file, self._map, _ADDRESSES_AT, _ADDRESS_SETS, clock)

    def clear(self, row: int) -> None:
        """Forgets the counts of a process that has ended."""
        for column in range(len(COUNTS)):
            self._counts[row * len(COUNTS) + column] = 0

    def close(self) -> None:
        """Closes the file. The memory is unmapped with the last object that uses it."""
        os.close(self._file)


class SharedTally:
    """Counts of one process, and their totals over all of them. Belongs to the event loop."""

    def __init__(self, counts: memoryview, row: int) -> None:
        self._row = row
        self._columns = {name: counts[column :: len(COUNTS)] for column, name in enumerate(COUNTS)}

    def add(self, name: str, number: int) -> int:
        """Adds to a count of this process (negative: subtracts); returns the new total."""
        column = self._columns[name]
        column[self._row] += number
        return sum(column)

    def total(self, name: str) -> int:
        """The sum over all processes."""
        return sum(self._columns[name])


class SharedBuckets:
    """Token buckets for all processes. Belongs to the event loop.

    A bucket is one number, the time when it is full again: a bucket that fills up in ``t`` seconds lacks ``t`` times
    the rate. Names are spread over sets of eight; in a full set a new name replaces the bucket that is full first.
    """

    def __init__(self, file: int, mapped: mmap.mmap, start: int, sets: int, clock: Clock) -> None:
        self._file = file
        self._map = mapped
        self._start = start
        self._sets = sets
        self._clock = clock

    def take(self, name: str, rate: Rate) -> None:
        """Takes a token of this name's bucket; raises RateLimited if it is empty."""
        # With the rate: if it changes, the caller gets a new bucket.
        key = hashlib.blake2b(f"{rate.per_minute}/{rate.burst}/{name}".encode(), digest_size=16).digest()
        start = self._start + int.from_bytes(key[:8], "big") % self._sets * _SET_BYTES
        seconds_per_token = 60.0 / rate.per_minute
        with self._locked(start):
            now = self._clock()
            at, full_at = self._find(start, key)
            full_at = max(full_at, now)
            tokens = rate.burst - (full_at - now) / seconds_per_token
            if tokens >= 1.0 - _ROUNDING:
                self._map[at : at + _BUCKET.size] = _BUCKET.pack(key, full_at + seconds_per_token)
                return
        check_wait(rate, (1.0 - tokens) * seconds_per_token)

    def _find(self, start: int, key: bytes) -> tuple[int, float]:
        """(position, time when it is full) of a bucket; of the one to replace, and 0, if there is none yet."""
        oldest, oldest_full_at = start, float("inf")
        for at in range(start, start + _SET_BYTES, _BUCKET.size):
            found, full_at = _BUCKET.unpack_from(self._map, at)
            if found == key:
                return at, full_at
            if full_at < oldest_full_at:
                oldest, oldest_full_at = at, full_at
        return oldest, 0.0

    @contextlib.contextmanager
    def _locked(self, start: int) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX, _SET_BYTES, start)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, _SET_BYTES, start)
