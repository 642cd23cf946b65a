"""Every code block of the README runs: `make` ones in a fresh clone, the others against the README's own server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.integration.reference import iou
from triton_sam.host import free_port

pytestmark = pytest.mark.triton

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
SERVE = "triton-sam serve\n"
PICTURE = ROOT / "docs" / "images" / "coffee.png"


def environment(port: int) -> dict[str, str]:
    """As after `. .venv/bin/activate`, with the test's server at the default address."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "TRITON_URL": f"localhost:{port}"}


def test_every_block_is_run_somewhere() -> None:
    kinds = {"bash", "python", "text"}
    assert {language for language, _ in BLOCKS} == kinds, "a block of another language is run by nobody"
    make = [code for language, code in BLOCKS if language == "bash" and code.startswith("make")]
    assert make == ["make demo\n", "make test\n"], "test_fresh_clone runs the first, .ci/run is the second"
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert [code for _, code in BLOCKS].count(SERVE) == 1


@pytest.fixture(scope="module")
def ports(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The README's own `triton-sam serve`, on free ports: Triton's and the service's."""
    port, service = free_port(), free_port()
    options = ["--http-port", str(port), "--grpc-port=0", "--metrics-port=0", "--service-port", str(service)]
    command = [*SERVE.split(), *options]
    with subprocess.Popen(command, env=environment(port), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("serving until" in line for line in process.stdout), "the README's server did not start"
            yield port, service
        finally:
            process.terminate()
            process.wait(timeout=60)


def test_the_tour(ports: tuple[int, int], tmp_path: Path) -> None:
    port, service = ports
    python_so_far = ""
    for language, code in BLOCKS:
        code = code.replace("localhost:8000", f"localhost:{port}").replace("localhost:8080", f"localhost:{service}")
        if code.startswith(("make", "triton-sam serve")) or language == "text":
            continue
        if code.startswith("rm "):
            check_results(tmp_path)
        if language == "python":
            # Later blocks go on where earlier ones stopped, as a reader's session does.
            python_so_far += code
            command = [sys.executable, "-W", "error", "-c", python_so_far.replace("client.close()\n", "")]
        else:
            command = ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(port), capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["coffee.png"], "the tour cleans up after itself"


def pixels(path: Path, mode: str) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert(mode)).astype(int)


def check_results(folder: Path) -> None:
    """The command line, curl and Python were asked for the same spoon."""
    names = ("mask.png", "curl-mask.png", "spoon.png", "service-mask.png")
    found = [pixels(folder / name, "L") > 127 for name in names]
    assert iou(found[0], found[1]) == iou(found[0], found[3]) == 1.0
    assert json.loads((folder / "service-result.json").read_text())["mask"]["encoding"] == "rle"
    # The Python block decodes the spoon beside three other objects: another batch, another order of sums.
    assert iou(found[0], found[2]) > 0.999
    assert 0.01 < found[0].mean() < 0.1
    assert pixels(folder / "overlay.png", "RGB").shape == (400, 600, 3)
    if os.environ.get("UPDATE_PICTURES"):
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_bytes((folder / "objects.png").read_bytes())
    difference = np.abs(pixels(folder / "objects.png", "RGB") - pixels(PICTURE, "RGB")).mean()
    assert difference < 1.0, "the README's picture is not what its code makes: set UPDATE_PICTURES=1"
