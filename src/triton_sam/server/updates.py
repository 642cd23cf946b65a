"""Loads newer versions of served models into the running server when they appear in the repository.

Triton loads a version beside the one that serves and switches when it is ready, so requests are answered meanwhile. A
version that fails to load changes nothing; it is tried again only when the repository changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from triton_sam.repository.model_folders import ModelState, model_state
from triton_sam.server.process import TritonProcess

log = logging.getLogger(__name__)


class Updates:
    """Tracks what is loaded and what the repository holds, and loads the difference.

    All but the load itself runs on the supervising thread; the load takes seconds and has its own thread.
    """

    def __init__(self, repository: Path, models: Sequence[str]) -> None:
        self._repository = repository
        self._models = models
        # What the server has certainly loaded, and what it was last asked to load.
        self._loaded: dict[str, ModelState] = {}
        self._tried: dict[str, ModelState] = {}
        self._seen: dict[str, ModelState] = {}
        self._thread: threading.Thread | None = None
        self.problems: dict[str, str] = {}
        """Triton name -> reason why its newest version does not serve."""
        self.versions: dict[str, str] = {}
        """Triton name -> the version that serves."""
        self.missing: frozenset[str] = frozenset()
        """Triton names of models that failed to load at the start and have not loaded since."""

    def prepare_start(self) -> dict[str, ModelState]:
        """Call before each start of the server; returns what to load instead of the newest versions.

        After a failure the server starts with the versions that served before: a newer version that is broken could
        prevent the start. Newer ones are loaded afterwards, as always.
        """
        self._join()
        self._seen = {}
        now = self._states()
        if not self._loaded:
            self._loaded, self._tried = dict(now), dict(now)
        known = self._loaded.items()
        return {name: state for name, state in known if now.get(name) != state and self._has(name, state.version)}

    def pinned(self, model: str) -> ModelState | None:
        """The version that a reload of a model must load; None for its newest one."""
        state = self._loaded.get(model)
        if state is None or self._state_of(model) == state or not self._has(model, state.version):
            return None
        return state

    def check_and_load(self, process: TritonProcess) -> None:
        """Starts to load one model that has changed, unless a load is in progress.

        A change counts when two checks in a row see the same: a writer may be between a version and its config.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        before, self._seen = self._seen, self._states()
        for name, state in self._seen.items():
            if state != self._tried.get(name) and state == before.get(name):
                self._thread = threading.Thread(
                    target=self._load, args=(process, name, state), name=f"load {name}", daemon=True
                )
                self._thread.start()
                return

    def note_failures(self, failed: Mapping[str, str]) -> None:
        """Records which models failed to load at a start, and why; they are tried again when their folders change.

        A model that served before the restart is tried once more as it is: the cause may be gone soon, for example
        memory that the previous server process still held.
        """
        self.missing = frozenset(failed)
        for name, reason in failed.items():
            if self._loaded.pop(name, None) is not None and name in self.versions:
                self._tried.pop(name, None)
            self.problems[name] = f"does not load, the other models serve: {reason}"
            log.error("%s %s", name, self.problems[name])

    def note_versions(self, process: TritonProcess) -> bool:
        """Asks the server which versions serve; False, and nothing changes, if it does not answer."""
        try:
            ready = process.versions()
        except (OSError, ValueError, LookupError, TypeError):
            return False
        self.versions = {name: ready[name] for name in self._models if name in ready}
        return True

    def _load(self, process: TritonProcess, name: str, state: ModelState) -> None:
        log.info("%s: loading version %d", name, state.version)
        try:
            process.load(name)
        except Exception as error:  # whatever it is, the supervisor goes on with what serves
            if not self.note_versions(process):  # the server ended, not the model's fault: tried after its restart
                log.warning("%s: version %d was not loaded: %s", name, state.version, error)
                return
            self._tried[name] = state
            others = "the other models serve" if name in self.missing else "the previous version still serves"
            self.problems[name] = f"version {state.version} does not load, {others}: {error}"
            log.error("%s: %s", name, self.problems[name])
        else:
            self._tried[name] = self._loaded[name] = state
            self.problems.pop(name, None)
            self.missing -= {name}
            self.note_versions(process)
            log.info("%s: version %d serves", name, state.version)

    def _join(self) -> None:
        """Waits for a load in progress; it fails when its server has ended."""
        if self._thread is not None:
            self._thread.join()

    def _states(self) -> dict[str, ModelState]:
        states = {name: self._state_of(name) for name in self._models}
        return {name: state for name, state in states.items() if state is not None}

    def _state_of(self, name: str) -> ModelState | None:
        return model_state(self._repository / name)

    def _has(self, name: str, version: int) -> bool:
        return (self._repository / name / str(version)).is_dir()
