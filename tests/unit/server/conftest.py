from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.supervisor_helpers import NO_PINGS, FakeServers
from triton_sam.server import failures, process, supervisor
from triton_sam.server.command import ServerOptions
from triton_sam.server.supervisor import Supervisor


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    made = FakeServers(tmp_path)
    original = Supervisor._recover

    def recover(self: Supervisor, *arguments: Any) -> None:
        original(self, *arguments)
        made.recovered.put(self.status)

    monkeypatch.setattr(Supervisor, "_recover", recover)
    monkeypatch.setattr(supervisor, "_WATCH_SECONDS", 0.002)
    monkeypatch.setattr(supervisor, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(process, "start", made.start)
    monkeypatch.setattr(supervisor, "_REAP_SECONDS", 0.02)
    monkeypatch.setattr(failures, "process_alive", lambda pid: pid not in made.dead)
    monkeypatch.setattr(supervisor, "process_known", lambda pid: pid not in made.dead or pid in made.zombies)
    return made


@pytest.fixture
def options(tmp_path: Path) -> ServerOptions:
    return ServerOptions(tmp_path / "repository", ("sam2", "other"), tmp_path)


@pytest.fixture
def running(servers: FakeServers, options: ServerOptions) -> Iterator[Supervisor]:
    with Supervisor(options, ("sam2",), NO_PINGS) as started:
        yield started
