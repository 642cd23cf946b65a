"""Exported encoders are rewritten for CPUs whole, at any size, and change by nothing but rounding."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from tests.unit.export.small import Small, SmallFactory, assert_close, drawn_pixels, session, small_network, small_spec
from triton_sam.export.cpu_encoder import compare, make_cpu_encoder
from triton_sam.export.onnx_files import GraphInput, export_graph
from triton_sam.export.wrappers import Encoder
from triton_sam.models.specs import Graphs, exported_graphs

pytestmark = pytest.mark.torch
MODEL = "sam2.1:tiny"


@pytest.fixture(scope="module")
def hiera(small: SmallFactory) -> Small:
    return small(MODEL)


def made_of(plain: Path, target: Path, graphs: Graphs) -> Any:
    """The rewritten encoder, whose outputs were compared."""
    assert make_cpu_encoder(plain, target, graphs) == target
    assert max(compare(plain, target, graphs).values()) <= 1e-5
    return onnx.load(str(target)).graph


def kinds(graph: Any) -> set[str]:
    return {node.op_type for node in graph.node}


def test_an_exported_encoder(hiera: Small, tmp_path: Path) -> None:
    graph = made_of(hiera.encoder_file, tmp_path / "fast.onnx", hiera.spec.graphs)
    assert not kinds(graph) & {"Shape", "Split", "Squeeze", "Unsqueeze"}
    assert {"MultiHeadAttention", "FusedMatMul"} <= kinds(graph)
    (image,) = graph.input
    assert [axis.dim_value for axis in image.type.tensor_type.shape.dim] == [1, 3, hiera.spec.side, hiera.spec.side]


def test_masks_are_the_same(hiera: Small, tmp_path: Path) -> None:
    fast = session(make_cpu_encoder(hiera.encoder_file, tmp_path / "fast.onnx", hiera.spec.graphs) or tmp_path)
    pixels, names = drawn_pixels(hiera.spec.side, seed=5), [name for name, _ in hiera.spec.encoder.outputs]
    wanted = hiera.encode(pixels)
    given = dict(zip(names, fast.run(names, {hiera.spec.encoder.image: pixels}), strict=True))
    points = hiera.points(1, 3)
    (ours, _), (theirs, _) = hiera.decode(given | points), hiera.decode(wanted | points)
    assert_close(ours, theirs, 1e-4)


def test_no_product_is_made_of_padding(hiera: Small, tmp_path: Path) -> None:
    """A grid of 16 is padded for windows of 14 to 28, three times its tokens."""
    graph = made_of(hiera.encoder_file, tmp_path / "fast.onnx", hiera.spec.graphs)
    made_by = {name: node for node in graph.node for name in node.output}
    pads = [node for node in graph.node if node.op_type == "Pad"]
    assert pads
    assert all(made_by[node.input[0]].op_type == "MatMul" for node in pads)
    cuts = [node for node in graph.node if node.op_type == "Slice"]
    users = {user.op_type for cut in cuts for user in graph.node if cut.output[0] in user.input}
    assert users == {"Slice", "MatMul"}


@pytest.mark.parametrize("side", [pytest.param(320, marks=pytest.mark.part("exports")), 512])
def test_other_sizes(side: int, tmp_path: Path) -> None:
    spec = small_spec(MODEL)
    graphs = exported_graphs(spec.architecture, side)
    spec = dataclasses.replace(spec, graphs=graphs)
    image = GraphInput(graphs.encoder.image, torch.zeros(1, 3, side, side), {0: "batch"})
    outputs = {name: {0: "batch"} for name, _ in graphs.encoder.outputs}
    plain = tmp_path / "encoder.onnx"
    export_graph(Encoder(small_network(spec), spec.architecture), [image], outputs, plain)
    graph = made_of(plain, tmp_path / "fast.onnx", graphs)
    assert "Shape" not in kinds(graph)
    assert ("Scan" in kinds(graph)) == (side == 512)  # enough windows for a loop over tiles


def test_the_plain_encoder_still_takes_several_images(hiera: Small, tmp_path: Path) -> None:
    before = hiera.encoder_file.read_bytes()
    made_of(hiera.encoder_file, tmp_path / "fast.onnx", hiera.spec.graphs)
    assert hiera.encoder_file.read_bytes() == before
    assert len(next(iter(hiera.embeddings.values()))) == 3
