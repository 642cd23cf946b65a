"""The code blocks of docs/guides/other_language.md (curl and Node) and two_stage.md run, against one server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.analytic import assert_mask
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
CELL = (559, 252)


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, code) of all but those marked with the reason why they are not run."""
    text = re.sub(r"^<!-- not run: .* -->\n```.*?^```$", "", (GUIDES / page).read_text(), flags=re.M | re.S)
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)


def at(server: RunningServer, code: str) -> str:
    """Code of a page, with the test's server at the default addresses."""
    code = code.replace("http://localhost:8080", "localhost:8080").replace("localhost:8000", server.urls["HTTP"])
    return code.replace("localhost:8080", server.urls["service"])


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False
    )


def check_mask(folder: Path) -> None:
    """``mask.png`` is the mask of the cell; the next block has to write it again."""
    with Image.open(folder / "cells.jpg") as picture, Image.open(folder / "mask.png") as mask:
        assert_mask(np.asarray(mask) > 0, picture.convert("RGB"), points=[[*CELL]], labels=[1])
    (folder / "mask.png").unlink()


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
def test_another_language(server: RunningServer, tmp_path: Path) -> None:
    page = blocks("other_language.md")
    assert [language for language, _ in page] == ["bash", "js", "bash", "bash"]
    for language, code in page:
        code = at(server, code)
        if language == "js":
            check_client(code, server.urls["service"], tmp_path)
            continue
        done = run(["bash", "-euo", "pipefail", "-c", code], tmp_path)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        if "mask.png" in code:
            check_mask(tmp_path)
    outputs = {output["name"]: output for output in json.loads((tmp_path / "answer.json").read_text())["outputs"]}
    result = json.loads(outputs["result_json"]["data"][0])
    assert (result["width"], result["height"]) == (1024, 768)


def check_client(code: str, service: str, folder: Path) -> None:
    """The client for Node gets a mask, also with a key that the server does not have, and says what is wrong."""
    if shutil.which("node") is None:
        return
    for name, text in (("segment", code), ("expired", code.replace("let key;", 'let key = "gone";'))):
        (folder / f"{name}.mjs").write_text(text)
        done = run(["node", f"{name}.mjs", "cells.jpg", *map(str, CELL)], folder, SAM_URL=service)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"score \d\.\d\d\n", done.stdout)
        check_mask(folder)
    outside = run(["node", "segment.mjs", "cells.jpg", "5000", "5"], folder, SAM_URL=service)
    assert "lies outside the image of 1024 x 768 pixels" in outside.stderr


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_a_moving_mouse(server: RunningServer, tmp_path: Path) -> None:
    page = blocks("two_stage.md")
    assert [language for language, _ in page] == ["bash", "python"]
    for language, code in page:
        shell = [sys.executable, "-W", "error", "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
        done = run([*shell, at(server, code)], tmp_path)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    said = re.fullmatch(r"(\d+) \(1, 1, 256, 256\) \[\[.*\]\]\n", done.stdout)
    assert said is not None, done.stdout
    assert 1 <= int(said[1]) < 50, "most predictions are superseded"
