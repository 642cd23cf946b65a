"""Options of a Triton server, and the command line that they become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from triton_sam.server import host

KEY_HEADER = "triton-sam-admin"
EXIT_SECONDS = 30
TRACE_FLAG = "--trace-config"
_CLOSED_APIS = "model-repository,shared-memory,logging,trace"
_LOG_FLAGS = {
    "error": ("--log-warning=false", "--log-info=false"),
    "warning": ("--log-info=false",),
    "info": (),
    "debug": ("--log-verbose=1",),
}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Addresses, models and limits of one server."""

    repository: Path
    models: tuple[str, ...]
    """Triton names to load at the start; the repository may hold more."""
    state: Path
    """Folder for logs and run-time files."""
    needed: tuple[str, ...] = ()
    """The start fails if all of these fail to load; empty: all models."""
    processes: Mapping[str, int] = field(default_factory=dict)
    """Triton name -> number of its processes, for models that do not have the number of their config."""
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    log_level: str = "warning"
    ready_seconds: float = 120.0
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the server and its models, which override those of this process."""
    installation: Path | None = None
    """Folder of the Triton to run; None: the embedded one."""
    max_request_bytes: int = 128 * 1024 * 1024
    """Largest HTTP request that a Triton of ``installation`` accepts; the embedded one has no limit."""
    traces_url: str | None = None
    """Address to which Triton sends its spans, by OTLP over HTTP; None: no traces."""

    @property
    def reach(self) -> str:
        """The address at which this machine reaches the server."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host


def command_line(
    files: host.TritonFiles,
    options: ServerOptions,
    models: Sequence[str],
    backends: Path,
    shm_prefix: str,
    admin_key: str,
) -> list[str]:
    """The command that starts a server, without the flags that not every Triton knows.

    Args:
        models: loaded at the start.
        backends: folder with one folder for each backend.
        admin_key: requests with it in KEY_HEADER may use the admin APIs, which are closed otherwise.
    """
    closed = f"{_CLOSED_APIS}:{KEY_HEADER}={admin_key}"
    return [
        str(files.binary),
        f"--model-repository={options.repository}",
        f"--backend-directory={backends}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        f"--http-address={options.host}",
        f"--http-port={options.http_port}",
        f"--grpc-address={options.host}",
        f"--grpc-port={options.grpc_port}",
        f"--metrics-address={options.host}",
        f"--metrics-port={options.metrics_port}",
        f"--http-restricted-api={closed}",
        f"--grpc-restricted-protocol={closed}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--exit-timeout-secs={EXIT_SECONDS}",
        "--exit-on-error=false",
        *_LOG_FLAGS[options.log_level],
    ]


def further_flags(options: ServerOptions) -> list[str]:
    """Flags that not every Triton knows; each serves without them."""
    flags = []
    if options.installation is not None:  # newer releases than the embedded one refuse more than 64 MiB
        flags.append(f"--http-max-input-size={options.max_request_bytes}")
    if options.traces_url is not None:
        # Only requests that carry a trace id are traced: for these Triton ignores rate and count.
        settings = ("mode=opentelemetry", f"opentelemetry,url={options.traces_url}", "level=TIMESTAMPS", "count=0")
        flags += [f"{TRACE_FLAG}={setting}" for setting in settings]
    return flags
