"""A click in a collector of traces: its caller's span, the service's, the model's steps, and Triton's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ServerFactory
from tests.traces import SeenSpan, collecting
from tests.waiting import eventually

pytestmark = pytest.mark.triton
TRACE, UNSAMPLED, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "5bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OURS, TRITONS = "triton-sam", "triton-inference-server"
STEPS = {"queue", "decode", "answer"}
#: Two programs' clocks, in nanoseconds.
APART = 50_000_000


@pytest.fixture(scope="module")
def spans(start_server: ServerFactory, photographs: Path) -> Iterator[list[SeenSpan]]:
    """Of an upload, of a click that its caller traces, and of one that he has chosen not to."""
    with pytest.MonkeyPatch.context() as patch, collecting() as (url, got):
        patch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url)
        with (
            start_server() as running,
            httpx.Client(base_url=running.urls["service"], timeout=60, trust_env=False) as client,
        ):
            files = {"image": (photographs / "coffee.png").read_bytes()}
            key = client.post("/v1/images", files=files).json()["image_key"]
            for trace, flags in ((UNSAMPLED, "00"), (TRACE, "01")):
                headers = {"traceparent": f"00-{trace}-{CALLER}-{flags}", "X-Request-ID": "my-click"}
                click = {"image_key": key, "points": [[365, 290]]}
                assert client.post("/v1/segment", json=click, headers=headers).status_code == 200
            # Each sends every few seconds what has ended, and of these two spans all others are a part.
            whole = {"POST /v1/segment", "InferRequest"}
            eventually(lambda: whole <= {span.name for span in got if span.trace == TRACE}, "both have sent")
        yield got


def of_the_click(spans: list[SeenSpan], service: str) -> dict[str, SeenSpan]:
    return {span.name: span for span in spans if span.trace == TRACE and span.service == service}


def test_the_service_and_the_steps_of_the_model(spans: list[SeenSpan]) -> None:
    ours = of_the_click(spans, OURS)
    assert set(ours) == {"POST /v1/segment", "triton sam2", *STEPS}
    assert ours["POST /v1/segment"].parent == CALLER
    assert ours["triton sam2"].parent == ours["POST /v1/segment"].span
    for step in (ours[name] for name in STEPS):
        assert step.parent == ours["triton sam2"].span
        assert ours["triton sam2"].begin <= step.begin <= step.end <= ours["triton sam2"].end
    assert ours["decode"].begin < ours["decode"].end


def test_triton_s_own_stand_below_the_call(spans: list[SeenSpan]) -> None:
    call, tritons = of_the_click(spans, OURS)["triton sam2"], of_the_click(spans, TRITONS)
    assert set(tritons) == {"InferRequest", "sam2", "compute"}
    assert tritons["InferRequest"].parent == call.span
    assert tritons["sam2"].parent == tritons["InferRequest"].span
    assert tritons["sam2"].attributes["triton.request_id"] == "my-click"
    assert call.begin - APART <= tritons["InferRequest"].begin <= tritons["InferRequest"].end <= call.end + APART


def test_nothing_else_is_traced(spans: list[SeenSpan]) -> None:
    """Not what a caller has left out, and none of the supervisor's own requests."""
    assert UNSAMPLED not in {span.trace for span in spans}
    assert {s.trace for s in spans if s.service == TRITONS} <= {s.trace for s in spans if s.service == OURS}
