"""Starts Triton, the models and the service together, as one context manager.

:func:`serving` serves a repository. :func:`serve_models` chooses the models first, sets up those that are missing, and
serves until Ctrl-C, as ``triton-sam serve`` and ``triton-sam demo`` need it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triton_sam import logs
from triton_sam.engines.device_list import processes_of, visible_gpus
from triton_sam.errors import ServerError, SetupError
from triton_sam.installation import install_extra
from triton_sam.models.specs import ModelSpec
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.weights import ProgressContext, silent
from triton_sam.repository.configs import raw_names
from triton_sam.repository.model_folders import newest_version
from triton_sam.repository.segmenters import find_profile_models
from triton_sam.server import host
from triton_sam.server.addresses import choose_ports, is_loopback, reach_of
from triton_sam.server.command import ServerOptions
from triton_sam.server.pings import PingPolicy
from triton_sam.server.running import ServerRecord, recorded
from triton_sam.server.selection import prepare
from triton_sam.server.stop_signals import Interrupts
from triton_sam.server.supervisor import Supervisor
from triton_sam.settings import MIB, Settings

log = logging.getLogger(__name__)

OPEN_SERVICE_WARNING = (
    "the service is open to the network without a token: set TRITON_SAM_TOKEN or TRITON_SAM_TOKENS_FILE, and use TLS "
    "(TRITON_SAM_TLS_CERTIFICATE and TRITON_SAM_TLS_KEY, or a proxy in front)"
)
EXPOSED_WARNING = (
    "the embedded server is open to the network: it is for trusted hosts only, without TLS, tokens or the fixes of "
    "newer releases; serve others with the same model repository in NVIDIA's container, 26.06 or newer"
)
EXPOSED_OTHER_WARNING = (
    "Triton itself listens beyond this machine and checks nothing: open its ports to trusted hosts only, and the "
    "service to everybody else"
)


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one server; 0 takes a free port."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002
    service: int = 8080

    def with_free_ports(self, bind: str) -> Ports:
        """The same with a free port in place of each 0."""
        return Ports(*choose_ports((self.http, self.grpc, self.metrics, self.service), bind))


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """What :func:`serving` starts, and where it listens."""

    repository: Path
    """Models that were written for other tools (profiles) are always served too."""
    segmenters: Mapping[str, ModelSpec]
    """Triton name -> model."""
    settings: Settings
    vlms: Mapping[str, VlmSpec] = field(default_factory=dict)
    """Triton name -> vision-language model."""
    bind: str = "127.0.0.1"
    """Address of the service, which validates requests."""
    triton_bind: str = "127.0.0.1"
    """Address of Triton itself, which does not."""
    ports: Ports = Ports()
    raw: bool = False
    """Whether to load the plain encoders and decoders too."""
    log_level: str = "warning"
    """error, warning, info or debug, for Triton's log."""
    with_service: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the server's processes, for example TRITON_SAM_CACHE_BYTES."""
    ping_policy: PingPolicy | None = None
    should_stop: Callable[[], bool] = lambda: False
    """Polled several times a second; true stops the server as leaving the block does."""

    @property
    def triton_names(self) -> tuple[str, ...]:
        """All models to load, by Triton name."""
        names = list(self.segmenters)
        if self.raw:
            names += [name for segmenter in self.segmenters for name in raw_names(segmenter)]
        names += [name for spec in self.vlms.values() for name in (spec.name, spec.stream_name)]
        names += [name for name in find_profile_models(self.repository) if name not in names]
        return tuple(names)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server and its addresses."""

    supervisor: Supervisor
    ports: Ports
    reach: str
    """Host by which this machine reaches Triton."""
    segmenters: Mapping[str, ModelSpec]
    service_reach: str | None = None
    """The same for the service; None if no service runs."""
    vlms: Mapping[str, VlmSpec] = field(default_factory=dict)
    tls: bool = False
    """Whether the service speaks https."""
    ready_seconds: float = 0.0
    """From the start until all models were loaded."""
    should_stop: Callable[[], bool] = lambda: False

    @property
    def urls(self) -> dict[str, str]:
        """Protocol, or "service" -> address."""
        urls = {
            "HTTP": f"http://{self.reach}:{self.ports.http}",
            "gRPC": f"grpc://{self.reach}:{self.ports.grpc}",
            "metrics": f"http://{self.reach}:{self.ports.metrics}/metrics",
        }
        if self.service_reach is not None:
            urls["service"] = f"{'https' if self.tls else 'http'}://{self.service_reach}:{self.ports.service}"
        return urls

    def wait(self) -> None:
        """Blocks until ``should_stop`` is true; ServerError if the supervisor gives up before."""
        while not self.should_stop() and not self.supervisor.wait(0.2):
            pass
        if not self.should_stop():
            raise ServerError(f"the server stopped: {self.supervisor.status['reason']}")


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """What a user asks :func:`serve_models` for."""

    ids: Sequence[str] = ()
    """Ids of models; empty: all that are set up, or else the default model."""
    repository: Path | None = None
    """The user's own repository, which is never written; None: the one below TRITON_SAM_HOME."""
    bind: str = "127.0.0.1"
    triton_bind: str = "127.0.0.1"
    ports: Ports = Ports()
    raw: bool = False
    gpus: str = ""
    """Numbers of GPUs, separated by commas; empty: as the settings say."""
    log_level: str = "warning"


