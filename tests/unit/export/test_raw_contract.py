"""Ready-made graphs under the raw-tensor contract: names, pixel range, rows, defaults, one mask or all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.unit.ready_made import MASK_SIDE, MEAN, OUTPUTS, SIDE, STD, small_ready_made, write_small_ready_made
from triton_sam.errors import SetupError
from triton_sam.export.raw_contract import write_contract_pair
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import raw_graphs

pytest.importorskip("onnx")
Arrays = dict[str, np.ndarray]
NEW_NAMES = {"image_embed": "image_embeddings"}
ON = np.ones(1, np.float32)


@pytest.fixture
def ready_made(tmp_path: Path) -> tuple[Path, Path]:
    return write_small_ready_made(tmp_path / "ready-made")


@pytest.fixture
def pair(ready_made: tuple[Path, Path], tmp_path: Path) -> tuple[Any, Any]:
    made = write_contract_pair(small_ready_made(), *ready_made, tmp_path / "made")
    assert made is not None
    return session(made[0]), session(made[1])


def session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def noise(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def embeddings(rows: int = 1, seed: int = 5) -> Arrays:
    """Under the ready-made names."""
    return {name: noise(rows, *shape[1:], seed=seed + index) for index, (name, shape) in enumerate(OUTPUTS)}


def renamed(arrays: Arrays) -> Arrays:
    return {NEW_NAMES.get(name, name): array for name, array in arrays.items()}


def own_answer(decoder: Any, row: int, arrays: Arrays, mask: np.ndarray | None = None) -> list[np.ndarray]:
    """The ready-made decoder's three masks and scores of one row."""
    one = {name: array[min(row, len(array) - 1)][None] for name, array in arrays.items()}
    flag = np.array([mask is not None], np.float32)
    given = np.zeros((1, 1, MASK_SIDE, MASK_SIDE), np.float32) if mask is None else mask[None]
    feeds = one | {"mask_input": given, "has_mask_input": flag}
    found: list[np.ndarray] = decoder.run(["masks", "iou_predictions"], feeds)
    return [found[0][0], found[1][0]]


def test_the_encoder_normalises_and_takes_any_number_of_images(
    ready_made: tuple[Path, Path], pair: tuple[Any, Any]
) -> None:
    images = np.random.default_rng(0).random((3, 3, SIDE, SIDE), np.float32)
    names = [entry.name for entry in pair[0].get_outputs()]
    assert sorted(names) == sorted(NEW_NAMES.get(name, name) for name, _ in OUTPUTS)
    given = dict(zip(names, pair[0].run(names, {"image": images}), strict=True))
    normal = (images - np.array(MEAN, np.float32)[:, None, None]) / np.array(STD, np.float32)[:, None, None]
    plain = session(ready_made[0])
    for name, shape in OUTPUTS:
        wanted = np.concatenate([plain.run([name], {"image": image[None]})[0] for image in normal])
        assert given[NEW_NAMES.get(name, name)].shape == (3, *shape[1:])
        np.testing.assert_allclose(given[NEW_NAMES.get(name, name)], wanted, atol=1e-5)


def test_one_mask_is_the_best_by_score_of_each_row(ready_made: tuple[Path, Path], pair: tuple[Any, Any]) -> None:
    decoder = session(ready_made[1])
    places = np.array([[[20, 10]], [[30, 31]]], np.float32)
    prompts = {"point_coords": places, "point_labels": np.array([[1], [-1]], np.float32)}
    image = embeddings()
    masks, scores = pair[1].run(["masks", "iou_predictions"], renamed(image) | prompts)
    assert masks.shape == (2, 1, MASK_SIDE, MASK_SIDE)
    assert scores.shape == (2, 1)
    best = []
    for row in range(2):
        wanted, wanted_scores = own_answer(decoder, row, image | prompts)
        best.append(int(wanted_scores.argmax()))
        np.testing.assert_allclose(masks[row, 0], wanted[best[-1]], atol=1e-5)
        np.testing.assert_allclose(scores[row, 0], wanted_scores.max(), atol=1e-5)
    assert len(set(best)) == 2, "both rows choose alike: this shows nothing"


