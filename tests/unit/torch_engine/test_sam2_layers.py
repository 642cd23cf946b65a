"""SAM 2 as plain layers, against transformers' own network: the same names, the same numbers."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from triton_sam.engines.torch.decoder import RowDecoder
from triton_sam.engines.torch.encoder import RowEncoder
from triton_sam.engines.torch.layout import Layout
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import NETWORK_FILE, ModelSpec, exported_graphs
from triton_sam.networks.sam2_layers import Sam2Layers
from triton_sam.networks.segmenters import build, build_layers, load_layers

SIDE = 256
#: One for each arrangement of the encoder.
MODELS = ("sam2:tiny", "sam2.1:small", "sam2.1:base_plus", "sam2.1:large")


def shapes(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def small(model_id: str) -> ModelSpec:
    """Four blocks on a small image."""
    spec = get_spec(model_id)
    architecture = dataclasses.replace(spec.architecture, width=16, depths=(1, 2, 2, 1), heads=1, global_blocks=(3,))
    return dataclasses.replace(spec, architecture=architecture, graphs=exported_graphs(architecture, SIDE))


@pytest.mark.parametrize("model_id", MODELS)
def test_names_shapes_and_numbers_of_every_model(model_id: str) -> None:
    spec = get_spec(model_id)
    with torch.device("meta"):
        theirs = build(spec.architecture, spec.side)
        ours = build_layers(spec.architecture, spec.side)
    assert isinstance(ours, Sam2Layers)
    assert shapes(ours) == shapes(theirs)
    assert ours.prompt_encoder.input_image_size == theirs.prompt_encoder.input_image_size
    for name in (
        "num_mask_tokens",
        "dynamic_multimask_via_stability",
        "dynamic_multimask_stability_delta",
        "dynamic_multimask_stability_thresh",
    ):
        assert getattr(ours.mask_decoder, name) == getattr(theirs.mask_decoder, name)
    own, other = ours.vision_encoder.backbone, theirs.vision_encoder.backbone
    assert own.stage_ends == other.stage_ends
    assert list(own.config.image_size) == list(other.config.image_size)
    for mine, its in zip(own.blocks, other.blocks, strict=True):
        assert mine.window_size == its.window_size
        assert (mine.query_stride is None) == (its.query_stride is None)
        assert mine.attn.num_attention_heads == its.attn.num_attention_heads
    norms = [
        {name: one.eps for name, one in network.named_modules() if isinstance(one, torch.nn.LayerNorm)}
        for network in (ours, theirs)
    ]
    assert norms[0] == norms[1]


@pytest.mark.parametrize("model_id", ["sam2:tiny", "sam2.1:base_plus"])
def test_the_engine_computes_the_same_with_both(model_id: str) -> None:
    spec = small(model_id)
    torch.manual_seed(0)
    theirs = build(spec.architecture, SIDE)
    for parameter in theirs.parameters():  # transformers leaves some at zero
        parameter.add_(0.1 * torch.randn_like(parameter))
    ours = load_layers(spec.architecture, SIDE, theirs.state_dict())
    layout = Layout.of(spec)
    pixels = torch.randn(1, 3, SIDE, SIDE)
    points = torch.tensor([[[100.0, 50.0, 1.0], [0.0, 0.0, -1.0]]])
    masks = torch.randn(1, 1, SIDE // 4, SIDE // 4)
    with torch.inference_mode():
        found = []
        for network in (ours, theirs):
            rows, _ = RowEncoder(network, spec, layout)(pixels)
            decoder = RowDecoder(network, spec.architecture, layout)
            found.append([rows, *decoder(rows, points), *decoder(rows, points, masks)])
    assert found[0][0].std() > 0.1
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)


def test_weights_are_copied_as_float32() -> None:
    spec = small("sam2:tiny")
    weights = {name: one.half() for name, one in build_layers(spec.architecture, SIDE).state_dict().items()}
    loaded = load_layers(spec.architecture, SIDE, weights).state_dict()
    assert {one.dtype for one in loaded.values()} == {torch.float32}
    weights = loaded
    again = load_layers(spec.architecture, SIDE, weights).state_dict()
    assert all(again[name].data_ptr() != one.data_ptr() for name, one in weights.items())


LOADS = """
import sys
from pathlib import Path
import triton_sam.backend.workers.links
from tests.unit.torch_engine.test_sam2_layers import SIDE, small
from triton_sam.engines.torch.loading import import_all, load_torch_engine
from triton_sam.settings import Settings
import_all(small("sam2:tiny"))
load_torch_engine(small("sam2:tiny"), Path(sys.argv[1]), Settings(device="cpu", engine="torch"))
print(*sys.modules)
"""


def test_the_engine_of_sam2_loads_without_what_takes_seconds_to_import(tmp_path: Path) -> None:
    spec = small("sam2:tiny")
    file = tmp_path / NETWORK_FILE
    save_file(build_layers(spec.architecture, SIDE).state_dict(), file)
    command = [sys.executable, "-c", LOADS, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.split())
    assert "torch" in loaded
    assert not loaded & {"transformers", "scipy", "pandas", "sklearn", "sympy", "torch._dynamo", "torch._inductor"}
