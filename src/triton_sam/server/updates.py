"""Newer versions of served models: notices them in the repository and brings them into the running server.

Triton loads a version beside the one that serves and switches when it is ready, so requests go on meanwhile. A version
that does not load leaves everything as it was; it is tried again only when the repository changes.
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
    """What is loaded, what stands in the repository, and the way from the one to the other.

    All but the load itself happens on the supervising thread; the load takes seconds and has a thread of its own.
    """

    def __init__(self, repository: Path, models: Sequence[str]) -> None:
        self._repository = repository
        self._models = models
        #: What the server has loaded for certain, and what it was last asked to load.
        self._loaded: dict[str, ModelState] = {}
        self._tried: dict[str, ModelState] = {}
        self._seen: dict[str, ModelState] = {}
        self._thread: threading.Thread | None = None
        self.problems: dict[str, str] = {}
        """Triton name -> why its newest version does not serve."""
        self.versions: dict[str, str] = {}
        """Triton name -> the version that serves."""
        self.missing: frozenset[str] = frozenset()
        """Triton names of what did not load at the start, and has not since."""

    def begin_life(self) -> dict[str, ModelState]:
        """To be called before a server starts; what it shall load instead of the newest versions.

        A server that must come back comes back with what it served before: a newer version that is broken would keep it
        from starting at all. The newer ones are loaded afterwards, as always.
        """
        self._join()
        self._seen = {}
        now = self._look()
        if not self._loaded:
            self._loaded, self._tried = dict(now), dict(now)
        known = self._loaded.items()
        return {name: state for name, state in known if now.get(name) != state and self._has(name, state.version)}

    def pinned(self, model: str) -> ModelState | None:
        """What a model that is loaded again must load; None for its newest version."""
        state = self._loaded.get(model)
        if state is None or self._state_of(model) == state or not self._has(model, state.version):
            return None
        return state

    def look_and_load(self, process: TritonProcess) -> None:
        """Begins to load one model that has changed, if any has and none is being loaded.

        A change counts when two looks in a row see the same: a writer may be between a version and its config.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        before, self._seen = self._seen, self._look()
        for name, state in self._seen.items():
            if state != self._tried.get(name) and state == before.get(name):
                self._thread = threading.Thread(
                    target=self._load, args=(process, name, state), name=f"load {name}", daemon=True
                )
                self._thread.start()
                return

    def note_failures(self, failed: Mapping[str, str]) -> None:
        """Remembers what did not load at the start of a life, and why; it is tried again when its folder changes.

        What served in the life before is tried once more as it is: the reason may be gone soon, as memory that the last
        life still had.
        """
        self.missing = frozenset(failed)
        for name, reason in failed.items():
            if self._loaded.pop(name, None) is not None and name in self.versions:
                self._tried.pop(name, None)
            self.problems[name] = f"does not load, the other models serve: {reason}"
            log.error("%s %s", name, self.problems[name])

    def note_versions(self, process: TritonProcess) -> bool:
        """Asks the server which versions serve; False, and nothing changes, where it does not answer."""
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
            if not self.note_versions(process):  # the server's end, not the model's fault: tried in its next life
                log.warning("%s: version %d was not loaded: %s", name, state.version, error)
                return
            self._tried[name] = state
            others = "the other models serve" if name in self.missing else "the one before serves on"
            self.problems[name] = f"version {state.version} does not load, {others}: {error}"
            log.error("%s: %s", name, self.problems[name])
        else:
            self._tried[name] = self._loaded[name] = state
            self.problems.pop(name, None)
            self.missing -= {name}
            self.note_versions(process)
            log.info("%s: version %d serves", name, state.version)

    def _join(self) -> None:
        """Waits for a load under way; it ends with the server that it asked."""
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> dict[str, ModelState]:
        states = {name: self._state_of(name) for name in self._models}
        return {name: state for name, state in states.items() if state is not None}

    def _state_of(self, name: str) -> ModelState | None:
        return model_state(self._repository / name)

    def _has(self, name: str, version: int) -> bool:
        return (self._repository / name / str(version)).is_dir()
