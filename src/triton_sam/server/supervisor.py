"""Keeps the server running, because Triton's own health endpoints do not notice dead models.

It watches the pids of tritonserver and of every model process (:mod:`triton_sam.server.failures`) and pings each
segmenter's workers (:mod:`triton_sam.server.pings`). A model whose process died idle is unloaded and loaded again. If a
process died with requests in flight, or got some before its death was noticed, the whole server is restarted: Triton
would never answer those requests, and a lost connection at least ends them at once. Newer versions of the served models
are loaded while it serves (:mod:`triton_sam.server.updates`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType

from triton_sam.errors import CrashedAtStart, ServerError, SetupError
from triton_sam.server import process
from triton_sam.server.command import ServerOptions
from triton_sam.server.failures import Failure, dead_processes, find_failure
from triton_sam.server.host import process_known
from triton_sam.server.pings import Pinger, PingPolicy
from triton_sam.server.process import TritonProcess
from triton_sam.server.updates import Updates

log = logging.getLogger(__name__)

_WATCH_SECONDS = 0.2
_UPDATE_SECONDS = 1.0
_RETRY_SECONDS = 0.5
#: How long Triton may take to reap each process of a model: one second, and more on a busy machine.
_REAP_SECONDS = 2.0
_RESTARTS_ALLOWED = 5
_RESTART_WINDOW = 60.0

#: Called with the reason and the names of the models that were lost.
LossCallback = Callable[[str, tuple[str, ...]], None]


@dataclass(slots=True)
class Status:
    """The supervisor's state, for ``/health`` and for logs."""

    state: str = "stopped"
    """starting, ready, recovering, stopping, stopped or failed"""
    restarts: int = 0
    reloads: int = 0
    reason: str = ""
    lost: tuple[str, ...] = ()
    """Models that do not serve during a recovery."""


