from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.repository_helpers import Weights


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    return Weights(tmp_path / "weights")


@pytest.fixture
def graphs(weights: Weights) -> tuple[Path, Path]:
    return weights.make()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "home" / "model_repository"
