"""Runs the service as several processes on one port, restarts those that end, and tells them about the server."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from triton_sam.errors import ServerError
from triton_sam.scratch import scratch_folder
from triton_sam.service.process_channel import (
    Channel,
    Message,
    PendingCounts,
    ServiceDescription,
    settings_document,
)
from triton_sam.service.service_process import listening_socket
from triton_sam.service.shared_limits import SharedLimits
from triton_sam.service.telemetry.metrics import forget_gauges
from triton_sam.service.upstream import Upstream
from triton_sam.service.uvicorn_thread import SHUTDOWN_SECONDS
from triton_sam.settings import Settings

log = logging.getLogger(__name__)

_CORES_PER_PROCESS = 4
_MOST_BY_DEFAULT = 4
#: How old the supervisor's status may be in the processes. They are told of a loss at once.
_STATUS_SECONDS = 0.05
#: From one start of a process to the next, at least; longer if it could not start, which must not take a core.
_RESTART_SECONDS = 0.5
_RETRY_SECONDS = 10.0
FOLDER_PREFIX = "triton-sam-service-"
#: Isolated, so that no file of the present folder is imported; then with the modules of this process.
_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from triton_sam.service.service_process import main
main()
"""


def process_count(settings: Settings) -> int:
    """How many processes the service has on this machine."""
    by_cores = len(os.sched_getaffinity(0)) // _CORES_PER_PROCESS
    return settings.service_processes or max(1, min(_MOST_BY_DEFAULT, by_cores))


@dataclass(slots=True)
class _Process:
    """One process of the pool.

    Attributes:
        number: the same for the process that replaces it; None for the spare one.
        began: when it was told to serve.
    """

    popen: subprocess.Popen[bytes]
    channel: Channel
    number: int | None = None
    began: float = 0.0
    listens: bool = False


