"""Load generator: sends requests to a service at a steady rate and reports the responses. Runs as its own process.

``python -m testkit.steady_load < plan.json > result.json``; the plan is a :class:`Plan`, the result a
:class:`LoadResult`. Nothing is sent after the plan's seconds, and pending requests then have a timeout. The load is
open: requests are sent when they are due, whether or not earlier ones have been answered, as with many users.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from urllib.parse import urlsplit

from testkit.forms import FORM, form, part

JSON = "application/json"
#: Users have machines of their own, so the measurement must not wait for the models under load.
_URGENCY = 10
_MOST_PER_SECOND = 1200.0
#: Status, Retry-After, body.
_Answer = tuple[int, str, bytes]


@dataclass
class Plan:
    """What to send: the documents in turn, or new pictures, or GET requests if neither is given."""

    url: str
    seconds: float
    per_second: float
    path: str
    documents: list[str] = field(default_factory=list)
    """JSON bodies to post."""
    first_picture: int = -1
    """Uploads instead of documents: small pictures of different colours, numbered from here; -1 for none."""
    patience: float = 120.0
    """Seconds after which a request without a response counts as broken."""


@dataclass
class LoadResult:
    """The responses to a plan: (status, seconds, Retry-After, error code)."""

    answers: list[tuple[int, float, str, str]] = field(default_factory=list)
    sent: int = 0
    broken: list[str] = field(default_factory=list)
    """Errors of requests whose connection broke or that timed out."""

    def seconds(self, *statuses: int) -> list[float]:
        return [seconds for status, seconds, _, _ in self.answers if status in statuses]

    def count(self, *statuses: int) -> int:
        return len(self.seconds(*statuses))


def percentile(values: list[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def split(plan: Plan) -> list[Plan]:
    """The plan as several of a lower rate: one process that sends thousands a second would measure its own lag."""
    count = max(1, math.ceil(plan.per_second / _MOST_PER_SECOND))
    return [replace(plan, per_second=plan.per_second / count) for _ in range(count)]


def merged(parts: list[LoadResult]) -> LoadResult:
    """The results of several processes as one."""
    return LoadResult(
        [answer for part in parts for answer in part.answers],
        sum(part.sent for part in parts),
        [error for part in parts for error in part.broken],
    )


@contextlib.contextmanager
def running_load(plan: Plan) -> Iterator[subprocess.Popen[str]]:
    """Runs the plan in another process; :func:`result_of` waits for its end."""
    command = [sys.executable, "-m", "testkit.steady_load"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(plan)))
            process.stdin.close()
            process.stdin = None
            yield process
        finally:
            process.kill()


def result_of(process: subprocess.Popen[str]) -> LoadResult:
    """Waits for a plan's process and returns its result."""
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    document = json.loads(output)
    return LoadResult([tuple(answer) for answer in document["answers"]], document["sent"], document["broken"])


def run_load(plan: Plan) -> LoadResult:
    """Runs a plan to its end."""
    with running_load(plan) as process:
        return result_of(process)


def picture(number: int) -> bytes:
    """A small PNG, different for each number."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (number % 256, number // 256 % 256, 77)).save(buffer, "PNG")
    return buffer.getvalue()


class _Connection(asyncio.Protocol):
    """One request at a time, with as little work as possible: the generator shares the cores with the server."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[_Answer] | None = None
        self._transport: asyncio.Transport | None = None
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[_Answer]:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or self._answer is None or self._answer.done():
            return
        status, _, lines = bytes(head).partition(b"\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in lines.split(b"\r\n"))
        if len(body) >= int(fields[b"content-length"]):
            self._received.clear()
            if fields.get(b"connection") == b"close":
                self.close()
            self._answer.set_result((int(status.split()[1]), fields.get(b"retry-after", b"").decode(), bytes(body)))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the connection was lost: {error!r}"))

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()


class _LoadGenerator:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._address = urlsplit(plan.url)
        self._host, self._port = self._address.hostname or "", self._address.port or 80
        self._numbers = itertools.count(plan.first_picture)
        self._requests = itertools.cycle([self._request(JSON, document.encode()) for document in plan.documents])
        self._idle: list[_Connection] = []
        self.result = LoadResult()

    async def run(self) -> None:
        begun = time.perf_counter()
        tasks = []
        for number in range(int(self._plan.seconds * self._plan.per_second)):
            due = begun + number / self._plan.per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._send()))
        self.result.sent = len(tasks)
        await asyncio.gather(*tasks)
        for connection in self._idle:
            connection.close()

    async def _send(self) -> None:
        request = self._next()
        begun = time.perf_counter()
        try:
            connection = self._free()
            if connection is None:
                connection = await asyncio.wait_for(self._new(), self._plan.patience)
            status, retry_after, body = await asyncio.wait_for(connection.ask(request), self._plan.patience)
            seconds = time.perf_counter() - begun
            code = json.loads(body)["error"]["code"] if status >= 400 and b'"error"' in body else ""
            self.result.answers.append((status, seconds, retry_after, code))
        except (OSError, asyncio.TimeoutError, ValueError, LookupError) as error:
            self.result.broken.append(repr(error))
        else:
            if connection.is_open:
                self._idle.append(connection)

    def _free(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _new(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, self._host, self._port)
        return made

    def _next(self) -> bytes:
        if self._plan.first_picture >= 0:
            return self._request(FORM, form(part("image", picture(next(self._numbers)), "a.png")))
        return next(self._requests) if self._plan.documents else self._request()

    def _request(self, kind: str = "", body: bytes = b"") -> bytes:
        lines = [f"{'POST' if kind else 'GET'} {self._plan.path} HTTP/1.1", f"Host: {self._address.netloc}"]
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}"] if kind else []
        return "\r\n".join([*lines, "", ""]).encode() + body


async def _main() -> None:
    generator = _LoadGenerator(Plan(**json.load(sys.stdin)))
    await generator.run()
    json.dump(asdict(generator.result), sys.stdout)


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - _URGENCY)
    asyncio.run(_main())
