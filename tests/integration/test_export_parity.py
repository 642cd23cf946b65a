"""The parity check on real weights: a right export is accepted whatever the seed, a damaged one is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.exported import Exports
from tests.unit.export.damage import DAMAGES, damaged
from triton_sam.export.checkpoint import load_weights
from triton_sam.export.parity import ParityCheck
from triton_sam.export.parity_reference import Reference
from triton_sam.export.parity_scenes import drawing, scenes
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import Precision, exported_graphs
from triton_sam.networks.segmenters import build

pytestmark = [pytest.mark.timeout(3600), pytest.mark.torch]
MODEL = "sam2:tiny"
SEEDS = 200


@pytest.fixture(scope="module")
def network(exports: Exports) -> Any:
    spec = get_spec(MODEL)
    network = build(spec.architecture, spec.side)
    load_weights(network, exports.checkpoint(MODEL), spec)
    return network


@pytest.fixture(scope="module")
def check(exports: Exports, network: Any) -> Callable[[Path, Path], ParityCheck]:
    """(encoder, decoder) -> their check; what torch says is asked once for all."""
    spec = get_spec(MODEL)
    reference = Reference(network, spec.architecture, exported_graphs(spec.architecture, spec.side))
    return lambda encoder, decoder: ParityCheck(reference, encoder, decoder)


@pytest.fixture(scope="module")
def folder(exports: Exports) -> Path:
    return exports.export(MODEL, Precision.FP32)


@pytest.fixture(scope="module")
def shown() -> list[Any]:
    return scenes(get_spec(MODEL).side, seed=0)


def refusals_of(own: ParityCheck, seeds: range) -> dict[int, str]:
    """Seeds whose check refused a right export, with the reason. Four images, because an encode takes seconds."""
    images = [drawing(get_spec(MODEL).side, seed) for seed in range(4)]
    reports = {seed: own.run([images[seed % len(images)]], seed) for seed in seeds}
    return {seed: report.reason for seed, report in reports.items() if not report.passed}


@pytest.mark.part("exports")
def test_a_right_export_is_accepted(check: Callable[[Path, Path], ParityCheck], folder: Path, shown: list[Any]) -> None:
    own = check(folder / "encoder.onnx", folder / "decoder.onnx")
    assert own.run(shown, seed=0).passed
    assert not refusals_of(own, range(10))


@pytest.mark.part("full-size")  # ten seconds and more for each seed on two cores
def test_two_hundred_seeds_in_a_row(check: Callable[[Path, Path], ParityCheck], folder: Path) -> None:
    assert not refusals_of(check(folder / "encoder.onnx", folder / "decoder.onnx"), range(10, SEEDS))


@pytest.mark.part("exports")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_export_is_refused(
    damage: str,
    check: Callable[[Path, Path], ParityCheck],
    network: Any,
    folder: Path,
    shown: list[Any],
    tmp_path: Path,
) -> None:
    graphs = damaged(damage, folder / "encoder.onnx", folder / "decoder.onnx", network, tmp_path)
    assert not check(*graphs).run(shown, seed=0).passed
