"""Fast encoders: every rewrite on a small graph of its own, and what is written, kept and declined."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from triton_sam.errors import SetupError
from triton_sam.export import cpu_encoder
from triton_sam.export.cpu_encoder import drawn_picture
from triton_sam.export.encoder_rewrites import fuse_attention, join_convolutions, split_projections
from triton_sam.export.onnx_graph import Graph
from triton_sam.export.rewrite_check import IncompleteRewrite
from triton_sam.models.specs import DecoderGraph, EncoderGraph, Graphs, Precision

onnx = pytest.importorskip("onnx")
#: With 8 bits, unless a test says otherwise: that has all steps.
make_cpu_encoder = functools.partial(cpu_encoder.make_cpu_encoder, eight_bits=True)
SIDE, HEADS, DEPTH = 32, 2, 8
WIDTH = HEADS * DEPTH
RNG = np.random.default_rng(5)


def noise(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


def model(nodes: list[Any], constants: dict[str, np.ndarray], shape: list[int | str], output: str = "y") -> Any:
    """A model with one input ``x`` and one output."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(output, kind, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(made: Any, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {"x": x})
    return np.asarray(answer)


def kinds(made: Any) -> list[str]:
    return [node.op_type for node in made.graph.node]


def pair_of_convolutions(kernel: int = 1, **attributes: Any) -> Any:
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["t"], **attributes),
        node("Conv", ["t", "w2", "b2"], ["y"]),
    ]
    weights = {"w1": noise(24, 6, kernel, kernel), "b1": noise(24), "w2": noise(4, 24, 1, 1), "b2": noise(4)}
    return model(nodes, weights, [1, 6, 8, 8])


