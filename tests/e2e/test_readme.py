"""Every code block of the README and of docs/start/laptop.md runs: `make` ones elsewhere, the others against servers
that are started as the pages say."""

from __future__ import annotations

import contextlib
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
Block = tuple[str, str]


def blocks_of(page: str) -> list[Block]:
    """(language, code) of all blocks of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


BLOCKS = blocks_of("README.md")
LAPTOP = blocks_of("docs/start/laptop.md")
SERVE = "triton-sam serve\n"
ACTIVATE = ". .venv/bin/activate\n"
#: Block -> what runs it.
ELSEWHERE = {"make demo\n": "tests/e2e/test_fresh_clone.py", "make test\n": ".ci/run"}
LAPTOP_ELSEWHERE = {"make demo ONCE=1\n": "tests/e2e/test_fresh_clone.py", ACTIVATE: "environment()"}
PICTURE = ROOT / "docs" / "images" / "coffee.png"


def environment(port: int) -> dict[str, str]:
    """As after `. .venv/bin/activate`, with the test's server at the default address."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "TRITON_URL": f"localhost:{port}"}


def tour() -> list[Block]:
    """What is run here of the README. Python blocks after each other are one session, as a reader's are."""
    blocks = [block for block in BLOCKS if block[0] != "text" and block[1] not in {SERVE, *ELSEWHERE}]
    joined: list[Block] = []
    for language, group in itertools.groupby(blocks, key=lambda block: block[0]):
        codes = [code for _, code in group]
        joined += [(language, "\n".join(codes))] if language == "python" else [(language, code) for code in codes]
    return joined


def test_no_block_is_left_out() -> None:
    """The tours run shells and Python: what they do not know, they would pass by."""
    assert {language for language, _ in [*BLOCKS, *LAPTOP]} == {"bash", "python", "text"}
    assert {SERVE, *ELSEWHERE} <= {code for _, code in BLOCKS}
    assert {ACTIVATE + SERVE, *LAPTOP_ELSEWHERE} <= {code for _, code in LAPTOP}
    assert not [code for _, code in tour() if code.startswith("make")], "name in ELSEWHERE what runs this"


def run_block(language: str, code: str, folder: Path, port: int) -> str:
    """As a reader does; returns what it prints."""
    shell = [sys.executable, "-W", "error", "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
    done = subprocess.run(
        [*shell, code],
        cwd=folder,
        env=environment(port),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def started(code: str, folder: Path) -> Iterator[tuple[int, int]]:
    """A block that serves, in a folder, on free ports: Triton's and the service's."""
    port, service = free_port(), free_port()
    options = f"--http-port {port} --grpc-port=0 --metrics-port=0 --service-port {service}"
    command = code.removeprefix(ACTIVATE).strip()
    variables, own = command.split("triton-sam serve")
    shell = ["bash", "-c", f"{variables}exec triton-sam serve {own} {options}"]
    with subprocess.Popen(shell, cwd=folder, env=environment(port), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("serving until" in line for line in process.stdout), f"{command} did not start"
            yield port, service
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.fixture(scope="module")
def ports(store: WeightStore, embedded_server: None) -> Iterator[tuple[int, int]]:
    """The README's own `triton-sam serve`, which is the other page's too."""
    with started(SERVE, ROOT) as free:
        yield free


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
        printed = run_block(language, code, tmp_path, port)
        if "mask_input" in code:
            check_scores(code, printed)
        if "triton-sam doctor" in code:
            check_states(printed, service)
    assert not list(tmp_path.iterdir()), "the tour cleans up after itself"


def test_the_laptop_page(ports: tuple[int, int], spoon: Mask, tmp_path: Path) -> None:
    """From the top down, with a second server where the page starts one."""
    blocks = [block for block in LAPTOP if block[0] != "text" and block[1] not in {ACTIVATE + SERVE, *LAPTOP_ELSEWHERE}]
    with contextlib.ExitStack() as stack:
        port, service, protected = *ports, 0
        for language, code in blocks:
            if "triton-sam serve" in code:
                port, protected = stack.enter_context(started(code, tmp_path))
                continue
            code = code.replace("localhost:8080", f"localhost:{service}")
            code = code.replace("localhost:9090", f"localhost:{protected}")
            if code.startswith("rm "):
                check_laptop_results(tmp_path, spoon)
            printed = run_block(language, code, tmp_path, port)
            if "http_code" in code:
                assert printed.splitlines()[0] == "401"
    assert not list(tmp_path.iterdir()), "the page cleans up after itself"


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


def spoons(folder: Path, *names: str) -> list[Mask]:
    return [pixels(folder / name, "L") > 127 for name in names]


def check_results(folder: Path, spoon: Mask) -> None:
    """The command line, Python and curl were asked for the same spoon."""
    found, *others = spoons(folder, "mask.png", "spoon.png", "service-mask.png")
    assert all(iou(found, other) == 1.0 for other in others)
    assert iou(found, spoon) >= 0.99
    (row,) = json.loads((folder / "result.json").read_text())["masks"]
    assert row["score"] > 0.9
    assert pixels(folder / "overlay.png", "RGB").shape == (400, 600, 3)
    assert list((folder / "masks").rglob("coffee*.png")), "label images and overlays of the batch job"


def check_laptop_results(folder: Path, spoon: Mask) -> None:
    """The same spoon by all ways; and the picture of the page is what its code makes."""
    found, *others = spoons(folder, "mask.png", "curl-mask.png", "token-mask.png", "mask-by-service.png")
    assert all(iou(found, other) == 1.0 for other in others)
    assert iou(found, spoon) >= 0.99
    assert json.loads((folder / "curl-result.json").read_text())["mask"]["encoding"] == "rle"
    if os.environ.get("UPDATE_PICTURES"):
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_bytes((folder / "objects.png").read_bytes())
    difference = np.abs(pixels(folder / "objects.png", "RGB") - pixels(PICTURE, "RGB")).mean()
    assert difference < 1.0, "the picture is not what its code makes: set UPDATE_PICTURES=1"


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