class Supervisor:
    """A server that is restarted after failures. Use as a context manager, or ``start`` and ``stop``."""

    def __init__(
        self,
        options: ServerOptions,
        segmenters: tuple[str, ...],
        ping_policy: PingPolicy | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            segmenters: the models of ``options`` that answer a ping.
            should_stop: polled several times a second; true has the effect of :meth:`stop`.
        """
        self.options = options
        self._should_stop = should_stop
        self._segmenters = segmenters
        self._status = Status()
        self._process: TritonProcess | None = None
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._start_error: BaseException | None = None
        self._restart_times: list[float] = []
        self._updates = Updates(options.repository, options.models)
        self._next_update_check = 0.0
        self._loss_callbacks: list[LossCallback] = []
        self._pinger = Pinger(
            ping_policy or PingPolicy(),
            process=lambda: self.process,
            models=self._pingable,
            is_serving=lambda: self._status.state == "ready",
            is_stopping=self._is_stopping,
        )
        self._thread: threading.Thread | None = None
        self._ping_thread: threading.Thread | None = None

    @property
    def status(self) -> dict[str, object]:
        """A copy of the present status.

        With the versions that serve, the problems of models that do not, and the devices of each segmenter, as its last
        answer to a ping has them.
        """
        missing = self._updates.missing
        return asdict(self._status) | {
            "versions": dict(self._updates.versions),
            "problems": dict(self._updates.problems),
            "missing": tuple(sorted(missing)),
            "devices": {name: found for name, found in self._pinger.devices.items() if name not in missing},
        }

    @property
    def process(self) -> TritonProcess:
        """The present server process."""
        if self._process is None:
            raise ServerError("the server is not running")
        return self._process

    def on_loss(self, callback: LossCallback) -> Callable[[], None]:
        """Calls ``callback`` with the reason and the lost models, from the supervising thread, when a loss is noticed.

        Triton does not end requests to a lost process: without this, their callers would wait for ever.

        Returns:
            A function that removes the callback.
        """
        self._loss_callbacks.append(callback)
        return lambda: self._loss_callbacks.remove(callback)

    def start(self) -> Supervisor:
        """Starts the server and returns when it serves; raises the error that prevented it."""
        self._status.state = "starting"
        # The server dies with the thread that started it, so one thread starts, watches and restarts it.
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._start_error is not None:
            self._thread.join()
            raise self._start_error
        self._ping_thread = threading.Thread(target=self._pinger.run, name="pinger", daemon=True)
        self._ping_thread.start()
        return self

    def stop(self) -> None:
        """Drains and ends the server; returns when all its processes have ended."""
        self._stopping.set()
        if self._thread is not None:
            self._ended.wait()
            self._thread.join()
        if self._ping_thread is not None:
            self._ping_thread.join()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the server is stopped or has failed for good; True if so."""
        # Not Thread.join(timeout): after a Ctrl-C in it, Python takes the running thread for ended.
        return self._ended.wait(timeout)

    def __enter__(self) -> Supervisor:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- the supervising thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._launch()
            self._ready.set()
            while not self._is_stopping(_WATCH_SECONDS):
                self._watch()
            self._status.state = "stopping"
            self.process.stop()
            self._status.state = "stopped"
        except BaseException as error:
            self._give_up(error)
        finally:
            self._ready.set()
            self._ended.set()

    def _is_stopping(self, seconds: float = 0.0) -> bool:
        """Whether to stop; waits up to ``seconds`` for that."""
        return self._stopping.wait(seconds) or self._should_stop()

    def _give_up(self, error: BaseException) -> None:
        """Leaves no process running, whatever went wrong, and sets the status."""
        if self._process is not None:
            self._process.stop(drain=False)
        if not self._ready.is_set():
            self._start_error = error
        elif not self._is_stopping():
            log.error("giving up: %s", error, exc_info=None if isinstance(error, SetupError) else error)
        interrupted = self._ready.is_set() and self._is_stopping()
        self._status.state, self._status.reason = ("stopped" if interrupted else "failed"), str(error)

    def _launch(self) -> None:
        try:
            self._launch_once()
        except CrashedAtStart as error:
            log.warning("starting once more: %s", error)
            self._launch_once()
        self._updates.note_failures(self.process.failed)
        self._updates.note_versions(self.process)
        self._status.state = "ready"
        self._pinger.begin_anew()

    def _launch_once(self) -> None:
        self._process = process.start(self.options, self._updates.prepare_start())
        try:
            self._process.wait_ready(self._is_stopping)
        except BaseException:
            self._process.stop(drain=False)
            raise

    def _watch(self) -> None:
        failure = find_failure(self.process, self._pinger)
        if failure is not None:
            self._recover(failure)
        elif time.monotonic() >= self._next_update_check:
            self._next_update_check = time.monotonic() + _UPDATE_SECONDS
            self._updates.check_and_load(self.process)

    def _recover(self, failure: Failure) -> None:
        self._status.state, self._status.reason = "recovering", failure.reason
        lost = self.options.models if failure.reload is None else tuple(sorted(set(failure.reload.values())))
        self._report_loss(lost)
        log.warning("%s: recovering", failure.reason)
        started = time.monotonic()
        if failure.reload is None:
            self._restart()
        else:
            self._reload(failure.reload)
        self._status.state, self._status.lost = "ready", ()
        log.warning("%s: serving again after %.1f s", failure.reason, time.monotonic() - started)

    def _report_loss(self, models: tuple[str, ...]) -> None:
        """Notes which models no longer serve, and calls the loss callbacks."""
        known, self._status.lost = self._status.lost, models
        if known == models:
            return
        for callback in list(self._loss_callbacks):
            try:
                callback(self._status.reason, models)
            except Exception:
                log.exception("a loss callback failed")

    def _reload(self, dead: Mapping[int, str]) -> None:
        try:
            for model in sorted(set(dead.values())):
                self.process.unload(model)  # a load alone does nothing: Triton believes that the model is loaded
                self._expect_reaped(model, {pid for pid, name in dead.items() if name == model})
                self.process.load(model, self._updates.pinned(model))
            self._updates.note_versions(self.process)
            self._status.reloads += 1
        except ServerError as error:
            log.warning("%s: restarting instead", error)
            self._restart()

    def _expect_reaped(self, model: str, dead: set[int]) -> None:
        """ServerError if Triton does not reap dead processes of a model that it unloads.

        It then waits for requests that reached a process between its death and our notice. It never answers them, and
        keeps the process as a zombie, with its shared memory. Otherwise it ends the model's processes one by one.
        """
        deadline = time.monotonic() + _REAP_SECONDS
        left = dead | {pid for pid, name in self.process.retiring.items() if name == model}
        while any(map(process_known, dead)):
            known = {pid for pid in left if process_known(pid)}
            if known != left:
                left, deadline = known, time.monotonic() + _REAP_SECONDS
            if time.monotonic() > deadline:
                raise ServerError("requests reached the dead process")
            self._stopping.wait(0.02)

    def _restart(self) -> None:
        """Restarts until the server serves again; SetupError after too many tries, or if it should stop anyway."""
        self._report_loss(self.options.models)
        self.process.stop(drain=False)
        while True:
            now = time.monotonic()
            self._restart_times = [then for then in self._restart_times if now - then < _RESTART_WINDOW] + [now]
            if len(self._restart_times) > _RESTARTS_ALLOWED:
                raise ServerError(
                    f"tritonserver had to be restarted {_RESTARTS_ALLOWED} times within {_RESTART_WINDOW:.0f} s: "
                    f"see {self.process.log_path}"
                )
            try:
                self._launch()
            except (SetupError, OSError, ValueError) as error:
                if self._is_stopping(_RETRY_SECONDS):
                    raise
                log.warning("%s: trying again", error)
            else:
                self._status.restarts += 1
                return

    # -- the pinging thread ----------------------------------------------------------------------------------

    def _pingable(self) -> Iterator[str]:
        """The segmenters that can answer.

        Not those whose process has just died: such a ping would hang in Triton and force a restart of all models.
        """
        for model in self._segmenters:
            if model not in self._updates.missing and model not in dead_processes(self.process).values():
                yield model