def test_all_masks_on_request(ready_made: tuple[Path, Path], pair: tuple[Any, Any]) -> None:
    prompts = {"point_coords": noise(2, 3, 2), "point_labels": np.ones((2, 3), np.float32)}
    image = embeddings()
    feeds = renamed(image) | prompts | {"multimask_output": ON}
    masks, scores = pair[1].run(["masks", "iou_predictions"], feeds)
    assert scores.shape == (2, 3)
    for row in range(2):
        wanted, wanted_scores = own_answer(session(ready_made[1]), row, image | prompts)
        np.testing.assert_allclose(masks[row], wanted, atol=1e-5)
        np.testing.assert_allclose(scores[row], wanted_scores, atol=1e-5)


def test_rows_with_images_and_masks_of_their_own(ready_made: tuple[Path, Path], pair: tuple[Any, Any]) -> None:
    """One flag for each row, where the ready-made graph has one for all."""
    prompts = {"point_coords": noise(2, 1, 2), "point_labels": np.ones((2, 1), np.float32)}
    images, before = embeddings(2), noise(2, 1, MASK_SIDE, MASK_SIDE)
    more = {"mask_input": before, "has_mask_input": np.array([0, 1], np.float32), "multimask_output": ON}
    masks, _ = pair[1].run(["masks", "iou_predictions"], renamed(images) | prompts | more)
    decoder = session(ready_made[1])
    np.testing.assert_allclose(masks[0], own_answer(decoder, 0, images | prompts)[0], atol=1e-5)
    np.testing.assert_allclose(masks[1], own_answer(decoder, 1, images | prompts, before[1])[0], atol=1e-5)


def test_one_mask_for_all_rows(ready_made: tuple[Path, Path], pair: tuple[Any, Any]) -> None:
    prompts = {"point_coords": noise(2, 1, 2), "point_labels": np.ones((2, 1), np.float32)}
    image, before = embeddings(), noise(1, 1, MASK_SIDE, MASK_SIDE)
    more = {"mask_input": before, "has_mask_input": ON, "multimask_output": ON}
    masks, _ = pair[1].run(["masks", "iou_predictions"], renamed(image) | prompts | more)
    for row in range(2):
        wanted = own_answer(session(ready_made[1]), row, image | prompts, before[0])[0]
        np.testing.assert_allclose(masks[row], wanted, atol=1e-5)


def test_features_that_are_left_out_are_zeros(ready_made: tuple[Path, Path], pair: tuple[Any, Any]) -> None:
    prompts = {"point_coords": noise(1, 1, 2), "point_labels": np.ones((1, 1), np.float32)}
    image = embeddings()
    blank = {name: array if name == "image_embed" else np.zeros_like(array) for name, array in image.items()}
    embedding = {"image_embeddings": image["image_embed"], "multimask_output": ON}
    masks, _ = pair[1].run(["masks", "iou_predictions"], embedding | prompts)
    np.testing.assert_allclose(masks[0], own_answer(session(ready_made[1]), 0, blank | prompts)[0], atol=1e-5)


def test_inputs_are_those_of_an_export(pair: tuple[Any, Any]) -> None:
    contract = raw_graphs(small_ready_made())
    assert contract.exported
    decoder = contract.decoder
    needed = {entry.name for entry in pair[1].get_inputs()}
    assert needed == {"image_embeddings", decoder.points, decoder.labels}
    assert {entry.name for entry in pair[1].get_overridable_initializers()} == set(decoder.optional)


def test_it_is_made_once(ready_made: tuple[Path, Path], tmp_path: Path) -> None:
    spec, folder = small_ready_made(), tmp_path / "made"
    first = write_contract_pair(spec, *ready_made, folder)
    assert first is not None
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in first}
    assert write_contract_pair(spec, *ready_made, folder) == first
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in first} == before
    first[1].write_bytes(b"damaged")
    write_contract_pair(spec, *ready_made, folder)
    assert first[1].read_bytes() == before[first[1]][1]


def test_exports_keep_the_contract_as_they_are(ready_made: tuple[Path, Path], tmp_path: Path) -> None:
    assert write_contract_pair(get_spec("sam2.1:tiny"), *ready_made, tmp_path / "made") is None
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_a_damaged_graph(damage: bytes, ready_made: tuple[Path, Path], tmp_path: Path) -> None:
    ready_made[1].write_bytes(damage)
    with pytest.raises(SetupError, match=r"decoder\.onnx"):
        write_contract_pair(small_ready_made(), *ready_made, tmp_path / "made")


def test_without_onnx(ready_made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SetupError, match="pip install onnx"):
        write_contract_pair(small_ready_made(), *ready_made, tmp_path / "made")
