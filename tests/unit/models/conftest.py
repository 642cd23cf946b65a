from __future__ import annotations

from pathlib import Path

import pytest

from triton_sam.models.weights import WeightStore


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "home")
