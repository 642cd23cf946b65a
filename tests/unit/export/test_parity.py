from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.unit.export.small import Small
from triton_sam.export import parity
from triton_sam.export.parity import LIMITS, RANDOM_IMAGE, Comparison, Report
from triton_sam.specs import Precision

pytestmark = pytest.mark.torch

# graphs that are wrong


def changed(graph: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a graph, its numbers put through ``change`` (name -> array, to be altered in place)."""
    model = onnx.load(str(graph))
    arrays = {entry.name: numpy_helper.to_array(entry).copy() for entry in model.graph.initializer}
    before = {name: array.copy() for name, array in arrays.items()}
    change(arrays)
    assert any(not np.array_equal(arrays[name], before[name]) for name in arrays)
    for entry in model.graph.initializer:
        entry.CopyFrom(numpy_helper.from_array(arrays[entry.name], entry.name))
    onnx.save(model, str(target))
    return target


def swap(arrays: dict[str, Any], first: str, second: str) -> None:
    arrays[first], arrays[second] = arrays[second], arrays[first]


def scale(arrays: dict[str, Any], name: str, factor: float) -> None:
    arrays[name] = (arrays[name] * factor).astype(arrays[name].dtype)


@pytest.mark.parametrize(
    ("change", "output"),
    [
        (lambda arrays: scale(arrays, "decoder.upscale_conv2.weight", 1.05), "masks"),
        (lambda arrays: swap(arrays, "decoder.upscale_conv1.bias", "decoder.upscale_layer_norm.bias"), "masks"),
        (lambda arrays: scale(arrays, "decoder.iou_prediction_head.proj_out.bias", 1.5), "iou_predictions"),
    ],
    ids=["scaled", "swapped", "scores"],
)
def test_a_broken_decoder_fails(
    change: Callable[[dict[str, Any]], None], output: str, vit: Small, tmp_path: Path
) -> None:
    report = vit.check(vit.encoder_file, changed(vit.decoder_file, tmp_path / "decoder.onnx", change))
    assert not report.passed
    assert report.reason.startswith(f"{output} on the random image point differs by ")


def test_a_broken_encoder_fails(vit: Small, tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        prefix = "network.vision_encoder.layers.0"
        swap(arrays, f"{prefix}.layer_norm1.weight", f"{prefix}.layer_norm2.weight")

    report = vit.check(changed(vit.encoder_file, tmp_path / "encoder.onnx", change), vit.decoder_file)
    assert not report.passed
    assert report.reason.startswith("image_embeddings on the random image differs by ")
    encoder = next(entry for entry in report.comparisons if entry.output == "image_embeddings")
    assert encoder.max_abs_diff > encoder.rms_diff > 0.001 * encoder.reference_std


def test_rounding_is_no_fault(vit: Small, tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        scale(arrays, "decoder.upscale_conv2.weight", 1 + 1e-6)

    assert vit.check(vit.encoder_file, changed(vit.decoder_file, tmp_path / "decoder.onnx", change)).passed


def test_a_graph_that_gives_another_shape_is_told(vit: Small, tmp_path: Path) -> None:
    model = onnx.load(str(vit.decoder_file))
    for entry in model.graph.initializer:  # three masks where one was asked for
        if entry.name == "multimask_output":
            entry.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), entry.name))
    onnx.save(model, str(tmp_path / "decoder.onnx"))
    report = vit.check(vit.encoder_file, tmp_path / "decoder.onnx")
    assert not report.passed
    assert report.reason.startswith("masks [1, 3, 64, 64] instead of [1, 1, 64, 64] on the random image point")


def test_every_image_is_looked_at(vit: Small) -> None:
    images = {name: parity.random_image(vit.spec.side, seed) for seed, name in enumerate(("first", "second"))}
    report = parity.check(
        vit.network, vit.spec.architecture, vit.spec.graphs, vit.encoder_file, vit.decoder_file, images
    )
    assert report.passed
    assert [entry.image for entry in report.comparisons if not entry.prompt] == ["first", "second"]


# the verdict


def encoder_entry(rms: float, worst: float | None = None) -> Comparison:
    """Shares of a deviation of 2."""
    return Comparison("random", "image_embeddings", 2 * (rms if worst is None else worst), 2 * rms, 2.0)


def mask_entry(worst: float, sure_iou: float | None) -> Comparison:
    return Comparison("photograph", "masks", 2 * worst, worst, 2.0, "box", iou=0.5, sure_iou=sure_iou)


def judged(precision: Precision, *entries: Comparison) -> Report:
    report = Report(precision, list(entries))
    report.judge()
    return report


@pytest.mark.parametrize(
    ("precision", "entry"),
    [
        (Precision.FP32, encoder_entry(1e-4, 9e-4)),
        (Precision.FP32, mask_entry(9e-4, 0.9995)),
        (Precision.FP16, encoder_entry(0.045, 3.0)),
        (Precision.FP16, mask_entry(5.0, 0.991)),
        (Precision.FP16, mask_entry(5.0, None)),
        (Precision.INT8, encoder_entry(0.24, 9.0)),
        (Precision.INT8, mask_entry(5.0, 0.981)),
    ],
)
def test_what_passes(precision: Precision, entry: Comparison) -> None:
    report = judged(precision, entry)
    assert report.passed
    assert report.reason == ""


@pytest.mark.parametrize("precision", list(Precision))
def test_masks_of_noise_are_judged_in_float32_only(precision: Precision) -> None:
    noise = Comparison(RANDOM_IMAGE, "masks", 1e-4, 1e-4, 2.0, "box", iou=0.5, sure_iou=0.5)
    assert judged(precision, encoder_entry(0.0), noise).passed == (precision is not Precision.FP32)


@pytest.mark.parametrize(
    ("precision", "entry", "reason"),
    [
        (Precision.FP32, encoder_entry(1e-4, 1.1e-3), "image_embeddings on the random image differs by 0.0022"),
        (Precision.FP32, mask_entry(1.1e-3, 1.0), "masks on the photograph image box differs by 0.0022 (deviation 2)"),
        (Precision.FP32, mask_entry(9e-4, 0.9985), "masks on the photograph image box: mask IoU 0.9985 is below 0.999"),
        (Precision.FP16, encoder_entry(0.055, 0.5), "image_embeddings on the random image differs by 0.11 rms"),
        (Precision.FP16, mask_entry(0.1, 0.985), "masks on the photograph image box: mask IoU 0.9850 is below 0.99"),
        (Precision.INT8, encoder_entry(0.26, 0.5), "image_embeddings on the random image differs by 0.52 rms"),
        (Precision.INT8, mask_entry(0.1, 0.975), "masks on the photograph image box: mask IoU 0.9750 is below 0.98"),
    ],
)
def test_what_fails(precision: Precision, entry: Comparison, reason: str) -> None:
    report = judged(precision, encoder_entry(0.0), entry)
    assert not report.passed
    assert report.reason.startswith(reason)


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("prompt", ["", "box"])
def test_numbers_that_are_none_fail_in_every_precision(precision: Precision, bad: float, prompt: str) -> None:
    report = judged(precision, Comparison("random", "iou_predictions", bad, bad, 1.0, prompt))
    assert not report.passed
    assert report.reason.startswith("iou_predictions on the random image")


def test_nothing_compared_is_no_success() -> None:
    assert not judged(Precision.FP32).passed


def test_the_limits_get_wider_with_less_precision() -> None:
    fp32, fp16, int8 = (LIMITS[precision] for precision in (Precision.FP32, Precision.FP16, Precision.INT8))
    assert fp32.typical < fp16.typical < int8.typical
    assert fp32.iou > fp16.iou > int8.iou


# masks that a network is not sure of


def disc(radius: float, height: float = 10.0) -> Any:
    """Logits [1,1,64,64] of a disc with an edge of one pixel."""
    rows, columns = np.mgrid[:64, :64]
    distance = np.hypot(rows - 32, columns - 32)
    return ((radius - distance) * height).clip(-height, height)[None, None].astype(np.float32)


def test_a_sure_mask_counts() -> None:
    overlap, sure = parity._worst_iou(disc(20), disc(18))
    assert overlap == sure
    assert sure is not None
    assert 0.7 < sure < 0.9


def test_a_mask_of_small_logits_does_not_count() -> None:
    overlap, sure = parity._worst_iou(disc(20, height=0.1), disc(18, height=0.1))
    assert overlap < 0.9
    assert sure is None


def test_two_empty_masks_are_equal() -> None:
    empty = np.full((1, 1, 8, 8), -9, np.float32)
    assert parity._worst_iou(empty, empty) == (1.0, None)


def test_the_worst_of_several_masks_counts() -> None:
    wanted = np.concatenate([disc(20), disc(20)], axis=1)
    given = np.concatenate([disc(20), disc(15)], axis=1)
    overlap, sure = parity._worst_iou(wanted, given)
    assert overlap == sure == parity._worst_iou(disc(20), disc(15))[0] < 0.7


# the report


@pytest.mark.parametrize("precision", Precision)
def test_the_report_is_strict_json(precision: Precision, vit: Small) -> None:
    report = Report(precision, vit.report.comparisons)
    report.judge()
    found = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert found["precision"] == precision.value
    assert found["passed"] is True
    assert len(found["comparisons"]) == len(vit.report.comparisons)
    assert found["comparisons"][0]["output"] == "image_embeddings"
    assert set(found["limits"]) == {"worst", "typical", "iou"}
    assert found["limits"]["worst"] == (1e-3 if precision is Precision.FP32 else None)


def test_the_summary_has_the_worst_of_every_output() -> None:
    report = Report(
        Precision.FP32,
        [
            Comparison("a", "image_embeddings", 0.1, 0.05, 1.0),
            Comparison("b", "image_embeddings", 0.2, 0.05, 4.0),
            Comparison("a", "masks", 0.3, 0.1, 3.0, "box", iou=0.9),
            Comparison("b", "masks", 0.1, 0.1, 0.5, "box", iou=0.8),
        ],
    )
    embeddings, masks = report.summary()
    assert embeddings == ("image_embeddings", 0.2, 0.1, None)
    assert masks == ("masks", 0.3, 0.2, 0.8)


# images


@pytest.mark.parametrize("side", [112, 256])
def test_a_random_image(side: int) -> None:
    image = parity.random_image(side, seed=5)
    assert image.shape == (1, 3, side, side)
    assert image.dtype == np.float32
    assert 0 <= image.min() < 0.3 < 0.7 < image.max() <= 1
    assert np.array_equal(image, parity.random_image(side, seed=5))
    assert not np.array_equal(image, parity.random_image(side, seed=6))
    assert not np.array_equal(parity.random_image(side), parity.random_image(side))
