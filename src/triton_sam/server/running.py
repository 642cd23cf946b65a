"""Records of the servers that run on this machine, so that other commands can tell them from foreign programs.

Each server writes ``TRITON_SAM_HOME/run/server-<pid>-<port>.json`` while it serves. A record whose process has ended,
or whose number belongs to another process by now, is ignored and swept by the next server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from triton_sam.models.vlm_catalog import is_vlm
from triton_sam.repository.availability import RunningModels
from triton_sam.server.ping_message import PING, DeviceState, read_answer

_ASK_SECONDS = 2.0
_NAMES = "server-*.json"
#: The user's proxy is not for our own server.
_without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One running server.

    Attributes:
        triton_url: address at which this machine reaches Triton.
        service_url: the same for the service; None if it runs without.
        ports: all ports that it uses.
        models: Triton name -> id of each model that it was started with.
        pid: its process.
        started: the kernel's start time of that process, which no later process with the same number has.
    """

    triton_url: str
    service_url: str | None
    ports: tuple[int, ...]
    models: Mapping[str, str]
    pid: int = dataclasses.field(default_factory=os.getpid)
    started: str = dataclasses.field(default_factory=lambda: _start_time(os.getpid()))

    @property
    def url(self) -> str:
        """The address that users are told."""
        return self.service_url or self.triton_url

    def served(self) -> dict[str, str]:
        """Id -> address of the models that respond now; Triton is asked."""
        return {model_id: self.url for name, model_id in self.models.items() if _is_ready(self.triton_url, name)}

    def devices(self) -> dict[str, tuple[DeviceState, ...]]:
        """Triton name -> the state of its devices now, of the segmenters that respond."""
        found = {}
        for name, model_id in self.models.items():
            if not is_vlm(model_id) and _is_ready(self.triton_url, name):
                devices = _devices_of(self.triton_url, name)
                if devices:
                    found[name] = devices
        return found


@contextlib.contextmanager
def recorded(home: Path, record: ServerRecord) -> Iterator[None]:
    """Keeps a record while the block runs. A home that cannot be written has none; it only informs."""
    folder = home / "run"
    file = folder / f"server-{record.pid}-{record.ports[0]}.json"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(_NAMES):
            if _read(old) is None:
                old.unlink(missing_ok=True)
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps(dataclasses.asdict(record)) + "\n")
        partial.replace(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def find_running(home: Path) -> list[ServerRecord]:
    """The servers of this home that run now."""
    found = (_read(file) for file in sorted((home / "run").glob(_NAMES)))
    return [record for record in found if record is not None]


def running_models(records: list[ServerRecord]) -> RunningModels:
    """What these servers serve now."""
    served: dict[str, str] = {}
    for record in records:
        served |= record.served()
    return RunningModels(records[0].pid if records else 0, served)


def _read(file: Path) -> ServerRecord | None:
    """The record of a server that runs; None for any other."""
    try:
        document = json.loads(file.read_bytes())
        record = ServerRecord(
            str(document["triton_url"]),
            None if document["service_url"] is None else str(document["service_url"]),
            tuple(int(port) for port in document["ports"]),
            {str(name): str(model_id) for name, model_id in document["models"].items()},
            int(document["pid"]),
            str(document["started"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if record.started and _start_time(record.pid) == record.started else None


def _start_time(pid: int) -> str:
    """Clock ticks from the machine's start to the process's; empty if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def _is_ready(triton_url: str, name: str) -> bool:
    try:
        with _without_proxy.open(f"{triton_url}/v2/models/{name}/ready", timeout=_ASK_SECONDS) as response:
            return bool(response.status == 200)
    except (OSError, ValueError, HTTPException):
        return False


def _devices_of(triton_url: str, name: str) -> tuple[DeviceState, ...]:
    """The devices in a segmenter's answer to a ping; none if it does not answer."""
    body, headers = json.dumps(PING).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{triton_url}/v2/models/{name}/infer", data=body, headers=headers)
    try:
        with _without_proxy.open(request, timeout=_ASK_SECONDS) as response:
            return read_answer(json.load(response)).devices
    except (OSError, ValueError, LookupError, TypeError, AttributeError, HTTPException):
        return ()
