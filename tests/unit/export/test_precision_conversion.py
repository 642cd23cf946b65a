from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.unit.export.families import FAMILIES, FOR_EVERY_COMMIT
from tests.unit.export.small import Arrays, Small, SmallFactory, drawn_pixels, session
from triton_sam.export.precision_conversion import convert_graph
from triton_sam.models.specs import Precision

pytestmark = pytest.mark.torch

LARGEST_SHARE = {Precision.FP16: 0.05, Precision.INT8: 0.25}
#: onnx's number of float32.
FLOAT = 1


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(
            (model_id, precision),
            id=f"{model_id}-{precision.value}",
            marks=() if model_id in FOR_EVERY_COMMIT else pytest.mark.part("exports"),
        )
        for model_id in FAMILIES
        for precision in LARGEST_SHARE
    ],
)
def converted(
    request: pytest.FixtureRequest, small: SmallFactory, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Small, Precision, Path]:
    """(the float32 one, precision, folder with both graphs in that precision)."""
    model_id, precision = request.param
    made, folder = small(model_id), tmp_path_factory.mktemp("converted")
    for part in ("encoder", "decoder"):
        shutil.copy(made.folder / f"{part}.onnx", folder)
        convert_graph(folder / f"{part}.onnx", precision, is_decoder=part == "decoder")
    return made, precision, folder


def tensors_of(graph: Path) -> dict[str, dict[str, Any]]:
    model = onnx.load(str(graph)).graph
    return {
        kind: {entry.name: entry.type.tensor_type.elem_type for entry in entries}
        for kind, entries in (("in", model.input), ("out", model.output))
    }


def rms_share(given: Any, wanted: Any) -> float:
    return float(np.sqrt(((given - wanted) ** 2).mean()) / wanted.std())


def test_names_and_types_outside_stay(converted: tuple[Small, Precision, Path]) -> None:
    made, _, folder = converted
    for part in ("encoder", "decoder"):
        found = tensors_of(folder / f"{part}.onnx")
        assert found == tensors_of(made.folder / f"{part}.onnx")
        assert {kind for entries in found.values() for kind in entries.values()} == {FLOAT}
    optional = [entry.name for entry in session(folder / "decoder.onnx").get_overridable_initializers()]
    assert sorted(optional) == sorted(made.spec.decoder.optional)


def test_files_get_smaller(converted: tuple[Small, Precision, Path]) -> None:
    made, precision, folder = converted
    before, after = made.encoder_file.stat().st_size, (folder / "encoder.onnx").stat().st_size
    assert after < (0.6 * before if precision is Precision.FP16 else before)  # narrow ones have few matrices
    decoder = (folder / "decoder.onnx").stat().st_size
    if precision is Precision.FP16:
        assert decoder < 0.6 * made.decoder_file.stat().st_size
    else:  # left alone
        assert (folder / "decoder.onnx").read_bytes() == made.decoder_file.read_bytes()
    assert {path.name for path in folder.iterdir()} == {"encoder.onnx", "decoder.onnx"}


def test_embeddings_are_close(converted: tuple[Small, Precision, Path]) -> None:
    made, precision, folder = converted
    names = [name for name, _ in made.spec.encoder.outputs]
    pixels = drawn_pixels(made.spec.side, seed=1)
    given = session(folder / "encoder.onnx").run(names, {made.spec.encoder.image: pixels})
    for name, output in zip(names, given, strict=True):
        assert output.dtype == np.float32
        wanted = made.embedding()[name]
        assert output.shape == wanted.shape
        assert 0 < rms_share(output, wanted) < LARGEST_SHARE[precision]


@pytest.mark.parametrize("rows", [1, 3])
def test_masks_are_close(rows: int, converted: tuple[Small, Precision, Path]) -> None:
    made, precision, folder = converted
    decoder = session(folder / "decoder.onnx")
    feeds: Arrays = made.embedding() | made.points(rows, 2)
    feeds["multimask_output"] = np.ones(1, np.float32)  # of one mask, a small difference may choose another
    wanted_masks, wanted_scores = made.decode(feeds)
    masks, scores = decoder.run(["masks", "iou_predictions"], feeds)
    assert masks.dtype == scores.dtype == np.float32
    assert rms_share(masks, wanted_masks) < LARGEST_SHARE[precision]
    assert rms_share(scores, wanted_scores) < LARGEST_SHARE[precision]


def test_the_layers_after_a_gelu_keep_their_weights(small: SmallFactory, tmp_path: Path) -> None:
    made = small("sam1:vit_b")
    shutil.copy(made.encoder_file, tmp_path)
    convert_graph(tmp_path / "encoder.onnx", Precision.INT8, is_decoder=False)
    nodes = onnx.load(str(tmp_path / "encoder.onnx")).graph.node
    quantised = [node.name for node in nodes if node.op_type == "MatMulInteger"]
    plain = [node.name for node in nodes if node.op_type == "MatMul"]
    for layer in (0, 1):
        assert any(f"layers.{layer}/mlp/lin1/" in name for name in quantised)
        assert any(f"layers.{layer}/attn/qkv/" in name for name in quantised)
        assert any(f"layers.{layer}/mlp/lin2/" in name for name in plain)
    assert not any("lin2" in name for name in quantised)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_float32_stays_as_it_is(is_decoder: bool, vit: Small, tmp_path: Path) -> None:
    shutil.copy(vit.encoder_file, tmp_path)
    convert_graph(tmp_path / "encoder.onnx", Precision.FP32, is_decoder=is_decoder)
    assert (tmp_path / "encoder.onnx").read_bytes() == vit.encoder_file.read_bytes()


def test_a_conversion_says_nothing_and_leaves_logging_as_it_was(
    vit: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(vit.encoder_file, tmp_path)
    logging.disable(logging.DEBUG)
    try:
        with caplog.at_level(logging.INFO):
            convert_graph(tmp_path / "encoder.onnx", Precision.INT8, is_decoder=False)
        assert logging.root.manager.disable == logging.DEBUG
    finally:
        logging.disable(logging.NOTSET)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