@contextlib.contextmanager
def serve_models(
    request: ServeRequest, settings: Settings, progress: ProgressContext = lambda: contextlib.nullcontext(silent)
) -> Iterator[RunningServer]:
    """Sets up what is missing and serves until the block is left; the first Ctrl-C in it only ends ``wait``.

    Args:
        progress: shows downloads; entered only during the set-up.
    """
    host.check_platform()
    logs.set_up(settings)
    environment = _devices(request.gpus)
    with progress() as report:
        models = prepare(request.ids, settings, request.repository, report)
    with Interrupts() as interrupts:
        options = ServingOptions(
            models.repository,
            models.segmenters,
            settings,
            vlms=models.vlms,
            bind=request.bind,
            triton_bind=request.triton_bind,
            ports=request.ports,
            raw=request.raw,
            log_level=request.log_level,
            environment=environment,
            should_stop=interrupts,
        )
        with serving(options) as running:
            yield running


def _devices(gpus: str) -> dict[str, str]:
    """The variable that gives the server's processes the chosen GPUs; SetupError if they cannot be GPUs."""
    if not gpus:
        return {}
    names = [name.strip() for name in gpus.split(",")]
    if not all(re.fullmatch(r"\d+|GPU-[\w-]+", name) for name in names):
        raise SetupError(f"--gpus takes numbers separated by commas, like 0,1, not {gpus!r}")
    known = visible_gpus()
    missing = [name for name in names if name.isdigit() and name not in known]
    if missing:
        raise SetupError(f"there is no GPU {missing[0]} here: {', '.join(known) or 'no GPU'} can be used")
    return {"TRITON_SAM_DEVICES": ",".join(names)}


@contextlib.contextmanager
def serving(options: ServingOptions) -> Iterator[RunningServer]:
    """Serves until the block is left, then drains and stops everything."""
    started = time.monotonic()
    settings = options.settings
    _check_addresses(options)
    ports = options.ports.with_free_ports(options.triton_bind)
    if options.vlms:
        host.check_vlm_runtime()
    has_service = options.with_service and importlib.util.find_spec("fastapi") is not None
    server = _server_options(options, ports, traced=has_service)
    with contextlib.ExitStack() as stack:
        if has_service:
            check_service(settings)
            host.check_port(options.bind, ports.service, "service")
        elif options.with_service:
            log.warning("the service is not installed, so Triton runs alone: %s", install_extra("service"))
        supervisor = Supervisor(server, tuple(options.segmenters), options.ping_policy, options.should_stop)
        stack.callback(supervisor.stop)
        if has_service:  # while Triton starts, this process only waits
            threading.Thread(target=_import_service, name="imports", daemon=True).start()
        supervisor.start()
        if has_service:
            stack.enter_context(_service(options, server, supervisor, ports.service))
        running = RunningServer(
            supervisor,
            ports,
            server.reach,
            options.segmenters,
            reach_of(options.bind) if has_service else None,
            options.vlms,
            tls=settings.tls_certificate is not None,
            ready_seconds=time.monotonic() - started,
            should_stop=options.should_stop,
        )
        stack.enter_context(recorded(settings.home, _record(running)))
        yield running


def _record(running: RunningServer) -> ServerRecord:
    models = {name: spec.id for name, spec in running.segmenters.items()}
    models |= {spec.stream_name: spec.id for spec in running.vlms.values()}
    ports, urls = running.ports, running.urls
    used = (ports.http, ports.grpc, ports.metrics, *([ports.service] if "service" in urls else []))
    return ServerRecord(urls["HTTP"], urls.get("service"), used, models)


