"""A service of several processes before a fake Triton."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.unit.service.fake_triton import FakeTriton
from tests.unit.service.helpers import CLICK, SEGMENTERS, TIMEOUT
from tests.unit.serving_helpers import write_repository
from triton_sam.server.host import free_port
from triton_sam.service.process_pool import ServiceProcesses
from triton_sam.service.upstream import LossCallback, Upstream
from triton_sam.settings import Settings

#: So many new connections reach every one of three processes, but for once in a billion times.
MANY = 60
#: A client makes a context with all authorities otherwise, which takes longer than the request.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class FakeSupervisor:
    """A status that a test sets, and losses that it reports."""

    status: dict[str, object] = field(
        default_factory=lambda: {"state": "ready", "restarts": 0, "reloads": 0, "reason": "", "lost": (), "missing": ()}
    )
    callbacks: list[LossCallback] = field(default_factory=list)

    def on_loss(self, callback: LossCallback) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def lose(self, reason: str) -> None:
        """As the supervisor does it, on a thread of its own."""
        self.status |= {"state": "recovering", "lost": ("sam2",), "reason": reason}
        for callback in list(self.callbacks):
            thread = threading.Thread(target=callback, args=(reason, ("sam2",)))
            thread.start()
            thread.join()


@dataclass
class Pool:
    """What a test needs of a running service."""

    port: int
    processes: ServiceProcesses
    supervisor: FakeSupervisor
    triton: FakeTriton
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """One request on a connection of its own, which any process may get."""
        headers = {**self.headers, **request.pop("headers", {})}
        url = f"http://127.0.0.1:{self.port}{path}"
        with httpx.Client(timeout=TIMEOUT, trust_env=False, headers=headers, verify=_NO_TLS) as client:
            return client.request(method, url, **request)

    def click(self, **more: Any) -> httpx.Response:
        return self.ask("POST", "/v1/segment", json=CLICK | more)

    def statuses(self, path: str, **request: Any) -> list[int]:
        return [self.ask("GET", path, **request).status_code for _ in range(MANY)]

    def metric(self, name: str) -> float:
        """The value of one line of /metrics; 0 if there is none."""
        lines = self.ask("GET", "/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


@contextlib.contextmanager
def service_pool(triton: FakeTriton, folder: Path, processes: int = 3, **settings: Any) -> Iterator[Pool]:
    """Listens, with the models of ``helpers.SEGMENTERS`` as far as a repository without weights has them."""
    supervisor, port = FakeSupervisor(), free_port()
    repository = folder / "repository"
    if not repository.exists():
        write_repository(repository)
    upstream = Upstream(
        status=lambda: supervisor.status,
        segmenters=lambda: SEGMENTERS,
        triton_url=f"http://127.0.0.1:{triton.port}",
        on_loss=supervisor.on_loss,
    )
    pool = ServiceProcesses(
        upstream,
        Settings(service_processes=processes, home=folder, **settings),
        "127.0.0.1",
        port,
        repository=repository,
        segmenters=["sam2"],
    )
    with pool:
        yield Pool(port, pool, supervisor, triton)
