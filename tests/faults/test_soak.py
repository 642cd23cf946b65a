"""Hours of work in minutes: eight users of all kinds, and a model's process killed now and then.

Nothing grows, nobody gets a wrong mask, and no error comes that a kill does not explain.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import pytest

from testkit.steady_load import picture
from tests.conftest import ServerFactory
from tests.faults.figures import record
from tests.faults.helpers import open_files, recoveries_of, status_field, stub_of
from triton_sam.serving import RunningServer

SECONDS = float(os.environ.get("TRITON_SAM_SOAK_SECONDS", "1200"))
pytestmark = [pytest.mark.triton, pytest.mark.part("soak"), pytest.mark.timeout(SECONDS + 600)]
KILL_EVERY = 240.0
#: Seconds of each process in which its caches fill and its threads start.
WARM_UP = 60.0
GROWTH_MB = 100
#: Of a soak's process: connections of those who ask come and go.
FILES_MORE, THREADS_MORE = 10, 4
_FORMATS = ("png", "rle", "polygon", "bits", "logits")
_PHOTOGRAPHS = ("coffee.png", "chelsea.png", "astronaut.png")
#: What may be answered while a killed process comes back, and of requests that were in flight.
_WHILE_GONE = (503, 429, 404)
#: What may be answered once it is back with an empty cache, and to whom.
_EXPIRED, _ON_KEYS = 404, ("click", "hover")
#: Logits reach from -30 to 30.
_LAST_DIGITS = 0.01


@dataclass
class Diary:
    """What happened."""

    done: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    compared: int = 0
    kills: int = 0
    back: list[float] = field(default_factory=list)
    gone_until: float = 0.0
    """Up to this time errors are explained by a kill."""
    forgotten_until: float = 0.0
    """Up to this time keys may have expired by a kill."""

    def note(self, what: str, status: int, wanted: int, begun: float, text: str) -> bool:
        """Whether the answer is the one that was wanted."""
        if status == wanted:
            self.done[what] += 1
            return True
        gone = status in _WHILE_GONE and begun <= self.gone_until
        forgotten = status == _EXPIRED and what in _ON_KEYS and begun <= self.forgotten_until
        if gone or forgotten:
            self.injected[f"{what} {status}"] += 1
        else:
            self.wrong.append(f"{what}: {status} {text[:200]}")
        return False


@dataclass
class Sample:
    """One look at a process."""

    when: float
    pid: int
    memory: int
    """kB"""
    files: int
    threads: int


class Users:
    """Eight users on one event loop until the time is up."""

    def __init__(self, running: RunningServer, session: aiohttp.ClientSession, photographs: dict[str, bytes]) -> None:
        self._running = running
        self._url = running.urls["service"]
        self._session = session
        self._photographs = photographs
        self._keys: dict[str, str] = {}
        self._right: dict[tuple[str, str, int], dict[str, Any]] = {}
        self._numbers = itertools.count(20_000)
        self.diary = Diary()
        self.samples: dict[str, list[Sample]] = {"service": [], "server": [], "stub": []}
        self._ends = 0.0

    async def run(self) -> None:
        for name in self._photographs:
            await self._upload_photograph(name)
        self._ends = time.monotonic() + SECONDS
        users: list[Callable[[], Awaitable[None]]] = [
            *(lambda turn=turn: self._click(turn) for turn in range(3)),  # type: ignore[misc]
            self._upload,
            self._hover,
            self._bad_input,
            self._health,
            lambda: self._click(3),
        ]
        await asyncio.gather(*(self._until_the_end(user) for user in users), self._kill_now_and_then(), self._look())

    async def _until_the_end(self, user: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < self._ends:
            try:
                await user()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self.diary.wrong.append(f"connection: {error!r}")  # the service itself is never killed
                await asyncio.sleep(0.5)

    async def _post(self, path: str, **body: object) -> tuple[int, bytes]:
        async with self._session.post(self._url + path, **body) as answer:  # type: ignore[arg-type]
            return answer.status, await answer.read()

    # -- the users -------------------------------------------------------------------------------------------

    async def _upload_photograph(self, name: str) -> None:
        begun = time.monotonic()
        status, text = await self._post("/v1/images", data=_form(self._photographs[name]))
        if self.diary.note("photograph", status, 200, begun, text.decode()):
            self._keys[name] = json.loads(text)["image_key"]

    async def _click(self, turn: int) -> None:
        """A click in the next format; its mask is the first one's of the same place and format, always."""
        step = self.diary.done["click"] + turn
        name, kind = _PHOTOGRAPHS[step % 3], _FORMATS[step % 5]
        x = 120 + 20 * (step % 7)
        document = {"image_key": self._keys[name], "points": [[x, 150]], "format": kind}
        begun = time.monotonic()
        status, text = await self._post("/v1/segment", json=document)
        if self.diary.note("click", status, 200, begun, text.decode(errors="replace")):
            self._compare((name, kind, x), json.loads(text)["mask"])
        elif status == 404:
            await self._upload_photograph(name)
        else:
            await asyncio.sleep(0.2)

    def _compare(self, place: tuple[str, str, int], mask: dict[str, Any]) -> None:
        self.diary.compared += 1
        if not _same(self._right.setdefault(place, mask), mask):
            self.diary.wrong.append(f"another mask than before at {place}")

    async def _upload(self) -> None:
        begun = time.monotonic()
        status, text = await self._post("/v1/images", data=_form(picture(next(self._numbers))))
        self.diary.note("upload", status, 200, begun, text.decode())
        await asyncio.sleep(0.5)

    async def _hover(self) -> None:
        """A socket for a few messages; it outlives the models."""
        async with self._session.ws_connect(self._url + "/v1/hover") as socket:
            for number in range(10):
                begun = time.monotonic()
                key = self._keys[_PHOTOGRAPHS[number % 3]]
                await socket.send_json({"id": number, "image_key": key, "points": [[200, 150]], "format": "rle"})
                answer = json.loads((await socket.receive(timeout=60)).data)
                code = answer.get("error", {}).get("code", "")
                status = {"": 200, "unavailable": 503, "image_expired": 404, "queue_full": 429}.get(code, 500)
                self.diary.note("hover", status, 200, begun, str(answer))
                await asyncio.sleep(0.1)

    async def _bad_input(self) -> None:
        wrong = [
            ("/v1/segment", {"data": b"{no JSON"}, 400),
            ("/v1/segment", {"json": {"image_key": self._keys["coffee.png"], "points": [["a", 1]]}}, 400),
            ("/v1/images", {"data": _form(b"no image")}, 400),
            ("/v1/nowhere", {"json": {}}, 404),
        ]
        for path, body, wanted in wrong:
            begun = time.monotonic()
            status, text = await self._post(path, **body)
            self.diary.note("bad input", status, wanted, begun, text.decode())
            await asyncio.sleep(0.2)

    async def _health(self) -> None:
        begun = time.monotonic()
        async with self._session.get(self._url + "/health") as answer:
            self.diary.note("health", answer.status, 200, begun, await answer.text())
        await asyncio.sleep(0.1)

    # -- the fault, and what is looked at --------------------------------------------------------------------

    async def _kill_now_and_then(self) -> None:
        kill_at = time.monotonic() + KILL_EVERY
        while time.monotonic() < self._ends - 5:
            await asyncio.sleep(0.2)
            if time.monotonic() < kill_at:
                continue
            self.diary.gone_until = self.diary.forgotten_until = math.inf
            before = recoveries_of(self._running)
            os.kill(stub_of(self._running), signal.SIGKILL)
            killed = time.monotonic()
            kill_at = killed + KILL_EVERY
            self.diary.kills += 1
            while recoveries_of(self._running) == before:
                await asyncio.sleep(0.1)
            self.diary.back.append(time.monotonic() - killed)
            self.diary.gone_until = time.monotonic() + 1.0  # who asked a moment ago is told a moment later
            for name in self._photographs:  # its cache is empty
                await self._upload_photograph(name)
            # Who was told "expired" a moment ago may say so a moment later.
            self.diary.forgotten_until = time.monotonic() + 2.0

    async def _look(self) -> None:
        while time.monotonic() < self._ends:
            await asyncio.sleep(1.0)
            self._look_at("service", os.getpid)
            if self._running.supervisor.status["state"] == "ready":
                self._look_at("server", lambda: self._running.supervisor.process.process.pid)
                self._look_at("stub", lambda: stub_of(self._running))

    def _look_at(self, name: str, find: Callable[[], int]) -> None:
        with contextlib.suppress(OSError, StopIteration):  # killed while being looked at
            pid = find()
            sample = Sample(
                time.monotonic(), pid, status_field(pid, "VmRSS"), open_files(pid), status_field(pid, "Threads")
            )
            self.samples[name].append(sample)


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two answers are the same mask. Who shared a batch with others has other last digits of the logits."""
    if first["encoding"] != "logits" or first == second:
        return first == second
    one, other = (np.frombuffer(base64.b64decode(mask["data"]), "<f4") for mask in (first, second))
    return bool(np.abs(one - other).max() < _LAST_DIGITS)


def _form(image: bytes) -> aiohttp.FormData:
    form = aiohttp.FormData()
    form.add_field("image", image, filename="image.png", content_type="image/png")
    return form


def growth(samples: list[Sample], warm_up: float, what: Callable[[Sample], int]) -> tuple[int, float] | None:
    """The worst of all lives of a process, after their warm-up: (how much more its end has than its beginning, how much
    more a second that is).

    Beginning and end are medians of thirds; lives that were too short for any are left out, and None means all were.
    """
    worst = None
    for _, life in itertools.groupby(samples, lambda sample: sample.pid):
        seen = list(life)
        warm = [sample for sample in seen if sample.when - seen[0].when >= warm_up]
        third = len(warm) // 3
        if third:
            first, last = warm[:third], warm[-third:]
            grown = sorted(map(what, last))[third // 2] - sorted(map(what, first))[third // 2]
            apart = last[third // 2].when - first[third // 2].when
            worst = max(worst or (grown, grown / apart), (grown, grown / apart))
    return worst


def _memory(sample: Sample) -> int:
    return sample.memory


def _files(sample: Sample) -> int:
    return sample.files


def _threads(sample: Sample) -> int:
    return sample.threads


@pytest.fixture(scope="module")
def running(start_real_server: ServerFactory) -> Iterator[RunningServer]:
    # Room for the photographs and one embedding of 17 MB more: full with the first upload of a life, so that what grows
    # after its warm-up is not the cache. Two slow cores do not fill a larger one between two kills.
    with start_real_server(cache_bytes=str((len(_PHOTOGRAPHS) + 1) * 17_000_000)) as running:
        yield running


def test_nothing_grows_and_nothing_goes_wrong(running: RunningServer, photographs: Path) -> None:
    pictures = {name: (photographs / name).read_bytes() for name in _PHOTOGRAPHS}
    assert httpx.get(f"{running.urls['service']}/health", trust_env=False).status_code == 200

    async def soak() -> Users:
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            users = Users(running, session, pictures)
            await users.run()
            return users

    users = asyncio.run(soak())
    diary = users.diary
    assert users.samples["service"][-1].when - users.samples["service"][0].when > WARM_UP
    grown = {
        name: tuple(growth(samples, WARM_UP, what) for what in (_memory, _files, _threads))
        for name, samples in users.samples.items()
    }
    figures: dict[str, tuple[object, str]] = {
        "requests answered as wanted": (sum(diary.done.values()), ""),
        "of these": (", ".join(f"{count} x {what}" for what, count in sorted(diary.done.items())), ""),
        "kills": (diary.kills, ""),
        "back, s (worst)": (round(max(diary.back, default=0.0), 1), ""),
        "errors that a kill explains": (sum(diary.injected.values()), ""),
        "errors that a kill explains, by kind": (dict(sorted(diary.injected.items())), ""),
        "errors that nothing explains": (len(diary.wrong), "0"),
        "masks compared": (diary.compared, ""),
        "masks that differ": (sum(text.startswith("another mask") for text in diary.wrong), "0"),
    }
    for name, (memory, files, threads) in grown.items():
        if memory is None:
            figures[f"{name}: growth"] = ("not measured: killed too soon", "")
            continue
        figures[f"{name}: memory growth of a life, MB"] = (round(memory[0] / 1024, 1), "")
        at_this_pace = f"{name}: growth in {SECONDS:.0f} s at that pace, MB"
        figures[at_this_pace] = (round(memory[1] * SECONDS / 1024, 1), f"<= {GROWTH_MB}")
        bar = f"<= {FILES_MORE}, {THREADS_MORE}"
        figures[f"{name}: more files, more threads"] = (f"{files[0]}, {threads[0]}", bar)
    record("soak", f"{SECONDS:.0f} s mixed soak, concurrency 8, a kill every {KILL_EVERY:.0f} s", figures)
    assert diary.wrong == [], "\n".join(f"{count} x {text}" for text, count in Counter(diary.wrong).most_common(20))
    assert diary.kills == int((SECONDS - 5) // KILL_EVERY)
    assert all(diary.done[what] > 0 for what in ("click", "upload", "hover", "bad input", "health")), diary.done
    for name, (memory, files, threads) in grown.items():
        assert memory is not None, f"no life of {name} was long enough"
        assert memory[1] * SECONDS / 1024 <= GROWTH_MB, name
        assert files[0] <= FILES_MORE, name
        assert threads[0] <= THREADS_MORE, name
