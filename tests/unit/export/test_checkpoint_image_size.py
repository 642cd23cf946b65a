"""Checkpoints at another image size than that of training: position tables are interpolated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.export.checkpoint_files import (
    SPEC,
    State,
    assert_equal,
    official_state,
)
from tests.unit.export.small import small_network, small_spec, state_of
from triton_sam.errors import InvalidInput
from triton_sam.export.checkpoint import fill
from triton_sam.export.checkpoint_keys import map_keys
from triton_sam.export.run import ExportOptions, export_checkpoint
from triton_sam.models.catalog import get_spec
from triton_sam.networks.segmenters import build

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def state() -> State:
    return official_state()


def resized(state: State, side: int) -> Any:
    """SAM 1 filled with a checkpoint of 256 pixels, at another size."""
    network = build(SPEC.architecture, side)
    fill(network, map_keys(state))
    return network


@pytest.mark.parametrize("side", [128, 208, 512])
def test_position_tables_are_stretched(side: int, state: State) -> None:
    network = resized(state, side)
    grid = side // 16
    assert network.vision_encoder.pos_embed.shape == (1, grid, grid, 64)
    windowed, whole = network.vision_encoder.layers
    for axis in ("rel_pos_h", "rel_pos_w"):
        assert getattr(whole.attn, axis).shape == (2 * grid - 1, 32)
        assert torch.equal(getattr(windowed.attn, axis), state[f"image_encoder.blocks.0.attn.{axis}"])


@pytest.mark.parametrize("side", [128, 208, 512])
def test_a_constant_table_stays_constant(side: int, state: State) -> None:
    constant = torch.arange(64.0)
    line = torch.arange(32.0)
    tables = {
        "image_encoder.pos_embed": constant.expand(1, 16, 16, 64).clone(),
        "image_encoder.blocks.1.attn.rel_pos_h": line.expand(31, 32).clone(),
    }
    network = resized(state | tables, side)
    grid = side // 16
    torch.testing.assert_close(network.vision_encoder.pos_embed.data, constant.expand(1, grid, grid, 64))
    torch.testing.assert_close(network.vision_encoder.layers[1].attn.rel_pos_h.data, line.expand(2 * grid - 1, 32))


@pytest.mark.parametrize("side", [128, 208, 512])
def test_a_ramp_stays_a_ramp(side: int, state: State) -> None:
    down, across = torch.arange(16.0).view(16, 1), torch.arange(16.0).view(1, 16)
    table = torch.zeros(1, 16, 16, 64)
    table[0, :, :, 0], table[0, :, :, 1] = down.expand(16, 16), across.expand(16, 16)
    offsets = torch.arange(-15.0, 16.0).view(31, 1).expand(31, 32).clone()
    ramps = {"image_encoder.pos_embed": table, "image_encoder.blocks.1.attn.rel_pos_w": offsets}
    network = resized(state | ramps, side)
    stretched = network.vision_encoder.pos_embed[0]
    inner = stretched[2:-2, 2:-2]  # a cubic bends at the border
    assert (inner[..., 0].diff(dim=0) > 0).all()
    assert (inner[..., 1].diff(dim=1) > 0).all()
    torch.testing.assert_close(stretched[..., 0], stretched[..., 1].T)
    centres = (torch.arange(side // 16) + 0.5) * 256 / side - 0.5  # where the new cells lie among the old ones
    assert (stretched[:, 0, 0] - centres)[2:-2].abs().max() < 0.09
    positions = network.vision_encoder.layers[1].attn.rel_pos_w
    assert (positions.diff(dim=0) >= 0).all()
    torch.testing.assert_close(positions, -positions.flip(0))


def test_the_size_of_training_keeps_its_tables(state: State) -> None:
    network = resized(state, 256)
    assert torch.equal(network.vision_encoder.pos_embed, state["image_encoder.pos_embed"])
    assert torch.equal(network.vision_encoder.layers[1].attn.rel_pos_h, state["image_encoder.blocks.1.attn.rel_pos_h"])


def test_a_table_of_another_width_is_not_stretched(state: State) -> None:
    changed = state | {"image_encoder.pos_embed": torch.zeros(1, 8, 8, 63)}
    with pytest.raises(InvalidInput, match=r"1 misshapen \(image_encoder\.pos_embed is \[1, 8, 8, 63\]"):
        resized(changed, 256)


@pytest.mark.parametrize("model_id", ["sam1:mobile", "sam2.1:tiny", "sam3:full"])
def test_other_networks_have_no_table_of_the_image_size(model_id: str) -> None:
    """Their weights fit every size as they are."""
    spec = small_spec(model_id)
    network = small_network(spec)
    larger = build(spec.architecture, 2 * spec.side)
    fill(larger, map_keys(state_of(network)))
    assert_equal(larger.state_dict(), network.state_dict())


@pytest.mark.parametrize(
    ("model_id", "side", "step"),
    [
        ("sam1:vit_b", 1000, 16),
        ("sam1:mobile", 1040, 32),
        ("sam2.1:tiny", 1040, 32),
        ("sam3:full", 1024, 14),
        ("sam1:vit_b", 112, 16),
        ("sam1:vit_b", 0, 16),
        ("sam1:vit_b", -1024, 16),
        ("sam1:vit_b", 8192, 16),
    ],
)
def test_a_size_that_does_not_suit(model_id: str, side: int, step: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        export_checkpoint(get_spec(model_id), tmp_path / "x.pt", tmp_path / "out", ExportOptions(image_size=side))
    assert str(caught.value) == (
        f"--image-size {side} does not suit this model: use a multiple of {step} from {8 * step} to 4096"
    )
