from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.service.helpers import CLICK, SEGMENTERS, Fake, ask, client_of, refusal
from triton_sam import __version__
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.server.host import free_port
from triton_sam.service import schemas
from triton_sam.service.app import create_app
from triton_sam.service.served_models import choose
from triton_sam.service.upstream import Upstream
from triton_sam.settings import Settings


def test_health_while_masks_are_served() -> None:
    fake = Fake()
    answer = ask("GET", "/health", fake)
    assert answer.status_code == 200
    assert answer.json() == fake.backend.status()
    assert fake.transport.calls == []


@pytest.mark.parametrize("state", ["starting", "recovering", "stopping", "stopped", "failed"])
def test_health_otherwise(state: str) -> None:
    fake = Fake(state=state)
    answer = ask("GET", "/health", fake)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert answer.json() == fake.backend.status()


def test_health_has_the_devices_of_each_model() -> None:
    """As the document describes them; without a token where one is needed only the state is told."""
    engine = {"stage": "compiling", "seconds": 4.5, "detail": ""}
    ready = {"device": "0", "state": "ready", "in_flight": 3, "engine": engine}
    lost = {"device": "1", "state": "starting", "in_flight": 0, "engine": None}
    fake = Fake(more_status={"devices": {"sam2": (ready, lost), "sam1": ()}})
    told = ask("GET", "/health", fake).json()
    assert told["devices"] == {"sam2": [ready, lost], "sam1": []}
    assert schemas.Health.model_validate(told).model_dump()["devices"] == told["devices"]
    assert ask("GET", "/health", fake, settings={"token": "a token for this test"}).json() == {"state": "ready"}


def test_health_is_asked_every_time() -> None:
    fake = Fake()

    async def request() -> list[int]:
        found = []
        async with client_of(fake) as client:
            for fake.state in ("ready", "recovering", "ready"):
                found.append((await client.get("/health")).status_code)
        return found

    assert asyncio.run(request()) == [200, 503, 200]


@pytest.mark.parametrize("path", ["/models", "/v2/models"])
def test_models(path: str) -> None:
    spec = get_spec(DEFAULT_MODEL)
    answer = ask("GET", path, Fake(segmenters={"sam2": spec}))
    assert answer.status_code == 200
    assert answer.json() == [
        {
            "name": "sam2",
            "id": DEFAULT_MODEL,
            "family": "sam2",
            "title": spec.title,
            "licence": spec.licence,
            "prompts": ["boxes", "everything", "masks", "points"],
            "side": spec.side,
            "video": False,
            "default": True,
            "encoder": "8-bit",
        }
    ]
    assert ask("GET", path, Fake(segmenters={})).json() == []
    rows = ask("GET", path).json()
    assert [row["name"] for row in rows] == list(SEGMENTERS)
    assert [row["name"] for row in rows if row["default"]] == [choose(SEGMENTERS, None).name]


def test_models_of_a_server_that_does_not_answer() -> None:
    fake = Fake(segmenters={"sam2": get_spec(DEFAULT_MODEL)})
    fake.state = "starting"
    (row,) = ask("GET", "/models", fake).json()
    assert (row["name"], row["encoder"]) == ("sam2", None)


def test_limits() -> None:
    answer = ask("GET", "/v1/limits", settings={"max_points": 7, "max_objects": 5})
    assert answer.json() == {
        "max_image_bytes": Settings().max_image_bytes,
        "max_image_pixels": Settings().max_image_pixels,
        "max_points": 7,
        "max_objects": 5,
        "video_upload_bytes": Settings().video_upload_bytes,
    }


def test_the_version() -> None:
    assert ask("GET", "/openapi.json").json()["info"]["version"] == __version__


def test_metrics_count_routes_and_not_paths() -> None:
    async def run() -> str:
        async with client_of(Fake()) as client:
            for index in range(5):
                await client.get(f"/made-up/{index}")
            await client.post("/v1/segment", json=CLICK)
            await client.post("/v1/segment", json={})
            await client.post("http://test//v1//segment", json=CLICK)
            await client.request("BREW", "/health")
            answer = await client.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain")
            return answer.text

    families = {family.name: family.samples for family in text_string_to_metric_families(asyncio.run(run()))}
    counted = {
        (sample.labels["route"], sample.labels["method"], sample.labels["status"]): sample.value
        for sample in families["triton_sam_service_requests"]
        if sample.name.endswith("_total")
    }
    assert counted == {
        ("other", "GET", "404"): 5,
        ("/v1/segment", "POST", "200"): 2,
        ("/v1/segment", "POST", "400"): 1,
        ("/health", "other", "405"): 1,
    }
    assert [sample.value for sample in families["triton_sam_service_in_progress"]] == [1]  # the asking one
    assert [sample.value for sample in families["triton_sam_service_websockets"]] == [0]
    timed = {
        sample.labels["route"]: sample.value
        for sample in families["triton_sam_service_seconds"]
        if sample.name.endswith("_count")
    }
    assert timed == {"other": 5, "/v1/segment": 3, "/health": 1}


def test_two_applications_count_apart() -> None:
    apps = [create_app(Upstream(dict, dict), Settings()) for _ in range(2)]
    assert apps[0] is not apps[1]


@pytest.fixture
def triton_metrics() -> Iterator[str]:
    """The address of something that answers as Triton's metrics port does."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"nv_inference_count 1\n")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        thread.join()


def test_tritons_metrics(triton_metrics: str) -> None:
    answer = ask("GET", "/v2/metrics", Fake(metrics_url=triton_metrics))
    assert answer.status_code == 200
    assert answer.text == "nv_inference_count 1\n"
    assert answer.headers["content-type"].startswith("text/plain")


def test_tritons_metrics_are_fetched_once_for_concurrent_requests_also_when_the_service_is_full() -> None:
    """The autoscaler reads them above all then, and they must not be a way around the limit on work."""
    fetched = 0

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal fetched
            fetched += 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"nv_inference_count 1\n")

        def log_message(self, format: str, *args: object) -> None:
            pass

    async def run(url: str) -> None:
        fake = Fake(metrics_url=url)
        fake.transport.hold()
        async with client_of(fake, service_requests=1) as client:
            working = asyncio.create_task(client.post("/v1/segment", json=CLICK))
            await fake.transport.reached(calls=1)
            refusal(await client.get("/models"), 429, "queue_full")
            answers = await asyncio.gather(*(client.get("/v2/metrics") for _ in range(20)))
            assert [answer.status_code for answer in answers] == [200] * 20
            fake.transport.release()
            assert (await working).status_code == 200

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            asyncio.run(run(f"http://127.0.0.1:{server.server_port}/metrics"))
        finally:
            server.shutdown()
            thread.join()
    assert 1 <= fetched < 20


@pytest.mark.parametrize("url", [None, f"http://127.0.0.1:{free_port()}/metrics"], ids=["unknown", "silent"])
def test_tritons_metrics_that_cannot_be_had(url: str | None) -> None:
    answer = ask("GET", "/v2/metrics", Fake(metrics_url=url))
    assert "127.0.0.1" not in refusal(answer, 503, "unavailable")
    assert answer.headers["retry-after"] == "2"
