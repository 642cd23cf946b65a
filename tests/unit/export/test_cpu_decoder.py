"""Fast decoders: every rewrite on a small decoder, and what is written, kept and declined."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.small_decoder import GRAPHS, SmallDecoder
from triton_sam.errors import SetupError
from triton_sam.export import cpu_decoder
from triton_sam.export.cpu_decoder import make_cpu_decoder
from triton_sam.export.decoder_analysis import DecoderFacts, analyse_decoder, drop_no_ops, fold_constants
from triton_sam.export.decoder_attention import absorb_image_projections, count_attentions
from triton_sam.export.decoder_comparison import CHECKS, Trial, largest_difference, open_decoder, run_decoder
from triton_sam.export.decoder_mask_prompts import skip_absent_masks
from triton_sam.export.decoder_upscaling import count_upscalings, upscale_with_channels_last
from triton_sam.export.onnx_graph import Graph
from triton_sam.export.rewrite_check import IncompleteRewrite
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import Precision

onnx = pytest.importorskip("onnx")
#: Of logits up to about 40.
CLOSE = 5e-4
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"rank": 4, "norm": "turned"},
    {"known_positions": False},
    {"spelling": "reshaped"},
    {"spelling": "eager", "rank": 4},
)
#: What makes a decoder another than all that are known -> what is missing then.
UNKNOWN: tuple[tuple[dict[str, Any], str], ...] = (
    ({"unknown": "tokens"}, "1 of 2 attentions"),
    ({"unknown": "image"}, "1 of 2 attentions"),
    ({"softmax_axis": 2}, "0 of 2 attentions"),
    ({"stride": 1}, "0 of 2 upscalings"),
    ({"softmax_axis": 2, "stride": 1}, "0 of 2 attentions, 0 of 2 upscalings"),
)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(SmallDecoder().model().SerializeToString())
    return path


def optimised(tmp_path: Path, **ways: Any) -> tuple[Path, Any]:
    """(the plain file, the model that rewrites begin with)."""
    path = tmp_path / "plain.onnx"
    path.write_bytes(SmallDecoder(**ways).model().SerializeToString())
    return path, cpu_decoder._load_optimised(path)


def kinds(made: Any) -> list[str]:
    return [node.op_type for node in made.graph.node]


@pytest.mark.parametrize("ways", WAYS, ids=str)
def test_a_decoder(ways: dict[str, Any], tmp_path: Path) -> None:
    lines: list[str] = []
    plain = tmp_path / "decoder.onnx"
    plain.write_bytes(SmallDecoder(**ways).model().SerializeToString())
    target = tmp_path / "made" / "fast.onnx"
    assert make_cpu_decoder(plain, target, GRAPHS, lines.append) == target
    assert [path.name for path in target.parent.iterdir()] == ["fast.onnx"]
    (line,) = lines
    assert line.startswith("fast.onnx: 2 attentions and 2 upscalings rewritten, off by ")
    assert largest_difference(plain, target, GRAPHS, [*CHECKS, Trial(5, 0, box=True), Trial(2, 33)]) < CLOSE
    made = onnx.load(str(target))
    assert not {"Conv", "ConvTranspose"} & set(kinds(made))
    assert ("Tile" in kinds(made)) != ways.get("known_positions", True)
    assert kinds(made).count("If") == 1


Rewrite = Callable[[Graph, DecoderFacts], int]


@pytest.mark.parametrize("ways", WAYS, ids=str)
@pytest.mark.parametrize(
    ("rewrite", "times"),
    [(fold_constants, None), (absorb_image_projections, 2), (upscale_with_channels_last, 2)],
    ids=["fold", "absorb", "upscale"],
)
def test_one_rewrite_alone(rewrite: Rewrite, times: int | None, ways: dict[str, Any], tmp_path: Path) -> None:
    plain, model = optimised(tmp_path, **ways)
    facts, graph = analyse_decoder(model, GRAPHS), Graph(model)
    fold_constants(graph, facts)
    drop_no_ops(graph, facts)
    if rewrite is not fold_constants:
        assert rewrite(graph, facts) == times
    made = graph.finish()
    assert largest_difference(plain, made.SerializeToString(), GRAPHS) < CLOSE
    assert ("Sqrt" in kinds(made)) == (ways.get("norm") != "turned" and rewrite is not upscale_with_channels_last)


def test_the_image_is_not_projected(tmp_path: Path) -> None:
    """What remains of products with a whole image on the left takes and gives few columns."""
    _, model = optimised(tmp_path)
    facts, graph = analyse_decoder(model, GRAPHS), Graph(model)
    before = [node for node in graph.nodes if node.op_type == "MatMul" and graph.weights(node.input[1], 2) is not None]
    fold_constants(graph, facts)
    absorb_image_projections(graph, facts)
    left = graph.finish().graph.node
    constants = {name for node in before for name in node.input[1:]}
    after = [node for node in left if node.op_type == "MatMul" and set(node.input) & constants]
    assert len(before) - len(after) == 4  # keys and values that tokens ask, the image's queries, and its way back
    assert "Tile" not in [node.op_type for node in left]  # of the positions


def test_a_mask_prompt_is_read_where_there_is_one(tmp_path: Path) -> None:
    plain, model = optimised(tmp_path)
    facts, graph = analyse_decoder(model, GRAPHS), Graph(model)
    fold_constants(graph, facts)
    upscale_with_channels_last(graph, facts)
    absorb_image_projections(graph, facts)
    assert skip_absent_masks(graph, model, GRAPHS) == 1
    made = graph.finish()
    assert "Conv" not in kinds(made)
    (branch,) = [node for node in made.graph.node if node.op_type == "If"]
    branches = {entry.name: [node.op_type for node in entry.g.node] for entry in branch.attribute}
    assert "Conv" in branches["then_branch"]
    assert branches["else_branch"] == ["Constant"]
    session, names = open_decoder(made.SerializeToString()), ["masks"]
    feeds = Trial(2, 1, mask=True).feeds(GRAPHS)
    without = feeds | {"has_mask_input": np.zeros(1, np.float32)}
    half = feeds | {"has_mask_input": np.full(1, 0.5, np.float32)}
    given, absent, mixed = (run_decoder(session, names, each)[0] for each in (feeds, without, half))
    assert not np.allclose(given, absent)
    wanted = open_decoder(plain)
    for each, answer in ((feeds, given), (without, absent), (half, mixed)):
        assert np.abs(run_decoder(wanted, names, each)[0] - answer).max() < CLOSE


def test_a_decoder_without_a_mask_prompt_has_no_branch(tmp_path: Path) -> None:
    _, model = optimised(tmp_path)
    other = dataclasses.replace(GRAPHS, decoder=dataclasses.replace(GRAPHS.decoder, mask="another"))
    assert skip_absent_masks(Graph(model), model, other) == 0


def test_facts_found_by_running_a_decoder(tmp_path: Path) -> None:
    _, model = optimised(tmp_path)
    facts = analyse_decoder(model, GRAPHS)
    assert facts.shape("point_coords") == (None, None, 2)
    assert facts.shape("embedding") == (None, 12, 16, 16)
    assert facts.shape("nowhere") == ()
    images = [array for array in facts.constants.values() if array.size == 12 * 256]
    assert {array.shape[0] for array in images} == {1}  # positions: one row, however many prompts
    assert not {name for name in facts.fixed if facts.constants[name].size == 12 * 256}
    assert "point_coords" not in facts.constants


@pytest.mark.parametrize("ways", [{"softmax_axis": 2}, {"stride": 1}], ids=str)
def test_what_does_not_match_stays(ways: dict[str, Any], tmp_path: Path) -> None:
    _, model = optimised(tmp_path, **ways)
    facts, graph = analyse_decoder(model, GRAPHS), Graph(model)
    rewrite = upscale_with_channels_last if "stride" in ways else absorb_image_projections
    before = len(graph.nodes)
    assert rewrite(graph, facts) == 0
    assert len(graph.nodes) == before


@pytest.mark.parametrize(("ways", "missing"), UNKNOWN, ids=str)
def test_a_decoder_is_rewritten_whole_or_not_at_all(ways: dict[str, Any], missing: str, tmp_path: Path) -> None:
    """What is not found is told, with the versions that wrote the graph; the other half alone is not made."""
    path, target = tmp_path / "decoder.onnx", tmp_path / "fast.onnx"
    path.write_bytes(SmallDecoder(**ways).model().SerializeToString())
    lines: list[str] = []
    with pytest.raises(IncompleteRewrite) as caught:
        make_cpu_decoder(path, target, GRAPHS, lines.append)
    assert f"only {missing} were found in its graph" in str(caught.value)
    for package in ("onnx", "onnxruntime"):
        assert f"{package} {importlib.metadata.version(package)}" in str(caught.value)
    assert lines == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["decoder.onnx"]


def test_a_mask_prompt_that_cannot_be_skipped_is_reported_too(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_decoder, "skip_absent_masks", lambda *_: 0)
    with pytest.raises(IncompleteRewrite, match="only 0 of 1 mask prompts"):
        make_cpu_decoder(plain, tmp_path / "fast.onnx", GRAPHS)
    assert not (tmp_path / "fast.onnx").exists()


@pytest.mark.parametrize("ways", [*WAYS, *(ways for ways, _ in UNKNOWN)], ids=str)
def test_attentions_are_counted_in_any_spelling(ways: dict[str, Any], tmp_path: Path) -> None:
    _, model = optimised(tmp_path, **ways)
    assert count_attentions(Graph(model), analyse_decoder(model, GRAPHS)) == 2


@pytest.mark.parametrize("model_id", ["sam1:vit_b", "sam2:tiny", "sam3:full"])
def test_true_decoders_double_the_sides_twice(model_id: str) -> None:
    assert count_upscalings(get_spec(model_id).graphs) == 2


def test_the_same_file_each_time(plain: Path, tmp_path: Path) -> None:
    first, second = (make_cpu_decoder(plain, tmp_path / name, GRAPHS) for name in ("one", "two"))
    assert first is not None
    assert second is not None
    assert first.read_bytes() == second.read_bytes()


def test_nothing_of_one_machine_is_in_the_file(plain: Path, tmp_path: Path) -> None:
    made = onnx.load(str(make_cpu_decoder(plain, tmp_path / "fast.onnx", GRAPHS)))
    assert {node.domain for node in made.graph.node} == {"", "com.microsoft"}
    assert str(tmp_path).encode() not in made.SerializeToString()


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_other_precisions_are_left_alone(precision: Precision, plain: Path, tmp_path: Path) -> None:
    graphs = dataclasses.replace(GRAPHS, precision=precision)
    assert make_cpu_decoder(plain, tmp_path / "fast.onnx", graphs) is None


@pytest.mark.parametrize("difference", [0.5, float("inf"), float("nan")])
def test_what_is_off_is_not_kept(
    difference: float, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "fast.onnx"
    target.write_bytes(b"the one before")
    monkeypatch.setattr(cpu_decoder, "largest_difference", lambda *_: difference)
    with pytest.raises(SetupError, match=r"decoder\.onnx is not kept: it is off by .*, and 0\.001 is allowed"):
        make_cpu_decoder(plain, target, GRAPHS)
    assert target.read_bytes() == b"the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder.onnx", "fast.onnx"]


def test_differences(plain: Path, tmp_path: Path) -> None:
    assert largest_difference(plain, plain, GRAPHS) == 0.0
    model = onnx.load(str(plain))
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.ndim == 4 and array.shape[-1] == 2:  # the kernels of the upscaling
            tensor.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(np.nan), tensor.name))
    assert np.isnan(largest_difference(plain, model.SerializeToString(), GRAPHS))


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None], ids=["empty", "noise", "missing"])
def test_a_damaged_file(damage: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises(SetupError, match=r"decoder\.onnx"):
        make_cpu_decoder(path, tmp_path / "fast.onnx", GRAPHS)
    assert not (tmp_path / "fast.onnx").exists()


def test_a_decoder_that_does_not_fit_its_description(plain: Path, tmp_path: Path) -> None:
    graphs = dataclasses.replace(GRAPHS, decoder=dataclasses.replace(GRAPHS.decoder, points="other"))
    with pytest.raises(SetupError, match="a decoder does not run"):
        make_cpu_decoder(plain, tmp_path / "fast.onnx", graphs)


def test_a_destination_that_cannot_be_written(plain: Path) -> None:
    with pytest.raises(SetupError, match=r"fast\.onnx cannot be written"):
        make_cpu_decoder(plain, plain / "fast.onnx", GRAPHS)


def test_without_onnx(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SetupError, match="pip install"):
        make_cpu_decoder(plain, tmp_path / "fast.onnx", GRAPHS)
