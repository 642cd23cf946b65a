"""The light client alone, as in a user's own environment: no server parts, and numpy 2 as well as 1."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.part("clones"), pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import asyncio
import sys
import numpy
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client, queue_multiple_requests, wait_for_latest_result

async def hover(url):
    async with SpeculativeSAM2Client(url) as client:
        client.set_image(picture)
        tasks = await queue_multiple_requests(client, [numpy.array([[365, 290]])] * 9, [numpy.array([1])] * 9, "s")
        assert client.cancel_session_requests("s") == 8
        masks, iou = await wait_for_latest_result(tasks, client, "s")
        assert masks.shape == (1, 1, 256, 256) and iou.shape == (1, 1)

http, grpc, picture = sys.argv[1:]
for url in (http, grpc):
    with SAM2TritonClient(url) as client:
        client.set_image(picture)
        masks, iou = client.predict(point_coords=[[365, 290]], point_labels=[1])
        assert masks.shape == (1, 1, 256, 256) and masks.dtype == numpy.float32, masks.shape
        found = client.segment([[365, 290]])
        assert found.masks.masks.shape == (1, 400, 600)
        assert found.masks.png().startswith(b"\\x89PNG") and found.masks.rle()["size"] == [400, 600]
        assert client.segment([[365, 290]], format="polygon").encoded[0]["data"]
        print(int(found.masks.masks.sum()), numpy.__version__)
    asyncio.run(hover(url))
for heavy in ("onnxruntime", "cv2", "pytriton", "fastapi", "torch"):
    assert heavy not in sys.modules
"""


@pytest.fixture(scope="module", params=["numpy<2", "numpy>=2"])
def light_python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT), request.param]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    if done.returncode:
        pytest.skip(f"PyPI cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    return python


def test_light_client(server: RunningServer, light_python: Path, photographs: Path) -> None:
    arguments = [server.urls["HTTP"], server.urls["gRPC"], str(photographs / "coffee.png")]
    done = subprocess.run(
        [str(light_python), "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    areas = {line.split()[0] for line in done.stdout.splitlines()}
    assert len(areas) == 1


def test_serve_without_the_server_says_what_to_install(light_python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(light_python.with_name("triton-sam")), "serve", "--model-repository", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"TRITON_SAM_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert sys.executable not in done.stderr
