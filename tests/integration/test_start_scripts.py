"""The scripts at the root and in scripts/, as a user runs them, against the embedded server."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.analytic import assert_mask, png
from tests.integration.exported import TINY_WEIGHTS
from tests.waiting import eventually
from triton_sam.server.host import find_triton, free_port, process_alive

pytestmark = pytest.mark.triton
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
SPOON = [146, 116]


def script(name: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script to its end, with this environment's triton-sam first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path} | variables
    command = [str(ROOT / name), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE * 2, env=environment, check=False)


def free_ports() -> dict[str, str]:
    return {f"{name}_PORT": str(free_port()) for name in ("HTTP", "GRPC", "METRICS", "SERVICE")}


def end(pid: int) -> None:
    """Politely; everything below it ends with it."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while process_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} does not end"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def home(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TRITON_SAM_HOME that has the default model set up."""
    home = tmp_path_factory.mktemp("home")
    (home / "model_repository").symlink_to(repository)
    return home


@pytest.fixture(scope="module")
def started(home: Path) -> Iterator[tuple[dict[str, str], str]]:
    """The ports of a server that triton_start.sh has started, and what it said."""
    ports = free_ports()
    done = script("triton_start.sh", "embedded", TRITON_SAM_HOME=str(home), **ports)
    assert done.returncode == 0, done.stdout + done.stderr
    pid = int(re.findall(r"stop +kill (\d+)", done.stdout)[0])
    yield ports, done.stdout
    end(pid)


def answered_mask(text: str) -> np.ndarray[Any, Any]:
    """[H,W] bool of Triton's answer."""
    outputs = {output["name"]: output["data"] for output in json.loads(text)["outputs"]}
    png = base64.b64decode(json.loads(outputs["result_json"][0])["mask"]["data"])
    return np.asarray(Image.open(io.BytesIO(png))) > 0


def test_the_start_says_where_everything_is(started: tuple[dict[str, str], str]) -> None:
    ports, said = started
    assert f"service  http://127.0.0.1:{ports['SERVICE_PORT']}" in said
    assert f"HTTP     http://127.0.0.1:{ports['HTTP_PORT']}" in said
    assert f"gRPC     grpc://127.0.0.1:{ports['GRPC_PORT']}" in said
    metrics = re.findall(r"metrics +(\S+)", said)[0]
    assert "nv_inference_count" in httpx.get(metrics, trust_env=False).text


def test_the_example_gives_the_mask_of_its_point(started: tuple[dict[str, str], str]) -> None:
    ports, _ = started
    done = script("scripts/infer_example.sh", "127.0.0.1", ports["HTTP_PORT"])
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("HTTP 200")
    with Image.open(ROOT / "scripts" / "example.jpg") as picture:
        assert_mask(answered_mask(done.stdout), picture, points=[SPOON])


def test_the_example_takes_a_picture_and_a_prompt(started: tuple[dict[str, str], str], tmp_path: Path) -> None:
    ports, _ = started
    yy, xx = np.mgrid[:96, :96]
    disc = (xx - 48) ** 2 + (yy - 40) ** 2 < 20**2
    picture = Image.fromarray(np.where(disc[..., None], (220, 40, 40), (30, 60, 120)).astype(np.uint8))
    text = base64.b64encode(png(picture)).decode()
    (tmp_path / "picture.b64").write_text(text + "\n")
    prompt = '{"points": [[48, 40]],\n "labels": [1]}'
    for image in (text, f"@{tmp_path / 'picture.b64'}"):
        done = script("scripts/infer_example.sh", "127.0.0.1", ports["HTTP_PORT"], image, prompt)
        assert done.returncode == 0, done.stdout + done.stderr
        assert_mask(answered_mask(done.stdout), picture, points=[[48, 40]])


@pytest.mark.parametrize("prompt", ["{}", '{"points": [], "boxes": []}', "", " "])
def test_an_empty_prompt_shows_the_refusal(prompt: str, started: tuple[dict[str, str], str]) -> None:
    ports, _ = started
    done = script("scripts/infer_example.sh", "127.0.0.1", ports["HTTP_PORT"], "", prompt)
    assert done.returncode == 1
    assert done.stderr.startswith("HTTP 400")
    assert json.loads(done.stdout)["error"].startswith("the prompt is empty: give at least one point")


def test_health(started: tuple[dict[str, str], str]) -> None:
    ports, _ = started
    done = script("scripts/health_check.sh", "127.0.0.1", ports["SERVICE_PORT"])
    assert done.returncode == 0, done.stderr
    assert '"state":"ready"' in done.stdout
    done = script("scripts/health_check.sh", "127.0.0.1", ports["HTTP_PORT"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ready: Triton at")


def test_nothing_there_is_told_by_both() -> None:
    unused = free_port()
    done = script("scripts/health_check.sh", "127.0.0.1", str(unused))
    assert (done.returncode, done.stderr) == (1, f"not ready: nothing answers at http://127.0.0.1:{unused}\n")
    done = script("scripts/infer_example.sh", "127.0.0.1", str(unused))
    assert done.returncode == 1
    assert "start the server first" in done.stderr


def test_a_taken_port_is_one_sentence(started: tuple[dict[str, str], str], home: Path) -> None:
    ports, _ = started
    wanted = free_ports() | {"GRPC_PORT": ports["HTTP_PORT"]}
    done = script("triton_start.sh", "embedded", TRITON_SAM_HOME=str(home), **wanted)
    assert done.returncode == 1
    expected = f"port {ports['HTTP_PORT']} is taken: stop what uses it, or choose another with GRPC_PORT=..."
    assert done.stderr == f"error: {expected}\n"


def test_a_start_that_fails_shows_why(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "home"
    broken.mkdir()
    wanted = free_ports() | {"TRITON_SAM_CACHE_BYTES": "many"}
    done = script("triton_start.sh", "embedded", TRITON_SAM_HOME=str(broken), **wanted)
    assert done.returncode == 1
    assert "TRITON_SAM_CACHE_BYTES cannot be 'many'" in " ".join(done.stderr.split())
    assert "ended before it was ready" in done.stderr


def test_a_start_that_takes_too_long_says_how_to_stop_it(home: Path) -> None:
    done = script("triton_start.sh", "embedded", TRITON_SAM_HOME=str(home), READY_SECONDS="0", **free_ports())
    assert done.returncode == 1
    assert "was not ready after 0 s" in done.stderr
    end(int(re.findall(r"stop it with `kill (\d+)`", done.stderr)[0]))


@dataclass(frozen=True)
class Serving:
    """A script that serves until it is told to stop."""

    process: subprocess.Popen[bytes]
    log: Path
    ports: dict[str, str]

    @property
    def service(self) -> str:
        return f"http://127.0.0.1:{self.ports['SERVICE_PORT']}"

    def wait(self, least_restarts: int = 0, patience: float = PATIENCE) -> None:
        """Until it serves, having come back so often."""

        def serves() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(httpx.HTTPError):
                told = httpx.get(f"{self.service}/health", trust_env=False, timeout=5)
                return told.status_code == 200 and told.json()["restarts"] >= least_restarts
            return False

        eventually(serves, "serving", patience, pause=0.1)

    def expect_spoon(self) -> None:
        done = script("scripts/infer_example.sh", "127.0.0.1", self.ports["HTTP_PORT"])
        assert answered_mask(done.stdout)[SPOON[1], SPOON[0]]


@contextlib.contextmanager
def serving(name: str, *words: Path, folder: Path, **variables: str) -> Iterator[Serving]:
    """Runs a script; its home and its log are in the folder."""
    ports, log = free_ports(), folder / "log"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "TRITON_SAM_HOME": str(folder / "home")} | variables | ports
    with log.open("wb") as output:
        process = subprocess.Popen([ROOT / "scripts" / name, *words], env=environment, stdout=output, stderr=output)
    try:
        yield Serving(process, log, ports)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)
    assert not process_alive(process.pid)


@pytest.mark.part("deploy")
def test_run_triton_serves_a_repository_with_another_triton(repository: Path, tmp_path: Path) -> None:
    """As in NVIDIA's container: the supervised Triton is the one that TRITON_SAM_TRITONSERVER names."""
    other = tmp_path / "tritonserver"
    other.symlink_to(find_triton().binary.parents[1])
    with serving("run_triton.sh", repository, folder=tmp_path, TRITON_SAM_TRITONSERVER=str(other)) as server:
        server.wait()
        running = children(server.process.pid)
        assert [words[0] for words in running.values()] == [str(other / "bin" / "tritonserver")]
        os.kill(next(iter(running)), signal.SIGKILL)
        server.wait(least_restarts=1)
        metrics = httpx.get(f"{server.service}/metrics", trust_env=False).text
        assert "triton_sam_supervisor_restarts_total 1.0" in metrics
        server.expect_spoon()


@pytest.mark.part("exports")
@pytest.mark.timeout(900)
def test_run_triton_custom_serves_a_checkpoint(embedded_server: None, tmp_path: Path) -> None:
    """SAM2-tiny's own weights, as if they were somebody's: exported, and served."""
    checkpoint = ROOT / TINY_WEIGHTS
    if not checkpoint.exists():
        pytest.skip(f"the weights of SAM2-tiny are not at {TINY_WEIGHTS}")
    chosen = {"SAM2_CHECKPOINT": str(checkpoint), "SAM2_MODEL_CFG": "sam2_hiera_t.yaml"}
    with serving("run_triton_custom.sh", tmp_path / "models", folder=tmp_path, **chosen) as server:
        server.wait(patience=5 * PATIENCE)
        (model,) = httpx.get(f"{server.service}/models", trust_env=False).json()
        assert model["id"] == "sam2:tiny"
        server.expect_spoon()


def children(parent: int) -> dict[int, list[str]]:
    """pid -> command line of the processes that a process has started."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    pids = {int(pid) for task in tasks for pid in task.read_text().split()}
    return {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in pids}
