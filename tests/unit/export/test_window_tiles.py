"""Blocks within windows as a loop over tiles: the same results, and nothing where something looks further."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from triton_sam.export import window_tiles
from triton_sam.export.onnx_graph import Graph
from triton_sam.export.window_tiles import count_windowed_blocks, tile_windows

onnx = pytest.importorskip("onnx")
SIDE, WINDOW, WIDTH = 16, 4, 8


class Trunk:
    """Nodes and constants of a small trunk with attention in windows."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(7)

    def constant(self, name: str, array: Any) -> str:
        self.constants[name] = np.asarray(array)
        return name

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def shaped(self, x: str, output: str, *sizes: int) -> str:
        return self.add("Reshape", [x, self.constant(f"{output}/shape", np.array(sizes, np.int64))], output)

    def product(self, x: str, output: str, width: int, wide: int) -> str:
        weights = self.constant(
            f"{output}/w", (self.rng.normal(size=(width, wide)) / np.sqrt(width)).astype(np.float32)
        )
        return self.add("MatMul", [x, weights], output)

    def norm(self, x: str, output: str, width: int) -> str:
        gain, shift = (self.constant(f"{output}/{i}", self.rng.normal(size=width).astype(np.float32)) for i in range(2))
        return self.add("LayerNormalization", [x, gain, shift], output, axis=-1)

    def pooled(self, x: str, output: str) -> str:
        turned = self.add("Transpose", [x], f"{output}/first", perm=[0, 3, 1, 2])
        smaller = self.add("MaxPool", [turned], f"{output}/pool", kernel_shape=[2, 2], strides=[2, 2])
        return self.add("Transpose", [smaller], output, perm=[0, 2, 3, 1])

    def block(self, x: str, name: str, side: int, window: int, width: int, *, pool: bool = False) -> str:
        """Attention within windows, [1,side,side,width] -> the same, or half the side and twice the width."""
        n, count, wide = side // window, (side // window) ** 2, 2 * width if pool else width
        norm = self.norm(x, f"{name}/norm", width)
        cut = self.shaped(norm, f"{name}/cut", 1, n, window, n, window, width)
        turned = self.add("Transpose", [cut], f"{name}/turned", perm=[0, 1, 3, 2, 4, 5])
        windows = self.shaped(turned, f"{name}/windows", count, window, window, width)
        query = self.product(windows, f"{name}/query", width, wide)
        key = self.shaped(self.product(windows, f"{name}/k", width, wide), f"{name}/key", count, window**2, wide)
        value = self.shaped(self.product(windows, f"{name}/v", width, wide), f"{name}/value", count, window**2, wide)
        if pool:
            x = self.pooled(self.product(norm, f"{name}/wide", width, wide), f"{name}/short")
            query, window, side = self.pooled(query, f"{name}/queries"), window // 2, side // 2
        query = self.shaped(query, f"{name}/flat", count, window**2, wide)
        turned = self.add("Transpose", [key], f"{name}/keys", perm=[0, 2, 1])
        scores = self.add("Softmax", [self.add("MatMul", [query, turned], f"{name}/scores")], f"{name}/soft", axis=-1)
        mixed = self.shaped(
            self.add("MatMul", [scores, value], f"{name}/mixed"), f"{name}/back", count, window, window, wide
        )
        parts = self.shaped(mixed, f"{name}/parts", 1, n, n, window, window, wide)
        turned = self.add("Transpose", [parts], f"{name}/rows", perm=[0, 1, 3, 2, 4, 5])
        return self.add("Add", [x, self.shaped(turned, f"{name}/joined", 1, side, side, wide)], f"{name}/out")

    def model(self, *outputs: str) -> Any:
        kind, helper = onnx.TensorProto.FLOAT, onnx.helper
        graph = helper.make_graph(
            self.nodes,
            "trunk",
            [helper.make_tensor_value_info("x", kind, [1, SIDE, SIDE, WIDTH])],
            [helper.make_tensor_value_info(name, kind, None) for name in outputs],
            [onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def trunk(*, last: str = "Identity") -> Any:
    """Three blocks, the second of which pools; results after the first and the third."""
    made = Trunk()
    first = made.block("x", "a", SIDE, WINDOW, WIDTH)
    second = made.block(first, "b", SIDE, WINDOW, WIDTH, pool=True)
    third = made.block(second, "c", SIDE // 2, WINDOW // 2, 2 * WIDTH)
    made.add(last, [third], "deep")
    made.add("Transpose", [first], "fine", perm=[0, 3, 1, 2])
    return made.model("deep", "fine")


def run(model: Any) -> list[np.ndarray]:
    x = np.random.default_rng(2).normal(size=(1, SIDE, SIDE, WIDTH)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_tiles, "TOKENS_AT_A_TIME", 4 * WINDOW**2)


def test_three_blocks_in_a_loop() -> None:
    graph = Graph(trunk())
    assert count_windowed_blocks(graph) == 3
    assert tile_windows(graph) == 3
    made = graph.finish()
    assert [node.op_type for node in made.graph.node].count("Scan") == 1
    assert not [node for node in made.graph.node if node.op_type in ("MatMul", "LayerNormalization", "MaxPool")]
    for given, wanted in zip(run(made), run(trunk()), strict=True):
        np.testing.assert_allclose(given, wanted, atol=1e-5)


def test_what_looks_at_the_whole_image_stays_outside() -> None:
    graph = Graph(trunk(last="GlobalMaxPool"))
    assert tile_windows(graph) == 3
    for given, wanted in zip(run(graph.finish()), run(trunk(last="GlobalMaxPool")), strict=True):
        np.testing.assert_allclose(given, wanted, atol=1e-5)


def test_other_windows_end_the_loop() -> None:
    """The third block's windows span several of the first."""

    def made() -> Any:
        nodes = Trunk()
        second = nodes.block(nodes.block("x", "a", SIDE, WINDOW, WIDTH), "b", SIDE, WINDOW, WIDTH)
        nodes.add("Identity", [nodes.block(second, "c", SIDE, 2 * WINDOW, WIDTH)], "y")
        return nodes.model("y")

    graph = Graph(made())
    assert count_windowed_blocks(graph) == 2
    assert tile_windows(graph) == 2
    (given,), (wanted,) = run(graph.finish()), run(made())
    np.testing.assert_allclose(given, wanted, atol=1e-5)


def test_one_block_is_not_worth_a_loop() -> None:
    nodes = Trunk()
    nodes.add("Identity", [nodes.block("x", "a", SIDE, WINDOW, WIDTH)], "y")
    graph = Graph(nodes.model("y"))
    assert count_windowed_blocks(graph) == 0
    assert tile_windows(graph) == 0


@pytest.mark.parametrize("tokens", [3 * WINDOW**2, SIDE**2])
def test_windows_that_make_no_even_tiles(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_tiles, "TOKENS_AT_A_TIME", tokens)
    graph = Graph(trunk())
    assert count_windowed_blocks(graph) == 0
    assert tile_windows(graph) == 0


def test_windows_that_are_cut_in_another_way_are_missed() -> None:
    """Whole columns first: the loop does not know that, and the count does."""
    model = trunk()
    for node in model.graph.node:
        if node.output[0].endswith(("/turned", "/rows")):
            node.attribute[0].ints[:] = [0, 3, 1, 2, 4, 5] if node.output[0].endswith("/turned") else [0, 2, 3, 1, 4, 5]
    graph = Graph(model)
    assert count_windowed_blocks(graph) == 3
    assert tile_windows(graph) == 0
