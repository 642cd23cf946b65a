"""The graphs of a memory: what they take, that they are torch's, and that an export makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tests.unit.export import official
from tests.unit.export.small import session, small_spec
from triton_sam.export.memory_graphs import write_memory_graphs
from triton_sam.export.memory_wrappers import VideoDecoder
from triton_sam.export.random_weights import randomise
from triton_sam.export.run import ExportOptions, export_checkpoint
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import MEMORY_FILE, MEMORY_GRAPHS, Precision
from triton_sam.networks.memory_steps import ConditionOnMemory, EncodeMemory
from triton_sam.networks.segmenters import build

pytestmark = pytest.mark.torch

SPEC = small_spec("sam2.1:tiny")
TRAITS = MEMORY_TRAITS["sam2.1"]
GRID = SPEC.side // 16


@pytest.fixture(scope="module")
def network() -> Any:
    made = build(SPEC.architecture, SPEC.side, TRAITS)
    randomise(made)
    return made


@pytest.fixture(scope="module")
def graphs(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    write_memory_graphs(network, SPEC, SPEC.graphs, folder)
    return folder


def assert_same(graph: Path, module: torch.nn.Module, feeds: dict[str, torch.Tensor]) -> None:
    with torch.inference_mode():
        found = module(*feeds.values())
    wanted = found if isinstance(found, tuple) else (found,)
    given = session(graph).run(None, {name: tensor.numpy() for name, tensor in feeds.items()})
    for reference, ours in zip(wanted, given, strict=True):
        np.testing.assert_allclose(ours, reference.numpy(), rtol=0, atol=5e-5)


@pytest.mark.parametrize(("images", "rows", "slots", "pointers"), [(1, 1, 1, 0), (1, 3, 4, 5), (2, 2, 7, 16)])
def test_memories_of_any_number(images: int, rows: int, slots: int, pointers: int, network: Any, graphs: Path) -> None:
    ages, distances = torch.randint(-1, 7, (rows, slots)), torch.rand(rows, pointers)
    ages[:, 0] = 0
    feeds = {
        "image_embeddings": torch.randn(images, 256, GRID, GRID),
        "memories": torch.randn(rows, slots, 64, GRID, GRID),
        "memory_ages": ages,
        "pointers": torch.randn(rows, pointers, 256),
        "pointer_distances": torch.where(distances > 0.7, -1e9, distances),
    }
    assert_same(graphs / "memory_attention.onnx", ConditionOnMemory(network, TRAITS, GRID), feeds)


def test_the_attention_keeps_no_scores_and_each_table_once(graphs: Path) -> None:
    model = onnx.load(str(graphs / "memory_attention.onnx"))
    operators = [node.op_type for node in model.graph.node]
    assert "Softmax" not in operators
    assert operators.count("MultiHeadAttention") == 2 * 4
    constants = [list(node.attribute[0].t.dims) for node in model.graph.node if node.op_type == "Constant"]
    tables = [dims for dims in constants if dims[:1] == [GRID**2]]
    assert len(tables) == 4  # cosines, sines, and the places of images and memories


@pytest.mark.parametrize(("images", "points", "flags"), [(1, 0, [1.0]), (1, 1, [0.0, 1.0]), (2, 3, [0.0])])
def test_prompts_of_any_number(images: int, points: int, flags: list[float], network: Any, graphs: Path) -> None:
    feeds = {
        "image_embeddings": torch.randn(images, 256, GRID, GRID),
        "high_res_feats_0": torch.randn(1, 32, 4 * GRID, 4 * GRID),
        "high_res_feats_1": torch.randn(1, 64, 2 * GRID, 2 * GRID),
        "point_coords": torch.rand(2, points, 2) * SPEC.side,
        "point_labels": torch.ones(2, points),
        "mask_input": torch.randn(1, 1, 4 * GRID, 4 * GRID),
        "has_mask_input": torch.tensor([0.0, 1.0]),
        "multimask_output": torch.tensor(flags),
    }
    assert_same(graphs / "video_decoder.onnx", VideoDecoder(network, SPEC.architecture), feeds)


@pytest.mark.parametrize("images", [1, 3])
def test_masks_of_any_number(images: int, network: Any, graphs: Path) -> None:
    feeds = {
        "image_embeddings": torch.randn(images, 256, GRID, GRID),
        "masks": torch.randn(3, 1, 4 * GRID, 4 * GRID),
        "hard": torch.tensor([1.0, 0.0, 0.0]),
        "object_scores": torch.tensor([[1.0], [-1.0], [1.0]]),
    }
    assert_same(graphs / "memory_encoder.onnx", EncodeMemory(network, TRAITS, SPEC.side, GRID), feeds)


def test_what_is_in_no_graph(network: Any, graphs: Path) -> None:
    content = json.loads((graphs / MEMORY_FILE).read_text())
    assert content["generation"] == "sam2.1"
    for name, wanted in (
        ("mask_downsample_weight", network.mask_downsample.weight),
        ("mask_downsample_bias", network.mask_downsample.bias),
        ("no_object_pointer", network.no_object_pointer),
        ("no_memory_embedding", network.no_memory_embedding),
    ):
        assert torch.equal(torch.tensor(content[name]), wanted.flatten())


# with a whole export


@pytest.mark.part("exports")
@pytest.mark.parametrize("model_id", ["sam2:tiny", "sam2.1:tiny", "sam3:full"])
def test_an_export_has_the_memory_of_its_checkpoint(model_id: str, tmp_path: Path) -> None:
    spec = small_spec(model_id)
    torch.save(official.tensors(official.checkpoint(spec.architecture, spec.side)), tmp_path / "whole.pt")
    half = model_id == "sam2:tiny"
    options = ExportOptions(spec.side, precision=Precision.FP16 if half else Precision.FP32)
    exported = export_checkpoint(spec, tmp_path / "whole.pt", tmp_path / "out", options)
    assert exported.spec.memory == MEMORY_TRAITS[spec.architecture.generation]
    assert {*MEMORY_GRAPHS, MEMORY_FILE} <= set(exported.report["files"])
    assert exported.report["memory_parity"]["passed"] is True
    assert exported.report["memory_parity"]["precision"] == "fp32"
    outputs = {entry["output"] for entry in exported.report["memory_parity"]["comparisons"]}
    assert outputs == {"masks", "iou_predictions", "object_scores", "pointers", "memories", "conditioned"}


def test_a_checkpoint_without_a_memory_is_exported_without_one(tmp_path: Path) -> None:
    """In place of an export with one."""
    spec = small_spec("sam2.1:tiny")
    torch.save(official.tensors(official.sam2(spec.architecture, video=False)), tmp_path / "image.pt")
    (tmp_path / "out").mkdir()
    for name in (*MEMORY_GRAPHS, MEMORY_FILE):
        (tmp_path / "out" / name).write_text("of other weights")
    exported = export_checkpoint(spec, tmp_path / "image.pt", tmp_path / "out", ExportOptions(spec.side))
    assert exported.spec.memory is None
    assert "memory_parity" not in exported.report
    assert {path.name for path in exported.folder.iterdir()} == {
        "encoder.onnx",
        "decoder.onnx",
        "graphs.json",
        "report.json",
    }
