"""`make demo` as a new user has it: a clone, nothing installed, one command."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triton_sam.models.weights import WeightStore
from triton_sam.server.host import free_port

pytestmark = [pytest.mark.triton, pytest.mark.part("clones"), pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]


def test_make_demo_in_a_fresh_clone(store: WeightStore, tmp_path: Path) -> None:
    if not (ROOT / ".git").exists() or shutil.which("make") is None:
        pytest.skip("needs git and make: this is no checkout")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=120)
    # What is not committed yet belongs to the change under test.
    changed = subprocess.run(
        ["git", "ls-files", "--modified", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, changed):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    ports = " ".join(f"--{name}-port={free_port()}" for name in ("http", "grpc", "metrics", "service"))
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["TRITON_SAM_HOME"] = str(store.home)
    command = ["make", "demo", "ONCE=1", f"DEMO_PORTS={ports}"]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answered in" in done.stdout
    assert "http://127.0.0.1:" not in done.stdout, "its server has ended"
    with Image.open(clone / "demo" / "mask.png") as mask, Image.open(clone / "demo" / "overlay.png") as overlay:
        assert mask.size == overlay.size == (600, 400)
        assert 0.01 < (np.asarray(mask) > 127).mean() < 0.1
    listed = subprocess.run(
        [str(clone / ".venv" / "bin" / "python"), "-m", "pip", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert "\ntorch " not in listed
