"""Graphs that are put together: positions equal torch's, files are read as safetensors writes them, damage is told."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from triton_sam.errors import SetupError
from triton_sam.export.assembly import positions, run
from triton_sam.export.assembly.prepared import with_prepared
from triton_sam.export.assembly.published import published_weights
from triton_sam.export.assembly.recipes import TRANSPOSED, Recipes, tensors_of
from triton_sam.export.assembly.tensor_files import read_weights, write_weights
from triton_sam.models.bundled import bundled_path
from triton_sam.models.catalog import VIDEO_MODEL, get_spec
from triton_sam.models.specs import DECODER_FILE, ENCODER_FILE, GRAPHS_FILE, MEMORY_GRAPHS

RNG = np.random.default_rng(3)


def some(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


# positions


def test_a_table_is_split_and_joined_again_for_another_side() -> None:
    background, window = some(1, 5, 7, 7), some(1, 5, 8, 8)
    whole = positions.image_positions(background, window, 64)
    assert whole.shape == (1, 64, 64, 5)
    found = positions.split_positions(whole.transpose(0, 3, 1, 2), 7, 8)
    assert [table.shape for table in found] == [(1, 5, 7, 7), (1, 5, 8, 8)]
    for side in (32, 64, 128):
        np.testing.assert_allclose(
            positions.image_positions(*found, side), positions.image_positions(background, window, side), atol=1e-5
        )


@pytest.mark.torch
def test_positions_are_those_of_torch() -> None:
    import torch
    from torch.nn import functional

    from triton_sam.networks import memory_steps

    background, window = some(1, 5, 7, 7), some(1, 5, 8, 8)
    grown = functional.interpolate(torch.from_numpy(background), size=(32, 32), mode="bicubic")
    wanted = (grown + torch.from_numpy(window).tile(1, 1, 4, 4)).permute(0, 2, 3, 1)
    np.testing.assert_allclose(positions.image_positions(background, window, 32), wanted.numpy(), atol=1e-5)
    for width in (64, 256):
        np.testing.assert_allclose(positions.memory_waves(16, width), memory_steps.waves(16, width).numpy(), atol=1e-5)
    for mine, torchs in zip(positions.turns(16, 256), memory_steps.turns(16), strict=True):
        np.testing.assert_allclose(mine, torchs.numpy(), atol=1e-5)


# files


def test_a_file_of_tensors(tmp_path: Path) -> None:
    weights = {
        "b": some(3, 2),
        "a": some(4).astype(np.float16),
        "counts": np.arange(3),
        "one": np.float32(2).reshape(()),
    }
    path = write_weights(weights, tmp_path / "weights.safetensors")
    found = read_weights(path)
    assert {name: array.dtype.name for name, array in found.items()} == {
        "a": "float32",
        "b": "float32",
        "counts": "int64",
        "one": "float32",
    }
    for name, array in weights.items():
        np.testing.assert_array_equal(found[name], array)
    again = write_weights(dict(reversed(weights.items())), tmp_path / "again.safetensors")
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.torch
def test_the_files_are_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = {"a": some(4, 2), "half": some(3).astype(np.float16)}
    for name, array in load_file(write_weights(weights, tmp_path / "mine")).items():
        np.testing.assert_array_equal(array, weights[name])
    save_file(weights, tmp_path / "theirs")
    np.testing.assert_array_equal(read_weights(tmp_path / "theirs")["half"], weights["half"].astype(np.float32))


def damaged_files(whole: bytes) -> dict[str, bytes]:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    wrong = header.replace(b"[0, 8]", b"[4,12]")
    return {
        "empty": b"",
        "a web page": b"<html>" * 10,
        "cut short": whole[:-1],
        "cut in its header": whole[:20],
        "a wrong place": len(wrong).to_bytes(8, "little") + wrong + bytes(8),
        "an unknown type": whole.replace(b"F32", b"F12"),
    }


@pytest.mark.parametrize("kind", damaged_files(b""))
def test_a_damaged_file(kind: str, tmp_path: Path) -> None:
    whole = write_weights({"a": some(2)}, tmp_path / "whole").read_bytes()
    path = tmp_path / "memory.safetensors"
    path.write_bytes(damaged_files(whole)[kind])
    with pytest.raises(SetupError, match=r"memory\.safetensors is damaged: install triton-sam again"):
        read_weights(path)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be read"):
        read_weights(tmp_path / "none")
    with pytest.raises(SetupError, match="not in this installation: reinstall triton-sam"):
        bundled_path("memory/nothing")


# published weights


def graph_file(path: Path, **tensors: Any) -> Path:
    nodes = [helper.make_node("Identity", [name], [f"{name}/out"]) for name in tensors]
    initializers = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "graph", [], [], initializers)), str(path))
    return path


def test_weights_of_published_graphs(tmp_path: Path) -> None:
    tokens, matrix, rows = some(1, 6, 4), some(3, 2), [some(1, 4), some(1, 4)]
    graphs = {
        "encoder": graph_file(tmp_path / "encoder.onnx", matrix=matrix),
        "decoder": graph_file(tmp_path / "decoder.onnx", tokens=tokens, first=rows[0], second=rows[1]),
    }
    table = {
        "plain": ["encoder", "as-is", [6], "matrix"],
        "turned": ["encoder", "transposed", [2, 3], "matrix"],
        "token": ["decoder", "rows 1 3", [2, 4], "tokens"],
        "points": ["decoder", "joined", [2, 4], "first", "second"],
    }
    found = published_weights(graphs, table)
    np.testing.assert_array_equal(found["plain"], matrix.ravel())
    np.testing.assert_array_equal(found["turned"], matrix.T)
    np.testing.assert_array_equal(found["token"], tokens[0, 1:3])
    np.testing.assert_array_equal(found["points"], np.concatenate(rows))
    with pytest.raises(SetupError, match="cannot be made 'guessed'"):
        published_weights(graphs, {"x": ["encoder", "guessed", [6], "matrix"]})
    graphs["encoder"].write_bytes(b"no graph")
    with pytest.raises(SetupError, match=r"encoder\.onnx cannot be read as ONNX"):
        published_weights(graphs, table)


# the recipes of the package


@pytest.fixture(scope="module")
def recipes() -> Recipes:
    return Recipes.read(bundled_path("memory/recipes"))


def test_the_recipes_hold_no_weights(recipes: Recipes) -> None:
    """All that is left are constants of the graphs themselves: a few numbers, or one number many times."""
    assert recipes.side == get_spec(VIDEO_MODEL).side
    assert list(recipes.graphs) == [ENCODER_FILE, DECODER_FILE, *MEMORY_GRAPHS]
    assert sum(path.stat().st_size for path in recipes.files()) < 300_000
    for name, sources in recipes.graphs.items():
        model = onnx.load_model_from_string(lzma.decompress((recipes.folder / f"{name}.xz").read_bytes()))
        empty = {
            tensor_name for tensor_name, tensor in tensors_of(model) if not tensor.raw_data and np.prod(tensor.dims)
        }
        assert empty == set(sources)
        for tensor_name, tensor in tensors_of(model):
            array = None if tensor_name in sources else numpy_helper.to_array(tensor)
            assert array is None or array.size <= 256 or (array == array.flat[0]).all()


@pytest.mark.torch
def test_the_recipes_are_of_this_exporter_and_of_the_whole_network(recipes: Recipes) -> None:
    import torch

    from triton_sam.export.run import EXPORTER
    from triton_sam.models.memory_traits import MEMORY_TRAITS
    from triton_sam.networks.memory_layers import MEMORY_NAMES
    from triton_sam.networks.segmenters import build

    assert recipes.exporter == EXPORTER, "run `python -m training.memory.graphs`"
    spec = get_spec(VIDEO_MODEL)
    with torch.device("meta"):
        network = build(spec.architecture, spec.side, MEMORY_TRAITS["sam2.1"]).state_dict()
    shapes = {name: list(tensor.shape) for name, tensor in network.items()}
    ours = {name for name in shapes if name.partition(".")[0] in MEMORY_NAMES or ".pred_obj_score_head." in name}
    assert set(recipes.published) == set(shapes) - ours
    assert {name: row[2] for name, row in recipes.published.items()} == {
        name: shapes[name] for name in set(shapes) - ours
    }
    known = with_prepared(
        {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, spec.decoder.mask_side // 4
    )
    for sources in recipes.graphs.values():
        assert {source.removeprefix(TRANSPOSED) for source in sources.values()} <= set(known)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"side": 1}'])
def test_recipes_that_cannot_be_used(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "weights.json").write_text(content)
    with pytest.raises(SetupError, match="install triton-sam again"):
        Recipes.read(tmp_path)


def test_a_graph_that_cannot_be_filled(tmp_path: Path) -> None:
    recipes = Recipes(512, 1, {}, {}, {"a.onnx": {"w": "weight"}}, tmp_path)
    model = graph_file(tmp_path / "whole", w=some(2, 3))
    (tmp_path / "a.onnx.xz").write_bytes(lzma.compress(model.read_bytes()))
    written = recipes.write_graph("a.onnx", {"weight": np.ones((3, 2), np.float32)}, tmp_path / "out" / "a.onnx")
    assert numpy_helper.to_array(onnx.load(str(written)).graph.initializer[0]).sum() == 6
    with pytest.raises(SetupError, match="needs the weight 'weight', which is missing"):
        recipes.write_graph("a.onnx", {}, tmp_path / "b.onnx")
    with pytest.raises(SetupError, match="'weight' does not fit"):
        recipes.write_graph("a.onnx", {"weight": some(5)}, tmp_path / "b.onnx")
    (tmp_path / "a.onnx.xz").write_bytes(b"no graph")
    with pytest.raises(SetupError, match=r"a\.onnx\.xz is damaged"):
        recipes.write_graph("a.onnx", {}, tmp_path / "b.onnx")
    (tmp_path / "a.onnx.xz").unlink()
    with pytest.raises(SetupError, match=r"a\.onnx\.xz cannot be read"):
        recipes.write_graph("a.onnx", {}, tmp_path / "b.onnx")
    assert not (tmp_path / "b.onnx").exists()


# the cache


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Published graphs, a memory, recipes of one graph, and how often the weights were read."""
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    graph = graph_file(tmp_path / "whole", w=some(2, 3))
    (recipes / "encoder.onnx.xz").write_bytes(lzma.compress(graph.read_bytes()))
    content = {
        "side": 512,
        "exporter": 1,
        "made_with": {},
        "published": {},
        "graphs": {"encoder.onnx": {"w": "no_object_pointer"}},
    }
    (recipes / "weights.json").write_text(json.dumps(content))
    numbers = {name: some(2, 3) for name in run._NUMBERS.values()}
    memory = write_weights(numbers, tmp_path / "memory.safetensors")
    reads: list[Path] = []
    monkeypatch.setattr(run, "read_weights", lambda path: reads.append(path) or read_weights(path))
    monkeypatch.setattr(run, "published_weights", lambda *_: {})
    monkeypatch.setattr(run, "with_prepared", lambda weights, _: weights)
    graphs = {"encoder": tmp_path / "e", "decoder": tmp_path / "d"}
    arguments = get_spec(VIDEO_MODEL), graphs, (memory, recipes), tmp_path / "exports"
    return SimpleNamespace(arguments=arguments, memory=memory, reads=reads, numbers=numbers)


