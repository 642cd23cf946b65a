"""Every variant at full size, with random weights: hours and up to 20 GiB of memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from triton_sam.models.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.part("full-size")]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model_id", list(CATALOG))
def test_variant(model_id: str) -> None:
    """Writes its row of docs/data/exports.json, from which the table of docs/reference/models.md is made."""
    subprocess.run([sys.executable, "-m", "benchmarks", "exports", model_id], cwd=ROOT, check=True)
    row = json.loads((ROOT / "docs" / "data" / "exports.json").read_text())["figures"][model_id]
    assert row["opset"] in (17, 18)
    assert max(row["worst_share"].values()) <= 1e-3
