"""The scripts at the root and in scripts/, as a user runs them, against the embedded server."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from triton_sam import SAM2TritonClient
from triton_sam.host import find_triton, free_port, process_alive

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


def test_the_example_gives_the_same_mask_as_the_client(started: tuple[dict[str, str], str]) -> None:
    ports, _ = started
    picture = ROOT / "scripts" / "example.jpg"
    assert picture.stat().st_size < 10_000
    done = script("scripts/infer_example.sh", "127.0.0.1", ports["HTTP_PORT"])
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("HTTP 200")
    mask = answered_mask(done.stdout)
    with SAM2TritonClient(f"127.0.0.1:{ports['HTTP_PORT']}") as client:
        client.set_image(picture)
        expected = client.segment([SPOON]).masks.masks[0]
    np.testing.assert_array_equal(mask, expected)
    assert mask[SPOON[1], SPOON[0]]
    assert 0.002 < mask.mean() < 0.3, "the spoon, and not the table"


def test_the_example_takes_a_picture_and_a_prompt(started: tuple[dict[str, str], str], tmp_path: Path) -> None:
    ports, _ = started
    yy, xx = np.mgrid[:96, :96]
    disc = (xx - 48) ** 2 + (yy - 40) ** 2 < 20**2
    drawn = io.BytesIO()
    Image.fromarray(np.where(disc[..., None], (220, 40, 40), (30, 60, 120)).astype(np.uint8)).save(drawn, "PNG")
    text = base64.b64encode(drawn.getvalue()).decode()
    (tmp_path / "picture.b64").write_text(text + "\n")
    prompt = '{"points": [[48, 40]],\n "labels": [1]}'
    for image in (text, f"@{tmp_path / 'picture.b64'}"):
        done = script("scripts/infer_example.sh", "127.0.0.1", ports["HTTP_PORT"], image, prompt)
        assert done.returncode == 0, done.stdout + done.stderr
        mask = answered_mask(done.stdout)
        assert (mask & disc).sum() / (mask | disc).sum() > 0.9


@pytest.mark.parametrize("prompt", ["{}", '{"points": [], "boxes": []}'])
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


def test_run_triton_serves_a_repository_with_another_triton(repository: Path, tmp_path: Path) -> None:
    """As in NVIDIA's container: the supervised Triton is the one that TRITON_SAM_TRITONSERVER names."""
    other = tmp_path / "tritonserver"
    other.symlink_to(find_triton().binary.parents[1])
    ports = free_ports()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"TRITON_SAM_HOME": str(tmp_path / "home"), "TRITON_SAM_TRITONSERVER": str(other)}
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [ROOT / "scripts" / "run_triton.sh", repository],
            env=os.environ | {"PATH": path} | settings | ports,
            stdout=output,
            stderr=output,
        )
    try:
        address = f"http://127.0.0.1:{ports['SERVICE_PORT']}/health"

        def status(least_restarts: int) -> bool:
            try:
                told = httpx.get(address, trust_env=False, timeout=5)
            except httpx.HTTPError:
                return False
            return told.status_code == 200 and told.json()["restarts"] >= least_restarts

        def wait(least_restarts: int) -> None:
            deadline = time.monotonic() + PATIENCE
            while not status(least_restarts):
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)

        wait(0)
        running = children(server.pid)
        assert [words[0] for words in running.values()] == [str(other / "bin" / "tritonserver")]
        os.kill(next(iter(running)), signal.SIGKILL)
        wait(1)
        metrics = httpx.get(f"http://127.0.0.1:{ports['SERVICE_PORT']}/metrics", trust_env=False).text
        assert "triton_sam_supervisor_restarts_total 1.0" in metrics
        done = script("scripts/infer_example.sh", "127.0.0.1", ports["HTTP_PORT"])
        assert answered_mask(done.stdout)[SPOON[1], SPOON[0]]
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE)
    assert not process_alive(server.pid)


def children(parent: int) -> dict[int, list[str]]:
    """pid -> command line of the processes that a process has started."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    pids = {int(pid) for task in tasks for pid in task.read_text().split()}
    return {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in pids}
