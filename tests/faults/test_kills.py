"""Processes killed and stopped again and again: everybody is told at once, and nothing is left behind.

Once of each is in ``test_recovery.py``; here it is done often, with the published weights, and measured. The same holds
for one process and for several with workers behind them (the part ``faults-processes``): what one of several processes
does not hold may be answered as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from testkit.steady_load import LoadResult, Plan, percentile, picture, result_of, running_load
from tests.conftest import ServerFactory
from tests.faults.figures import record
from tests.faults.helpers import (
    POINT,
    held_by,
    open_files,
    regions_of,
    restarts_of,
    stub_of,
    zombies_of,
)
from tests.faults.shape import Shape, busiest_stub
from tests.waiting import eventually
from triton_sam.server.host import SHARED_MEMORY
from triton_sam.serving import RunningServer

pytestmark = [
    pytest.mark.triton,
    pytest.mark.part("faults"),
    pytest.mark.also_part("faults-processes"),
    pytest.mark.timeout(900),
]
TIMES, SERVER_TIMES = 10, 3
IN_FLIGHT = 4
TOLD_WITHIN = 2.0
BACK_WITHIN = 5.0
SERVER_BACK_WITHIN = 10.0
#: Connections to Triton that the service may keep open for the next requests; what leaks, leaks with every kill.
POOLED = 8
#: A server that is restarted more than five times within a minute is given up.
RESTART_SECONDS = 13.0


@dataclass
class Service:
    """A server, what its service answers, and what it takes of the machine."""

    running: RunningServer
    load_seconds: float
    client: httpx.Client
    picture: bytes
    shape: Shape
    mask_seconds: float = 0.0
    """Of the first mask, while nobody else asks."""
    right: object = None
    image_key: str = ""
    orphans: set[str] = field(default_factory=set)
    """Shared memory that nobody has any more."""

    def mask(self) -> object:
        """The mask of a point in the picture, sent whole; None while the service says 503."""
        uploaded = self.client.post("/v1/images", files={"image": self.picture})
        if uploaded.status_code == 503:
            return None
        assert uploaded.status_code == 200, uploaded.text
        self.image_key = uploaded.json()["image_key"]
        answer = self.client.post("/v1/segment", json=self.click)
        assert answer.status_code in (200, 503), answer.text
        return answer.json()["mask"] if answer.status_code == 200 else None

    @property
    def click(self) -> dict[str, object]:
        """The body of a click on the picture, once it has been sent."""
        return {"image_key": self.image_key, "points": [POINT], "format": "rle"}

    def keeps_the_picture(self) -> bool:
        """Whether the server still has the picture; if so, with the right mask."""
        answer = self.client.post("/v1/segment", json=self.click)
        assert answer.status_code in (200, 404), answer.text
        assert answer.status_code == 404 or answer.json()["mask"] == self.right
        return answer.status_code == 200

    def healthy(self) -> bool:
        return self.client.get("/health").status_code == 200

    def expect_tidy(self, before: set[str]) -> None:
        """No process and no shared memory of a life before.

        Args:
            before: the shared memory at the time of the kill.
        """
        eventually(lambda: zombies_of(os.getpid()) == [], "the end of zombies", patience=5)
        left = {name for name in before if (SHARED_MEMORY / name).exists()}
        self.orphans |= left - regions_of(self.running)
        if self.orphans:
            pytest.fail(f"shared memory of a killed server is left: {self.orphans}")
        assert len(regions_of(self.running)) <= len(before)


@pytest.fixture(scope="module")
def service(start_real_server: ServerFactory, photographs: Path) -> Iterator[Service]:
    begun = time.monotonic()
    with start_real_server() as running:
        loaded = time.monotonic() - begun
        with httpx.Client(base_url=running.urls["service"], timeout=60, trust_env=False) as client:
            image = (photographs / "coffee.png").read_bytes()
            service = Service(running, loaded, client, image, Shape.of(running))
            begun = time.monotonic()
            service.right = service.mask()
            service.mask_seconds = time.monotonic() - begun
            assert service.right is not None
            yield service


@dataclass
class Seconds:
    """From each kill on."""

    told: list[float] = field(default_factory=list)
    health_off: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    unharmed: int = 0
    """Requests that were answered right, because the killed process did not hold them."""
    kept: list[bool] = field(default_factory=list)
    """Whether the picture was still cached afterwards."""

    def hold(self, name: str, fault: str, service: Service, files: int, back_within: float = BACK_WITHIN) -> None:
        """Keeps the figures, and holds them to their bars.

        Args:
            files: that the service's process had open before the first kill.
        """
        now = open_files(os.getpid())
        figures: dict[str, tuple[object, str]] = {"times": (len(self.back), "")}
        if self.told or self.unharmed:
            figures["told, answered right"] = (f"{len(self.told)}, {self.unharmed}", "")
        if self.told:
            figures["told, s (worst)"] = (round(max(self.told), 2), f"<= {TOLD_WITHIN:g}")
        figures["health off, s (worst)"] = (round(max(self.health_off), 2), f"<= {TOLD_WITHIN:g}")
        bar = f"<= {back_within:g} + {service.load_seconds:.1f} of start"
        figures["back, s (worst)"] = (round(max(self.back), 2), bar)
        figures["open files before and after"] = (f"{files}, {now}", f"flat, but for up to {POOLED} connections kept")
        figures["the image was kept, times"] = (sum(self.kept), "")
        figures["zombies, shared memory left"] = (f"{len(zombies_of(os.getpid()))}, {len(service.orphans)}", "0, 0")
        record(name, fault, figures)
        assert now <= files + POOLED
        assert max(self.told, default=0.0) <= TOLD_WITHIN
        assert max(self.health_off) <= TOLD_WITHIN
        assert max(self.back) <= back_within + service.load_seconds


Asked = Future[tuple[httpx.Response, float]]


def kill_and_watch(
    service: Service,
    victim: int,
    seconds: Seconds,
    waiting: Sequence[Asked] = (),
    ask_at_once: Callable[[], Sequence[Asked]] = tuple,
) -> set[str]:
    """Kills a process, waits until health goes off and comes back, and until the right mask is served again.

    Args:
        waiting: requests in flight, with the time of their answer.
        ask_at_once: sends more, before anybody has noticed the kill.

    Returns:
        The shared memory at the time of the kill.
    """
    regions = regions_of(service.running)
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    waiting = [*waiting, *ask_at_once()]
    seconds.health_off.append(eventually(lambda: not service.healthy(), "health off", pause=0.01))
    for asked in waiting:
        answer, when = asked.result()
        if answer.status_code == 200:
            expect_right(service, answer)
            seconds.unharmed += 1
            continue
        assert answer.status_code == 503, answer.text
        assert answer.json()["error"]["code"] == "unavailable"
        assert answer.headers["Retry-After"].isdecimal()
        seconds.told.append(when - killed)
    eventually(service.healthy, "health", pause=0.02)
    seconds.back.append(time.monotonic() - killed)
    seconds.kept.append(service.keeps_the_picture())
    assert service.mask() == service.right, "health says ready, so it is, and with the same mask"
    return regions


def expect_right(service: Service, answer: httpx.Response) -> None:
    """A request that the kill did not hit: not in the only process."""
    assert service.shape.processes > 1, "who was in the killed process is told"
    document = answer.json()
    if "mask" in document:
        assert document["mask"] == service.right
    else:
        assert len(document["image_key"]) == 40


def test_a_model_killed_idle(service: Service) -> None:
    seconds = Seconds()
    regions, files = len(regions_of(service.running)), open_files(os.getpid())
    server = service.running.supervisor.process.process.pid
    for _ in range(TIMES):
        eventually(lambda: held_by(service.running) == 0, "the end of all requests")
        service.expect_tidy(kill_and_watch(service, stub_of(service.running), seconds))
    assert service.running.supervisor.process.process.pid == server
    assert len(regions_of(service.running)) <= regions, "a killed process leaves no shared memory"
    assert set(seconds.kept) == {service.shape.keeps_images}
    seconds.hold("kill-idle", "kill -9 of an idle model's process", service, files)


def post(service: Service, path: str, **body: Any) -> tuple[httpx.Response, float]:
    """An answer, and when it came."""
    with httpx.Client(base_url=service.running.urls["service"], timeout=60, trust_env=False) as client:
        answer = client.post(path, **body)
        return answer, time.monotonic()


def test_a_model_killed_idle_and_asked_before_anybody_notices(service: Service) -> None:
    seconds = Seconds()
    files = open_files(os.getpid())
    assert service.mask() == service.right
    for number in range(TIMES):
        begun = time.monotonic()
        eventually(lambda: held_by(service.running) == 0, "the end of all requests")
        with ThreadPoolExecutor(2) as pool:

            def ask(number: int = number, pool: ThreadPoolExecutor = pool) -> list[Asked]:
                image = {"image": picture(61_000 + number)}
                return [
                    pool.submit(post, service, "/v1/segment", json=service.click),
                    pool.submit(post, service, "/v1/images", files=image),
                ]

            service.expect_tidy(kill_and_watch(service, stub_of(service.running), seconds, ask_at_once=ask))
        eventually(lambda begun=begun: time.monotonic() - begun >= RESTART_SECONDS, "the next restart's turn")
    fault = "kill -9 of an idle model's process, and a click and an image at once"
    seconds.hold("kill-asked", fault, service, files)
    assert len(seconds.told) + seconds.unharmed == 2 * len(seconds.back)


def test_a_model_killed_with_requests_in_flight(service: Service) -> None:
    seconds = Seconds()
    files = open_files(os.getpid())
    numbers = iter(range(10_000, 60_000))
    in_killed = 0
    for _ in range(TIMES):
        restarts, begun = restarts_of(service.running), time.monotonic()
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            images = [{"image": picture(next(numbers))} for _ in range(IN_FLIGHT)]
            waiting = [pool.submit(post, service, "/v1/images", files=image) for image in images]
            eventually(lambda: held_by(service.running) == IN_FLIGHT, "requests in flight", pause=0.01)
            victim, held = busiest_stub(service.running)
            in_killed += held
            service.expect_tidy(kill_and_watch(service, victim, seconds, waiting))
        assert restarts_of(service.running) == restarts + 1
        eventually(lambda begun=begun: time.monotonic() - begun >= RESTART_SECONDS, "the next restart's turn")
    fault = f"kill -9 of a model's process with {IN_FLIGHT} requests in flight"
    seconds.hold("kill-in-flight", fault, service, files)
    assert len(seconds.told) + seconds.unharmed == IN_FLIGHT * TIMES
    assert len(seconds.told) >= in_killed >= TIMES, "nobody can answer what was in the killed process"


def under_load(service: Service, seconds: float) -> Plan:
    """Small pictures, four a second: more than are encoded, so that somebody always waits."""
    return Plan(service.running.urls["service"], seconds, 4.0, "/v1/images", first_picture=int(time.time()) % 50_000)


def expect_only(answers: LoadResult, *statuses: int) -> None:
    assert answers.broken == [], "no connection is reset"
    assert answers.count(*statuses) == answers.sent, {status for status, *_ in answers.answers} - set(statuses)
    for status, _, retry_after, code in answers.answers:
        if status == 503:
            assert retry_after.isdecimal()
            assert code == "unavailable"


def test_tritonserver_killed_under_load(service: Service) -> None:
    seconds = Seconds()
    files = open_files(os.getpid())
    refused: list[float] = []
    for _ in range(SERVER_TIMES):
        begun = time.monotonic()
        with running_load(under_load(service, 4.0)) as load:
            eventually(lambda: (held_by(service.running) or 0) > 1, "requests in flight", pause=0.01)
            before = kill_and_watch(service, service.running.supervisor.process.process.pid, seconds)
            answers = result_of(load)
        service.expect_tidy(before)
        expect_only(answers, 200, 429, 503)
        assert answers.count(503) > 0, "those in flight are told"
        refused += answers.seconds(503)
        eventually(lambda begun=begun: time.monotonic() - begun >= RESTART_SECONDS, "the next restart's turn")
    fault = f"kill -9 of tritonserver under load ({len(refused)} answers of 503, 0 resets)"
    seconds.hold("kill-server", fault, service, files, SERVER_BACK_WITHIN)


def test_a_stub_stopped_for_three_seconds(service: Service) -> None:
    """Who asks meanwhile waits and gets a mask, or is told 503: Triton itself may take the process for dead by then."""
    restarts = restarts_of(service.running)
    with running_load(under_load(service, 3.0)) as load:
        eventually(lambda: (held_by(service.running) or 0) > 1, "requests in flight", pause=0.01)
        stub, _ = busiest_stub(service.running)
        os.kill(stub, signal.SIGSTOP)
        try:
            threading.Event().wait(3.0)  # the fault itself
        finally:
            with contextlib.suppress(ProcessLookupError):  # the supervisor was quicker
                os.kill(stub, signal.SIGCONT)
        resumed = asked = time.monotonic()
        answers = result_of(load)

        def is_right() -> bool:
            nonlocal asked
            asked = time.monotonic()
            return service.healthy() and service.mask() == service.right

        # Not before all are answered: of several processes another one may give the right mask before the mend.
        eventually(is_right, "the right mask")
        served, back = asked - resumed, time.monotonic() - resumed
    bar = f"{SERVER_BACK_WITHIN:g} + {service.load_seconds:.1f} of start"
    record(
        "stop-stub",
        "SIGSTOP of a model's process for 3 s, then SIGCONT, under load",
        {
            "restarts": (restarts_of(service.running) - restarts, ""),
            "answers": (f"{answers.count(200)} x 200, {answers.count(429)} x 429, {answers.count(503)} x 503", ""),
            "connections reset": (len(answers.broken), "0"),
            "slowest answer, s": (round(percentile(answers.seconds(200, 429, 503), 1.0), 1), ""),
            "serving again after SIGCONT, s": (round(served, 1), f"<= {bar}"),
            "right mask after SIGCONT, s": (round(back, 1), f"<= {bar} + {service.mask_seconds:.1f} of a mask"),
        },
    )
    expect_only(answers, 200, 429, 503)
    assert served <= SERVER_BACK_WITHIN + service.load_seconds
    assert back <= SERVER_BACK_WITHIN + service.load_seconds + service.mask_seconds
