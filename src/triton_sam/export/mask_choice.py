"""Which of its masks a network may return as the single mask, given that its numbers are known only up to an error.

SAM 2 and 3 have a token for a single mask and three for alternatives. They return the first one's mask if it is stable,
that is if moving the threshold hardly changes its area, else the alternative with the best score. Near a tie the last
bit decides, so two correct computations may return different masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
#: Areas are whole numbers, but their quotient is rounded.
_QUOTIENT_ERROR = 1e-6


@dataclass(frozen=True, slots=True)
class StabilityRule:
    """The single mask's token is used if (area above ``delta``) / (area above ``-delta``) is at least ``threshold``."""

    delta: float
    threshold: float


def rule_of(network: Any) -> StabilityRule | None:
    """A network's own rule; None if the single mask is always that of its token (SAM 1)."""
    decoder = network.mask_decoder
    if not getattr(decoder, "dynamic_multimask_via_stability", False):
        return None
    return StabilityRule(decoder.dynamic_multimask_stability_delta, decoder.dynamic_multimask_stability_thresh)


def stability_bounds(logits: FloatArray, delta: float, error: float) -> tuple[float, float]:
    """(lowest, highest) stability of a mask whose logits are each known up to ``error``."""

    def area(threshold: float) -> int:
        return int((logits > threshold).sum())

    def quotient(inner: int, outer: int) -> float:
        return min(inner / outer, 1.0) if outer else 1.0

    lowest = quotient(area(delta + error), area(-delta - error))
    if not area(-delta + error):  # the mask may be empty, which counts as stable
        return lowest, 1.0
    return lowest, quotient(area(delta - error), area(-delta + error))


def possible_tokens(
    rule: StabilityRule | None, logits: FloatArray, scores: FloatArray, logit_error: float, score_error: float
) -> list[int]:
    """The tokens whose mask a correct computation may return; a single one if the choice is clear.

    Args:
        logits, scores: [4,h,w] and [4], the token of the single mask first.
        logit_error, score_error: largest difference of any number between the two computations.
    """
    if rule is None:
        return [0]
    if not (np.isfinite(logit_error) and np.isfinite(score_error)):
        return list(range(len(scores)))
    lowest, highest = stability_bounds(logits[0], rule.delta, logit_error)
    found = [0] if highest + _QUOTIENT_ERROR >= rule.threshold else []
    if lowest - _QUOTIENT_ERROR < rule.threshold:
        others = scores[1:]
        found += [1 + int(index) for index in np.flatnonzero(others >= others.max() - 2 * score_error)]
    return found