def attention(tokens: int, heads: int = HEADS, batch: int | str = 1, bias: bool = False) -> Any:
    """A block as torch exports it: one product for q, k and v, a scale on either side, softmax, a last product."""
    node = onnx.helper.make_node
    depth = WIDTH // heads
    axis = np.array([2], np.int64)
    nodes = [
        node("MatMul", ["x", "w"], ["qkv"]),
        node("Add", ["b", "qkv"], ["biased"]),
        node("Reshape", ["biased", "to_heads"], ["heads"]),
        node("Split", ["heads", "thirds"], ["q0", "k0", "v0"], axis=2),
        *[node("Squeeze", [f"{name}0", "axis"], [name]) for name in "qkv"],
        node("Transpose", ["q"], ["qt"], perm=[0, 2, 1, 3]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v"], ["vt"], perm=[0, 2, 1, 3]),
        node("Mul", ["qt", "scale"], ["qs"]),
        node("Mul", ["kt", "scale"], ["ks"]),
        node("MatMul", ["qs", "ks"], ["scores"]),
        *([node("Add", ["scores", "position"], ["shifted"])] if bias else []),
        node("Softmax", ["shifted" if bias else "scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "vt"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "to_flat"], ["flat"]),
        node("MatMul", ["flat", "wo"], ["y"]),
    ]
    constants = {
        "w": noise(WIDTH, 3 * WIDTH),
        "b": noise(3 * WIDTH),
        "wo": noise(WIDTH, WIDTH),
        "to_heads": np.array([-1 if isinstance(batch, str) else batch, tokens, 3, heads, depth], np.int64),
        "to_flat": np.array([-1 if isinstance(batch, str) else batch, tokens, WIDTH], np.int64),
        "thirds": np.ones(3, np.int64),
        "axis": axis,
        "scale": np.array([depth**-0.25], np.float32),
        "position": noise(1, 1, tokens, tokens),
    }
    return model(nodes, constants, [batch, tokens, WIDTH])


def test_two_pointwise_convolutions_become_one() -> None:
    made = pair_of_convolutions()
    x = noise(1, 6, 8, 8)
    wanted = run(made, x)
    graph = Graph(made)
    assert join_convolutions(graph) == 1
    joined = graph.finish()
    assert kinds(joined) == ["Conv"]
    assert {tensor.name for tensor in joined.graph.initializer} == set(joined.graph.node[0].input[1:])
    np.testing.assert_allclose(run(joined, x), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "attributes"), [(3, {}), (1, {"strides": [2, 2]}), (1, {"pads": [1, 1, 1, 1]})], ids=str
)
def test_other_convolutions_stay(kernel: int, attributes: dict[str, Any]) -> None:
    graph = Graph(pair_of_convolutions(kernel, **attributes))
    assert join_convolutions(graph) == 0
    assert kinds(graph.finish()) == ["Conv", "Conv"]


def test_a_convolution_that_is_seen_elsewhere_stays() -> None:
    made = pair_of_convolutions()
    made.graph.output.append(onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, None))
    assert join_convolutions(Graph(made)) == 0


@pytest.mark.parametrize(
    ("tokens", "heads", "batch", "fused"),
    [(1024, 2, 1, "MultiHeadAttention"), (12, 1, 3, "MultiHeadAttention"), (12, 2, 3, "FusedMatMul")],
    ids=["large", "one-head", "window"],
)
def test_attention(tokens: int, heads: int, batch: int, fused: str) -> None:
    made = attention(tokens, heads, batch)
    x = RNG.normal(size=(batch, tokens, WIDTH)).astype(np.float32)
    wanted = run(made, x)
    graph = Graph(made)
    assert (split_projections(graph), fuse_attention(graph)) == (1, 1)
    faster = graph.finish()
    found = kinds(faster)
    assert fused in found
    assert "Split" not in found
    assert "Mul" not in found
    np.testing.assert_allclose(run(faster, x), wanted, atol=1e-5)


def test_attention_of_a_free_number_of_images() -> None:
    made = attention(12, 2, "n")
    x = RNG.normal(size=(5, 12, WIDTH)).astype(np.float32)
    wanted = run(made, x)
    graph = Graph(made)
    assert (split_projections(graph), fuse_attention(graph)) == (1, 1)
    np.testing.assert_allclose(run(graph.finish(), x), wanted, atol=1e-5)


def test_attention_with_something_between_stays() -> None:
    made = attention(12, bias=True)
    x = RNG.normal(size=(1, 12, WIDTH)).astype(np.float32)
    wanted = run(made, x)
    graph = Graph(made)
    assert fuse_attention(graph) == 0
    np.testing.assert_array_equal(run(graph.finish(), x), wanted)


def test_constants_may_be_nodes() -> None:
    made = pair_of_convolutions()
    weights = made.graph.initializer[0]
    constant = onnx.helper.make_node("Constant", [], ["w1"], value=weights)
    made.graph.node.insert(0, constant)
    del made.graph.initializer[0]
    assert join_convolutions(Graph(made)) == 1


def test_a_default_of_an_input_is_no_constant() -> None:
    made = pair_of_convolutions()
    made.graph.input.append(onnx.helper.make_tensor_value_info("w2", onnx.TensorProto.FLOAT, [4, 24, 1, 1]))
    graph = Graph(made)
    assert join_convolutions(graph) == 0
    assert "w2" in {tensor.name for tensor in graph.finish().graph.initializer}


def encoder(wide: int = 384, narrow: int = 8, second: str = "Relu") -> Any:
    """[n,3,32,32] -> a narrow product early, wide ones later -> [n,wide,4,4]: ``image`` to ``embedding``."""
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["image", "patches"], ["cells"], strides=[8, 8]),
        node("Transpose", ["cells"], ["rows"], perm=[0, 2, 3, 1]),
        node("MatMul", ["rows", "w0"], ["t0"]),
        node("Relu", ["t0"], ["t1"]),
        node("MatMul", ["t1", "w1"], ["t2"]),
        node(second, ["t2"], ["t3"]),
        node("MatMul", ["t3", "w2"], ["t4"]),
        node("Add", ["b2", "t4"], ["t5"]),
        node("Relu", ["t5"], ["t6"]),
        node("MatMul", ["t6", "w2"], ["t7"]),
        node("Transpose", ["t7"], ["embedding"], perm=[0, 3, 1, 2]),
    ]
    constants = {
        "patches": noise(narrow, 3, 8, 8),
        "w0": noise(narrow, narrow),
        "w1": noise(narrow, wide),
        "w2": noise(wide, wide),
        "b2": noise(wide),
    }
    made = model(nodes, constants, ["n", 3, SIDE, SIDE], "embedding")
    made.graph.input[0].name = "image"
    return made


GRAPHS = Graphs(
    SIDE,
    EncoderGraph("image", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), "embedding", (("embedding", (1, 384, 4, 4)),)),
    DecoderGraph(),
)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "encoder.onnx"
    path.write_bytes(encoder().SerializeToString())
    return path