def test_a_model_is_put_together_once(parts: Any) -> None:
    said: list[str] = []
    folder = run.assembled(*parts.arguments, said.append)
    assert {path.name for path in folder.iterdir() if path.suffix != ".sha256"} == {
        "encoder.onnx",
        "memory.json",
        "graphs.json",
    }
    assert json.loads((folder / "memory.json").read_text())["generation"] == "sam2.1"
    assert run.assembled(*parts.arguments, said.append) == folder
    assert len(parts.reads) == len(said) == 1


@pytest.mark.parametrize("file", ["encoder.onnx", "memory.json", GRAPHS_FILE])
def test_damage_is_mended(parts: Any, file: str) -> None:
    folder = run.assembled(*parts.arguments)
    before = (folder / file).read_bytes()
    if file == GRAPHS_FILE:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(b"damaged")
    assert run.assembled(*parts.arguments) == folder
    assert (folder / file).read_bytes() == before
    assert len(parts.reads) == 2


def test_other_weights_take_the_place_of_earlier_ones(parts: Any) -> None:
    first = run.assembled(*parts.arguments)
    checkpoint = run.assembled_checkpoint(*parts.arguments)
    assert checkpoint.parent == first
    np.testing.assert_array_equal(read_weights(checkpoint)["no_object_pointer"], parts.numbers["no_object_pointer"])
    assert run.assembled_checkpoint(*parts.arguments) == checkpoint
    assert len(parts.reads) == 2
    write_weights(parts.numbers | {"no_object_pointer": some(2, 3)}, parts.memory)
    second = run.assembled(*parts.arguments)
    assert second != first
    assert [path.name for path in second.parent.iterdir()] == [second.name]
