from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from tests.unit.export.small import Small, drawn_pixels, session
from triton_sam.errors import SetupError
from triton_sam.export import onnx_files
from triton_sam.export.encoder_adapter import adapt_encoder
from triton_sam.export.onnx_files import GraphInput, export_graph, files_of
from triton_sam.export.precision_conversion import convert_graph
from triton_sam.export.run import write_graphs
from triton_sam.models.specs import Precision

pytestmark = pytest.mark.torch


class Sum(nn.Module):
    """x + weight + more."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0))

    def forward(self, x: Tensor, more: Tensor, ignored: Tensor) -> Tensor:
        return x + self.weight + more


INPUTS = [
    GraphInput("x", torch.zeros(2, 4), {0: "rows"}),
    GraphInput("more", torch.zeros(1, 4), {0: "more_rows"}, torch.full((1, 4), 10.0)),
    GraphInput("ignored", torch.zeros(3), {}, torch.zeros(3)),
]
OUTPUTS = {"y": {0: "rows"}}


def run(graph: Path, **feeds: Any) -> list[list[float]]:
    arrays = {name: np.array(value, np.float32) for name, value in feeds.items()}
    (answer,) = session(graph).run(["y"], arrays)
    found: list[list[float]] = answer.tolist()
    return found


def test_a_default_makes_an_input_optional(tmp_path: Path) -> None:
    graph = tmp_path / "sum.onnx"
    assert export_graph(Sum(), INPUTS, OUTPUTS, graph) == 17
    assert run(graph, x=[[0, 0, 0, 0]]) == [[10, 11, 12, 13]]
    assert run(graph, x=[[0, 0, 0, 0]], more=[[1, 1, 1, 1]]) == [[1, 2, 3, 4]]
    assert run(graph, x=np.zeros((3, 4)), more=np.zeros((1, 4))) == [[0, 1, 2, 3]] * 3
    opened = session(graph)
    assert [entry.name for entry in opened.get_inputs()] == ["x"]
    assert [entry.name for entry in opened.get_overridable_initializers()] == ["more"]  # what is not used is no input
    assert [path.name for path in tmp_path.iterdir()] == ["sum.onnx"]


def refuse(opsets: set[int], seen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torch know no operator of these opsets."""
    trace = onnx_files._trace

    def _trace(*arguments: Any) -> None:
        seen.append(arguments[-1])
        if arguments[-1] in opsets:
            raise torch.onnx.errors.UnsupportedOperatorError("aten::novelty", arguments[-1], None)
        trace(*arguments)

    monkeypatch.setattr(onnx_files, "_trace", _trace)


def test_a_newer_opset_where_the_first_does_not_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    refuse({17}, seen, monkeypatch)
    assert export_graph(Sum(), INPUTS, OUTPUTS, tmp_path / "sum.onnx") == 18
    assert seen == [17, 18]
    assert onnx.load(str(tmp_path / "sum.onnx")).opset_import[0].version == 18
    assert run(tmp_path / "sum.onnx", x=[[0, 0, 0, 0]]) == [[10, 11, 12, 13]]


def test_no_opset_suffices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse({17, 18}, [], monkeypatch)
    with pytest.raises(SetupError, match=r"sum\.onnx cannot be written as ONNX \(opset 17: .*novelty.*opset 18: "):
        export_graph(Sum(), INPUTS, OUTPUTS, tmp_path / "sum.onnx")
    assert list(tmp_path.iterdir()) == []


# external data


def embed(encoder: Path, side: int) -> Any:
    pixels = drawn_pixels(side, seed=1)
    return session(encoder).run(["image_embeddings"], {"image": pixels})[0]


@pytest.fixture(scope="module")
def written_apart(vit: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("apart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_files, "_LARGEST_INLINE", 1000)
        write_graphs(vit.network, vit.spec, vit.spec.graphs, folder)
    return folder


@pytest.fixture
def apart(written_apart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small ViT's graphs with their weights in files of their own, as if 2 GiB were one kilobyte."""
    monkeypatch.setattr(onnx_files, "_LARGEST_INLINE", 1000)
    return shutil.copytree(written_apart, tmp_path / "apart")


def test_weights_that_are_too_many_go_to_a_file_of_their_own(apart: Path, vit: Small, tmp_path: Path) -> None:
    names = {"encoder.onnx", "encoder.onnx_data", "decoder.onnx", "decoder.onnx_data"}
    assert {path.name for path in apart.iterdir()} == names
    assert files_of(apart / "encoder.onnx") == [apart / "encoder.onnx", apart / "encoder.onnx_data"]
    assert (apart / "encoder.onnx").stat().st_size < 500_000 < 2_000_000 < (apart / "encoder.onnx_data").stat().st_size
    wanted = embed(vit.encoder_file, vit.spec.side)
    np.testing.assert_array_equal(embed(apart / "encoder.onnx", vit.spec.side), wanted)
    shutil.copytree(apart, tmp_path / "copy")
    shutil.rmtree(apart)
    np.testing.assert_array_equal(embed(tmp_path / "copy" / "encoder.onnx", vit.spec.side), wanted)
    (tmp_path / "copy" / "encoder.onnx_data").rename(tmp_path / "copy" / "other_data")
    with pytest.raises(Exception, match=r"encoder\.onnx_data"):
        embed(tmp_path / "copy" / "encoder.onnx", vit.spec.side)


def test_optional_inputs_stay_optional_with_external_data(apart: Path, vit: Small) -> None:
    optional = [entry.name for entry in session(apart / "decoder.onnx").get_overridable_initializers()]
    assert sorted(optional) == sorted(vit.spec.decoder.optional)


def test_external_data_is_inlined_if_it_fits(apart: Path, vit: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller graph in the place of a large one does not leave the large one's data beside it."""
    monkeypatch.setattr(onnx_files, "_LARGEST_INLINE", 10**9)
    onnx_files.save(onnx.load(str(apart / "encoder.onnx")), apart / "encoder.onnx")
    assert not (apart / "encoder.onnx_data").exists()
    wanted = embed(vit.encoder_file, vit.spec.side)
    np.testing.assert_array_equal(embed(apart / "encoder.onnx", vit.spec.side), wanted)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_other_precisions_of_a_graph_with_external_data(precision: Precision, apart: Path, vit: Small) -> None:
    before = (apart / "encoder.onnx_data").stat().st_size
    convert_graph(apart / "encoder.onnx", precision, is_decoder=False)
    assert (apart / "encoder.onnx_data").stat().st_size < before
    wanted = embed(vit.encoder_file, vit.spec.side)
    difference = embed(apart / "encoder.onnx", vit.spec.side) - wanted
    assert 0 < np.sqrt((difference**2).mean()) < 0.25 * wanted.std()
    assert {path.name for path in apart.iterdir() if "encoder" in path.name} == {"encoder.onnx", "encoder.onnx_data"}


def test_an_adapted_graph_has_data_of_its_own(apart: Path, vit: Small) -> None:
    adapt_encoder(apart / "encoder.onnx", apart / "theirs.onnx", outputs={"image_embeddings": "image_embed"})
    (apart / "encoder.onnx_data").unlink()
    (given,) = session(apart / "theirs.onnx").run(["image_embed"], {"image": drawn_pixels(256, seed=1)})
    np.testing.assert_array_equal(given, embed(vit.encoder_file, vit.spec.side))
    assert (apart / "theirs.onnx_data").exists()


# noise


def test_an_export_says_nothing_by_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        export_graph(Sum(), INPUTS, OUTPUTS, tmp_path / "sum.onnx")
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    assert caplog.records == []