def test_an_encoder(plain: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    target = tmp_path / "made" / "fast.onnx"
    assert make_cpu_encoder(plain, target, GRAPHS, lines.append) == target
    assert [path.name for path in target.parent.iterdir()] == ["fast.onnx"]
    (line,) = lines
    assert line.startswith("fast.onnx: 2 products in 8 bits, 0 other changes, off by ")
    pixels = RNG.normal(size=(2, 3, SIDE, SIDE)).astype(np.float32)
    # As it is served: the same integers on every processor.
    wanted, given = (cpu_encoder._run(str(path), ["embedding"], "image", pixels)[0] for path in (plain, target))
    assert given.shape == (2, 384, 4, 4)  # as many images as one likes, as before
    assert 0 < np.std(given - wanted) / np.std(wanted) < 0.03


def test_the_same_file_each_time(plain: Path, tmp_path: Path) -> None:
    first, second = (make_cpu_encoder(plain, tmp_path / name, GRAPHS) for name in ("one", "two"))
    assert first is not None
    assert second is not None
    assert first.read_bytes() == second.read_bytes()


def test_nothing_of_one_machine_is_in_the_file(plain: Path, tmp_path: Path) -> None:
    target = make_cpu_encoder(plain, tmp_path / "fast.onnx", GRAPHS)
    assert {node.domain for node in onnx.load(str(target)).graph.node} == {"", "com.microsoft"}


def test_without_8_bits_nothing_but_rounding_changes(tmp_path: Path) -> None:
    """Two convolutions become one in front of wide products, which stay as they are."""
    made = encoder()
    node = made.graph.node[0]
    first = onnx.helper.make_node("Conv", ["image", "patches"], ["wider"], strides=[8, 8])
    node.op_type, node.input[:] = "Conv", ["wide", "down"]
    del node.attribute[:]
    made.graph.node.insert(0, onnx.helper.make_node("Conv", ["wider", "up"], ["wide"]))
    made.graph.node.insert(0, first)
    for name, array in (("up", noise(16, 8, 1, 1)), ("down", noise(8, 16, 1, 1))):
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    plain, target = tmp_path / "encoder.onnx", tmp_path / "fast.onnx"
    lines: list[str] = []
    plain.write_bytes(made.SerializeToString())
    assert make_cpu_encoder(plain, target, GRAPHS, lines.append, eight_bits=False) == target
    assert lines == ["fast.onnx: 1 changes, off by 0.00%"]
    assert kinds(onnx.load(str(target))).count("MatMul") == 4
    errors = cpu_encoder.compare(plain, target, GRAPHS)
    assert errors["embedding"] <= 1e-5


def test_without_8_bits_an_error_of_a_ten_thousandth_is_too_much(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_encoder, "join_convolutions", lambda _: 1)
    monkeypatch.setattr(cpu_encoder, "compare", lambda *_: {"embedding": 2e-4})
    with pytest.raises(SetupError, match=r"off by 0\.02%, and 0\.01% is allowed"):
        make_cpu_encoder(plain, tmp_path / "fast.onnx", GRAPHS, eight_bits=False)
    assert not (tmp_path / "fast.onnx").exists()


def attending_encoder(*, bias: bool) -> Any:
    """[1,3,32,32] -> patches that attend to each other -> [1,16,4,4]; ``bias`` is a kind that no rewrite knows."""
    made = attention(16, bias=bias)
    node = onnx.helper.make_node
    before = [
        node("Conv", ["image", "patches"], ["cells"], strides=[8, 8]),
        node("Reshape", ["cells", "flat_shape"], ["columns"]),
        node("Transpose", ["columns"], ["x"], perm=[0, 2, 1]),
    ]
    after = [
        node("Transpose", ["y"], ["turned"], perm=[0, 2, 1]),
        node("Reshape", ["turned", "square_shape"], ["embedding"]),
    ]
    nodes = [*before, *made.graph.node, *after]
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer} | {
        "patches": noise(WIDTH, 3, 8, 8),
        "flat_shape": np.array([1, WIDTH, 16], np.int64),
        "square_shape": np.array([1, WIDTH, 4, 4], np.int64),
    }
    whole = model(nodes, constants, [1, 3, SIDE, SIDE], "embedding")
    whole.graph.input[0].name = "image"
    return whole


