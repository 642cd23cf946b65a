"""Ten times of what the machine can do, through the service: who cannot be served is told so at once, in order."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from testkit.steady_load import LoadResult, Plan, merged, percentile, picture, result_of, run_load, running_load, split
from tests.conftest import ServerFactory
from tests.faults.figures import record
from tests.waiting import eventually
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.part("overload"), pytest.mark.timeout(900)]
SECONDS = 60.0
REFUSED = (429, 503)
#: Clicks that wait, and clicks that are decoded at a time; images that wait.
CLICK_QUEUE, CLICK_BATCH, ENCODE_QUEUE = 16, 1, 2
#: As many as the model takes clicks: these are refused at the service's door, and images by the model's own queue.
SERVICE_REQUESTS = CLICK_QUEUE + CLICK_BATCH
#: Seconds of a refusal, and of a look at /health.
BAR = 0.05
#: Threads of the model. 0, the default, is every core, and then those who ask and those who refuse take from it; with
#: half of them it has cores that nobody else wants, as a server has whose users sit elsewhere.
CORES = len(os.sched_getaffinity(0))
THREADS = (0, max(1, CORES // 2))
#: Of the time that a queue stands for. With half of the cores there is none for clicks; of a minute's few images the
#: slowest is the p99, and images differ by a tenth.
SLACK = 1.1
#: How much longer one request may take while a crowd, its refusals and its own clients have their share of the cores.
#: Without this bar a service that slows down would be held to its own slowness.
SLOWER = 1.4
_FORMATS = ("png", "rle", "polygon")


@dataclass(frozen=True)
class Crowd:
    """Who comes: what for, to a model with how many threads, behind how many others, with how much slack."""

    what: str
    threads: int
    queue: int
    slack: float


@pytest.fixture(scope="module", params=THREADS, ids=lambda threads: f"{threads or CORES}_of_{CORES}_cores")
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def small(start_real_server: ServerFactory, threads: int) -> Iterator[RunningServer]:
    """A server with small queues."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_SAM_SERVICE_REQUESTS", str(SERVICE_REQUESTS))
        queues = {"click_queue": CLICK_QUEUE, "click_batch": CLICK_BATCH, "encode_queue": ENCODE_QUEUE}
        settings = queues | {"threads": threads}
        with start_real_server(**{name: str(value) for name, value in settings.items()}) as running:
            yield running


@pytest.fixture
def clicks(small: RunningServer, photographs: Path) -> list[str]:
    """Documents for /v1/segment on one image that is cached now, in several formats."""
    files = {"image": (photographs / "coffee.png").read_bytes()}
    answer = httpx.post(f"{small.urls['service']}/v1/images", files=files, timeout=60, trust_env=False)
    key = answer.json()["image_key"]
    points = [[300 + 5 * step, 290] for step in range(20)]
    return [json.dumps({"image_key": key, "points": [point], "format": kind}) for point in points for kind in _FORMATS]


def counted(running: RunningServer, path: str) -> dict[str, int]:
    """What the metrics say now: answers of a route by their status, and refusals of the model's queues."""
    with httpx.Client(base_url=running.urls["service"], timeout=30, trust_env=False) as client:
        service, triton = client.get("/metrics").text, client.get("/v2/metrics").text
    rows = re.findall(rf'triton_sam_service_requests_total{{[^}}]*route="{path}",status="(\d+)"}} (\S+)', service)
    found = {status: int(float(value)) for status, value in rows}
    rejected = re.search(r"triton_sam_rejected_total{[^}]*} (\S+)", triton)
    return found | {"rejected": int(float(rejected[1])) if rejected else 0}


