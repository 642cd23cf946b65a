"""Everything that ``triton-sam serve`` starts, as one context manager: models, Triton, the service."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import EIGHT_BIT_ENCODER_FILE, OLD_EIGHT_BIT_ENCODER_FILE, ModelSpec
from triton_sam.models.vlm_catalog import get_vlm, is_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.weights import ProgressFactory, WeightStore
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
from triton_sam.repository.setup import set_up
from triton_sam.repository.vlms import find_vlms, is_current_vlm, own_checkpoint, write_vlm
from triton_sam.server import host
from triton_sam.server.command import ServerOptions
from triton_sam.server.supervisor import PingPolicy, Supervisor
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
    """Where things listen; 0 takes a free port."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002
    service: int = 8080


@dataclass(frozen=True, slots=True)
class Served:
    """What shall be served from where; the keys are Triton names.

    Attributes:
        vlms: one name for each, under which whole answers are given; pieces come under ``stream_name`` of the row.
    """

    repository: Path
    segmenters: dict[str, ModelSpec]
    vlms: dict[str, VlmSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """A running server and its addresses."""

    supervisor: Supervisor
    ports: Ports
    reach: str
    segmenters: dict[str, ModelSpec]
    service_reach: str | None = None
    """None where no service runs."""
    vlms: Mapping[str, VlmSpec] = field(default_factory=dict)
    tls: bool = False
    """Whether the service speaks https."""

    @property
    def urls(self) -> dict[str, str]:
        """Name -> address, as people type it."""
        urls = {
            "HTTP": f"http://{self.reach}:{self.ports.http}",
            "gRPC": f"grpc://{self.reach}:{self.ports.grpc}",
            "metrics": f"http://{self.reach}:{self.ports.metrics}/metrics",
        }
        if self.service_reach is not None:
            urls["service"] = f"{'https' if self.tls else 'http'}://{self.service_reach}:{self.ports.service}"
        return urls


def prepare(
    ids: Sequence[str], settings: Settings, repository: Path | None, progress: ProgressFactory | None = None
) -> Served:
    """What shall be served: the models of ``ids``, else all that are set up; those that are not yet are set up.

    The weights of a vision-language model come when it is first asked, not here. A repository of the user's own is
    read, never written. One with nothing but models for foreign tools has no rows.
    """
    vlms = [get_vlm(name) for name in ids if is_vlm(name)]
    if vlms:
        host.check_vlm_runtime()  # before anything is written
    ids = [name for name in ids if not is_vlm(name)]
    by_default = not ids and not vlms
    if repository is not None:
        wanted = {n: spec for n, spec in find_segmenters(repository).items() if by_default or spec.id in ids}
        asked = {n: spec for n, spec in find_vlms(repository).items() if by_default or spec in vlms}
        there = {spec.id for spec in wanted.values()} | {spec.id for spec in asked.values()}
        missing = sorted({*ids, *(spec.id for spec in vlms)} - there)
        if missing or not (wanted or asked or find_profile_models(repository)):
            raise SetupError(
                f"{repository} has no model {missing[0] if missing else 'of triton-sam'}: "
                f"run `triton-sam setup {missing[0] if missing else DEFAULT_MODEL} --model-repository {repository}`"
            )
        return Served(repository, wanted, asked)
    repository = settings.repository
    chosen = list(ids)
    if by_default:
        chosen = [spec.id for spec in find_segmenters(repository).values()]
        vlms = _runnable(list(find_vlms(repository).values()))
        if not (chosen or vlms or find_profile_models(repository)):
            chosen = [DEFAULT_MODEL]
    specs = [get_spec(model_id) for model_id in dict.fromkeys(chosen)]
    store = WeightStore(settings.home)
    for spec in specs:
        _bring_up_to_date(spec, store, repository, settings, progress)
    for vlm in vlms:
        if not is_current_vlm(vlm, repository):
            write_vlm(vlm, repository, own_checkpoint(vlm, repository))
    found = find_segmenters(repository)
    names = [find_name(spec, repository) for spec in specs]
    return Served(repository, {name: found[name] for name in names if name in found}, {vlm.name: vlm for vlm in vlms})


def _bring_up_to_date(
    spec: ModelSpec, store: WeightStore, repository: Path, settings: Settings, progress: ProgressFactory | None
) -> None:
    """Writes a model anew where another version of this code, or nobody, wrote it, or its fast encoder is asked for."""
    ready_made = bool(spec.files) and not is_exported(spec, repository)
    fast = has_file(spec, repository, EIGHT_BIT_ENCODER_FILE)
    older_fast = has_file(spec, repository, OLD_EIGHT_BIT_ENCODER_FILE)
    wanted = bool(settings.fast_encoder) and ready_made and not (fast or older_fast)
    if is_current(spec, repository) and not wanted:
        return
    # Ready-made ones whose files are here are set up again: this version may make graphs that the other did not.
    # All else is written anew from itself where it can be: it may be an export that nothing else holds.
    if not (ready_made and store.is_installed(spec)) and refresh(spec, repository):
        return
    set_up(
        spec,
        store,
        repository,
        progress,
        cpu_encoder=settings.cpu_encoder,
        fast_encoder=fast or bool(settings.fast_encoder),
        fast_decoder=settings.fast_decoder,
    )


def _runnable(vlms: list[VlmSpec]) -> list[VlmSpec]:
    """None where the environment cannot run any, with a word about it: what nobody named must not stop the rest."""
    try:
        if vlms:
            host.check_vlm_runtime()
    except SetupError as error:
        log.warning("%s left out: %s", ", ".join(spec.id for spec in vlms), error)
        return []
    return vlms


@contextlib.contextmanager
def serving(
    repository: Path,
    segmenters: dict[str, ModelSpec],
    settings: Settings,
    *,
    vlms: Mapping[str, VlmSpec] | None = None,
    bind: str = "127.0.0.1",
    triton_bind: str = "127.0.0.1",
    ports: Ports | None = None,
    raw: bool = False,
    log_level: str = "warning",
    with_service: bool = True,
    environment: Mapping[str, str] | None = None,
    ping_policy: PingPolicy | None = None,
    shall_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Running]:
    """Serves until the block is left, then drains and stops everything; models for foreign tools are served too.

    Args:
        vlms: vision-language models by their Triton names.
        bind: where the service listens, which checks what comes; triton_bind: where Triton does, which does not.
        raw: load the plain encoders and decoders too.
        shall_stop: looked at several times a second; true stops the server as leaving the block does.
        environment: variables for the server's processes, for example TRITON_SAM_CACHE_BYTES.
    """
    for address in (bind, triton_bind):
        if ":" in address:
            raise SetupError(f"{address} is an IPv6 address and the servers listen on IPv4: use 127.0.0.1 or 0.0.0.0")
    ports = _with_free_ports(ports or Ports(), triton_bind)
    if not is_loopback(triton_bind):
        log.warning(EXPOSED_WARNING if settings.tritonserver is None else EXPOSED_OTHER_WARNING)
    if with_service and not is_loopback(bind) and settings.token is None and settings.tokens_file is None:
        log.warning(OPEN_SERVICE_WARNING)
    vlms = vlms or {}
    if vlms:
        host.check_vlm_runtime()
    names = list(segmenters)
    if raw:
        names += [name for segmenter in segmenters for name in raw_names(segmenter)]
    names += [name for spec in vlms.values() for name in (spec.name, spec.stream_name)]
    names += [name for name in find_profile_models(repository) if name not in names]
    has_service = with_service and importlib.util.find_spec("fastapi") is not None
    options = ServerOptions(
        repository=repository.resolve(),
        models=tuple(names),
        state=settings.home,
        # Of a vision-language model's two names only the one behind the door has weights, and raw graphs are an extra.
        needed=(*segmenters, *(spec.stream_name for spec in vlms.values())),
        host=triton_bind,
        http_port=ports.http,
        grpc_port=ports.grpc,
        metrics_port=ports.metrics,
        log_level=log_level,
        environment=environment or {},
        ready_seconds=settings.ready_seconds,
        installation=settings.tritonserver,
        # An image as base64, its prompt, and the names around them.
        max_request_bytes=settings.max_image_bytes * 4 // 3 + settings.max_prompt_bytes + MIB,
        traces_url=_traces_url(settings) if has_service else None,
    )
    with contextlib.ExitStack() as stack:
        if has_service:
            check_service(settings)
            host.check_port(bind, ports.service, "service")
        elif with_service:
            log.warning("the service is not installed, so Triton runs alone: pip install 'triton-sam[service]'")
        supervisor = Supervisor(options, tuple(segmenters), ping_policy, shall_stop)
        stack.callback(supervisor.stop)
        supervisor.start()
        if has_service:
            from triton_sam.service.app import create_app
            from triton_sam.service.upstream import Upstream
            from triton_sam.service.uvicorn_thread import ServiceThread

            def served() -> dict[str, ModelSpec]:
                """A newer version, or another default, may have come since the start."""
                return {name: spec for name, spec in find_segmenters(repository).items() if name in segmenters}

            backend = Upstream(
                status=lambda: supervisor.status,
                segmenters=served,
                vlms=lambda: vlms,
                triton_url=f"http://{options.reach}:{ports.http}",
                metrics_url=f"http://{options.reach}:{ports.metrics}/metrics",
                on_loss=supervisor.on_loss,
            )
            stack.enter_context(ServiceThread(create_app(backend, settings), bind, ports.service))
        yield Running(
            supervisor,
            ports,
            options.reach,
            segmenters,
            reach_of(bind) if has_service else None,
            vlms,
            tls=settings.tls_certificate is not None,
        )


def check_service(settings: Settings) -> None:
    """SetupError for what the service needs and cannot use, before a server is started for minutes in vain."""
    from triton_sam.service.admission.tls import tls_files
    from triton_sam.service.api_tokens import read_tokens
    from triton_sam.service.telemetry.tracing import check_tracing

    check_tracing(settings)
    tls_files(settings)
    if settings.tokens_file is not None:
        read_tokens(settings.tokens_file)


def _traces_url(settings: Settings) -> str | None:
    """Where Triton's own spans go: to whom the service sends those that they stand below."""
    from triton_sam.service.telemetry.tracing import traces_url

    return traces_url(settings)


def reach_of(bind: str) -> str:
    """The address at which this machine reaches what listens on ``bind``."""
    return "127.0.0.1" if bind == "0.0.0.0" else bind


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _with_free_ports(ports: Ports, bind: str) -> Ports:
    reach = bind if is_loopback(bind) else "127.0.0.1"
    wanted = (ports.http, ports.grpc, ports.metrics, ports.service)
    taken = [port for port in wanted if port]
    for port in taken:
        if taken.count(port) > 1:
            raise SetupError(f"port {port} is named twice: give each port a number of its own")
    chosen = []
    for port in wanted:
        while port == 0:
            candidate = host.free_port(reach)
            if candidate not in taken:
                port = candidate
                taken.append(port)
        chosen.append(port)
    return Ports(*chosen)
