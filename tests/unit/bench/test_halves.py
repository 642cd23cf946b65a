from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.export.small import small_network, small_spec
from triton_sam.bench.halves import HALVES, measure_halves
from triton_sam.export.trial import save_as_folder

pytestmark = pytest.mark.torch


@pytest.mark.patient
def test_halves_are_compared_with_the_whole(tmp_path: Path) -> None:
    spec = small_spec("sam2.1:tiny")
    checkpoint = save_as_folder(small_network(spec), tmp_path)
    figures = list(measure_halves(spec, checkpoint, photographs=1))
    assert len(figures) == 2 * len(HALVES)
    values = {figure.name: figure.value for figure in figures}
    assert all(0 < value <= 1 for value in values.values())
    assert values["mask IoU, float16 throughout, mean"] >= values["mask IoU, bfloat16 throughout, mean"]
    assert "of 36 clicks under 0.99" in figures[0].detail
