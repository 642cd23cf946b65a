from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.export.families import FAMILIES, WITH_FEATURES
from tests.unit.export.small import small_network, small_spec
from triton_sam.export import parity_reference
from triton_sam.export.mask_choice import StabilityRule, possible_tokens, rule_of, stability_bounds
from triton_sam.export.parity_scenes import drawing, prompts

pytestmark = pytest.mark.torch

RULE = StabilityRule(delta=0.05, threshold=0.98)


def ramp(*unsure: float, sure: int = 100) -> Any:
    """Logits [1,n]: so many of 9, and these."""
    return np.array([[9.0] * sure + list(unsure)], np.float32)


def four(single: Any, scores: list[float]) -> tuple[Any, Any]:
    """[4,1,n] and [4]: the alternatives' logits do not matter."""
    return np.stack([single] + [np.zeros_like(single)] * 3), np.array(scores, np.float32)


@pytest.mark.parametrize(
    ("logits", "error", "expected"),
    [
        (ramp(), 0.0, (1.0, 1.0)),
        (ramp(0.0), 0.0, (100 / 101, 100 / 101)),  # between the thresholds
        (ramp(0.049), 0.002, (100 / 101, 1.0)),  # perhaps above both
        (ramp(0.051), 0.002, (100 / 101, 1.0)),
        (ramp(-0.051), 0.002, (100 / 101, 1.0)),  # perhaps below both
        (ramp(0.06, -0.06), 0.002, (1.0, 1.0)),
        (ramp(-3.0, sure=0), 0.0, (1.0, 1.0)),  # an empty mask is stable
        (ramp(-0.05, sure=0), 0.01, (0.0, 1.0)),
    ],
)
def test_bounds_of_the_stability(logits: Any, error: float, expected: tuple[float, float]) -> None:
    assert stability_bounds(logits, RULE.delta, error) == pytest.approx(expected)


SCORES = [0.1, 0.5, 0.7, 0.6]


@pytest.mark.parametrize(
    ("single", "logit_error", "score_error", "expected"),
    [
        (ramp(0.0), 1e-4, 1e-4, [0]),  # 0.990
        (ramp(0, 0, 0), 1e-4, 1e-4, [2]),  # 0.971
        (ramp(0, 0, 0), 1e-4, 0.06, [2, 3]),  # 0.6 and 0.7 may be equal
        (ramp(0, 0, 0), 1e-4, 0.2, [1, 2, 3]),
        (ramp(0, 0, 0.0499), 1e-3, 1e-4, [0, 2]),  # 0.971 or 0.981
        (ramp(0, 0, 0.0499), 1e-5, 1e-4, [2]),
        (ramp(0, 0, 0.0499), 1e-3, 0.06, [0, 2, 3]),
        (ramp(), np.nan, 1e-4, [0, 1, 2, 3]),  # the numbers themselves are refused
        (ramp(), 1e-4, np.inf, [0, 1, 2, 3]),
    ],
)
def test_possible_tokens(single: Any, logit_error: float, score_error: float, expected: list[int]) -> None:
    assert possible_tokens(RULE, *four(single, SCORES), logit_error, score_error) == expected


def test_exactly_at_the_threshold_both_are_possible() -> None:
    assert possible_tokens(RULE, *four(ramp(0, sure=49), SCORES), 0.0, 0.0) == [0, 2]


def test_without_a_rule_there_is_no_choice() -> None:
    assert possible_tokens(None, *four(ramp(0, 0, 0, 0, 0), SCORES), 9.0, 9.0) == [0]


@pytest.mark.parametrize("model_id", FAMILIES)
def test_networks_choose_among_the_possible(model_id: str) -> None:
    spec = small_spec(model_id)
    network, scene = small_network(spec), drawing(spec.side, seed=1)
    rule = rule_of(network)
    assert rule == (RULE if model_id in WITH_FEATURES else None)
    with torch.inference_mode():
        embeddings = parity_reference.embeddings_of(network, spec.architecture, scene.pixels)
    for case in prompts(scene, spec.side, seed=1):
        with torch.inference_mode():
            masks, scores = parity_reference.candidates(network, case, embeddings)
            mask, score = parity_reference.answer(network, case, embeddings, multimask=False)
        for row in range(len(masks)):
            possible = possible_tokens(rule, masks[row], scores[row], 0.0, 0.0)
            # Bit by bit on most processors; nothing else is promised.
            assert min(np.abs(masks[row, token] - mask[row, 0]).max() for token in possible) <= 1e-4 * mask.std()
            assert min(abs(scores[row, token] - score[row, 0]) for token in possible) <= 1e-4
