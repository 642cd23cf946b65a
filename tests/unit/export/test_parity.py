from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.unit.export.damage import DAMAGES, Surgery, damaged
from tests.unit.export.small import Small, SmallFactory
from triton_sam.export.parity import ParityCheck
from triton_sam.export.parity_report import LIMITS, Comparison, Report, worst_iou
from triton_sam.export.parity_scenes import DRAWING, drawing
from triton_sam.models.specs import Precision

pytestmark = pytest.mark.torch
#: Damages that are tried at every commit, with the output that shows each first; the others are of `make test-all`.
QUICK = {
    "channels in reverse": "image_embeddings",
    "an encoder's weight x 1.01": "image_embeddings",
    "an attention's weight x 1.01": "masks",
    "the single mask x 1.01": "masks",
    "two masks swapped": "masks",
    "no finest feature": "masks",
    "object and background swapped": "masks",
    "corners of boxes swapped": "masks",
    "a projection transposed": "masks",
    "a bias of the decoder dropped": "masks",
    "points half a pixel off": "masks",
    "masks as prompts ignored": "masks",
    "the stable mask never chosen": "masks",
}


@pytest.fixture(scope="module")
def hiera(small: SmallFactory) -> Small:
    """With finer features and a choice of masks."""
    return small("sam2.1:tiny")


# graphs that are right


def test_a_right_export_is_accepted_whatever_the_seed(hiera: Small) -> None:
    check = ParityCheck(hiera.reference, hiera.encoder_file, hiera.decoder_file)
    for seed in range(5):
        report = check.run([drawing(hiera.spec.side, seed)], seed)
        assert report.passed, report.reason
        assert report.seed == seed


@pytest.mark.part("exports")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model_id", ["sam2.1:tiny", "sam1:vit_b"])
def test_two_hundred_seeds_in_a_row(model_id: str, small: SmallFactory) -> None:
    made = small(model_id)
    refused = {}
    for seed in range(200):
        check = ParityCheck(made.reference, made.encoder_file, made.decoder_file)
        report = check.run([drawing(made.spec.side, seed)], seed)
        if not report.passed:
            refused[seed] = report.reason
    assert not refused


def test_a_check_can_be_repeated(hiera: Small) -> None:
    """Seed 1 is that of the report, on another check and another image of the same numbers."""
    check = ParityCheck(hiera.reference, hiera.encoder_file, hiera.decoder_file)
    scene = drawing(hiera.spec.side, seed=1)
    again, other = check.run([scene], seed=1), check.run([scene], seed=2)

    for one, same in zip(hiera.report.comparisons, again.comparisons, strict=True):
        assert (one.image, one.output, one.prompt) == (same.image, same.output, same.prompt)
        assert same.reference_std == pytest.approx(one.reference_std, rel=1e-4)
    assert other.seed == 2
    pairs = zip(hiera.report.comparisons, other.comparisons, strict=True)
    assert any(one.reference_std != pytest.approx(moved.reference_std, rel=1e-4) for one, moved in pairs)


def test_rounding_is_no_fault(hiera: Small, tmp_path: Path) -> None:
    surgery = Surgery(hiera.decoder_file, hiera.network)
    surgery.change("mask_decoder.upscale_conv2.weight", lambda array: array * np.float32(1 + 1e-6))
    assert hiera.check(hiera.encoder_file, surgery.save(tmp_path / "decoder.onnx")).passed


def test_the_single_masks_own_token_is_seen(hiera: Small) -> None:
    """Only where it is chosen; else an error in it could not be told."""
    chosen = [token for entry in hiera.report.comparisons for token in entry.chosen or []]
    assert 0 in chosen
    assert any(token > 0 for token in chosen)


# graphs that are wrong


def refuse(damage: str, hiera: Small, folder: Path) -> Report:
    report = hiera.check(*damaged(damage, hiera.encoder_file, hiera.decoder_file, hiera.network, folder))
    assert not report.passed, damage
    return report


@pytest.mark.parametrize("damage", QUICK)
def test_a_damaged_export_is_refused(damage: str, hiera: Small, tmp_path: Path) -> None:
    assert refuse(damage, hiera, tmp_path).reason.startswith(QUICK[damage])