def since(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {name: value - before.get(name, 0) for name, value in now.items() if value != before.get(name, 0)}


def alone(url: str, path: str, documents: list[str], first_picture: int, times: int) -> float:
    """Seconds of one request while nobody else asks: the mean of several, one after the other."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        client.get("/health")
        begun = time.perf_counter()
        for number in range(times):
            if documents:
                answer = client.post(path, content=documents[number % len(documents)])
            else:
                answer = client.post(path, files={"image": picture(first_picture + number)})
            assert answer.status_code == 200, answer.text
        return (time.perf_counter() - begun) / times


def expect_order(running: RunningServer, crowd: Crowd, plan: Plan, service_seconds: float) -> None:
    """Carries the plan out, with somebody who looks at /health all the time, and holds every bar."""
    before = counted(running, plan.path)
    begun = time.perf_counter()
    with contextlib.ExitStack() as stack:
        load = [stack.enter_context(running_load(part)) for part in split(plan)]
        health = stack.enter_context(running_load(Plan(plan.url, plan.seconds, 20.0, "/health")))
        answers = merged([result_of(part) for part in load])
        lasted = time.perf_counter() - begun
        healthy = result_of(health)
    refused, admitted = answers.seconds(*REFUSED), answers.seconds(200)
    # Who asks sits on the same cores here, and so do the refusals: each takes from those who are served.
    loaded_seconds = lasted / max(1, len(admitted))
    limit, loaded_limit = (crowd.queue + 1) * service_seconds, (crowd.queue + 1) * loaded_seconds
    counted_now = expect_counted(running, plan.path, before, answers, crowd.queue)
    record(
        f"overload-{crowd.what}" + ("-cores-left" if crowd.threads else ""),
        f"10x capacity for {plan.seconds:.0f} s through the service: {crowd.what}"
        + (f", the model on {crowd.threads} of {CORES} cores" if crowd.threads else ""),
        {
            "places, click queue, encode queue": (f"{SERVICE_REQUESTS}, {CLICK_QUEUE}, {ENCODE_QUEUE}", ""),
            "requests sent, a second": (round(plan.per_second, 1), ""),
            "sent for each that is admitted": (round(answers.sent / max(1, len(admitted)), 1), ""),
            "requests sent": (answers.sent, ""),
            "admitted": (len(admitted), ""),
            "refused": (len(refused), ""),
            "refusals that the service has counted": (counted_now, f"{len(refused)}"),
            "refusals with Retry-After and a JSON code": (sum(map(is_told, answers.answers)), f"{len(refused)}"),
            "without an answer": (len(answers.broken), "0"),
            "refusals p99, ms": (round(1e3 * percentile(refused, 0.99), 1), "<= 50"),
            "service time alone, s": (round(service_seconds, 4), ""),
            "service time under this load, s": (round(loaded_seconds, 4), f"<= {SLOWER:g} x alone"),
            "admitted p50, s": (round(percentile(admitted, 0.5), 3), ""),
            "admitted p99, s": (
                round(percentile(admitted, 0.99), 3),
                f"<= (queue + 1) x service time: {limit:.3f} alone, {loaded_limit:.3f} under this load",
            ),
            "the same as a share of the bar, alone": (round(percentile(admitted, 0.99) / limit, 2), "<= 1"),
            "/health p99, ms": (round(1e3 * percentile(healthy.seconds(200), 0.99), 1), "<= 50"),
        },
    )
    expect_answers(answers)
    assert healthy.broken == []
    assert healthy.count(200) == healthy.sent
    assert percentile(refused, 0.99) <= BAR
    assert percentile(healthy.seconds(200), 0.99) <= BAR
    assert loaded_seconds <= service_seconds * SLOWER
    assert percentile(admitted, 0.99) <= (limit if crowd.threads else max(limit, loaded_limit)) * crowd.slack


def expect_counted(running: RunningServer, path: str, before: dict[str, int], answers: LoadResult, queue: int) -> int:
    """Waits until service and model have counted what was answered; returns the refusals that the service has."""
    # Another engine may take more at a time than the service lets in.
    by_the_model = queue < SERVICE_REQUESTS - CLICK_BATCH and not os.environ.get("TRITON_SAM_TEST_REPOSITORY")
    refused, admitted = answers.count(*REFUSED), answers.count(200)

    def by_the_service(found: dict[str, int]) -> int:
        return sum(found.get(str(status), 0) for status in REFUSED)

    def exactly() -> bool:
        """The model's count comes a moment later; it refuses a part of them, and the service the others."""
        found = since(before, counted(running, path))
        return (
            by_the_service(found) == refused
            and found.get("200", 0) == admitted
            and (not by_the_model or 1 <= found.get("rejected", 0) <= refused)
        )

    eventually(exactly, f"{refused} refusals and {admitted} masks counted")
    return by_the_service(since(before, counted(running, path)))


def is_told(answer: tuple[int, float, str, str]) -> bool:
    """Whether a refusal says when to come again, and of what kind it is."""
    status, _, retry_after, code = answer
    return retry_after.isdecimal() and code == {429: "queue_full", 503: "unavailable"}.get(status)


def expect_answers(answers: LoadResult) -> None:
    assert answers.broken == [], "every request has an answer"
    assert len(answers.answers) == answers.sent
    assert answers.count(200) > 0
    assert answers.count(*REFUSED) > 0
    assert answers.count(200, *REFUSED) == answers.sent, {status for status, *_ in answers.answers}
    assert sum(map(is_told, answers.answers)) == answers.count(*REFUSED)


def test_clicks(small: RunningServer, threads: int, clicks: list[str]) -> None:
    url = small.urls["service"]
    service_seconds = alone(url, "/v1/segment", clicks, -1, 60)
    plan = Plan(url, SECONDS, 10 / service_seconds, "/v1/segment", clicks)
    expect_order(small, Crowd("clicks", threads, CLICK_QUEUE, 1.0 if threads else SLACK), plan, service_seconds)


def test_uploads(small: RunningServer, threads: int) -> None:
    url = small.urls["service"]
    service_seconds = alone(url, "/v1/images", [], 50_000, 4)
    plan = Plan(url, SECONDS, 10 / service_seconds, "/v1/images", first_picture=0)
    expect_order(small, Crowd("uploads", threads, ENCODE_QUEUE, SLACK), plan, service_seconds)


def test_afterwards_everybody_is_served(small: RunningServer, clicks: list[str]) -> None:
    calm = run_load(Plan(small.urls["service"], 2.0, 2.0, "/v1/segment", clicks))
    assert calm.count(200) == calm.sent == 4