class ServiceProcesses:
    """Context manager that serves while it is open.

    One thread starts the processes, passes messages between them and replaces those that end; the kernel would end
    them with this thread. The supervisor's own thread reports a loss. A spare process has its modules imported, which
    takes seconds on a busy machine, and waits to replace another.
    """

    def __init__(
        self,
        upstream: Upstream,
        settings: Settings,
        host: str,
        port: int,
        *,
        repository: Path,
        segmenters: Collection[str],
    ) -> None:
        """
        Args:
            repository: the processes look there for the newest versions of ``segmenters``.
        """
        self._upstream = upstream
        self._service = ServiceDescription(
            settings=settings_document(settings),
            host=host,
            port=port,
            repository=str(repository),
            segmenters=list(segmenters),
            vlms={name: spec.id for name, spec in upstream.vlms().items()},
            triton_url=upstream.triton_url,
            metrics_url=upstream.metrics_url,
            processes=process_count(settings),
            namespace=uuid.uuid4().hex[:12],
            log_level=logging.getLogger().level,
        )
        self._thread = threading.Thread(target=self._run, name="service processes", daemon=True)
        self._stopping = threading.Event()
        self._decided = threading.Event()
        """Set when all processes listen, or one of them cannot."""
        self._failure: ServerError | None = None
        self._limits: SharedLimits | None = None
        self._selector = selectors.DefaultSelector()
        self._pending = PendingCounts()
        self._restart_at: dict[int, float] = {}
        self._spare: _Process | None = None
        self._spare_at = 0.0
        # Guards the two below. What is read from the supervisor is sent before the lock is released, so that no
        # process gets an old status after a newer one.
        self._lock = threading.Lock()
        self._processes: dict[int, _Process] = {}
        self._told = ""

    @property
    def pids(self) -> list[int]:
        """Of the processes that listen now."""
        with self._lock:
            return [process.popen.pid for process in self._processes.values() if process.listens]

    def __enter__(self) -> ServiceProcesses:
        """Returns when all processes listen; raises ServerError if one cannot."""
        self._thread.start()
        self._decided.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    # -- the pool's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                # Bound but not listening: it keeps the port while processes come and go.
                stack.enter_context(listening_socket(self._service.host, self._service.port))
                self._service = replace(self._service, folder=str(stack.enter_context(scratch_folder(FOLDER_PREFIX))))
                self._service.metrics_folder.mkdir()
                self._service.embeddings_folder.mkdir()
                self._limits = SharedLimits(self._service.limits_file, self._service.processes)
                stack.callback(self._limits.close)
                stack.callback(self._selector.close)
                stack.callback(self._end_all)
                stack.callback(self._upstream.on_loss(self._report_loss))
                for number in range(self._service.processes):
                    self._start(number)
                self._watch()
                self._drain()
        except OSError as error:
            self._fail(f"the processes of the service cannot be started ({error.strerror or error})")
        except ServerError as error:
            self._fail(str(error))
        finally:
            self._decided.set()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                self._handle_messages(_STATUS_SECONDS)
                self._tell_status()
                self._restart()
            except Exception:
                if not self._decided.is_set():
                    raise
                log.exception("an error of the service's parent process, which continues")
                self._stopping.wait(_RESTART_SECONDS)

    def _restart(self) -> None:
        """Starts what is due: processes in place of others, and then the spare one."""
        now = time.monotonic()
        for number in [number for number, due in self._restart_at.items() if now >= due]:
            self._restart_at[number] = now + _RETRY_SECONDS  # if it cannot even be started
            self._start(number)
            del self._restart_at[number]
        if self._spare is None and now >= self._spare_at and self._decided.is_set() and not self._restart_at:
            self._spare_at = now + _RETRY_SECONDS
            self._spare = self._spawn()

    def _drain(self) -> None:
        """Lets the processes finish their requests. The server may still be lost meanwhile, and they are told."""
        if self._spare is not None:
            self._spare.popen.kill()
        self._send_all({"stop": True})
        deadline = time.monotonic() + SHUTDOWN_SECONDS + 5
        while self._processes and time.monotonic() < deadline:
            self._handle_messages(_STATUS_SECONDS)
            self._tell_status()

    def _spawn(self) -> _Process:
        """A process that imports its modules and waits for its description."""
        channel, theirs = Channel.pair()
        with theirs:
            command = [sys.executable, "-I", "-c", _CODE, json.dumps(sys.path), str(os.getpid()), str(theirs.fileno())]
            popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        process = _Process(popen, channel)
        self._selector.register(channel, selectors.EVENT_READ, process)
        return process

    def _start(self, number: int) -> None:
        process, self._spare = self._spare or self._spawn(), None
        process.number, process.began = number, time.monotonic()
        with self._lock:
            self._processes[number] = process
            process.channel.send(self._service.message(number, self._upstream.status()))

    def _handle_messages(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            process: _Process = key.data
            try:
                message = process.channel.receive()
            except BlockingIOError:
                continue
            if message is None:
                self._bury(process)
            elif process.number is not None:
                self._handle(process, process.number, message)
        for (asker, number), cancelled in self._pending.complete().items():
            if asker in self._processes:
                self._processes[asker].channel.send({"cancelled": cancelled, "number": number})

    def _handle(self, process: _Process, sender: int, message: Message) -> None:
        if "started" in message:
            process.listens = True
            if sum(other.listens for other in self._processes.values()) == self._service.processes:
                self._decided.set()
        elif "failed" in message:
            if not self._decided.is_set():
                raise ServerError(message["failed"])
            log.error("a process of the service cannot start: %s", message["failed"])
        elif "cancel" in message:
            others = {number for number, other in self._processes.items() if other.listens and number != sender}
            self._pending.ask((sender, message["number"]), others)
            for number in others:
                self._processes[number].channel.send({**message, "asker": sender})
        else:
            self._pending.answer((message["asker"], message["number"]), sender, message["cancelled"])

    def _bury(self, process: _Process) -> None:
        """Cleans up after a process that has ended, and plans the next one."""
        self._selector.unregister(process.channel)
        process.channel.close()
        code = _end(process.popen, kill=not self._stopping.is_set())
        number = process.number
        if number is None:
            self._spare = None
            return
        with self._lock:
            del self._processes[number]
        self._pending.forget(number)
        forget_gauges(self._service.metrics_folder, number)
        if self._limits is not None:
            self._limits.clear(number)
        if self._stopping.is_set():
            return
        if not self._decided.is_set():
            raise ServerError(f"a process of the service ended with code {code} at its start")
        log.warning("a process of the service ended with code %d: starting another", code)
        pause = _RESTART_SECONDS if process.listens else _RETRY_SECONDS
        self._restart_at[number] = process.began + pause

    def _end_all(self) -> None:
        for process in (*self._processes.values(), *([self._spare] if self._spare else [])):
            process.channel.close()
            _end(process.popen, kill=True)

    def _fail(self, reason: str) -> None:
        if self._decided.is_set():
            log.error("the service stopped: %s", reason)
        self._failure = ServerError(reason)

    # -- news for the processes ------------------------------------------------------------------------------

    def _tell_status(self) -> None:
        with self._lock:
            status = dict(self._upstream.status())
            text = json.dumps(status)
            if text != self._told:
                self._told = text
                self._send_all_locked({"status": status})

    def _report_loss(self, reason: str, models: tuple[str, ...]) -> None:
        """On the supervisor's thread, at the moment when it gives the models up."""
        with self._lock:
            status = dict(self._upstream.status())
            self._told = json.dumps(status)
            self._send_all_locked({"status": status, "loss": [reason, models]})

    def _send_all(self, message: Message) -> None:
        with self._lock:
            self._send_all_locked(message)

    def _send_all_locked(self, message: Message) -> None:
        for process in self._processes.values():
            if not process.channel.send(message):
                process.popen.kill()  # it has not read for so long that its socket is full; the next one is told anew


def _end(popen: subprocess.Popen[bytes], *, kill: bool) -> int:
    """Waits for a process whose connection is closed."""
    if kill:
        popen.kill()
    try:
        return popen.wait(SHUTDOWN_SECONDS)
    except subprocess.TimeoutExpired:
        popen.kill()
        return popen.wait()
