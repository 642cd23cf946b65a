"""The commands of docs/guides/fails.md and slow.md, against a server with a token whose model dies."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doc_pages import DOCS, ROOT, fences
from tests.waiting import eventually
from triton_sam.models.specs import ModelSpec
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]
BLOCKS = {"fails.md": 2, "slow.md": 1}
TOKEN = "a-long-word-for-an-operator"


def block(page: str, command: str) -> str:
    """The one block of a page that has this command."""
    blocks = [fence for fence in fences(DOCS / "guides" / page) if fence.language == "bash" and fence.not_run is None]
    assert len(blocks) == BLOCKS[page], "each has its test here"
    (found,) = [fence.code for fence in blocks if command in fence.code]
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def running(repository: Path, spec: ModelSpec, home: Path) -> Iterator[RunningServer]:
    settings = Settings(home=home, token=TOKEN)
    with serving(ServingOptions(repository, {"sam2": spec}, settings, ports=Ports(0, 0, 0, 0))) as server:
        yield server


def run(running: RunningServer, home: Path, code: str) -> str:
    """The output of a block, with the test's server at the address of the page."""
    here = running.urls["service"].removeprefix("http://")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code.replace("localhost:8080", here)],
        cwd=ROOT,
        env=os.environ | {"TRITON_SAM_TOKEN": TOKEN, "TRITON_SAM_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_where_the_time_goes(running: RunningServer, home: Path) -> None:
    code = block("slow.md", "timings_ms")
    with_token = code.replace("curl -s ", 'curl -s -H "Authorization: Bearer $TRITON_SAM_TOKEN" ')
    steps = ast.literal_eval(run(running, home, with_token))
    page = (DOCS / "guides" / "slow.md").read_text()
    shown = ast.literal_eval(re.findall(r"^\{'queue_encode.*$", page, re.MULTILINE)[0])
    assert list(shown) == list(steps)


def test_the_lines_of_a_request(running: RunningServer, home: Path) -> None:
    assert "image_expired" in run(running, home, block("fails.md", "try-1").partition("grep")[0])
    eventually(lambda: "try-1" in running.supervisor.process.log_path.read_text(errors="replace"), "the model's line")
    answer, _, line = run(running, home, block("fails.md", "try-1")).partition("\n")[0].partition("}}")
    assert json.loads(answer + "}}")["error"]["code"] == "image_expired"
    assert "refused: " in line


def test_why_health_is_503(running: RunningServer, home: Path) -> None:
    """Asked again and again while a killed model comes back."""
    code = block("fails.md", "/health")
    assert json.loads(run(running, home, code))["state"] == "ready"
    seen: list[dict[str, Any]] = []

    def is_back() -> bool:
        seen.append(json.loads(run(running, home, code)))
        return seen[-1]["state"] == "ready" and len(seen) > 1 and any(told["state"] != "ready" for told in seen)

    for pid in running.supervisor.process.model_pids:
        os.kill(pid, signal.SIGKILL)
    eventually(is_back, "the model", patience=120)
    told = next(told for told in seen if told["state"] != "ready")
    page = (DOCS / "guides" / "fails.md").read_text()
    shown = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]
    assert list(told)[:4] == list(json.loads(f"{{{shown.rstrip().rstrip(',')}}}"))
    assert (told["state"], told["reason"]) == ("recovering", "the process of sam2 died idle")
    assert httpx.get(f"{running.urls['service']}/health", trust_env=False).json() == {"state": "ready"}
