"""Real HAProxy and nginx with the shipped configurations, and whole servers behind them that can be killed."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.faults.helpers import expect_ended, family_of
from tests.waiting import eventually
from triton_sam.server.host import free_port

ROOT = Path(__file__).resolve().parents[2]
HAPROXY_CONFIG = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
NGINX_CONFIG = ROOT / "deploy" / "nginx" / "nginx.conf"


def program(name: str) -> str:
    """Path of a program; skips the test if it is missing, or fails it if TRITON_SAM_REQUIRE_DEPLOY_TOOLS is set."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        reason = f"no {name} on this machine: run scripts/install_deploy_tools.sh"
        if os.environ.get("TRITON_SAM_REQUIRE_DEPLOY_TOOLS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@dataclass
class WholeServer:
    """``triton-sam serve`` with its own home: service, Triton and the model's process. A restart keeps its ports."""

    repository: Path
    home: Path
    variables: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(
        default_factory=lambda: {name: free_port() for name in ("http", "grpc", "metrics", "service")}
    )
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['service']}"

    def start(self) -> None:
        options = [f"--{name}-port={port}" for name, port in self.ports.items()]
        command = [sys.executable, "-m", "triton_sam.cli", "serve", f"--model-repository={self.repository}", *options]
        self.home.mkdir(exist_ok=True)
        with (self.home / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=os.environ | self.variables | {"TRITON_SAM_HOME": str(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.home / "serve.log").read_text()[-2000:]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200
        return False

    def processes(self) -> list[int]:
        """The serve process and all its descendants."""
        assert self.process is not None
        return family_of(self.process.pid)

    def kill(self) -> None:
        """Kills all processes with SIGKILL, like a power failure."""
        if self.process is None:
            return
        everything = self.processes()
        for pid in everything:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        expect_ended(everything)
        self.process = None

    def figure(self, name: str) -> int:
        """A counter of its model since its start, for example ``encodes``."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['metrics']}/metrics", timeout=30) as response:
            page = response.read().decode()
        found = re.search(rf'^triton_sam_{name}_total{{model="sam2"}} (\S+)$', page, re.MULTILINE)
        assert found is not None, f"{name} is not in {page}"
        return int(float(found[1]))


@dataclass(frozen=True)
class HAProxy:
    """A running HAProxy with the shipped configuration."""

    url: str
    triton_http: str
    triton_grpc: str
    stats: str

    def states(self) -> dict[str, bool]:
        """Server -> whether it is up and gets requests."""
        return {name: row["status"].startswith("UP") for name, row in self._rows().items() if name.startswith("sam")}

    def under_way(self) -> int:
        """Requests in flight at the servers or queued for one."""
        row = self._rows()["BACKEND"]
        return int(row["scur"]) + int(row["qcur"])

    def refused(self) -> int:
        """Requests that HAProxy itself has refused, from its metrics."""
        page = httpx.get(f"{self.stats}/metrics", timeout=10, trust_env=False).text
        found = re.search(r'^haproxy_frontend_requests_denied_total{proxy="service"} (\d+)', page, re.MULTILINE)
        assert found is not None, page
        return int(found[1])

    def asked_again(self) -> int:
        """Requests that were sent to another server because their own had not responded."""
        return int(self._rows()["BACKEND"]["wredis"])

    def _rows(self) -> dict[str, dict[str, str]]:
        """HAProxy's statistics of the backend ``masks``: server (or BACKEND for all) -> column -> value."""
        page = httpx.get(f"{self.stats}/;csv", timeout=10, trust_env=False).text
        rows = csv.DictReader(page.removeprefix("# ").splitlines())
        return {row["svname"]: row for row in rows if row["pxname"] == "masks"}


def haproxy_variables(servers: list[WholeServer]) -> dict[str, str]:
    """Environment variables of the shipped configuration for these servers, with free ports to listen on."""
    variables = {
        name: f"127.0.0.1:{free_port()}" for name in ("BIND", "BIND_TRITON_HTTP", "BIND_TRITON_GRPC", "BIND_STATS")
    }
    variables["INSIDE"] = f"abns@triton-sam-{variables['BIND']}"
    for number, server in enumerate(servers, start=1):
        for prefix, port in (("SAM", "service"), ("TRITON_HTTP", "http"), ("TRITON_GRPC", "grpc")):
            variables[f"{prefix}_{number}"] = f"127.0.0.1:{server.ports[port]}"
    return variables


@contextlib.contextmanager
def running_haproxy(servers: list[WholeServer], folder: Path, **further: str) -> Iterator[HAProxy]:
    """HAProxy with the shipped configuration in front of these servers, once one of them is up.

    Args:
        further: other variables of the configuration.
    """
    variables = haproxy_variables(servers) | further
    command = [program("haproxy"), "-db", "-f", str(HAPROXY_CONFIG)]
    with _running(command, folder / "haproxy.log", variables) as process:
        made = HAProxy(
            f"http://{variables['BIND']}",
            variables["BIND_TRITON_HTTP"],
            f"grpc://{variables['BIND_TRITON_GRPC']}",
            f"http://{variables['BIND_STATS']}",
        )

        def is_up() -> bool:
            assert process.poll() is None, (folder / "haproxy.log").read_text()[-2000:]
            with contextlib.suppress(httpx.TransportError):
                return any(made.states().values())
            return False

        eventually(is_up, "HAProxy with a server")
        yield made


def nginx_config(folder: Path, upstreams: list[str]) -> tuple[Path, int]:
    """The shipped configuration with the values that users edit and a temporary certificate: (path, TLS port)."""
    port = free_port()
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    named = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "site.key"), "-out", str(folder / "site.crt")]
    subprocess.run([*command.split(), *named, *files], check=True, capture_output=True)
    listed = "\n".join(f"server {address} max_fails=1 fail_timeout=2s;" for address in upstreams)
    replaced = {
        "server 127.0.0.1:8080 max_fails=1 fail_timeout=2s;": listed,
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "listen 80;": f"listen 127.0.0.1:{free_port()};",
        "/etc/nginx/site": f"{folder}/site",
        "pid /run/nginx.pid;": f"pid {folder}/nginx.pid;",
    }
    text = NGINX_CONFIG.read_text()
    for shipped, ours in replaced.items():
        assert shipped in text, f"{shipped} is not in nginx.conf any more"
        text = text.replace(shipped, ours)
    path = folder / "nginx.conf"
    path.write_text(text)
    return path, port


@contextlib.contextmanager
def running_nginx(upstreams: list[str], folder: Path) -> Iterator[str]:
    """URL of an nginx with TLS in front of these addresses. Its certificate is ``site.crt`` in the folder."""
    path, port = nginx_config(folder, upstreams)
    command = [program("nginx"), "-e", "stderr", "-c", str(path), "-g", "daemon off;"]
    with _running(command, folder / "nginx.log") as process:
        url = f"https://127.0.0.1:{port}"

        def is_up() -> bool:
            assert process.poll() is None, (folder / "nginx.log").read_text()[-2000:]
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
                return True
            return False

        eventually(is_up, "nginx")
        yield url


@contextlib.contextmanager
def _running(
    command: list[str], log: Path, variables: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("ab") as written,
        subprocess.Popen(
            command, env=os.environ | (variables or {}), stdin=subprocess.DEVNULL, stdout=written, stderr=written
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
