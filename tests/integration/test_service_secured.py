"""The service as it stands in a network: TLS, tokens with rates, and a request's id from the service to the model."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import logging
import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import websockets.sync.client
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.waiting import eventually
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.wire import click_inputs
from triton_sam.errors import ImageExpired, NotAuthorised, ServerUnreachable
from triton_sam.logs import REQUESTS_LOG, JsonFormatter
from triton_sam.models.specs import ModelSpec
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = pytest.mark.triton
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-long-word-for-alice"
ALICE = {"Authorization": f"Bearer {TOKEN}"}


def throw_away_certificate(folder: Path) -> tuple[Path, Path]:
    """(certificate, key) of 127.0.0.1, signed by itself, for an hour."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "triton-sam test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("secrets")
    certificate, key = throw_away_certificate(folder)
    tokens = folder / "tokens"
    tokens.write_text(f"alice {TOKEN}\n")
    tokens.chmod(0o600)
    home = tmp_path_factory.mktemp("home")
    return Settings(home=home, tls_certificate=certificate, tls_key=key, tokens_file=tokens, log_format="json")


@pytest.fixture(scope="module")
def running(repository: Path, spec: ModelSpec, settings: Settings) -> Iterator[RunningServer]:
    variables = {"TRITON_SAM_LOG_FORMAT": "json"}
    with serving(
        ServingOptions(repository, {"sam2": spec}, settings, ports=Ports(0, 0, 0, 0), environment=variables)
    ) as server:
        yield server


@pytest.fixture(scope="module")
def trust(settings: Settings) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(settings.tls_certificate))


@pytest.fixture(scope="module")
def service(running: RunningServer, trust: ssl.SSLContext) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.urls["service"], verify=trust, timeout=120, trust_env=False) as client:
        yield client


def model_lines(running: RunningServer) -> list[dict[str, object]]:
    """What the models have written to Triton's log, as objects."""
    whole = running.supervisor.process.log_path.read_text(errors="replace").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def expect_model_line(running: RunningServer, request_id: str) -> dict[str, object]:
    """The one line of a request; it is written when the answer is out."""

    def found() -> list[dict[str, object]]:
        return [line for line in model_lines(running) if line["request_id"] == request_id]

    eventually(found, f"the model's line of {request_id}", patience=30)
    (line,) = found()
    return line


def test_https_and_wss(running: RunningServer, service: httpx.Client, trust: ssl.SSLContext, photographs: Path) -> None:
    address = running.urls["service"]
    assert address.startswith("https://")
    assert service.get("/health").json() == {"state": "ready"}
    image = {"image": (photographs / "coffee.png").read_bytes()}
    assert service.post("/v1/images", files=image).status_code == 401
    answer = service.post("/v1/images", files=image, headers=ALICE)
    assert answer.status_code == 200, answer.text
    click = {"image_key": answer.json()["image_key"], "points": [[365, 290]]}
    assert service.post("/v1/segment", json=click, headers=ALICE).json()["score"] > 0.5
    with websockets.sync.client.connect(
        f"{address.replace('https', 'wss')}/v1/hover", ssl=trust, additional_headers=ALICE, proxy=None
    ) as socket:
        socket.send(json.dumps(click | {"id": 1}))
        assert json.loads(socket.recv(timeout=60))["result"]["score"] > 0.5


def test_the_clients_over_https_and_wss(
    running: RunningServer, settings: Settings, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = running.urls["service"]
    with SAM2TritonClient(address, token=TOKEN) as client, pytest.raises(ServerUnreachable, match="certificate"):
        client.set_image(photographs / "coffee.png")
    monkeypatch.setenv("SSL_CERT_FILE", str(settings.tls_certificate))
    with SAM2TritonClient(address, token=TOKEN) as client:
        client.set_image(photographs / "coffee.png")
        expected, _ = client.predict([[365, 290]], [1])
    with SAM2TritonClient(address) as client, pytest.raises(NotAuthorised, match="requires a token"):
        client.set_image(photographs / "coffee.png")

    async def hover() -> None:
        async with SpeculativeSAM2Client(address, token=TOKEN, latest_wins=True) as client:
            client.set_image(photographs / "coffee.png")
            found = await client.predict_async([[365, 290]], [1])
            assert found is not None
            np.testing.assert_allclose(found[0], expected, atol=1e-3)

    asyncio.run(hover())


def test_whoever_does_not_speak_tls_or_does_not_trust_it(running: RunningServer) -> None:
    address = running.urls["service"]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{address}/health", trust_env=False, timeout=20)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{address.replace('https', 'http')}/health", trust_env=False, timeout=20)


@pytest.mark.parametrize(
    "check",
    [["deploy/compose/entrypoint.sh", "healthy"], ["scripts/health_check.sh", "localhost", "PORT"]],
    ids=["container", "script"],
)
def test_health_checks_speak_tls_where_the_service_does(
    check: list[str], running: RunningServer, settings: Settings
) -> None:
    port = running.urls["service"].rpartition(":")[2]
    command = [str(ROOT / check[0]), *(port if word == "PORT" else word for word in check[1:])]
    told = {"TRITON_SAM_TLS_CERTIFICATE": str(settings.tls_certificate), "SERVICE_PORT": port}
    for variables, code in ((told, 0), ({"SERVICE_PORT": port}, 1)):
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr


def test_a_requests_id_comes_through_triton_to_the_model_and_back(
    running: RunningServer, service: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, REQUESTS_LOG)
    click = {"image_key": "0" * 64, "points": [[1, 1]]}
    answer = service.post("/v1/segment", json=click, headers={**ALICE, "X-Request-ID": "walk-through-1"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (404, "walk-through-1")

    def clicks() -> list[logging.LogRecord]:
        """Without what other tests have asked for a moment ago."""
        found = [record for record in caplog.records if record.name == REQUESTS_LOG]
        return [record for record in found if record.fields["route"] == "/v1/segment"]  # type: ignore[attr-defined]

    line = expect_model_line(running, "walk-through-1")
    assert (line["level"], line["model"]) == ("info", "sam2")
    assert str(line["message"]).startswith("refused: ")
    eventually(clicks, "the service's line")  # written when the answer is out, too
    (record,) = clicks()
    told = json.loads(JsonFormatter().format(record))
    assert told.pop("ms") > 0
    assert {name: told[name] for name in ("method", "route", "status", "caller", "image")} == {
        "method": "POST",
        "route": "/v1/segment",
        "status": 404,
        "caller": "alice",
        "image": "0" * 16,
    }
    assert TOKEN not in json.dumps(told)


@pytest.mark.parametrize("way", ["HTTP", "gRPC"])
def test_a_client_of_triton_has_ids_too(running: RunningServer, way: str) -> None:
    with SAM2TritonClient(running.urls[way], request_id=lambda: f"own-{way}\nid") as client:
        call = click_inputs("1" * 64, {"points": [[1, 1]]})
        with pytest.raises(ImageExpired):
            client._link.infer(call, ("result_json",))
    expect_model_line(running, f"own-{way}_id")  # a line stays one line


def test_every_line_of_the_models_is_json_with_an_id_or_none(running: RunningServer) -> None:
    lines = model_lines(running)
    assert lines
    assert all({"time", "level", "logger", "message", "request_id", "model"} <= set(line) for line in lines)
