"""Concurrent load-generating clients, each in its own process, and the outcome of their requests."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from triton_sam.bench.binary_inputs import binary_inputs
from triton_sam.client.wire import Address
from triton_sam.errors import InternalError, InvalidInput, Unavailable, from_status

_WORKER = Path(__file__).with_name("load_worker.py")
#: From the command to the first request: enough for the slowest process to read the command.
_NOTICE_SECONDS = 0.3
_CONNECTION_LOST = "connection lost"


@dataclass(frozen=True, slots=True)
class RepeatedRequest:
    """A request that one client sends again and again: see load_worker.py.

    Attributes:
        request: base64 of a whole HTTP request.
        number_at, digits: position and length of the image's number, which grows with every request; 0 digits for a
            request without a number.
    """

    host: str
    port: int
    request: str
    number_at: int = 0
    digits: int = 0
    first_number: int = 0


@dataclass(frozen=True, slots=True)
class LoadStep:
    """The outcome of one step: a number of concurrent clients for a number of seconds.

    Attributes:
        latencies: seconds of each request that was answered in that time.
        refused: requests that a full queue refused.
        errors: name of our exception -> other requests that failed.
        cpu_seconds: CPU time of a client for one request.
    """

    clients: int
    seconds: float
    latencies: list[float]
    refused: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Requests answered a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Milliseconds; nan if nothing was answered."""
        return float(np.percentile(self.latencies, percent)) * 1e3 if self.latencies else float("nan")

    @property
    def detail(self) -> str:
        """Latencies, refusals and errors in one line."""
        parts = [f"p50 {self.percentile(50):.1f} ms, p99 {self.percentile(99):.1f} ms"] if self.latencies else []
        # Each client has one request in flight, so by Little's law their mean latency is clients / rate.
        mean = self.clients / self.rate * 1e3 if self.latencies and not self.refused else 0.0
        if mean > 2 * self.percentile(50):
            parts.append(f"latencies are cut by the length of the step: {mean:.0f} ms by the rate")
        parts += [f"{self.refused} refused"] if self.refused else []
        parts += [f"{count} x {name}" for name, count in self.errors.items()]
        parts.append(f"{len(self.latencies)} answers in {self.seconds:g} s")
        return ", ".join(parts)


class LoadClients:
    """Client processes that wait for the command to start. Made by :func:`load_clients`."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def __len__(self) -> int:
        return len(self._processes)

    def add(self, request: RepeatedRequest) -> None:
        """Starts one more client."""
        # Isolated and without site-packages, so that it starts in 20 ms.
        command = [sys.executable, "-I", "-S", str(_WORKER)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        self._write(process, asdict(request))

    def wait_until_ready(self, since: int = 0) -> None:
        """Waits until the clients from number ``since`` on have started."""
        for process in self._processes[since:]:
            self._read(process)

    def begin(self, clients: int, seconds: float, ramp: float) -> float:
        """Starts the first ``clients`` for ``ramp`` and then ``seconds``; returns the monotonic time when they stop."""
        begin = time.monotonic() + _NOTICE_SECONDS
        start = begin + ramp
        times = {"begin": begin, "start": start, "stop": start + seconds}
        for process in self._processes[:clients]:
            self._write(process, times)
        return times["stop"]

    def outcome(self, clients: int, seconds: float) -> LoadStep:
        """Collects the results; returns when the last client has its last response."""
        every = [json.loads(self._read(process)) for process in self._processes[:clients]]
        latencies = [spent for one in every for spent in one["answered"]]
        failed: Counter[str] = Counter()
        refused = 0
        for one in every:
            for status, (count, text) in one["failed"].items():
                name = _error_name(int(status), text)
                if name is None:
                    refused += count
                else:
                    failed[name] += count
        return LoadStep(
            clients, seconds, latencies, refused, dict(failed), float(np.mean([one["cpu_seconds"] for one in every]))
        )

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()  # the command to end
        for process in self._processes:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _write(self, process: subprocess.Popen[str], document: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(document) + "\n")
        process.stdin.flush()

    def _read(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise InternalError(f"a load-generating client ended with code {process.wait()}")
        return line


def _error_name(status: int, text: str) -> str | None:
    """The name of our exception for a response; None if a full queue refused the request."""
    if status == 0:
        return _CONNECTION_LOST
    with contextlib.suppress(ValueError, TypeError, KeyError):
        text = json.loads(text)["error"]
    error = from_status(status, text)
    return None if isinstance(error, Unavailable) else type(error).__name__


@contextlib.contextmanager
def load_clients() -> Iterator[LoadClients]:
    """No clients at first; all processes are ended on exit."""
    clients = LoadClients()
    try:
        yield clients
    finally:
        clients.close()


def infer_request(
    url: str,
    model: str,
    inputs: Mapping[str, bytes],
    outputs: Sequence[str],
    *,
    session: str,
    number: slice | None = None,
    first_number: int = 0,
    parameters: Mapping[str, str] | None = None,
) -> RepeatedRequest:
    """Builds an infer request in Triton's binary form.

    Args:
        inputs: name -> bytes; ``image`` is sent as UINT8, the others as BYTES. A numbered input comes last.
        number: the position, in the last input, of the number that grows with every request.
        parameters: further ones.
    """
    address = Address.parse(url)
    if address.grpc or address.tls:
        raise InvalidInput("a load is sent over plain HTTP: give --url http://host:port")
    described, binary = binary_inputs(inputs)
    document = {
        "parameters": {"session_id": session, **(parameters or {})},
        "inputs": described,
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs],
    }
    head = json.dumps(document).encode()
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        f"Host: {address.target}",
        "Content-Type: application/octet-stream",
        f"Inference-Header-Content-Length: {len(head)}",
        f"Content-Length: {len(head) + len(binary)}",
        "",
        "",
    ]
    start = "\r\n".join(lines).encode() + head
    parts = urllib.parse.urlsplit(f"//{address.target}")
    last = len(binary) - len(list(inputs.values())[-1])
    at = len(start) + last + number.start if number is not None else 0
    digits = number.stop - number.start if number is not None else 0
    request = base64.b64encode(start + binary).decode()
    return RepeatedRequest(parts.hostname or "", parts.port or 80, request, at, digits, first_number)
