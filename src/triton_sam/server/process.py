"""One tritonserver process: start it, wait until it is ready, load and unload models, stop it.

:mod:`triton_sam.server.supervisor` restarts it; this module knows a single process only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from triton_sam.errors import CrashedAtStart, ServerError
from triton_sam.repository.configs import load_json
from triton_sam.repository.model_folders import ModelState
from triton_sam.server import host
from triton_sam.server.command import EXIT_SECONDS, KEY_HEADER, TRACE_FLAG, ServerOptions, command_line, further_flags
from triton_sam.server.in_flight import IN_FLIGHT_DIR_VARIABLE, VLM_DIR_VARIABLE, requests_in_flight
from triton_sam.server.launcher import spawn
from triton_sam.server.worker_processes import worker_and_spare_pids

log = logging.getLogger(__name__)

_SHM_PREFIX = "triton_sam_"
_IDLE_SECONDS = 3.0
#: Triton's words for a model's process that has ended.
_CRASHED = "is not healthy"
#: Log lines of every start without a GPU, and of every start without a trace collector.
_HARMLESS = re.compile(r"cuda|pinned memory|\[OTLP ", re.IGNORECASE)
#: The user's proxy is not for our own server.
_without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_ONNX_BACKEND_SOURCE = '''"""Written by triton-sam; the code lives in its package."""

from triton_sam.backend.onnx_model import TritonPythonModel  # noqa: F401
'''


@dataclass(slots=True)
class TritonProcess:
    """A tritonserver process and the processes of its Python models."""

    options: ServerOptions
    process: subprocess.Popen[bytes]
    runtime: Path
    log_path: Path
    shm_prefix: str
    admin_key: str
    models: set[str] = field(default_factory=set)
    """Triton names of the loaded models."""
    pins: Mapping[str, ModelState | None] = field(default_factory=dict)
    """Triton name -> version of a model that is not loaded as the repository has it; None: its newest one."""
    model_pids: dict[int, str] = field(default_factory=dict)
    """pid of a model's process -> Triton name."""
    retiring: dict[int, str] = field(default_factory=dict)
    """The same for processes that Triton ends as soon as they have answered their requests."""
    failed: dict[str, str] = field(default_factory=dict)
    """Triton name -> reason why a model failed to load at the start, if others loaded."""
    _pids_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def in_flight_folder(self) -> Path:
        return self.runtime / "flight"

    def load(self, model: str, pinned: ModelState | None = None) -> None:
        """Loads or reloads a model; ServerError with Triton's reason, and the previous version keeps serving.

        Triton ends the process of the previous version as soon as the new one is ready, which may be before this
        returns. Its end is therefore expected from the beginning.

        Args:
            pinned: the version and the config to load instead of the newest.
        """
        config = self._config_of(model, pinned)
        before = self._retire(model)
        try:
            self._control("load_model", model, **config)
        except BaseException:
            self._bring_back(before)
            raise
        self.models.add(model)
        self.find_model_pids()
        if before and model not in self.model_pids.values():  # Triton found nothing new
            self._bring_back(before)

    def _config_of(self, model: str, pinned: ModelState | None) -> dict[str, str]:
        """The config of a load request, if it is not simply that of the repository."""
        processes = self.options.processes.get(model)
        if pinned is not None:
            return {"config": load_json(pinned.config, pinned.version, processes)}
        if processes is None:
            return {}
        return {"config": load_json((self.options.repository / model / "config.pbtxt").read_text(), None, processes)}

    def unload(self, model: str) -> None:
        """Unloads a model; the end of its process is no longer a failure from here on."""
        self.models.discard(model)
        self._retire(model)
        self._control("unload_model", model)

    def _retire(self, model: str) -> dict[int, str]:
        with self._pids_lock:
            leaving = {pid: name for pid, name in self.model_pids.items() if name == model}
            self.model_pids = {pid: name for pid, name in self.model_pids.items() if name != model}
            self.retiring = self.retiring | leaving
        return leaving

    def _bring_back(self, pids: Mapping[int, str]) -> None:
        """Watches processes again, also those that died meanwhile, so that their death is noticed."""
        with self._pids_lock:
            self.retiring = {pid: name for pid, name in self.retiring.items() if pid not in pids}
            self.model_pids = self.model_pids | dict(pids)

    def forget_retired(self, pids: Iterable[int]) -> None:
        """Stops watching processes that have ended as expected."""
        gone = set(pids)
        with self._pids_lock:
            self.retiring = {pid: name for pid, name in self.retiring.items() if pid not in gone}

    def _control(self, call: str, model: str, **options: str) -> None:
        # Over gRPC: over HTTP a load stalls the clients of all models for seconds.
        import tritonclient.grpc as grpc
        from tritonclient.utils import InferenceServerException

        headers = {f"triton-grpc-protocol-{KEY_HEADER}": self.admin_key}
        address = f"{self.options.reach}:{self.options.grpc_port}"
        with grpc.InferenceServerClient(address, channel_args=[("grpc.enable_http_proxy", 0)]) as client:
            try:
                getattr(client, call)(model, headers=headers, client_timeout=self.options.ready_seconds, **options)
            except InferenceServerException as error:
                raise ServerError(f"{call.replace('_', ' ')} {model} failed: {one_line(error.message())}") from None

    def index(self) -> dict[str, tuple[str, str]]:
        """Triton name -> (state, reason) of every model in the repository; a version that is ready has precedence."""
        states: dict[str, tuple[str, str]] = {}
        for row in self.post("/v2/repository/index", {}, timeout=5):
            if states.get(row["name"], ("", ""))[0] != "READY":
                states[row["name"]] = row.get("state", ""), row.get("reason", "")
        return states

    def versions(self) -> dict[str, str]:
        """Triton name -> newest version that is ready."""
        rows = self.post("/v2/repository/index", {}, timeout=5)
        ready = [(row["name"], row["version"]) for row in rows if row.get("state") == "READY"]
        return dict(sorted(ready, key=lambda entry: int(entry[1])))

    def post(self, path: str, document: Mapping[str, Any], timeout: float) -> Any:
        """One JSON request to the server's HTTP port, with the admin key; OSError or ValueError when it fails."""
        request = urllib.request.Request(
            f"http://{self.options.reach}:{self.options.http_port}{path}",
            data=json.dumps(document).encode(),
            headers={"Content-Type": "application/json", KEY_HEADER: self.admin_key},
        )
        try:
            with _without_proxy.open(request, timeout=timeout) as response:
                return json.loads(response.read())
        except HTTPException as error:  # a response that was cut short is not an OSError
            raise ConnectionError(str(error)) from None

    def find_model_pids(self) -> None:
        """Finds the pids of the models' processes.

        Their command line has the shared-memory region at index 2 and the instance (``sam2_0_0``) at index 8. Processes
        that Triton starts to complete a config carry the bare name; they end by themselves and are not watched.
        """
        instances = {model: re.compile(rf"{re.escape(model)}_\d+_\d+") for model in self.models}
        with self._pids_lock:
            found: dict[int, str] = {}
            for words, pid in self._own_model_processes():
                owner = next((model for model, instance in instances.items() if instance.fullmatch(words[8])), None)
                if owner is not None and pid not in self.retiring:
                    found[pid] = owner
            self.model_pids = found

    def _own_model_processes(self) -> Iterator[tuple[list[str], int]]:
        """(command line, pid) of each process that this server has started for a model."""
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = entry.read_text(errors="replace").split("\0")
                if len(words) > 8 and words[2].startswith(self.shm_prefix):
                    yield words, int(entry.parent.name)

    def wait_ready(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Returns when every model of the options has loaded or failed to; ``failed`` has the reasons.

        ServerError with the reason if all needed models fail: there is nothing to serve.
        """
        at_start = [name for name in self.options.models if name not in self.pins]
        deadline = time.monotonic() + self.options.ready_seconds
        while time.monotonic() < deadline:
            if should_stop():
                raise ServerError("the start was interrupted")
            if not self.alive:
                raise ServerError(f"tritonserver ended at its start: {self.last_error()}")
            with contextlib.suppress(OSError, ValueError):
                states = {name: state for name, state in self.index().items() if name in at_start}
                failed = {name: one_line(why) for name, (state, why) in states.items() if state == "UNAVAILABLE"}
                needed = self.options.needed or self.options.models
                if all(name in failed for name in needed):
                    kind = CrashedAtStart if _CRASHED in failed[needed[0]] else ServerError
                    raise kind(f"the model {needed[0]} does not load: {failed[needed[0]]}")
                if all(states.get(name, ("", ""))[0] in ("READY", "UNAVAILABLE") for name in at_start):
                    self.failed = failed
                    for name, pinned in self.pins.items():
                        self._load_pinned(name, pinned)
                    self.find_model_pids()
                    return
            time.sleep(0.05)
        raise ServerError(f"tritonserver was not ready after {self.options.ready_seconds:.0f} s: see {self.log_path}")

    def _load_pinned(self, name: str, state: ModelState | None) -> None:
        """Loads a model other than as the repository has it; if that fails, others serve, unless there are none."""
        try:
            self.load(name, state)
        except ServerError as error:
            if all(other in self.failed or other == name for other in self.options.needed or self.options.models):
                raise
            self.failed[name] = one_line(str(error))

    def stop(self, *, drain: bool = True) -> None:
        """Ends the server and its model processes; with ``drain`` the requests in flight are finished first."""
        if drain and self.alive:
            self.process.terminate()
            self._wait_until_drained()
        self.process.kill()
        self.process.wait()
        for pid in (*(pid for _, pid in self._own_model_processes()), *worker_and_spare_pids(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for region in host.SHARED_MEMORY.glob(f"{self.shm_prefix}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def _wait_until_drained(self) -> None:
        """Returns when the server has ended, or has been idle for a while.

        After SIGTERM Triton also waits for idle keep-alive connections, until its timeout. That helps no client.
        """
        deadline = time.monotonic() + EXIT_SECONDS
        idle_since = time.monotonic()
        while self.alive and time.monotonic() < deadline:
            if any((requests_in_flight(self.in_flight_folder, model) or 0) > 0 for model in self.models):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > _IDLE_SECONDS:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.05)

    def last_error(self) -> str:
        """The last line of the log that names an error, without Triton's prefix."""
        with contextlib.suppress(OSError):
            lines = self.log_path.read_text(errors="replace").splitlines()
            lines = [line for line in lines if not _HARMLESS.search(line)]
            errors = [line for line in lines if re.match(r"^E\d{4} |.*(error|failed|cannot)", line, re.IGNORECASE)]
            if errors or lines:
                return one_line((errors or lines)[-1])
        return f"see {self.log_path}"


def start(options: ServerOptions, pins: Mapping[str, ModelState] | None = None) -> TritonProcess:
    """Checks the machine and starts a server; does not wait until it is ready.

    The calling thread must outlive the server: the kernel kills the server when that thread ends.

    Args:
        pins: Triton name -> version to load instead of the newest.
    """
    pinned: dict[str, ModelState | None] = dict.fromkeys(options.processes) | dict(pins or {})
    files = host.find_triton(options.installation)
    host.check_numpy()
    host.check_runtime()
    libpython = host.find_libpython()
    host.check_shared_memory()
    for name in ("http", "grpc", "metrics"):
        host.check_port(options.host, getattr(options, f"{name}_port"), name)
    if not options.models:
        raise ServerError("there is no model to serve: run `triton-sam setup sam2:tiny` first")
    for model in options.models:
        if not (options.repository / model / "config.pbtxt").exists():
            raise ServerError(f"{options.repository} has no model {model}: run `triton-sam setup` for it first")
    host.install_stub(files)
    host.sweep_shared_memory(_SHM_PREFIX)
    _sweep_runtimes(options.state / "run")

    token = f"{os.getpid()}_{secrets.token_hex(4)}"
    runtime = options.state / "run" / token
    backends = _make_runtime(runtime, files)
    log_path = options.state / "logs" / f"triton-{options.http_port}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    if log_path.exists():  # the previous server may have failed, and its log says why
        log_path.replace(log_path.with_suffix(".previous.log"))
    admin_key = secrets.token_urlsafe(24)
    shm_prefix = f"{_SHM_PREFIX}{token}_"
    with log_path.open("wb") as output:
        at_start = [model for model in options.models if model not in pinned]
        command = command_line(files, options, at_start, backends, shm_prefix, admin_key)
        environment = _environment(options, runtime, libpython)
        process = spawn([*command, *_known_further_flags(files, options)], environment, output)
    return TritonProcess(options, process, runtime, log_path, shm_prefix, admin_key, set(options.models), pinned)


def _environment(options: ServerOptions, runtime: Path, libpython: Path) -> dict[str, str]:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": f"{libpython.parent}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(os.pathsep),
        IN_FLIGHT_DIR_VARIABLE: str(runtime / "flight"),
        VLM_DIR_VARIABLE: str(runtime / "vlm"),
        **options.environment,
    }
    environment.pop("PYTHONHOME", None)
    return environment