@pytest.mark.part("exports")
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damaged_export_is_refused(damage: str, hiera: Small, tmp_path: Path) -> None:
    refuse(damage, hiera, tmp_path)


def test_another_choice_is_reported(hiera: Small, tmp_path: Path) -> None:
    """Every number is right, but the mask is never that of the single mask's token."""
    report = refuse("the stable mask never chosen", hiera, tmp_path)
    assert " was chosen, but torch chooses 0" in report.reason


def test_an_output_of_another_shape_is_reported(vit: Small, tmp_path: Path) -> None:
    model = onnx.load(str(vit.decoder_file))
    for entry in model.graph.initializer:  # three masks where one was asked for
        if entry.name == "multimask_output":
            entry.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), entry.name))
    onnx.save(model, str(tmp_path / "decoder.onnx"))
    report = vit.check(vit.encoder_file, tmp_path / "decoder.onnx")
    assert not report.passed
    assert report.reason.startswith("masks [1, 3, 64, 64] instead of [1, 1, 64, 64] on the drawn image point")


def test_every_image_is_looked_at(vit: Small) -> None:
    check = ParityCheck(vit.reference, vit.encoder_file, vit.decoder_file)
    report = check.run([vit.scene, drawing(vit.spec.side, seed=2)], seed=1)
    assert report.passed
    assert len([entry for entry in report.comparisons if not entry.prompt]) == 2


# the verdict


def encoder_entry(rms: float, worst: float | None = None) -> Comparison:
    """Shares of a deviation of 2."""
    return Comparison("drawn", "image_embeddings", 2 * (rms if worst is None else worst), 2 * rms, 2.0)


def mask_entry(worst: float, sure_iou: float | None) -> Comparison:
    return Comparison("photograph", "masks", 2 * worst, worst / 10, 2.0, prompt="box", iou=0.5, sure_iou=sure_iou)


def judged(precision: Precision, *entries: Comparison) -> Report:
    report = Report(precision, list(entries))
    report.judge()
    return report


