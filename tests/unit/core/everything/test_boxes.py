"""Boxes: suppression and edges, against a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.everything import cut_off, naive_nms
from triton_sam.core.everything.boxes import suppress, touches_crop_edge

places = st.integers(0, 30)
boxes = st.tuples(places, places, places, places).map(
    lambda four: [min(four[0], four[2]), min(four[1], four[3]), max(four[0], four[2]), max(four[1], four[3])]
)
#: Few values, so that some are equal.
scored = st.lists(st.tuples(boxes, st.sampled_from([0.1, 0.5, 0.7, 0.9])), max_size=30)


@given(scored, st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0]))
def test_suppression_is_that_of_a_plain_loop(found: list[tuple[list[int], float]], threshold: float) -> None:
    rows = [box for box, _ in found]
    scores = [score for _, score in found]
    kept = suppress(np.array(rows, np.int64).reshape(-1, 4), np.array(scores), threshold)
    assert kept.tolist() == naive_nms(rows, scores, threshold)


def test_an_iou_equal_to_the_threshold_stays() -> None:
    rows = np.array([[0, 0, 10, 10], [0, 0, 7, 10], [0, 0, 8, 10]])
    assert suppress(rows, [0.9, 0.8, 0.7], 0.7).tolist() == [0, 1]


@given(st.lists(boxes, min_size=1, max_size=10), st.booleans())
def test_edges(rows: list[list[int]], scaled: bool) -> None:
    array = np.array(rows) * (10 if scaled else 1)
    for crop in ((0, 0, 300, 300), (0, 0, 150, 150), (100, 0, 250, 200), (15, 15, 285, 285)):
        expected = [cut_off(box, crop, (300, 300)) for box in array.tolist()]
        assert touches_crop_edge(array, crop, 300, 300).tolist() == expected
