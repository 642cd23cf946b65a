"""Every code block of docs/guides/other_language.md runs: curl against both ports, and the client for Node."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.analytic import assert_mask
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "other_language.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
CELL = (559, 252)


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
def test_the_page(server: RunningServer, tmp_path: Path) -> None:
    assert [language for language, _ in BLOCKS] == ["bash", "js", "bash", "bash"]
    for language, code in BLOCKS:
        code = code.replace("localhost:8000", server.urls["HTTP"]).replace("http://localhost:8080", "localhost:8080")
        code = code.replace("localhost:8080", server.urls["service"])
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