@pytest.mark.parametrize(
    ("precision", "entry"),
    [
        (Precision.FP32, encoder_entry(9e-5, 9e-4)),
        (Precision.FP32, mask_entry(9e-4, 0.9995)),
        (Precision.FP16, encoder_entry(0.09, 3.0)),
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
def test_masks_of_drawings_are_judged_in_float32_only(precision: Precision) -> None:
    drawn = Comparison(DRAWING, "masks", 1e-4, 1e-4, 2.0, prompt="box", iou=0.5, sure_iou=0.5)
    assert judged(precision, encoder_entry(0.0), drawn).passed == (precision is not Precision.FP32)


@pytest.mark.parametrize(
    ("precision", "entry", "reason"),
    [
        (Precision.FP32, encoder_entry(9e-5, 1.1e-3), "image_embeddings on the drawn image differs by 0.0022"),
        (Precision.FP32, encoder_entry(1.1e-4, 9e-4), "image_embeddings on the drawn image differs by 0.00022 rms"),
        (Precision.FP32, mask_entry(1.1e-3, 1.0), "masks on the photograph image box differs by 0.0022 (deviation 2)"),
        (Precision.FP32, mask_entry(9e-4, 0.9985), "masks on the photograph image box: mask IoU 0.9985 is below 0.999"),
        (Precision.FP16, encoder_entry(0.11, 0.5), "image_embeddings on the drawn image differs by 0.22 rms"),
        (Precision.FP16, mask_entry(0.1, 0.985), "masks on the photograph image box: mask IoU 0.9850 is below 0.99"),
        (Precision.INT8, encoder_entry(0.26, 0.5), "image_embeddings on the drawn image differs by 0.52 rms"),
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
def test_nan_fails_in_every_precision(precision: Precision, bad: float, prompt: str) -> None:
    report = judged(precision, Comparison("drawn", "iou_predictions", bad, bad, 1.0, prompt=prompt))
    assert not report.passed
    assert report.reason.startswith("iou_predictions on the drawn image")


@pytest.mark.parametrize("peak", [0.0, 1.0])
def test_the_last_bits_of_numbers_that_hardly_vary_are_no_fault(peak: float) -> None:
    """A network whose scores are all 1: the deviation is nothing, the rounding is not."""
    entry = Comparison("drawn", "iou_predictions", 6e-7, 6e-7, 0.0, peak, "box")
    assert judged(Precision.FP32, entry).passed == (peak == 1.0)


@pytest.mark.parametrize(("chosen", "passes"), [([0, 2], True), ([0, 3], True), ([1, 2], False)])
def test_a_mask_that_torch_would_not_choose(chosen: list[int], passes: bool) -> None:
    entry = Comparison("drawn", "masks", 0.0, 0.0, 1.0, prompt="box", possible=[[0], [2, 3]], chosen=chosen)
    report = judged(Precision.FP32, entry)
    assert report.passed == passes
    assert passes or report.reason == "masks on the drawn image box: mask 1 was chosen, but torch chooses 0"


def test_nothing_compared_is_no_success() -> None:
    assert not judged(Precision.FP32).passed


def test_the_limits_get_wider_with_less_precision() -> None:
    fp32, fp16, int8 = (LIMITS[precision] for precision in (Precision.FP32, Precision.FP16, Precision.INT8))
    assert fp32.typical == fp32.answer < fp16.typical < int8.typical
    assert fp32.iou > fp16.iou > int8.iou


# masks that a network is not sure of


def disc(radius: float, height: float = 10.0) -> Any:
    """Logits [1,1,64,64] of a disc with an edge of one pixel."""
    rows, columns = np.mgrid[:64, :64]
    distance = np.hypot(rows - 32, columns - 32)
    return ((radius - distance) * height).clip(-height, height)[None, None].astype(np.float32)


def test_a_sure_mask_counts() -> None:
    overlap, sure = worst_iou(disc(20), disc(18))
    assert overlap == sure
    assert sure is not None
    assert 0.7 < sure < 0.9


def test_a_mask_of_small_logits_does_not_count() -> None:
    overlap, sure = worst_iou(disc(20, height=0.1), disc(18, height=0.1))
    assert overlap < 0.9
    assert sure is None


def test_two_empty_masks_are_equal() -> None:
    empty = np.full((1, 1, 8, 8), -9, np.float32)
    assert worst_iou(empty, empty) == (1.0, None)


def test_the_worst_of_several_masks_counts() -> None:
    wanted = np.concatenate([disc(20), disc(20)], axis=1)
    given = np.concatenate([disc(20), disc(15)], axis=1)
    overlap, sure = worst_iou(wanted, given)
    assert overlap == sure == worst_iou(disc(20), disc(15))[0] < 0.7


# the report


@pytest.mark.parametrize("precision", Precision)
def test_the_report_is_strict_json(precision: Precision, vit: Small) -> None:
    report = Report(precision, vit.report.comparisons, seed=7)
    report.judge()
    found = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert found["precision"] == precision.value
    assert found["passed"] is True
    assert len(found["comparisons"]) == len(vit.report.comparisons)
    assert found["comparisons"][0]["output"] == "image_embeddings"
    assert found["seed"] == 7
    assert set(found["limits"]) == {"worst", "typical", "answer", "iou"}
    assert found["limits"]["worst"] == (1e-3 if precision is Precision.FP32 else None)


def test_the_summary_has_the_worst_of_every_output() -> None:
    report = Report(
        Precision.FP32,
        [
            Comparison("a", "image_embeddings", 0.1, 0.05, 1.0),
            Comparison("b", "image_embeddings", 0.2, 0.05, 4.0),
            Comparison("a", "masks", 0.3, 0.1, 3.0, prompt="box", iou=0.9),
            Comparison("b", "masks", 0.1, 0.1, 0.5, prompt="box", iou=0.8),
        ],
    )
    embeddings, masks = report.summary()
    assert embeddings == ("image_embeddings", 0.2, 0.1, None)
    assert masks == ("masks", 0.3, 0.2, 0.8)