def _check_addresses(options: ServingOptions) -> None:
    """SetupError for addresses that cannot be used, warnings for those that the network can reach."""
    settings = options.settings
    for address in (options.bind, options.triton_bind):
        if ":" in address:
            raise SetupError(f"{address} is an IPv6 address and the servers listen on IPv4: use 127.0.0.1 or 0.0.0.0")
    if not is_loopback(options.triton_bind):
        log.warning(EXPOSED_WARNING if settings.tritonserver is None else EXPOSED_OTHER_WARNING)
    has_tokens = settings.token is not None or settings.tokens_file is not None
    if options.with_service and not is_loopback(options.bind) and not has_tokens:
        log.warning(OPEN_SERVICE_WARNING)


def _server_options(options: ServingOptions, ports: Ports, *, traced: bool) -> ServerOptions:
    settings = options.settings
    return ServerOptions(
        repository=options.repository.resolve(),
        models=options.triton_names,
        state=settings.home,
        # Of a vision-language model's two names only the streaming one has weights, and raw graphs are an extra.
        needed=(*options.segmenters, *(spec.stream_name for spec in options.vlms.values())),
        processes=_processes(options),
        host=options.triton_bind,
        http_port=ports.http,
        grpc_port=ports.grpc,
        metrics_port=ports.metrics,
        log_level=options.log_level,
        environment=options.environment,
        ready_seconds=settings.ready_seconds,
        installation=settings.tritonserver,
        max_request_bytes=_largest_request(options),
        traces_url=_traces_url(settings) if traced else None,
    )


def _largest_request(options: ServingOptions) -> int:
    """Bytes of an image as base64, its prompt, and the names around them; or of a video's state."""
    settings = options.settings
    image = settings.max_image_bytes * 4 // 3 + settings.max_prompt_bytes + MIB
    remembers = any(spec.memory is not None for spec in options.segmenters.values())
    return max(image, settings.video_session_bytes + 16 * MIB) if remembers else image


def _processes(options: ServingOptions) -> dict[str, int]:
    """Triton name -> number of processes, of the segmenters that should have several."""
    environment = options.environment  # a test's or a bench's own settings
    settings = options.settings.model_copy(
        update={
            name: type(getattr(options.settings, name))(environment[f"TRITON_SAM_{name.upper()}"])
            for name in ("devices", "processes", "engine", "device")
            if f"TRITON_SAM_{name.upper()}" in environment
        }
    )
    found: dict[str, int] = {}
    for name in options.segmenters:
        folder = options.repository / name
        version = newest_version(folder)
        count = 1 if version is None else processes_of(folder / str(version), settings)
        if count > 1:
            found[name] = count
    return found


def _service(
    options: ServingOptions, server: ServerOptions, supervisor: Supervisor, port: int
) -> contextlib.AbstractContextManager[object]:
    """The service's thread or processes, in front of a running server."""
    from triton_sam.service.app import create_app
    from triton_sam.service.process_pool import ServiceProcesses, process_count
    from triton_sam.service.upstream import Upstream, served_segmenters
    from triton_sam.service.uvicorn_thread import ServiceThread

    upstream = Upstream(
        status=lambda: supervisor.status,
        segmenters=lambda: served_segmenters(options.repository, options.segmenters),
        vlms=lambda: options.vlms,
        triton_url=f"http://{server.reach}:{server.http_port}",
        metrics_url=f"http://{server.reach}:{server.metrics_port}/metrics",
        on_loss=supervisor.on_loss,
    )
    if process_count(options.settings) > 1:
        return ServiceProcesses(
            upstream,
            options.settings,
            options.bind,
            port,
            repository=options.repository,
            segmenters=options.segmenters,
        )
    return ServiceThread(create_app(upstream, options.settings), options.bind, port)


def _import_service() -> None:
    import triton_sam.service.app
    import triton_sam.service.process_pool
    import triton_sam.service.uvicorn_thread  # noqa: F401


def check_service(settings: Settings) -> None:
    """SetupError for settings of the service that cannot be used, before minutes are spent on the server's start."""
    from triton_sam.service.admission.tls import tls_files
    from triton_sam.service.api_tokens import read_tokens
    from triton_sam.service.telemetry.tracing import check_tracing

    check_tracing(settings)
    tls_files(settings)
    if settings.tokens_file is not None:
        read_tokens(settings.tokens_file)


def _traces_url(settings: Settings) -> str | None:
    """The collector of Triton's own spans, which is that of the service's spans above them."""
    from triton_sam.service.telemetry.tracing import traces_url

    return traces_url(settings)
