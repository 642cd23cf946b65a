"""Asks a service at a steady pace, whatever it answers, and tells what came: a process of its own.

``python -m tests.faults.load < plan.json > answers.json``; the plan is a :class:`Plan`, the answers a :class:`Told`.
It ends by itself: after the plan's seconds nothing is sent any more, and what is not answered then gets so long and
no longer. Requests leave when they are due and not when others have been answered, as those of many users do.
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

import aiohttp

#: A request without an answer after so long hangs.
_PATIENCE_SECONDS = 60.0
#: The users' machines are not this one: what it measures shall not wait for the models that it burdens.
_NICENESS = -10
_MOST_PER_SECOND = 1200.0


@dataclass
class Plan:
    """What to ask: all that is given, in turn."""

    url: str
    seconds: float
    per_second: float
    path: str
    documents: list[str] = field(default_factory=list)
    """JSON bodies to post."""
    first_picture: int = -1
    """Uploads instead of documents: small pictures, each of another colour, from this number on."""


@dataclass
class Told:
    """What came. Answers are (status, seconds, Retry-After, code of the refusal)."""

    answers: list[tuple[int, float, str, str]] = field(default_factory=list)
    sent: int = 0
    broken: list[str] = field(default_factory=list)
    """Connections that ended without an answer, and what hung."""

    def seconds(self, *statuses: int) -> list[float]:
        return [seconds for status, seconds, _, _ in self.answers if status in statuses]

    def count(self, *statuses: int) -> int:
        return len(self.seconds(*statuses))


def percentile(values: list[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def shared(plan: Plan) -> list[Plan]:
    """The plan as several of a lower pace: one process cannot send thousands a second, and would tell its own lag."""
    count = max(1, math.ceil(plan.per_second / _MOST_PER_SECOND))
    return [replace(plan, per_second=plan.per_second / count) for _ in range(count)]


def together(parts: list[Told]) -> Told:
    """What several processes have to tell."""
    return Told(
        [answer for part in parts for answer in part.answers],
        sum(part.sent for part in parts),
        [error for part in parts for error in part.broken],
    )


@contextlib.contextmanager
def asking(plan: Plan) -> Iterator[subprocess.Popen[str]]:
    """The plan being carried out in another process; :func:`told` waits for its end."""
    command = [sys.executable, "-m", "tests.faults.load"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(plan)))
            process.stdin.close()
            process.stdin = None
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> Told:
    """What a plan's process has to tell, after its end."""
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    document = json.loads(output)
    return Told([tuple(answer) for answer in document["answers"]], document["sent"], document["broken"])


def ask(plan: Plan) -> Told:
    """Carries a plan out."""
    with asking(plan) as process:
        return told(process)


def picture(number: int) -> bytes:
    """A small PNG like no other number's."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (number % 256, number // 256 % 256, 77)).save(buffer, "PNG")
    return buffer.getvalue()


class _Asker:
    def __init__(self, plan: Plan, session: aiohttp.ClientSession) -> None:
        self._plan = plan
        self._session = session
        self._numbers = itertools.count(plan.first_picture)
        self._documents = itertools.cycle(plan.documents or [""])
        self.told = Told()

    async def run(self) -> None:
        begun = time.perf_counter()
        tasks = []
        for number in range(int(self._plan.seconds * self._plan.per_second)):
            due = begun + number / self._plan.per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._ask()))
        self.told.sent = len(tasks)
        await asyncio.gather(*tasks)

    async def _ask(self) -> None:
        request = self._request()
        begun = time.perf_counter()
        try:
            async with request as answer:
                body = await answer.read()
                seconds = time.perf_counter() - begun
                code = json.loads(body)["error"]["code"] if answer.status >= 400 and b'"error"' in body else ""
                self.told.answers.append((answer.status, seconds, answer.headers.get("Retry-After", ""), code))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self.told.broken.append(repr(error))

    def _request(self) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        address = self._plan.url + self._plan.path
        if self._plan.first_picture >= 0:
            form = aiohttp.FormData()
            form.add_field("image", picture(next(self._numbers)), filename="a.png", content_type="image/png")
            return self._session.post(address, data=form)
        if self._plan.documents:
            return self._session.post(address, data=next(self._documents), headers={"Content-Type": "application/json"})
        return self._session.get(address)


async def _main() -> None:
    plan = Plan(**json.load(sys.stdin))
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        asker = _Asker(plan, session)
        await asker.run()
    json.dump(asdict(asker.told), sys.stdout)


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    asyncio.run(_main())
