"""Loads a vision-language model on its first question, and unloads it when idle or when another model needs memory."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from triton_sam.backend.freed_memory import return_freed_memory
from triton_sam.engines.vlm.base import Engine
from triton_sam.errors import InternalError, NotFound, SetupError, TritonSamError, WeightsError

log = logging.getLogger(__name__)
#: A failed load is not retried for this long: a load reads from disk for minutes and may have evicted other models.
_RETRY_SECONDS = 5.0


class Memory(Protocol):
    """What a worker needs of :class:`~triton_sam.backend.vlm_memory.MemoryLedger`."""

    def touch(self, *, busy: bool) -> None: ...

    def leave(self) -> None: ...

    @property
    def asked_to_leave(self) -> bool: ...


class VlmLoader:
    """Holds the engine while it is loaded. One load at a time, however many questions wait.

    Attributes:
        engine: None if the model is not loaded. Guarded by the lock.
        last_used: ``time.monotonic()`` of the end of the last load or batch. Guarded by the lock.
        unloading: no load may start. Guarded by the lock.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Engine],
        memory: Memory,
        changed: threading.Condition,
        on_failure: Callable[[], Callable[[TritonSamError], None]],
        count: Callable[[str, int], None],
    ) -> None:
        """
        Args:
            load: makes the engine and registers it in ``memory``; takes minutes, and raises our errors.
            changed: notified when the engine arrives; its lock guards the state.
            on_failure: called under the lock if a load has failed; returns what to call with the error without it.
            count: takes the name of a metric and its increment.
        """
        self.engine: Engine | None = None
        self.last_used = time.monotonic()
        self.unloading = False
        self._name = name
        self._load_engine = load
        self._memory = memory
        self._changed = changed
        self._on_failure = on_failure
        self._count = count
        self._loading_since: float | None = None
        self._thread: threading.Thread | None = None
        self._failure: TritonSamError | None = None
        self._retry_at = 0.0

    @property
    def loading_seconds(self) -> float | None:
        """For how long the model has been loading; None if it is not."""
        since = self._loading_since
        return None if since is None else time.monotonic() - since

    def raise_recent_failure(self) -> None:
        """Raises the error of the last load if it is too early to try again. Under the lock."""
        if self._failure is not None and time.monotonic() < self._retry_at:
            raise type(self._failure)(str(self._failure))

    def start(self) -> None:
        """Begins to load, unless the model is loaded or loading. Under the lock."""
        if self.engine is None and self._loading_since is None and not self.unloading:
            self._loading_since = time.monotonic()
            self._thread = threading.Thread(target=self._load, args=(self._thread,), name="vlm-loader", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Waits for the load in progress."""
        if self._thread is not None:
            self._thread.join()

    def unload(self, reason: str) -> None:
        """Frees the engine. Without the lock."""
        with self._changed:
            engine, self.engine = self.engine, None
        if engine is None:
            return
        del engine
        gc.collect()
        _release_memory()
        with contextlib.suppress(OSError):
            self._memory.leave()
        log.info("%s: unloaded (%s)", self._name, reason)
        self._count("vlm_unloads", 1)

    def _load(self, previous: threading.Thread | None) -> None:
        if previous is not None:  # it failed, and may still be freeing memory
            previous.join()
        engine: Engine | None = None
        failure: TritonSamError | None = None
        began = time.monotonic()
        try:
            engine = self._load_engine()
        except WeightsError as error:  # weights are missing here: to a client the model is not found
            failure = NotFound(str(error))
        except SetupError as error:
            failure = InternalError(str(error))
        except TritonSamError as error:
            failure = error
        except BaseException as error:  # a panic of a Rust library is no Exception
            log.exception("loading %s failed", self._name)
            failure = InternalError(f"loading {self._name} failed on the server ({type(error).__name__})")
        with self._changed:
            self.engine = engine
            self._loading_since = None
            if isinstance(failure, NotFound | InternalError):  # the next load would fail too, and take as long
                self._failure, self._retry_at = failure, time.monotonic() + _RETRY_SECONDS
            self.last_used = time.monotonic()
            fail_waiting = self._on_failure() if failure is not None else None
            self._changed.notify_all()
        if failure is None or fail_waiting is None:
            log.info("%s: ready after %.1f s", self._name, time.monotonic() - began)
            self._count("vlm_loads", 1)
            return
        log.error("%s: not loaded: %s", self._name, failure)
        fail_waiting(failure)
        failure.__traceback__ = failure.__cause__ = failure.__context__ = None  # their frames hold what was loaded
        gc.collect()
        _release_memory()


def _release_memory() -> None:
    """Returns cached memory to the GPU and to the operating system."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    return_freed_memory()
