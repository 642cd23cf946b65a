"""Recipes of a small network, filled with other weights than those they were made with, are what an export writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from training.memory import graphs
from training.recipes import table_text

from tests.unit.export.small import small_spec
from triton_sam.export.assembly.prepared import with_prepared
from triton_sam.export.assembly.recipes import Recipes, tensors_of
from triton_sam.models.catalog import VIDEO_MODEL

pytestmark = pytest.mark.torch


SPEC = small_spec(VIDEO_MODEL)
#: Seed -> folder, weights.
Exports = Callable[[int], tuple[Path, Any]]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """Exports of the small network, each made once."""
    folder, make = tmp_path_factory.mktemp("exports"), graphs._export
    return lru_cache(lambda seed: make(SPEC, seed, folder / str(seed)))


@pytest.fixture(autouse=True)
def _made_once(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_export", lambda _spec, seed, _folder: exports(seed))


@pytest.mark.part("video")
def test_filled_recipes_are_an_export(exports: Exports, tmp_path: Path) -> None:
    graphs.make_recipes(SPEC, {}, tmp_path / "recipes")
    recipes = Recipes.read(tmp_path / "recipes")
    wanted, weights = exports(7)
    prepared = with_prepared(weights, SPEC.decoder.mask_side // 4)
    for name in graphs.GRAPHS:
        filled = onnx.load(str(recipes.write_graph(name, prepared, tmp_path / name)))
        exported = onnx.load(str(wanted / name))
        assert [node.op_type for node in filled.graph.node] == [node.op_type for node in exported.graph.node]
        theirs = dict(tensors_of(exported))
        for tensor_name, tensor in tensors_of(filled):
            mine, other = numpy_helper.to_array(tensor), numpy_helper.to_array(theirs.pop(tensor_name))
            scale = max(1e-6, float(np.abs(other).max(initial=0))) if other.dtype == np.float32 else 1
            np.testing.assert_allclose(mine, other, atol=2e-5 * scale, err_msg=f"{name} {tensor_name}")
        assert not theirs


@pytest.mark.part("video")
def test_a_weight_that_nobody_knows_is_not_left_in_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "with_prepared", lambda weights, _: weights)
    with pytest.raises(SystemExit, match=r"nothing is known of .* prepared\.py has to compute it"):
        graphs.make_recipes(SPEC, {}, tmp_path / "recipes")


def test_the_table_has_a_line_for_each_tensor() -> None:
    content = {"side": 1, "inner": {"a": ["x", [1, 2]], "b": {"c": "d"}}}
    text = table_text(content)
    assert json.loads(text) == content
    assert '  "a": ["x", [1, 2]],\n' in text
