"""Products in 8 bits: what is chosen, what is done to their inputs, and for which processors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from triton_sam.core.cpu_features import session_entry
from triton_sam.export import cpu_encoder_int8
from triton_sam.export.cpu_encoder_int8 import choose_products, equalise_channels, to_int8
from triton_sam.export.onnx_graph import Graph

onnx = pytest.importorskip("onnx")
TOKENS, WIDTH, HIDDEN = 64, 16, 48


def mlp(*, shared: bool = False) -> Any:
    """LayerNormalization, moved about, two products with a GELU between them; some channels are far larger."""
    node, rng = onnx.helper.make_node, np.random.default_rng(3)
    nodes = [
        node("LayerNormalization", ["x", "gain", "shift"], ["n"], axis=-1),
        node("Reshape", ["n", "shape"], ["windows"]),
        node("MatMul", ["windows", "w1"], ["t0"]),
        node("Add", ["t0", "b1"], ["t1"]),
        node("Gelu", ["t1"], ["t2"], domain="com.microsoft"),
        node("MatMul", ["t2", "w2"], ["y"]),
    ]
    outputs = ["y", "n"] if shared else ["y"]
    gain = np.ones(WIDTH, np.float32)
    gain[3] = 40.0
    weights = {
        "gain": gain,
        "shift": rng.normal(size=WIDTH).astype(np.float32),
        "shape": np.array([1, 4, TOKENS // 4, WIDTH], np.int64),
        "w1": (rng.normal(size=(WIDTH, HIDDEN)) / gain[:, None]).astype(np.float32),
        "b1": rng.normal(size=HIDDEN).astype(np.float32),
        "w2": rng.normal(size=(HIDDEN, WIDTH)).astype(np.float32),
    }
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "mlp",
        [onnx.helper.make_tensor_value_info("x", kind, [1, TOKENS, WIDTH])],
        [onnx.helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


X = np.random.default_rng(1).normal(size=(1, TOKENS, WIDTH)).astype(np.float32)


def look(model: Any, names: Sequence[str]) -> list[np.ndarray]:
    known = {entry.name for entry in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    options = onnxruntime.SessionOptions()
    # As it is served: without it sums of old x86 processors overflow, and errors would be theirs.
    options.add_session_config_entry(*session_entry())
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(list(names), {"x": X}))


def error(model: Any) -> float:
    (wanted,), (given,) = look(mlp(), ["y"]), look(model, ["y"])
    return float(np.std(given - wanted) / np.std(wanted))


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_encoder_int8, "LEAST_WIDTH", WIDTH)
    monkeypatch.setattr(cpu_encoder_int8, "EARLY_SHARE", 0.0)


def test_even_channels_change_nothing_but_the_rounding() -> None:
    graphs = Graph(mlp()), Graph(mlp())
    assert equalise_channels(graphs[1], look) == 1
    assert error(graphs[1].finish()) < 1e-5
    for graph in graphs:
        to_int8(graph, [node for node in graph.nodes if node.op_type == "MatMul" and node.input[0] == "windows"])
    rough, even = (error(graph.finish()) for graph in graphs)
    assert 0 < even < 0.5 * rough


def test_a_norm_that_others_see_is_left_alone() -> None:
    assert equalise_channels(Graph(mlp(shared=True)), look) == 0


def test_products_are_chosen_by_their_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(mlp())
    equalise_channels(graph, look)
    chosen = choose_products(graph, look)
    assert [node.output[0] for node in chosen] == ["t0", "y"]
    to_int8(graph, chosen)
    made = graph.finish()
    assert [node.op_type for node in made.graph.node].count("DynamicQuantizeMatMul") == 2
    assert "Add" not in [node.op_type for node in made.graph.node]  # the bias went along
    assert 0 < error(made) < 0.03
    monkeypatch.setattr(cpu_encoder_int8, "MOST_PRODUCT_ERROR", 1e-4)
    assert choose_products(Graph(mlp()), look) == []


def test_early_and_narrow_products_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(mlp())
    equalise_channels(graph, look)
    monkeypatch.setattr(cpu_encoder_int8, "EARLY_SHARE", 0.9)
    assert [node.output[0] for node in choose_products(graph, look)] == ["y"]
    monkeypatch.setattr(cpu_encoder_int8, "LEAST_WIDTH", WIDTH + 1)
    assert choose_products(graph, look) == []


@pytest.mark.parametrize(
    ("facts", "value"),
    [
        ("flags\t\t: fpu avx2 avx512_vnni\n", "0"),
        ("flags : avx2 avx_vnni\n", "0"),
        ("flags : avx2\n", "1"),
        ("Features\t: fp asimd asimddp\n", "0"),
        ("Features\t: fp asimd\n", "1"),
        (None, "1"),
    ],
)
def test_only_old_processors_are_told_to_be_slow(facts: str | None, value: str, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    if facts is not None:
        path.write_text(facts)
    assert session_entry(path) == ("session.x64quantprecision", value)
