"""A run over a picture of discs, against the published loop."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.oracles.everything import Found, agreement, everything
from tests.unit.core.everything.discs import SIDE, Discs
from triton_sam.core.everything import driver
from triton_sam.core.everything.candidates import Candidates, LogitMask, PackedMask, Place, RunMask
from triton_sam.core.everything.driver import Progress, run
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.everything.records import records
from triton_sam.core.geometry import ResizePolicy
from triton_sam.core.masks import decode as decode_mask

SCENE = ((60, 50, 30), (150, 60, 22), (100, 130, 35), (40, 150, 12), (190, 150, 9))
OPTIONS = EverythingOptions(points_per_side=12, points_per_batch=20, pred_iou_thresh=0.8)


def by_package(discs: Discs, options: EverythingOptions, most_rows: int = 64) -> tuple[list[Progress], Candidates]:
    steps = list(run(options, discs.width, discs.height, discs.open(options, most_rows), most_rows=most_rows))
    return steps, steps[-1].found


def by_oracle(discs: Discs, **options: Any) -> list[Found]:
    def open_crop(crop: tuple[int, int, int, int]) -> Any:
        decode = discs.decoder(crop)

        def one(point: Any, multimask: bool, mask: Any) -> Any:
            prompt = None if mask is None else mask[None]
            logits, ious = decode(point[None], multimask=multimask, mask_input=prompt)
            return logits[0], ious[0]

        return one

    side = SIDE if discs.policy is ResizePolicy.PAD else None
    return everything(discs.width, discs.height, open_crop, padded_side=side, **options)


@pytest.mark.parametrize("policy", ResizePolicy)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"multimask_output": False},
        {"use_m2m": True},
        {"crop_n_layers": 1, "crop_n_points_downscale_factor": 2},
        {"mask_threshold": 3.0, "box_nms_thresh": 0.2, "stability_score_offset": 0.5},
        {"stability_score_thresh": 0.5, "pred_iou_thresh": 0.93},
    ],
    ids=lambda options: ",".join(options) or "defaults",
)
def test_masks_are_those_of_the_published_loop(policy: ResizePolicy, options: dict[str, Any]) -> None:
    discs = Discs(230, 180, SCENE, policy)
    wanted = {"points_per_side": 8, "pred_iou_thresh": 0.8} | options
    _, found = by_package(discs, EverythingOptions(**wanted))
    expected = by_oracle(discs, **wanted)
    assert len(expected) >= 4
    agreed = agreement([mask.pixels() for mask in found.masks], [one.mask for one in expected])
    assert len(found) == len(expected)
    assert agreed.unmatched == 0
    assert agreed.mean_iou > 0.9999
    # In the same order, with the same numbers.
    assert found.boxes.tolist() == [one.box for one in expected]
    np.testing.assert_array_equal(found.areas, [one.area for one in expected])
    np.testing.assert_allclose(found.stability_scores, [one.stability_score for one in expected], atol=1e-6)
    np.testing.assert_allclose(found.predicted_ious, [one.predicted_iou for one in expected], atol=1e-6)
    np.testing.assert_allclose(found.points, [one.point for one in expected], atol=1e-4)
    assert found.crops.tolist() == [list(one.crop) for one in expected]


def test_small_regions_are_cleaned_away() -> None:
    discs = Discs(115, 90, ((30, 25, 18), (75, 30, 14), (50, 65, 20)), spots=3)
    wanted = {"points_per_side": 8, "pred_iou_thresh": 0.8, "stability_score_thresh": 0.6}
    _, spotted = by_package(discs, EverythingOptions(**wanted))
    _, found = by_package(discs, EverythingOptions(**wanted, min_mask_region_area=60))
    expected = by_oracle(discs, **wanted, min_mask_region_area=60)
    agreed = agreement([mask.pixels() for mask in found.masks], [one.mask for one in expected])
    assert (agreed.unmatched, agreed.mean_iou) == (0, 1)
    assert found.boxes.tolist() == [one.box for one in expected]
    assert found.areas.tolist() == [one.area for one in expected]
    before = agreement([mask.pixels() for mask in spotted.masks], [one.mask for one in expected])
    assert before.mean_iou < 0.99


def test_a_large_image_has_its_runs_from_outlines() -> None:
    discs = Discs(2300, 1800, tuple((10 * x, 10 * y, 10 * radius) for x, y, radius in SCENE))
    _, found = by_package(discs, OPTIONS)
    for mask, area, box in zip(found.masks, found.areas, found.boxes.tolist(), strict=True):
        pixels = mask.pixels()
        rows, columns = np.nonzero(pixels)
        assert abs(int(pixels.sum()) - area) <= 2  # rounding
        assert [columns.min(), rows.min(), columns.max(), rows.max()] == box


def test_progress_is_told_after_each_call() -> None:
    discs = Discs(230, 180, SCENE)
    steps, found = by_package(discs, OPTIONS, most_rows=10)
    assert [rows for _, rows, _ in discs.calls] == [10] * 14 + [4]
    assert [step.done for step in steps[:15]] == [*range(10, 141, 10), 144]
    assert {step.done for step in steps[15:]} == {144}  # the answer is put together
    assert {step.of for step in steps} == {144}
    assert steps[-1].masks == len(found)
    counts = [step.masks for step in steps]
    assert counts[0] < counts[-1]
    # In this picture nothing is revived at the end, so all of the answer was shown before.
    shown = {json.dumps(mask.rle()) for step in steps for mask in step.added.masks}
    assert {json.dumps(mask.rle()) for mask in found.masks} <= shown


def test_a_run_that_is_left_decodes_no_more() -> None:
    discs = Discs(230, 180, SCENE)
    running = run(OPTIONS, 230, 180, discs.open(OPTIONS))
    next(running)
    next(running)
    running.close()
    assert len(discs.calls) == 2


def test_a_crop_is_opened_when_it_is_due() -> None:
    discs = Discs(230, 180, SCENE)
    options = EverythingOptions(points_per_side=4, pred_iou_thresh=0.8, crop_n_layers=1)
    opened = []

    def open_crop(crop: tuple[int, int, int, int]) -> Any:
        opened.append(crop)
        return discs.open(options)(crop)

    running = run(options, 230, 180, open_crop)
    next(running)
    assert len(opened) == 1
    for _ in running:
        pass
    assert len(opened) == 5


def test_masks_are_refined_in_calls_of_their_own() -> None:
    discs = Discs(230, 180, SCENE)
    options = EverythingOptions(points_per_side=2, points_per_batch=4, pred_iou_thresh=0.8, use_m2m=True)
    steps, _ = by_package(discs, options, most_rows=5)
    whole = (0, 0, 230, 180)
    assert discs.calls == [(whole, 4, False), (whole, 5, True), (whole, 5, True), (whole, 2, True)]
    assert [step.done for step in steps[:4]] == [4] * 4


def test_few_bytes_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    discs = Discs(230, 180, SCENE)
    _, expected = by_package(discs, OPTIONS)
    monkeypatch.setattr(driver, "_HELD_BYTES", 9000)
    *steps, last = run(OPTIONS, 230, 180, discs.open(OPTIONS), most_rows=3)
    assert [mask.rle() for mask in last.found.masks] == [mask.rle() for mask in expected.masks]
    assert {type(mask) for step in steps for mask in step.found.masks} == {RunMask, LogitMask}


def test_an_engine_may_filter_by_itself() -> None:
    """Packed bits of a crop with their numbers are as good as logits."""
    discs = Discs(230, 180, SCENE)
    options = EverythingOptions(points_per_side=6, pred_iou_thresh=0.8, crop_n_layers=1)

    def open_crop(crop: tuple[int, int, int, int]) -> driver.Find:
        find = discs.open(options)(crop)
        x0, y0, x1, y1 = crop

        def packed(points: Any) -> Any:
            for found in find(points):
                bits = [np.packbits(mask.pixels()[y0:y1, x0:x1], axis=1) for mask in found.masks]
                masks = tuple(PackedMask(rows, Place(crop, 230, 180)) for rows in bits)
                yield found.with_masks(masks, found.areas, found.boxes)

        return packed

    *_, last = run(options, 230, 180, open_crop)
    _, expected = by_package(discs, options)
    assert records(last.found, "rle", 230, 180) == records(expected, "rle", 230, 180)


def test_nothing_to_find() -> None:
    discs = Discs(230, 180, ())
    for layers in (0, 1):
        options = EverythingOptions(
            points_per_side=4, pred_iou_thresh=0.8, crop_n_layers=layers, min_mask_region_area=9
        )
        _, found = by_package(discs, options)
        assert records(found, "rle", 230, 180) == {"everything": []}
        assert records(found, "labels", 230, 180)["labels"]["width"] == 230


def test_the_threshold_is_the_models() -> None:
    discs = Discs(230, 180, SCENE)
    options = EverythingOptions()
    with pytest.raises(ValueError, match="the model's"):
        next(run(options, 230, 180, discs.open(options)))


def test_a_region_keeps_whole_masks() -> None:
    discs = Discs(230, 180, SCENE)
    options = EverythingOptions(points_per_side=4, pred_iou_thresh=0.96, region=(90, 120, 110, 140))
    _, found = by_package(discs, options)
    assert len(found) == 1
    assert found.boxes[0].tolist() == pytest.approx([65, 95, 134, 164], abs=2)


# records


@pytest.mark.parametrize("form", ["rle", "png", "polygon", "labels"])
def test_records(form: str) -> None:
    discs = Discs(230, 180, SCENE)
    _, found = by_package(discs, OPTIONS)
    answer = records(found, form, 230, 180)
    assert len(answer["everything"]) == len(found)
    ious = [record["predicted_iou"] for record in answer["everything"]]
    assert ious == sorted(ious, reverse=True)
    for index, record in enumerate(answer["everything"]):
        assert record["crop_box"] == [0, 0, 230, 180]
        ((x, y),) = record["point_coords"]
        left, top, width, height = record["bbox"]
        assert left <= x <= left + width
        assert top <= y <= top + height
        assert 0.95 <= record["stability_score"] <= 1
        if form == "labels":
            assert record["label"] == index + 1
            assert "mask" not in record
        elif form == "polygon":
            assert len(record["mask"]["data"][0]) >= 6
        else:
            assert decode_mask(record["mask"]).sum() == record["area"]
    assert ("labels" in answer) == (form == "labels")
