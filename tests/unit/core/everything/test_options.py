"""Options of everything: defaults as published, and one clear sentence for each that is not valid."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.prompt_helpers import parse, refused
from triton_sam.core.everything.options import EverythingOptions, everything_from
from triton_sam.core.prompts import prompt_from_mapping
from triton_sam.errors import InvalidInput, Unsupported
from triton_sam.models.catalog import CATALOG

NAMES = EverythingOptions.__dataclass_fields__
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)


def test_defaults_are_the_published_ones() -> None:
    options = everything_from({})
    assert options == EverythingOptions(
        points_per_side=32,
        points_per_batch=64,
        pred_iou_thresh=None,
        stability_score_thresh=0.95,
        stability_score_offset=1.0,
        mask_threshold=0.0,
        box_nms_thresh=0.7,
        crop_n_layers=0,
        crop_nms_thresh=0.7,
        crop_overlap_ratio=512 / 1500,
        crop_n_points_downscale_factor=1,
        point_grids=None,
        min_mask_region_area=0,
        multimask_output=True,
        use_m2m=False,
        region=None,
    )
    assert everything_from(True) == options
    assert everything_from(None) is None
    assert everything_from(False) is None


def test_the_threshold_of_a_model_is_in_its_row() -> None:
    for spec in CATALOG.values():
        assert spec.pred_iou_thresh == (0.88 if spec.family == "sam1" else 0.8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"points_per_side": 10_000}, "points_per_side of everything is a whole number from 1 to 128, not 10000"),
        ({"points_per_side": 0}, "from 1 to 128, not 0"),
        ({"points_per_side": -4}, "not -4"),
        ({"points_per_side": True}, "not True"),
        ({"points_per_side": 32.0}, "whole number"),
        ({"points_per_side": "32"}, "not '32'"),
        ({"points_per_side": None}, "needs point_grids"),
        ({"points_per_batch": 0}, "from 1 to 1,024"),
        ({"pred_iou_thresh": -0.1}, "pred_iou_thresh of everything is a number from 0 to 1, not -0.1"),
        ({"pred_iou_thresh": float("nan")}, "not nan"),
        ({"stability_score_thresh": float("inf")}, "not inf"),
        ({"stability_score_offset": float("-inf")}, "not -inf"),
        ({"stability_score_thresh": True}, "not True"),
        ({"mask_threshold": 1e9}, "from -100 to 100"),
        ({"box_nms_thresh": 1.5}, "box_nms_thresh"),
        ({"crop_n_layers": 4}, "from 0 to 3"),
        ({"crop_overlap_ratio": 10**400}, "crop_overlap_ratio"),
        ({"min_mask_region_area": -1}, "min_mask_region_area"),
        ({"multimask_output": 1}, "multimask_output of everything is true or false, not 1"),
        ({"use_m2m": "yes"}, "use_m2m"),
        ({"points_per_sides": 16}, "did you mean points_per_side?"),
        ({"pred_iou_threshold": 0.5}, "did you mean pred_iou_thresh?"),
        ({"zzzz": 0.5}, "known are box_nms_thresh"),
        ({"region": [0, 0, 5]}, "region of everything is a box of four numbers"),
        ({"region": [0, 0, True, 5]}, "four numbers"),
        ({"region": [0, 0, float("nan"), 5]}, "four numbers"),
        ({"region": [5, 0, 5, 5]}, "inverted or empty"),
        ({"point_grids": 5}, "a list with a grid for each layer"),
        ({"point_grids": [[]]}, "grid 0 of point_grids"),
        ({"point_grids": [[[0.5]]]}, "point 0 of grid 0"),
        ({"point_grids": [[[0.5, 0.5], [0.5, 1.5]]]}, "point 1 of grid 0"),
        ({"point_grids": [[[0.5, False]]]}, "shares from 0 to 1"),
        ({"point_grids": [[[0.5, 0.5]], [[0.5, 0.5]]]}, "has 2 grids and crop_n_layers 0 needs 1"),
        ({"point_grids": [[[0.5, 0.5]]], "points_per_side": 8}, "not both"),
        ({"crop_n_layers": 3}, "would try 87,040 points and 65,536 are allowed"),
        ({"crop_n_layers": 2, "points_per_side": 3, "crop_n_points_downscale_factor": 2}, "no point for layer 2"),
        ([], "not a list"),
        ("all", "not a string"),
    ],
)
def test_refused_in_one_sentence(options: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        everything_from(options)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message


@given(st.dictionaries(st.sampled_from(sorted(NAMES)) | st.text(max_size=8), json_values, max_size=3))
def test_any_json_is_taken_or_refused_in_one_sentence(document: dict[str, Any]) -> None:
    try:
        options = everything_from(json.loads(json.dumps(document)))
    except InvalidInput as error:
        message = str(error)
    else:
        assert options is not None
        assert 1 <= options.points_in_all() <= 65_536
        return
    assert 0 < len(message) < 500
    assert "\n" not in message


def test_numpy_is_taken() -> None:
    options = everything_from(
        {"points_per_side": np.int64(8), "pred_iou_thresh": np.float32(0.5), "region": np.array([0, 0, 5, 5])}
    )
    assert options is not None
    assert (options.points_per_side, options.pred_iou_thresh, options.region) == (8, 0.5, (0, 0, 5, 5))
    grids = everything_from({"point_grids": [np.array([[0.25, 0.5]])]})
    assert grids is not None
    assert grids.point_grids == (((0.25, 0.5),),)
    assert grids.points_in_all() == 1


# in a prompt


def test_a_prompt_of_everything() -> None:
    prompt = parse({"everything": {"points_per_side": 8}})
    assert prompt.objects == ()
    assert prompt.format == "rle"
    assert prompt.everything == EverythingOptions(points_per_side=8)
    assert parse({"everything": {}, "format": "labels"}).format == "labels"
    assert parse({"points": [[1, 1]], "everything": None}).everything is None
    prompt.check_kinds({"points", "everything"}, "some:model")
    with pytest.raises(Unsupported, match="not everything"):
        prompt.check_kinds({"points"}, "some:model")


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"points": [[1, 1]]}, "points cannot be combined with everything"),
        ({"boxes": [[1, 1, 2, 2]]}, "boxes cannot"),
        ({"mask_input": [[0.0]]}, "mask_input cannot"),
        ({"objects": [{"points": [[1, 1]]}]}, "objects cannot"),
        ({"text": "cat"}, "text cannot"),
        ({"multimask": True}, "multimask_output"),
        ({"clean": 64}, "min_mask_region_area"),
        ({"format": "bits"}, "too large as bits: choose the format rle, png, polygon, labels"),
        ({"format": "logits"}, "too large as logits"),
        ({"format": "jpeg"}, "one of rle, png, polygon, labels, not 'jpeg'"),
        ({"format": []}, "not []"),
    ],
)
def test_what_everything_excludes(beside: dict[str, Any], words: str) -> None:
    refused({"everything": {}} | beside, words)


def test_labels_are_only_for_everything() -> None:
    refused({"points": [[1, 1]], "format": "labels"}, "format is one of png")


@pytest.mark.parametrize("region", [[-1, 0, 5, 5], [0, 0, 641, 5], [0, 0, 5, 481]])
def test_a_region_outside(region: list[float]) -> None:
    prompt = prompt_from_mapping({"everything": {"region": region}})
    with pytest.raises(InvalidInput, match=r"region .*outside the image of 640 x 480 pixels: clip it"):
        prompt.check_inside(640, 480)
    prompt_from_mapping({"everything": {"region": [0, 0, 640, 480]}}).check_inside(640, 480)
