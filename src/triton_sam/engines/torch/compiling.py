"""Brings an engine to full speed while it serves: compiles in another process, then replaces step by step."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from triton_sam.engines.readiness import Readiness, Stage
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.engines.torch.compile_process import CompileRequest
from triton_sam.errors import SetupError, Unavailable

log = logging.getLogger(__name__)
_MODULE = "triton_sam.engines.torch.compile_process"
_TAIL = 4000  # characters of the compiler's output that are logged if it fails
#: The lowest priority.
NICENESS = 19
#: Between two looks at what another engine's process has compiled.
_POLL_SECONDS = 1.0


class Compilation:
    """Replaces an engine's steps by compiled ones, on a thread of its own.

    Code of an earlier start is loaded. What is missing is compiled by another process, so that neither Python's lock
    nor the CPU time is felt here, and is kept for the next start. If a process of another engine compiles the same,
    this one takes over its results, and starts none. Whatever fails, the engine serves on as it is.
    """

    def __init__(
        self,
        name: str,
        folder: CodeFolder,
        request: CompileRequest,
        switches: Mapping[str, Callable[[Path], object]],
        started: float,
        program: Sequence[str] = ("-m", _MODULE),
    ) -> None:
        """
        Args:
            name: of the model, for the log.
            request: its steps are ignored.
            switches: step -> loads its compiled code from a folder and replaces the step between two runs; Unavailable
                if that is not possible now.
            started: time.perf_counter() when loading began.
            program: what Python runs as the other process.
        """
        self._name = name
        self._folder = folder
        self._request = request
        self._switches = switches
        self._started = started
        self._program = program
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        #: Step -> identity of code that cannot be used.
        self._refused: dict[str, object] = {}
        self._thread = threading.Thread(target=self._run, name="compilation", daemon=True)
        self.readiness = self._now(Stage.UNCOMPILED)
        log.info("%s serves uncompiled after %.1f s", name, self.readiness.seconds)

    def start(self) -> None:
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it came to an end, well or not, within some time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ends the other process; the engine stays as it is. Call :meth:`wait` after it."""
        with self._lock:
            self._stopped.set()
            if self._process is not None:
                _kill_all(self._process)

    def _now(self, stage: Stage, detail: str = "") -> Readiness:
        return Readiness(stage, round(time.perf_counter() - self._started, 1), detail)

    def _run(self) -> None:
        try:
            missing = self._without_kept(self._switches)
            if missing:
                self.readiness = self._now(Stage.COMPILING)
                log.info("%s serves uncompiled, another process compiles %s", self._name, ", ".join(missing))
                self._complete(missing)
            self._folder.remove_stale()
        except Exception as error:  # compilers, loaders and the GPU's memory raise many different ones
            reason = str(error).partition("\n")[0] or type(error).__name__
            self.readiness = self._now(Stage.UNCOMPILED, reason)
            if not self._stopped.is_set():
                log.warning("%s serves on uncompiled, and slower: %s", self._name, reason)
            return
        gc.freeze()  # modules of the compiler, which stay: no collection needs to look at them
        self.readiness = self._now(Stage.FULL_SPEED)
        log.info("%s is at full speed after %.1f s", self._name, self.readiness.seconds)

    def _complete(self, missing: Sequence[str]) -> None:
        """Compiles steps, or waits for the process of another engine that compiles them."""
        while missing:
            with self._folder.lock() as lock:
                missing = self._without_kept(missing)  # it may have finished some
                if lock is not None and missing:
                    for step in self._refused.keys() & set(missing):
                        self._folder.remove(step)
                    self._compile(missing, lock)
                    return
            if missing and self._stopped.wait(_POLL_SECONDS):
                raise SetupError("stopped")

    def _without_kept(self, steps: Iterable[str]) -> list[str]:
        """Uses what is compiled, and returns the other steps."""
        return [step for step in steps if not self._use_kept(step)]

    def _use_kept(self, step: str) -> bool:
        """Whether the code of an earlier start or of another process could be used."""
        identity = self._folder.identity(step)
        if self._stopped.is_set() or identity == self._refused.get(step):  # also if there is none
            return False
        found = self._folder.find(step)
        if found is None:
            return False
        try:
            self._switches[step](found)
        except Unavailable:  # nothing is wrong with the code
            raise
        except Exception as error:
            log.info("%s: compiled code of %s is made again: %s", self._name, step, error)
            self._refused[step] = identity
            return False
        return True

    def _compile(self, missing: Sequence[str], lock: int) -> None:
        left = set(missing)
        with self._folder.scratch() as scratch, tempfile.TemporaryFile(dir=scratch) as errors:
            with self._spawn(errors, scratch, lock) as process:
                assert process.stdin is not None  # both are pipes
                assert process.stdout is not None
                try:
                    with contextlib.suppress(BrokenPipeError):  # it has died, and its last words tell why
                        process.stdin.write(replace(self._request, steps=tuple(missing)).to_line())
                        process.stdin.flush()
                    for line in process.stdout:
                        step = line.decode().strip()
                        self._use_new(step)
                        left.discard(step)
                finally:
                    with self._lock:
                        _kill_all(process)  # without effect if all has ended
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.close()
            if left and self._stopped.is_set():
                raise SetupError("stopped")
            if left:
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL))
                told = errors.read().decode(errors="replace").strip()
                log.info("%s: the compiler's last words: %s", self._name, told)
                raise SetupError(f"compiling {', '.join(sorted(left))} failed: {told.rpartition(chr(10))[2]}")

    def _use_new(self, step: str) -> None:
        found = self._folder.find(step)
        if found is None:
            raise SetupError(f"the compiled code of {step} cannot be used")
        self._switches[step](found)

    def _spawn(self, errors: IO[bytes], scratch: Path, lock: int) -> subprocess.Popen[bytes]:
        """Starts the other process. It inherits nothing but the lock, which it holds as long as it lives."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **cache_variables(self._folder),
            "TMPDIR": str(scratch),  # compilers that are killed leave files there
            "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2)),
        }
        with self._lock:
            if self._stopped.is_set():
                raise SetupError("stopped")
            self._process = subprocess.Popen(
                [_python(), *self._program, str(lock)],
                env=environment,
                cwd=self._folder.path,  # `-m` imports from there first
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=(lock,),
            )
            with contextlib.suppress(OSError):  # it has ended at once
                os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)
            return self._process


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and what it has started: they are a process group."""
    if process.returncode is not None:  # its number may be another process's by now
        return
    with contextlib.suppress(OSError):  # it is too young to have a group
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def cache_variables(folder: CodeFolder) -> dict[str, str]:
    """Environment variables that keep the caches of torch and Triton in a folder."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder.inductor),
        "TRITON_CACHE_DIR": str(folder.cache / "triton"),
    }


def _python() -> str:
    """This Python; inside Triton the running program is not one, and the first on PATH has the same packages."""
    own = Path(sys.executable or "")
    if own.name.startswith("python"):
        return str(own)
    found = shutil.which("python3")
    if found is None:
        raise SetupError("there is no python3 on PATH that could compile")
    return found
