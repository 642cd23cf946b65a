"""The decoder for many points of one image against the one for rows."""

from __future__ import annotations

import pytest
import torch

from tests.unit.export.families import EACH_FAMILY
from tests.unit.export.small import small_network, small_spec
from triton_sam.engines.torch.decoder import RowDecoder
from triton_sam.engines.torch.grid_decoder import GridStep
from triton_sam.engines.torch.layout import Layout

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.mark.parametrize("model_id", EACH_FAMILY)
def test_the_same_masks(model_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than one slice has, and a last slice that is not full."""
    monkeypatch.setattr(GridStep, "SLICE", 3)
    spec = small_spec(model_id)
    layout = Layout.of(spec)
    decoder = RowDecoder(small_network(spec), spec.architecture, layout).cast(CPU, torch.float32)
    step = GridStep(decoder)
    row, points = step.inputs(8, CPU)
    generator = torch.Generator().manual_seed(0)
    row.normal_(generator=generator)
    points[:, 0, :2].uniform_(0, spec.side, generator=generator)
    with torch.inference_mode():
        expected = decoder(row.expand(8, -1), points)
        logits, best, scores = step(row, points)
    assert (logits - expected.logits).abs().max() < 1e-4 * expected.logits.std()
    assert (best - expected.best).abs().max() < 1e-4 * expected.logits.std()
    assert (scores[:, :-1] - expected.scores).abs().max() < 1e-4
    assert torch.equal(scores[:, -1], scores.gather(1, expected.choice[:, None])[:, 0])
    assert logits.std(dim=0).min() > 0  # each point has its own masks