@pytest.mark.parametrize("eight_bits", [False, True])
def test_an_encoder_is_rewritten_whole_or_not_at_all(eight_bits: bool, tmp_path: Path) -> None:
    """With a bias the projection is still known, and the attention is not: neither is changed then."""
    plain, target = tmp_path / "encoder.onnx", tmp_path / "fast.onnx"
    plain.write_bytes(attending_encoder(bias=True).SerializeToString())
    with pytest.raises(IncompleteRewrite) as caught:
        make_cpu_encoder(plain, target, GRAPHS, eight_bits=eight_bits)
    assert "only 0 of 1 attentions were found in its graph" in str(caught.value)
    assert f"onnxruntime {onnxruntime.__version__}" in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["encoder.onnx"]
    plain.write_bytes(attending_encoder(bias=False).SerializeToString())
    lines: list[str] = []
    assert make_cpu_encoder(plain, target, GRAPHS, lines.append, eight_bits=False) == target
    assert lines[0].startswith("fast.onnx: 2 changes, ")


def test_finer_features_whose_convolutions_are_not_found_are_reported(plain: Path, tmp_path: Path) -> None:
    outputs = (*GRAPHS.encoder.outputs, ("fine", (1, 4, 8, 8)))
    graphs = dataclasses.replace(GRAPHS, encoder=dataclasses.replace(GRAPHS.encoder, outputs=outputs))
    with pytest.raises(IncompleteRewrite, match="only 0 of 1 pairs of convolutions"):
        make_cpu_encoder(plain, tmp_path / "fast.onnx", graphs)


def test_nothing_to_do(tmp_path: Path) -> None:
    path = tmp_path / "encoder.onnx"
    path.write_bytes(encoder(wide=16).SerializeToString())
    assert make_cpu_encoder(path, tmp_path / "fast.onnx", GRAPHS) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["encoder.onnx"]


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_other_precisions_are_left_alone(precision: Precision, plain: Path, tmp_path: Path) -> None:
    graphs = dataclasses.replace(GRAPHS, precision=precision)
    assert make_cpu_encoder(plain, tmp_path / "fast.onnx", graphs) is None


def test_what_is_too_far_off_is_not_kept(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "fast.onnx"
    target.write_bytes(b"the one before")
    monkeypatch.setattr(cpu_encoder, "MOST_ERROR", 1e-4)
    with pytest.raises(SetupError, match=r"encoder\.onnx is not kept: embedding is off by .*%, and 0\.01% is allowed"):
        make_cpu_encoder(plain, target, GRAPHS)
    assert target.read_bytes() == b"the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.onnx", "fast.onnx"]


def test_outputs_that_are_no_numbers_are_not_kept(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_encoder, "compare", lambda *_: {"embedding": float("nan")})
    with pytest.raises(SetupError, match="is not kept"):
        make_cpu_encoder(plain, tmp_path / "fast.onnx", GRAPHS)
    assert not (tmp_path / "fast.onnx").exists()


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None], ids=["empty", "noise", "missing"])
def test_a_damaged_file(damage: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "encoder.onnx"
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises(SetupError, match=r"encoder\.onnx"):
        make_cpu_encoder(path, tmp_path / "fast.onnx", GRAPHS)
    assert not (tmp_path / "fast.onnx").exists()


def test_a_graph_with_its_weights_elsewhere(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx_data").write_bytes(b"weights")
    with pytest.raises(SetupError, match="too large"):
        make_cpu_encoder(plain, tmp_path / "fast.onnx", GRAPHS)


def test_a_destination_that_cannot_be_written(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"fast\.onnx cannot be written"):
        make_cpu_encoder(plain, plain / "fast.onnx", GRAPHS)


def test_without_onnx(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SetupError, match="pip install"):
        make_cpu_encoder(plain, tmp_path / "fast.onnx", GRAPHS)


def test_the_drawn_picture() -> None:
    picture = drawn_picture(64)
    assert picture.shape == (64, 64, 3)
    assert picture.dtype == np.float32
    assert picture.min() >= 0
    assert picture.max() <= 1
    assert picture.std() > 0.1
    np.testing.assert_array_equal(picture, drawn_picture(64))
