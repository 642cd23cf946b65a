"""Starts Triton, the models and the service together, as one context manager.

:func:`serving` serves a repository. :func:`prepare` chooses the models and sets up those that are missing.
:func:`serve_models` does both until Ctrl-C, as ``triton-sam serve`` and ``triton-sam demo`` need it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triton_sam import logs
from triton_sam.errors import ServerError, SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import EIGHT_BIT_ENCODER_FILE, OLD_EIGHT_BIT_ENCODER_FILE, ModelSpec
from triton_sam.models.vlm_catalog import get_vlm, is_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.weights import ProgressContext, ProgressFactory, WeightStore, silent
from triton_sam.repository.configs import raw_names
from triton_sam.repository.segmenters import (
    find_name,
    find_profile_models,
    find_segmenters,
    has_file,
    is_current,
    is_exported,
    refresh,
)
from triton_sam.repository.setup import SetupRequest, set_up
from triton_sam.repository.vlms import find_vlms, is_current_vlm, own_checkpoint, write_vlm
from triton_sam.server import host
from triton_sam.server.addresses import choose_ports, is_loopback, reach_of
from triton_sam.server.command import ServerOptions
from triton_sam.server.pings import PingPolicy
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
class ModelSelection:
    """The models to serve from one repository; the keys are Triton names."""

    repository: Path
    segmenters: dict[str, ModelSpec]
    vlms: dict[str, VlmSpec] = field(default_factory=dict)
    """One name for each, the one of whole responses; streams come under ``stream_name`` of the row."""


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
            should_stop=interrupts,
        )
        with serving(options) as running:
            yield running


def prepare(
    ids: Sequence[str], settings: Settings, repository: Path | None, progress: ProgressFactory | None = None
) -> ModelSelection:
    """Chooses the models of ``ids``, or all that are set up, and sets up those that are not.

    The weights of a vision-language model are downloaded at its first request, not here. A repository of the user's own
    is read, never written. One that only holds models for other tools gives an empty selection.
    """
    vlms = [get_vlm(name) for name in ids if is_vlm(name)]
    if vlms:
        host.check_vlm_runtime()  # before anything is written
    ids = [name for name in ids if not is_vlm(name)]
    if repository is not None:
        return _select(repository, ids, vlms)
    repository = settings.repository
    chosen = list(ids)
    if not ids and not vlms:
        chosen = [spec.id for spec in find_segmenters(repository).values()]
        vlms = _runnable(list(find_vlms(repository).values()))
        if not (chosen or vlms or find_profile_models(repository)):
            chosen = [DEFAULT_MODEL]
    specs = [get_spec(model_id) for model_id in dict.fromkeys(chosen)]
    for spec in specs:
        _bring_up_to_date(spec, repository, settings, progress)
    for vlm in vlms:
        if not is_current_vlm(vlm, repository):
            write_vlm(vlm, repository, own_checkpoint(vlm, repository))
    found = find_segmenters(repository)
    names = [find_name(spec, repository) for spec in specs]
    segmenters = {name: found[name] for name in names if name in found}
    return ModelSelection(repository, segmenters, {vlm.name: vlm for vlm in vlms})


def _select(repository: Path, ids: Sequence[str], vlms: Sequence[VlmSpec]) -> ModelSelection:
    """The models of a repository as they are, all of them if none is named; SetupError if one is missing."""
    everything = not ids and not vlms
    segmenters = {n: spec for n, spec in find_segmenters(repository).items() if everything or spec.id in ids}
    found_vlms = {n: spec for n, spec in find_vlms(repository).items() if everything or spec in vlms}
    found = {spec.id for spec in segmenters.values()} | {spec.id for spec in found_vlms.values()}
    missing = sorted({*ids, *(spec.id for spec in vlms)} - found)
    if missing or not (segmenters or found_vlms or find_profile_models(repository)):
        raise SetupError(
            f"{repository} has no model {missing[0] if missing else 'of triton-sam'}: "
            f"run `triton-sam setup {missing[0] if missing else DEFAULT_MODEL} --model-repository {repository}`"
        )
    return ModelSelection(repository, segmenters, found_vlms)


def _bring_up_to_date(spec: ModelSpec, repository: Path, settings: Settings, progress: ProgressFactory | None) -> None:
    """Writes a model if it is missing, was written by another version of this code, or lacks a requested encoder."""
    store = WeightStore(settings.home)
    ready_made = bool(spec.files) and not is_exported(spec, repository)
    fast = has_file(spec, repository, EIGHT_BIT_ENCODER_FILE)
    older_fast = has_file(spec, repository, OLD_EIGHT_BIT_ENCODER_FILE)
    wanted = bool(settings.fast_encoder) and ready_made and not (fast or older_fast)
    if is_current(spec, repository) and not wanted:
        return
    # Ready-made models whose files are cached are set up again: this version may make graphs that the other did not.
    # Others are rewritten from their own graphs if possible: they may be exports of which there is no other copy.
    if not (ready_made and store.is_installed(spec)) and refresh(spec, repository):
        return
    set_up(
        SetupRequest(
            spec,
            store,
            repository,
            progress or silent,
            cpu_encoder=settings.cpu_encoder,
            fast_encoder=fast or bool(settings.fast_encoder),
            fast_decoder=settings.fast_decoder,
        )
    )


def _runnable(vlms: list[VlmSpec]) -> list[VlmSpec]:
    """``vlms``, or a warning and nothing if their packages are missing: nobody named them, so the rest must serve."""
    try:
        if vlms:
            host.check_vlm_runtime()
    except SetupError as error:
        log.warning("%s left out: %s", ", ".join(spec.id for spec in vlms), error)
        return []
    return vlms


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
            log.warning("the service is not installed, so Triton runs alone: pip install 'triton-sam[service]'")
        supervisor = Supervisor(server, tuple(options.segmenters), options.ping_policy, options.should_stop)
        stack.callback(supervisor.stop)
        supervisor.start()
        if has_service:
            stack.enter_context(_service(options, server, supervisor, ports.service))
        yield RunningServer(
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
        host=options.triton_bind,
        http_port=ports.http,
        grpc_port=ports.grpc,
        metrics_port=ports.metrics,
        log_level=options.log_level,
        environment=options.environment,
        ready_seconds=settings.ready_seconds,
        installation=settings.tritonserver,
        # An image as base64, its prompt, and the names around them.
        max_request_bytes=settings.max_image_bytes * 4 // 3 + settings.max_prompt_bytes + MIB,
        traces_url=_traces_url(settings) if traced else None,
    )


def _service(
    options: ServingOptions, server: ServerOptions, supervisor: Supervisor, port: int
) -> contextlib.AbstractContextManager[object]:
    """The service's thread, in front of a running server."""
    from triton_sam.service.app import create_app
    from triton_sam.service.upstream import Upstream
    from triton_sam.service.uvicorn_thread import ServiceThread

    def segmenters() -> dict[str, ModelSpec]:
        """Read each time: a newer version, or another default model, may have come since the start."""
        found = find_segmenters(options.repository)
        return {name: spec for name, spec in found.items() if name in options.segmenters}

    upstream = Upstream(
        status=lambda: supervisor.status,
        segmenters=segmenters,
        vlms=lambda: options.vlms,
        triton_url=f"http://{server.reach}:{server.http_port}",
        metrics_url=f"http://{server.reach}:{server.metrics_port}/metrics",
        on_loss=supervisor.on_loss,
    )
    return ServiceThread(create_app(upstream, options.settings), options.bind, port)


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
