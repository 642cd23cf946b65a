"""Keeps the embedded server serving, because Triton's own health endpoints lie about dead models.

It watches the pids of tritonserver and of every stub, and sends a ping through each segmenter's workers. A stub that
died idle is unloaded and loaded again; one that died with requests in flight, or was sent some before its death was
noticed, takes the whole server with it, because Triton would never answer those requests, and a lost connection at
least tells their clients at once. Newer versions
of what it serves are loaded while it serves (:mod:`triton_sam.server.updates`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType

from triton_sam.errors import ServerError, SetupError
from triton_sam.server import process
from triton_sam.server.command import ServerOptions
from triton_sam.server.host import process_alive, process_known
from triton_sam.server.in_flight import requests_held
from triton_sam.server.process import TritonProcess
from triton_sam.server.updates import Updates

log = logging.getLogger(__name__)

_WATCH_SECONDS = 0.2
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 0.5
#: How long Triton may take to let go of a dead process: it takes one second, and more where the machine is busy.
_REAP_SECONDS = 2.0
_RESTARTS_ALLOWED = 5
_RESTART_WINDOW = 60.0


#: Gets the reason and the names of the models that were lost.
LossCallback = Callable[[str, tuple[str, ...]], None]


@dataclass(frozen=True, slots=True)
class PingPolicy:
    """When a model that is alive but silent counts as hung. Seconds, but for ``missed``."""

    every: float = 5.0
    timeout: float = 15.0
    missed: int = 3
    longest_encode: float = 600.0


@dataclass(slots=True)
class Status:
    """What the supervisor knows, for ``/health`` and for people."""

    state: str = "stopped"
    """starting, ready, recovering, stopping, stopped or failed"""
    restarts: int = 0
    reloads: int = 0
    reason: str = ""
    lost: tuple[str, ...] = ()
    """models that do not serve while it recovers"""


class Supervisor:
    """A server that comes back. Use as a context manager, or ``start`` and ``stop``."""

    def __init__(
        self,
        options: ServerOptions,
        segmenters: tuple[str, ...],
        ping_policy: PingPolicy | None = None,
        shall_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            segmenters: the models of ``options`` that answer a ping.
            shall_stop: looked at several times a second, as good as a call of :meth:`stop`.
        """
        self.options = options
        self._shall_stop = shall_stop
        self._ping_policy = ping_policy or PingPolicy()
        self._segmenters = segmenters
        self._status = Status()
        self._process: TritonProcess | None = None
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._first_start: BaseException | None = None
        self._restart_times: list[float] = []
        self._missed_pings = 0
        self._updates = Updates(options.repository, options.models)
        self._next_look = 0.0
        self._loss_callbacks: list[LossCallback] = []
        self._thread: threading.Thread | None = None
        self._pinger: threading.Thread | None = None

    @property
    def status(self) -> dict[str, object]:
        """A copy of the present status, the versions that serve, and what does not serve and why."""
        return asdict(self._status) | {
            "versions": dict(self._updates.versions),
            "problems": dict(self._updates.problems),
            "missing": tuple(sorted(self._updates.missing)),
        }

    @property
    def process(self) -> TritonProcess:
        """The present life of the server."""
        if self._process is None:
            raise ServerError("the server is not running")
        return self._process

    def on_loss(self, callback: LossCallback) -> Callable[[], None]:
        """Calls ``callback`` with the reason and the lost models, from the supervising thread, when a loss is noticed.

        Whoever waits for an answer of a lost process would wait for ever: Triton does not tell.

        Returns:
            A function that ends this.
        """
        self._loss_callbacks.append(callback)
        return lambda: self._loss_callbacks.remove(callback)

    def start(self) -> Supervisor:
        """Starts the server and returns when it serves; raises what hindered it."""
        self._status.state = "starting"
        # The server dies with the thread that started it, so one thread starts, watches and restarts it.
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._first_start is not None:
            self._thread.join()
            raise self._first_start
        self._pinger = threading.Thread(target=self._ping_loop, name="pinger", daemon=True)
        self._pinger.start()
        return self

    def stop(self) -> None:
        """Drains and ends the server; returns when nothing of it is left."""
        self._stopping.set()
        if self._thread is not None:
            self._ended.wait()
            self._thread.join()
        if self._pinger is not None:
            self._pinger.join()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the server is stopped or has failed for good; True if so."""
        # Not Thread.join(timeout): interrupted by a Ctrl-C, it takes a running thread for ended ever after.
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
        """Whether it shall stop; waits up to ``seconds`` for that."""
        return self._stopping.wait(seconds) or self._shall_stop()

    def _give_up(self, error: BaseException) -> None:
        """Nothing may be left running, whatever went wrong, and the status says so."""
        if self._process is not None:
            self._process.stop(drain=False)
        if not self._ready.is_set():
            self._first_start = error
        elif not self._is_stopping():
            log.error("giving up: %s", error, exc_info=None if isinstance(error, SetupError) else error)
        interrupted = self._ready.is_set() and self._is_stopping()
        self._status.state, self._status.reason = ("stopped" if interrupted else "failed"), str(error)

    def _launch(self) -> None:
        self._process = process.start(self.options, self._updates.begin_life())
        try:
            self._process.wait_ready(self._is_stopping)
        except BaseException:
            self._process.stop(drain=False)
            raise
        self._updates.note_failures(self._process.failed)
        self._updates.note_versions(self._process)
        self._status.state = "ready"
        self._missed_pings = 0

    def _watch(self) -> None:
        process = self.process
        if not process.alive:
            self._recover(f"tritonserver ended with code {process.process.returncode}", self._restart)
            return
        dead = self._dead_stubs()
        ended = {pid: model for pid, model in process.retiring.items() if not process_alive(pid)}
        process.forget_retired(ended)
        # A process that a newer version replaces ends by itself, but not before it has answered everything.
        broken_off = {pid: model for pid, model in ended.items() if requests_held(process.flight_folder, model, pid)}
        if dead or broken_off:
            idle = not broken_off and all(
                requests_held(process.flight_folder, model, pid) == 0 for pid, model in dead.items()
            )
            models = sorted({*dead.values(), *broken_off.values()})
            what = f"the process of {', '.join(models)} died " + ("idle" if idle else "with requests in flight")
            if idle:
                self._recover(what, lambda: self._reload(dead), models)
            else:
                self._recover(what, self._restart)
        elif self._missed_pings >= self._ping_policy.missed:
            self._recover(f"no answer to {self._missed_pings} pings", self._restart)
        elif time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._updates.look_and_load(process)

    def _dead_stubs(self) -> dict[int, str]:
        return {pid: model for pid, model in self.process.stubs.items() if not process_alive(pid)}

    def _recover(self, what: str, mend: Callable[[], None], lost: Sequence[str] = ()) -> None:
        """Mends; ``lost`` names the models that do not serve meanwhile, all of them where it is left out."""
        self._status.state, self._status.reason = "recovering", what
        self._lose(tuple(lost or self.options.models))
        log.warning("%s: recovering", what)
        started = time.monotonic()
        mend()
        self._status.state, self._status.lost = "ready", ()
        log.warning("%s: serving again after %.1f s", what, time.monotonic() - started)

    def _lose(self, models: tuple[str, ...]) -> None:
        """Notes which models do not serve any more, and tells whoever waits for them."""
        known, self._status.lost = self._status.lost, models
        if known == models:
            return
        for callback in list(self._loss_callbacks):
            try:
                callback(self._status.reason, models)
            except Exception:
                log.exception("somebody who was to be told of a loss failed")

    def _reload(self, dead: Mapping[int, str]) -> None:
        try:
            for model in sorted(set(dead.values())):
                self.process.unload(model)  # a bare load does nothing: Triton believes that the model is there
                self._expect_reaped(pid for pid, name in dead.items() if name == model)
                self.process.load(model, self._updates.pinned(model))
            self._updates.note_versions(self.process)
            self._status.reloads += 1
        except ServerError as error:
            log.warning("%s: restarting instead", error)
            self._restart()

    def _expect_reaped(self, pids: Iterable[int]) -> None:
        """ServerError where Triton does not let go of dead processes.

        It waits for requests then that came to a process after its death and before anybody noticed: it never answers
        them, and keeps the process as a zombie, and its shared memory.
        """
        deadline = time.monotonic() + _REAP_SECONDS
        left = set(pids)
        while left := {pid for pid in left if process_known(pid)}:
            if time.monotonic() > deadline:
                raise ServerError("requests came to the dead process")
            self._stopping.wait(0.02)

    def _restart(self) -> None:
        """Until it serves again; SetupError when that takes too many tries, or when it shall stop anyway."""
        self._lose(self.options.models)
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

    def _ping_loop(self) -> None:
        while not self._is_stopping(self._ping_policy.every):
            if self._status.state != "ready":
                continue
            healthy = all(self._ping(model) for model in self._segmenters if self._may_ping(model))
            if self._status.state == "ready":
                self._missed_pings = 0 if healthy else self._missed_pings + 1

    def _may_ping(self, model: str) -> bool:
        """Not a process that has just died: the ping would hang in Triton, and cost the server with all its models."""
        return model not in self._updates.missing and model not in self._dead_stubs().values()

    def _ping(self, model: str) -> bool:
        """Whether the model's click worker answers, and its encoder has not hung."""
        ping = {"inputs": [], "outputs": [{"name": "result_json"}], "parameters": {"ping": True}}
        try:
            reply = self.process.post(f"/v2/models/{model}/infer", ping, self._ping_policy.timeout)
            answer = json.loads(reply["outputs"][0]["data"][0])
            return float(answer["encode_seconds"]) < self._ping_policy.longest_encode
        except (OSError, ValueError, LookupError, TypeError, ServerError) as error:
            log.warning("%s did not answer a ping: %s", model, error)
            return False
