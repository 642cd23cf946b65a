"""How a Triton is to be started: its options, and the command that says them."""

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
    """Where a server listens and what it loads.

    Attributes:
        models: Triton names to load at the start; the repository may hold more.
        state: folder for logs and run-time files.
    """

    repository: Path
    models: tuple[str, ...]
    state: Path
    needed: tuple[str, ...] = ()
    """Those without all of which there is nothing to serve; none named: all models."""
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    log_level: str = "warning"
    ready_seconds: float = 120.0
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the server and its models, over those of this process."""
    installation: Path | None = None
    """Folder of the Triton to run; None: the embedded one."""
    max_request_bytes: int = 128 * 1024 * 1024
    """Largest HTTP request that such a Triton shall take; the embedded one has no limit."""
    traces_url: str | None = None
    """Where Triton sends its own part of a trace, by OTLP over HTTP; None: nowhere."""

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
    """
    Args:
        models: what is loaded at the start.
        backends: folder with a backend in each folder.
        admin_key: whoever sends it in KEY_HEADER may use what is closed to others.
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
    """What not every Triton knows, and each serves without."""
    flags = []
    if options.installation is not None:  # later ones than the embedded refuse more than 64 MiB
        flags.append(f"--http-max-input-size={options.max_request_bytes}")
    if options.traces_url is not None:
        # Requests that come with a trace's id, and no others: for these Triton looks at neither rate nor count.
        settings = ("mode=opentelemetry", f"opentelemetry,url={options.traces_url}", "level=TIMESTAMPS", "count=0")
        flags += [f"{TRACE_FLAG}={setting}" for setting in settings]
    return flags
