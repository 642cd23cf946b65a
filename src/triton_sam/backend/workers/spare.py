"""A process that has imported what a worker needs, and waits: a lost worker is back sooner.

Importing torch takes seconds. A spare does that ahead, uses no device, and has one parent, a Triton process, which
tells it what it shall be: one line on its standard input, the worker's options. It ends when that input is closed,
however its parent ended, and when tritonserver has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.server.host import process_alive
from triton_sam.server.worker_processes import name_worker

_POLL_SECONDS = 0.5
_BACKLOG = 64


class SpareKeeper:
    """The spare of a Triton process, for all devices of its model; at most one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the spare; None if there is none."""
        child = self._child
        return None if child is None or child.poll() is not None else child.pid

    def keep(self, options: WorkerOptions) -> None:
        """Starts a spare if there is none; call it when a worker is ready, so that it does not delay that one."""
        with self._lock:
            if self._closed or self.pid is not None:
                return
            self._end()
            child = subprocess.Popen(options.spare_command, stdin=subprocess.PIPE)
            threading.Thread(target=child.wait, name="reaper", daemon=True).start()
            self._child = child

    def use(self, options: WorkerOptions) -> subprocess.Popen[bytes] | None:
        """Makes the spare the worker of a device, at once; None if there is no spare, so that one must be started."""
        with self._lock:
            child = self._child
            if child is None or child.stdin is None:
                return None
            try:
                with child.stdin as orders:
                    orders.write(json.dumps(asdict(options)).encode() + b"\n")
            except OSError:  # it has ended
                self._end()
                return None
            self._child = None
            return child

    def close(self) -> None:
        """Ends the spare."""
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        if child.stdin is not None:
            with contextlib.suppress(OSError):  # what could not be written
                child.stdin.close()


def listen(options: WorkerOptions) -> socket.socket | None:
    """The listener of a worker; None if its device has one already: binding is the lock."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(options.address)
    except OSError:
        listener.close()
        return None
    listener.listen(_BACKLOG)
    return listener


class Orders:
    """What a spare is told; read on a thread of its own, because imports take seconds."""

    def __init__(self, server: int) -> None:
        """
        Args:
            server: pid of tritonserver.
        """
        self._server = server
        self._taken: SimpleQueue[tuple[WorkerOptions, socket.socket, float]] = SimpleQueue()
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def wait(self) -> tuple[WorkerOptions, socket.socket, float]:
        """The worker that this process is from now on, its listener, and when it was told so (time.monotonic())."""
        return self._taken.get()

    def _read(self) -> None:
        """Listens as soon as it is told to, also in the middle of imports: others may start a worker too."""
        while not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            if not process_alive(self._server):
                os._exit(0)
        line = sys.stdin.buffer.readline()
        if not line.endswith(b"\n"):  # the parent has ended
            os._exit(0)
        told = time.monotonic()
        options = WorkerOptions(**json.loads(line))
        listener = listen(options)
        if listener is None:
            os._exit(0)
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), sys.stdin.fileno())
        with contextlib.suppress(OSError):
            name_worker(options.index)
        self._taken.put((options, listener, told))


def gpus_in_use(descriptors: Path = Path("/proc/self/fd")) -> list[str]:
    """Files of GPU drivers that this process has opened.

    CUDA opens them when it looks for GPUs. From then on it is too late to choose one by an environment variable.
    """
    found = []
    for entry in descriptors.iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return sorted({name for name in found if name.startswith("/dev/nvidia")})
