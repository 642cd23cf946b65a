from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import half_precision
from benchmarks.half_precision import PRECISIONS, measure_half_precision
from tests.unit.export.small import small_network, small_spec
from triton_sam.export.random_weights import save_as_folder
from triton_sam.models.specs import ModelSpec

pytestmark = [pytest.mark.torch, pytest.mark.part("bench")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, Path]:
    spec = small_spec("sam2.1:tiny")
    return spec, save_as_folder(small_network(spec), tmp_path_factory.mktemp("checkpoint"))


def test_float32_equals_itself(checkpoint: tuple[ModelSpec, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor does in half precision, float32 must return the very same masks again."""
    monkeypatch.setattr(half_precision, "PRECISIONS", {"float32 throughout": (torch.float32, torch.float32)})
    mean, worst = measure_half_precision(*checkpoint, photographs=1)
    assert (mean.name, mean.value) == ("mask IoU, float32 throughout, mean", 1.0)
    assert (worst.name, worst.value) == ("mask IoU, float32 throughout, worst click", 1.0)
    assert "0 of 36 clicks under 0.99" in mean.detail


@pytest.mark.part("bench")
def test_half_precision_is_compared_with_float32(checkpoint: tuple[ModelSpec, Path]) -> None:
    """Which precision is nearer depends on the processor: a random network's masks depend on the last digits."""
    figures = list(measure_half_precision(*checkpoint, photographs=1))
    values = {figure.name: figure.value for figure in figures}
    assert len(figures) == len(values) == 2 * len(PRECISIONS)
    for name in PRECISIONS:
        mean, worst = values[f"mask IoU, {name}, mean"], values[f"mask IoU, {name}, worst click"]
        assert 0 <= worst <= mean <= 1
        assert mean > 0
    assert "of 36 clicks under 0.99" in figures[0].detail
