"""Every code block of the README runs: `make` ones elsewhere, the others against the README's own server."""

from __future__ import annotations

import itertools
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

from tests.e2e.browser import OpenPage
from tests.e2e.page_helpers import SPOON, Mask, Screen
from tests.integration.reference import DirectSam2, iou
from triton_sam.core.samples import sample_photograph
from triton_sam.models.specs import Role
from triton_sam.models.weights import WeightStore
from triton_sam.server.host import free_port

# The first `serve` of a machine sets the model up, which takes a while.
pytestmark = [pytest.mark.triton, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
SERVE = "triton-sam serve\n"
#: Block -> what runs it.
ELSEWHERE = {"make demo\n": "tests/e2e/test_fresh_clone.py", "make test\n": ".ci/run"}
PICTURE = ROOT / "docs" / "images" / "coffee.png"


def environment(port: int) -> dict[str, str]:
    """As after `. .venv/bin/activate`, with the test's server at the default address."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "TRITON_URL": f"localhost:{port}"}


def tour() -> list[tuple[str, str]]:
    """(language, code) of what is run here. Python blocks after each other are one session, as a reader's are."""
    blocks = [block for block in BLOCKS if block[0] != "text" and block[1] not in {SERVE, *ELSEWHERE}]
    joined: list[tuple[str, str]] = []
    for language, group in itertools.groupby(blocks, key=lambda block: block[0]):
        codes = [code for _, code in group]
        joined += [(language, "\n".join(codes))] if language == "python" else [(language, code) for code in codes]
    return joined


def test_no_block_is_left_out() -> None:
    """The tour runs shells and Python: what it does not know, it would pass by."""
    assert {language for language, _ in BLOCKS} == {"bash", "python", "text"}
    assert {SERVE, *ELSEWHERE} <= {code for _, code in BLOCKS}
    assert not [code for _, code in tour() if code.startswith("make")], "name in ELSEWHERE what runs this"


@pytest.fixture(scope="module")
def ports(store: WeightStore, embedded_server: None) -> Iterator[tuple[int, int]]:
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


@pytest.fixture(scope="module")
def spoon(graphs: dict[Role, Path]) -> Mask:
    """[H,W]: the published graphs' own answer to a click on the spoon."""
    direct = DirectSam2(graphs[Role.ENCODER], graphs[Role.DECODER])
    with Image.open(sample_photograph()) as picture:
        return direct.mask(picture.convert("RGB"), points=[[*SPOON]])


def test_the_tour(ports: tuple[int, int], spoon: Mask, tmp_path: Path) -> None:
    port, service = ports
    for language, code in tour():
        code = code.replace("localhost:8000", f"localhost:{port}").replace("localhost:8080", f"localhost:{service}")
        if code.startswith("rm "):
            check_results(tmp_path, spoon)
        shell = [sys.executable, "-W", "error", "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
        done = subprocess.run(
            [*shell, code],
            cwd=tmp_path,
            env=environment(port),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        if "mask_input" in code:
            check_scores(code, done.stdout)
        if "triton-sam doctor" in code:
            check_states(done.stdout, service)
    assert not list(tmp_path.iterdir()), "the tour cleans up after itself"


def check_scores(code: str, printed: str) -> None:
    """The second click is better than the first, and the README's comments have the scores that are printed."""
    written = [float(score) for score in re.findall(r"predicted IoU .*# (0\.\d\d)$", code, re.MULTILINE)]
    scores = [float(score) for score in re.findall(r"predicted IoU (\S+)$", printed, re.MULTILINE)]
    assert len(written) == len(scores) == 2
    # Processors order their sums differently: by far less than two of the last digits.
    assert scores == pytest.approx(written, abs=0.021)
    assert scores[1] > scores[0]


def check_states(printed: str, service: int) -> None:
    """`models` and `doctor` agree that the README's server serves the model, and nobody is told to stop it."""
    lines = printed.splitlines()
    (row,) = [line for line in lines if line.startswith("sam2:tiny ")]
    assert row.split()[3] == "served"
    (finding,) = [line for line in lines if line.split()[:2] == ["fine", "sam2:tiny"]]
    assert finding.endswith(f"served: at http://127.0.0.1:{service}")


def pixels(path: Path, mode: str) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert(mode)).astype(int)


def check_results(folder: Path, spoon: Mask) -> None:
    """The command line, curl and Python were asked for the same spoon."""
    names = ("mask.png", "curl-mask.png", "spoon.png", "service-mask.png", "mask-by-service.png")
    found = [pixels(folder / name, "L") > 127 for name in names]
    assert iou(found[0], found[1]) == iou(found[0], found[3]) == iou(found[0], found[4]) == 1.0
    assert json.loads((folder / "service-result.json").read_text())["mask"]["encoding"] == "rle"
    # The Python block decodes the spoon beside three other objects: another batch, another order of sums.
    assert iou(found[0], found[2]) > 0.999
    assert iou(found[0], spoon) >= 0.99
    assert pixels(folder / "overlay.png", "RGB").shape == (400, 600, 3)
    if os.environ.get("UPDATE_PICTURES"):
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_bytes((folder / "objects.png").read_bytes())
    difference = np.abs(pixels(folder / "objects.png", "RGB") - pixels(PICTURE, "RGB")).mean()
    assert difference < 1.0, "the README's picture is not what its code makes: set UPDATE_PICTURES=1"


def test_the_web_page(ports: tuple[int, int], spoon: Mask, open_page: OpenPage) -> None:
    """A sample, the mouse and a click, with the published weights."""
    url = f"http://localhost:{ports[1]}"
    screen = Screen(open_page(url), url, is_analytic=False)
    screen.open_sample()
    screen.actual_size()
    pixel = screen.click(*SPOON)
    assert pixel == SPOON
    mask = screen.best(screen.asked_at(*pixel))
    assert iou(mask, spoon) >= 0.99
    screen.expect_mask(mask, exact=True)