def _known_further_flags(files: host.TritonFiles, options: ServerOptions) -> list[str]:
    flags = further_flags(options)
    if options.installation is None:
        return flags
    known = host.known_flags(files.binary, flags)
    if any(flag.startswith(TRACE_FLAG) for flag in set(flags) - set(known)):
        log.warning("this Triton was built without tracing: traces end at the service's call to it")
    return known


def _make_runtime(runtime: Path, files: host.TritonFiles) -> Path:
    backends = runtime / "backends"
    (runtime / "flight").mkdir(parents=True)
    (runtime / "vlm").mkdir()
    (backends / "onnxruntime").mkdir(parents=True)
    (backends / "python").symlink_to(files.python_backend)
    (backends / "onnxruntime" / "model.py").write_text(_ONNX_BACKEND_SOURCE)
    return backends


def _sweep_runtimes(folder: Path) -> None:
    for runtime in folder.glob("*_*"):
        owner = runtime.name.partition("_")[0]
        if owner.isdigit() and not host.process_alive(int(owner)):
            shutil.rmtree(runtime, ignore_errors=True)


def one_line(text: str) -> str:
    """Triton's message without time stamps, file names and line breaks."""
    text = re.sub(r"^[EWI]\d{4} \S+ \d+ \S+\] ", "", text.strip())
    text = re.sub(r"\s+At:\s.*", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text).strip(' "')[:500]
