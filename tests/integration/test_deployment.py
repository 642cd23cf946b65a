"""The files of deploy/ with their real counterparts: nginx in front of a server, and the metrics that rules name."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from websockets.sync.client import connect

from tests.analytic import fresh_picture, png
from tests.unit.deploy.nginx_files import write_certificate, write_configuration
from tests.unit.deploy.tools import MONITORING, tool
from triton_sam.server.host import free_port
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
PATIENCE = 30.0
MOST_BYTES = 3_000_000
#: Triton has these where there is a GPU only.
GPU_METRICS = {
    "nv_gpu_memory_used_bytes",
    "nv_gpu_memory_total_bytes",
    "nv_gpu_utilization",
    "nv_gpu_power_usage",
}
#: Of segmenters with several processes or devices only: tests/integration/test_workers.py has such a server.
DEVICE_METRICS = {"triton_sam_device_ready"}


@pytest.fixture(scope="module")
def running(server: RunningServer) -> RunningServer:
    return server


# metrics


def names_in(expression: str) -> set[str]:
    """Every metric of a PromQL expression; labels, functions and the dashboard's variables are left out."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|without|on|ignoring) *\([^)]*\)", "", expression)
    return set(re.findall(r"\b(?:triton_sam|nv)_\w+", bare))


def named() -> set[str]:
    """What the rules and the dashboard ask for."""
    groups = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"]
    expressions = [rule["expr"] for group in groups for rule in group["rules"]]
    board = json.loads((MONITORING / "grafana" / "dashboards" / "triton-sam.json").read_text())
    expressions += [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    expressions += [variable["query"]["query"].replace("label_values(", "") for variable in board["templating"]["list"]]
    return {name for expression in expressions for name in names_in(expression)}


def exported(url: str) -> set[str]:
    """The series of a page of metrics, by what it declares: a counter with labels has no series before its first."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", httpx.get(url, trust_env=False).text, re.MULTILINE))
    assert kinds
    histograms = {f"{name}_{part}" for name, kind in kinds.items() if kind == "histogram" for part in PARTS}
    return {name for name, kind in kinds.items() if kind != "histogram"} | histograms


PARTS = ("bucket", "sum", "count")


def test_every_metric_that_is_asked_for_is_exported(running: RunningServer) -> None:
    there = exported(running.urls["metrics"]) | exported(running.urls["service"] + "/metrics")
    asked = named()
    assert len(asked) > 20
    assert asked - there == (GPU_METRICS | DEVICE_METRICS) & asked, "those of GPUs"


def test_queue_time_and_turns_grow_with_requests(running: RunningServer) -> None:
    def figure(name: str) -> float:
        text = httpx.get(running.urls["metrics"], trust_env=False).text
        return sum(float(value) for value in re.findall(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE))

    before = figure("triton_sam_turns_total")
    with httpx.Client(base_url=running.urls["service"], timeout=120, trust_env=False) as service:
        image = {"image": png(fresh_picture(4242))}  # one that is not cached yet waits for its turn too
        key = service.post("/v1/images", files=image).json()["image_key"]
        for _ in range(3):
            service.post("/v1/segment", json={"image_key": key, "points": [[36, 29]]}).raise_for_status()
    deadline = time.monotonic() + PATIENCE
    while figure("triton_sam_turns_total") < before + 4:  # models tell Triton a moment later
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert figure("triton_sam_queue_microseconds_total") > 0


# nginx with TLS


@pytest.fixture(scope="module")
def tls(running: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ssl.SSLContext]]:
    """The address of a real nginx with the compose profile's file in front of the service, and who to trust."""
    nginx = tool("nginx", "Debian's package nginx-light")
    folder = tmp_path_factory.mktemp("nginx")
    certificate = write_certificate(folder)
    upstream = running.urls["service"].removeprefix("http://")
    port = free_port()
    written = write_configuration(folder, upstream=upstream, port=port, max_body_bytes=MOST_BYTES)
    context = ssl.create_default_context(cafile=str(certificate))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([nginx, "-c", str(written), "-g", "daemon off;"], stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + PATIENCE
        while not answers(f"https://localhost:{port}/health", context):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"localhost:{port}", context
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def answers(url: str, context: ssl.SSLContext) -> bool:
    try:
        return httpx.get(url, verify=context, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def client(tls: tuple[str, ssl.SSLContext]) -> Iterator[httpx.Client]:
    address, context = tls
    with httpx.Client(base_url=f"https://{address}", verify=context, timeout=120, trust_env=False) as client:
        yield client


@pytest.mark.part("deploy")
def test_masks_come_through_tls(client: httpx.Client, running: RunningServer, photographs: Path) -> None:
    image = {"image": (photographs / "coffee.png").read_bytes()}
    key = client.post("/v1/images", files=image).json()["image_key"]
    asked = {"image_key": key, "points": [[365, 290]], "format": "rle"}
    answer = client.post("/v1/segment", json=asked)
    straight = httpx.post(running.urls["service"] + "/v1/segment", json=asked, timeout=120, trust_env=False)
    assert answer.status_code == 200
    assert answer.json()["mask"] == straight.json()["mask"]
    assert answer.headers["Strict-Transport-Security"]


@pytest.mark.part("deploy")
def test_a_hover_comes_through_tls(tls: tuple[str, ssl.SSLContext], client: httpx.Client, photographs: Path) -> None:
    address, context = tls
    image = {"image": (photographs / "coffee.png").read_bytes()}
    key = client.post("/v1/images", files=image).json()["image_key"]
    with connect(f"wss://{address}/v1/hover", ssl=context, proxy=None) as socket:
        socket.send(json.dumps({"id": 7, "image_key": key, "points": [[365, 290]], "format": "rle"}))
        answer: dict[str, Any] = json.loads(socket.recv(timeout=PATIENCE))
    assert answer["id"] == 7
    assert answer["result"]["mask"]["encoding"] == "rle"


@pytest.mark.part("deploy")
def test_a_body_too_large_is_refused_in_the_services_shape(client: httpx.Client) -> None:
    answer = client.post("/v1/images", content=b"x" * (MOST_BYTES + 1))
    assert answer.status_code == 413
    error = answer.json()["error"]
    assert error["code"] == "too_large"
    assert str(MOST_BYTES) in error["message"]


@pytest.mark.part("deploy")
def test_the_services_own_refusals_pass_as_they_are(client: httpx.Client) -> None:
    answer = client.post("/v1/segment", json={"image_key": "unknown", "points": [[1, 1]]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "image_expired")


@pytest.mark.part("deploy")
def test_metrics_are_not_for_the_network(client: httpx.Client) -> None:
    assert client.get("/metrics").status_code == 404
    assert client.get("/v2/metrics").status_code == 404


@pytest.mark.part("deploy")
def test_a_service_that_is_gone_is_503_and_come_back(tmp_path: Path) -> None:
    nginx = tool("nginx", "Debian's package nginx-light")
    context = ssl.create_default_context(cafile=str(write_certificate(tmp_path)))
    port = free_port()
    nobody = f"127.0.0.1:{free_port()}"
    written = write_configuration(tmp_path, upstream=nobody, port=port, max_body_bytes=MOST_BYTES)
    process = subprocess.Popen([nginx, "-c", str(written), "-g", "daemon off;"], cwd=tmp_path)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                answer = httpx.get(f"https://localhost:{port}/health", verify=context, trust_env=False)
                break
            except httpx.ConnectError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert answer.headers["Retry-After"] == "5"
