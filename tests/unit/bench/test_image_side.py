from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import image_side
from benchmarks.image_side import measure_image_side
from tests.unit.export.small import small_network, small_spec
from triton_sam.export.random_weights import save_as_folder

pytestmark = [pytest.mark.torch, pytest.mark.part("bench")]


def test_the_trained_side_equals_itself_and_another_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_side, "_LEAST_SCORE", -10.0)  # a random network's scores mean nothing
    monkeypatch.setattr(image_side, "_MOST_SHARE", 1.0)
    monkeypatch.setattr(image_side, "_GRID", 2)
    spec = small_spec("sam2.1:tiny")
    checkpoint = save_as_folder(small_network(spec), tmp_path / "checkpoint")
    same = list(measure_image_side(spec, checkpoint, 1, spec.side))
    assert same
    assert all(figure.value == 1.0 for figure in same)
    other = list(measure_image_side(spec, checkpoint, 1, spec.side + 64))
    assert any(figure.value < 1.0 for figure in other)
